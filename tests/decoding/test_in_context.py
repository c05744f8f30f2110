"""Protects in-context tracing: one reading of the prompt gives the log-probs and the text of separate uncached runs."""

import pytest
import torch

from prefsel_ray.decoding import in_context as in_context_module
from prefsel_ray.decoding.guides import HeadGuide
from prefsel_ray.decoding.in_context import InContextItem, write_and_trace
from prefsel_ray.errors import PrefselError
from tests.decoding.naive import naive_args, naive_logprobs, ragged_prompts, tiny_llama, tiny_qwen2

PROMPTS = [tuple(prompt) for prompt in ragged_prompts([12, 3, 40, 7])]
BRANCHES = [((10, 11, 12, 2), (13, 2)), ((20, 2), (21, 22, 2)), ((30, 31, 2), (2,)), ((40, 41, 42, 43, 2), (44, 2))]
ITEMS = [InContextItem(p, b, write=i != 1) for i, (p, b) in enumerate(zip(PROMPTS, BRANCHES, strict=True))]


def _naive_branch(lm, prompt, branch):
    ids, found = list(prompt), []
    for token in branch:
        found.append(float(naive_logprobs(lm, ids)[token]))
        ids.append(token)
    return torch.tensor(found)


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen2], ids=["llama", "qwen2"])
def test_log_probs_and_text_equal_separate_uncached_runs(make):
    lm = make()
    outputs = write_and_trace(lm, ITEMS, 9)
    for item, output in zip(ITEMS, outputs, strict=True):
        for branch, own in zip(item.branches, output.logprobs, strict=True):
            assert own.dtype == torch.float32
            assert torch.allclose(own, _naive_branch(lm, item.prompt_ids, branch), atol=5e-6, rtol=0)
    assert outputs[1].decoded is None
    for i in (0, 2, 3):
        wanted = naive_args(lm, PROMPTS[i], HeadGuide("policy", None, 0.0), k=1, max_new_tokens=9)
        assert (outputs[i].decoded.ids, outputs[i].decoded.finished) == wanted


def test_the_prompt_is_read_once_and_last_tokens_not_at_all():
    lm = tiny_llama(eos_ids=(-1,))
    write_and_trace(lm, ITEMS, 9)
    prompts, branches, text = 12 + 3 + 40 + 7, (3 + 1) + (1 + 2) + (2 + 0) + (4 + 1), 3 * 8
    assert lm.meter.tokens == prompts + branches + text


def test_batches_change_nothing_but_rounding(monkeypatch):
    lm = tiny_llama()
    whole = write_and_trace(lm, ITEMS, 9)
    monkeypatch.setattr(in_context_module, "MAX_CACHE_SLOTS", 60)
    monkeypatch.setattr(in_context_module, "MAX_LOGITS", 262)  # one state a block
    cut = write_and_trace(lm, ITEMS[::-1], 9, max_rows=2)[::-1]
    for left, right in zip(whole, cut, strict=True):
        assert left.decoded == right.decoded
        for a, b in zip(left.logprobs, right.logprobs, strict=True):
            assert torch.allclose(a, b, atol=5e-6, rtol=0)


def test_items_without_branches_or_text_are_allowed():
    outputs = write_and_trace(
        tiny_llama(), [InContextItem(PROMPTS[0], (), False), InContextItem(PROMPTS[1], ((),), True)], 2
    )
    assert outputs[0].logprobs == () and outputs[0].decoded is None
    assert outputs[1].logprobs[0].tolist() == [] and len(outputs[1].decoded.ids) == 2
    assert write_and_trace(tiny_llama(), [], 2) == []


def test_an_item_beyond_the_window_is_refused_with_its_number():
    items = [ITEMS[0], InContextItem((5,) * 4000, ((6,) * 97,), False)]
    with pytest.raises(PrefselError, match="in-context item 2 has 4000 prompt tokens and needs 97 after them"):
        write_and_trace(tiny_llama(), items, 9)
