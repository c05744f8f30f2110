"""Protects: a packed row gives each response the numbers it would get alone, whatever the batch and the padding."""

import random
from dataclasses import replace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from prefsel_ray.errors import PrefselError
from prefsel_ray.lm import packed
from prefsel_ray.lm.meter import ForwardMeter
from prefsel_ray.lm.packed import PromptBranches, branch_mask, iterate_packed, packed_forward
from prefsel_ray.lm.reference import LanguageModel, load
from prefsel_ray.lm.toy import toy_tokenizer


def tiny_qwen() -> LanguageModel:
    config = Qwen2Config(
        vocab_size=262,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(3)
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    return LanguageModel("tiny qwen2", model, toy_tokenizer(), 512, torch.device("cpu"), (2,), ForwardMeter())


@pytest.fixture(params=["llama", "qwen2"])
def lm(request, tmp_path):
    return load("toy:2x32", cache=tmp_path, device="cpu") if request.param == "llama" else tiny_qwen()


def make_items(seed: int, shapes: list[tuple[int, tuple[int, ...]]]) -> list[PromptBranches]:
    rng = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(262) for _ in range(count))  # pad and eos ids among them

    return [PromptBranches(tokens(prompt), tuple(tokens(n) for n in branches)) for prompt, branches in shapes]


ITEMS = make_items(
    0, [(5, (3, 7)), (1, (1,)), (20, (4, 4, 9)), (2, ()), (11, (0, 6)), (8, (5,)), (30, (2,)), (3, (12, 1))]
)


def alone(lm: LanguageModel, prompt, branch):
    """Reference: one sequence, no padding, no mask, the model's own logits."""
    ids = torch.tensor([[*prompt, *branch]])
    with torch.no_grad():
        logps = lm.model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
        states = lm.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0].float()
    first = len(prompt)
    taken = [logps[first - 1 + t, token].item() for t, token in enumerate(branch)]
    return torch.tensor(taken), states[first:], states[first - 1]


def assert_same(got, want, tolerance=1e-5):
    assert torch.allclose(got, want, rtol=0, atol=tolerance), (got - want).abs().max()


@pytest.mark.parametrize("side", ["right", "left"])
def test_every_branch_gets_what_it_would_get_alone(lm, side):
    outputs = packed_forward(lm, ITEMS, logprobs=True, states=True, padding_side=side)
    for item, output in zip(ITEMS, outputs, strict=True):
        assert len(output.logprobs) == len(output.states) == len(item.branches)
        assert_same(output.prompt_state, alone(lm, item.prompt, ())[2])
        for branch, logps, states in zip(item.branches, output.logprobs, output.states, strict=True):
            want_logps, want_states, _ = alone(lm, item.prompt, branch)
            assert logps.shape == (len(branch),)
            assert states.shape == (len(branch), 32)
            assert logps.dtype == states.dtype == torch.float32
            assert_same(logps, want_logps)
            assert_same(states, want_states)


@pytest.mark.parametrize("max_batch_tokens", [1, 40, 100])
def test_results_do_not_depend_on_who_shares_the_batch(lm, max_batch_tokens):
    together = packed_forward(lm, ITEMS, logprobs=True, states=True)
    apart = packed_forward(lm, ITEMS[::-1], logprobs=True, states=True, max_batch_tokens=max_batch_tokens)[::-1]
    for one, other in zip(together, apart, strict=True):
        for left, right in zip(one.logprobs + one.states, other.logprobs + other.states, strict=True):
            assert_same(left, right)


def test_a_batch_holds_no_more_slots_than_asked_unless_one_row_is_longer(lm):
    # Rows of 37, 17, 16 and 15 tokens with several branches; of 32, 13, 2 and 2 with one or none.
    packed_forward(lm, ITEMS, logprobs=False, states=True, max_batch_tokens=1)
    assert (lm.meter.calls, lm.meter.tokens, lm.meter.slots) == (8, 134, 134)
    lm.meter.reset()
    packed_forward(lm, ITEMS, logprobs=False, states=True, max_batch_tokens=60)
    assert (lm.meter.calls, lm.meter.tokens, lm.meter.slots) == (4, 134, 37 + 3 * 17 + 32 + 3 * 13)


def test_without_logprobs_the_output_head_is_never_called(lm):
    def forbidden(*_):
        raise AssertionError("the output head was called")

    handle = lm.model.get_output_embeddings().register_forward_hook(forbidden)
    outputs = packed_forward(lm, ITEMS, logprobs=False, states=True)
    handle.remove()
    assert all(output.logprobs is None for output in outputs)


def test_the_output_head_sees_only_positions_that_predict_a_branch_token(lm, monkeypatch):
    monkeypatch.setattr(packed, "LOGIT_SLOTS", 262 * 4)
    seen = []
    head = lm.model.get_output_embeddings()
    handle = head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[0]))
    chunked = packed_forward(lm, ITEMS, logprobs=True, states=False)
    handle.remove()
    assert max(seen) <= 4
    assert sum(seen) == 3 + 7 + 1 + 4 + 4 + 9 + 6 + 5 + 2 + 12 + 1
    assert all(output.states is None and output.prompt_state is None for output in chunked)
    assert_same(chunked[2].logprobs[2], alone(lm, ITEMS[2].prompt, ITEMS[2].branches[2])[0])


def test_the_outputs_can_be_used_to_train_a_head(lm):
    states = packed_forward(lm, ITEMS[:1], logprobs=False, states=True)[0].states[0]
    head = torch.nn.Linear(32, 1)
    head(states).sum().backward()
    assert torch.allclose(head.weight.grad[0], states.sum(0), atol=1e-5)


def test_an_output_that_is_kept_does_not_keep_the_whole_batch(lm):
    outputs = packed_forward(lm, ITEMS, logprobs=False, states=True)
    states = outputs[0].states[0]
    assert states.untyped_storage().nbytes() == (3 + 7) * 32 * 4
    assert outputs[0].prompt_state.untyped_storage().nbytes() == 32 * 4


def test_the_mask_shows_the_prompt_and_the_own_branch_and_leaves_no_slot_without_anything_to_see():
    mask = branch_mask(torch.tensor([[0, 0, 1, 2, 2, -1], [-1, 0, 0, 1, 2, 2]]), torch.float32)
    seen = (mask[:, 0] == 0).int().tolist()
    assert seen[0] == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
    assert seen[1] == [
        [1, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 1, 1, 0, 1, 0],
        [0, 1, 1, 0, 1, 1],
    ]


def test_padding_gives_no_nan_anywhere_in_the_model(lm):
    wide = make_items(1, [(40, (9, 9)), (1, (1, 1))])
    bad = []
    handles = [
        module.register_forward_hook(
            lambda module, inputs, output: bad.append(module) if not torch.isfinite(output).all() else None
        )
        for module in lm.model.modules()
        if type(module).__name__ in ("Linear", "LlamaRMSNorm", "Qwen2RMSNorm")
    ]
    for side in ("right", "left"):
        packed_forward(lm, wide, logprobs=True, states=True, padding_side=side)
    for handle in handles:
        handle.remove()
    assert handles and not bad


def test_iterating_gives_every_item_once(lm):
    pairs = dict(iterate_packed(lm, ITEMS, logprobs=False, states=True, max_batch_tokens=50))
    assert sorted(pairs) == list(range(len(ITEMS)))
    assert_same(pairs[4].prompt_state, alone(lm, ITEMS[4].prompt, ())[2])


def test_no_items_give_no_outputs(lm):
    assert packed_forward(lm, [], logprobs=True, states=True) == []
    assert lm.meter.calls == 0


def test_an_empty_prompt_and_a_branch_beyond_the_window_are_refused_by_number(lm):
    with pytest.raises(PrefselError, match="^item 1: the prompt has no tokens"):
        packed_forward(lm, [ITEMS[0], PromptBranches((), ((1,),))], logprobs=True, states=False)
    narrow = replace(lm, window=12)
    fits = make_items(2, [(5, (7, 7))])  # 19 tokens in the row, but no position beyond the twelfth
    assert len(packed_forward(narrow, fits, logprobs=True, states=False)) == 1
    with pytest.raises(PrefselError, match="item 0: prompt and response need 13 tokens but the window of .* is 12"):
        packed_forward(narrow, make_items(2, [(5, (8,))]), logprobs=True, states=False)


def test_an_unknown_padding_side_is_an_error(lm):
    with pytest.raises(ValueError, match="padding_side"):
        packed_forward(lm, ITEMS, logprobs=True, states=False, padding_side="middle")


def test_the_meter_adds_up_and_resets():
    meter = ForwardMeter()
    meter.add(10)
    meter.add(5, slots=8)
    assert (meter.tokens, meter.slots, meter.calls) == (15, 18, 2)
    meter.reset()
    assert (meter.tokens, meter.slots, meter.calls) == (0, 0, 0)
