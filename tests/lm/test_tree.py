"""Protects the tree of prefixes: whatever way a row was read, its states equal an uncached pass over its tokens."""

import pytest
import torch

from prefsel_ray.errors import PrefselError
from prefsel_ray.lm import tree as tree_module
from prefsel_ray.lm.tree import prefill, row_chunks
from tests.decoding.naive import naive_state, ragged_prompts, tiny_llama, tiny_qwen2

TOLERANCE = 5e-6  # float32, states up to 2.8; measured for prefill: 1.0e-6


def _close(left, right):
    return torch.allclose(left, right, atol=TOLERANCE, rtol=0)


@pytest.fixture(params=[tiny_llama, tiny_qwen2], ids=["llama", "qwen2"])
def lm(request):
    return request.param()


def test_prefill_of_ragged_prompts_equals_each_prompt_alone(lm):
    prompts = ragged_prompts([4, 1, 23, 9])
    tree, states = prefill(lm, prompts, spare=1)
    assert tree.lengths == [4, 1, 23, 9]
    for prompt, state in zip(prompts, states, strict=True):
        assert _close(state, naive_state(lm, prompt))


def test_prefill_in_several_passes_equals_one_pass(lm, monkeypatch):
    prompts = ragged_prompts([3, 5, 8, 8, 30])
    _, whole = prefill(lm, prompts, spare=1)
    assert lm.meter.calls == 1
    monkeypatch.setitem(tree_module.PASS_TOKENS, "cpu", 12)
    tree, states = prefill(lm, prompts, spare=1)
    assert lm.meter.calls == 1 + 4  # 3 and 5, 8, 8, and 30, which is beyond the limit by itself
    assert _close(states, whole)
    after = tree.extend(slice(0, 5), torch.tensor([9, 10, 11, 12, 13]))
    for row, prompt in enumerate(prompts):
        assert _close(after[row], naive_state(lm, [*prompt, 9 + row]))


def test_prefill_computes_no_logits(lm):
    lm.model.lm_head.forward = None  # a call would fail
    prefill(lm, ragged_prompts([4, 6]), spare=1)


def test_leaves_see_their_row_and_not_each_other(lm):
    prompts = ragged_prompts([6, 2, 15])
    tree, _ = prefill(lm, prompts, spare=4)
    leaves = torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]])
    states = tree.leaves(slice(0, 3), leaves)
    for row, prompt in enumerate(prompts):
        for leaf in range(4):
            assert _close(states[row, leaf], naive_state(lm, [*prompt, int(leaves[row, leaf])]))


def test_a_row_goes_on_from_the_leaf_that_was_kept(lm):
    prompts = ragged_prompts([6, 2, 15])
    tree, _ = prefill(lm, prompts, spare=4)
    tree.leaves(slice(0, 3), torch.tensor([[10, 11, 12], [20, 21, 22], [30, 31, 32]]))
    tree.commit([2, 0, 1])
    tree.advance()
    assert tree.lengths == [7, 3, 16]
    after = tree.extend(slice(0, 3), torch.tensor([40, 41, 42]))
    for row, tokens in enumerate([[12, 40], [20, 41], [31, 42]]):
        assert _close(after[row], naive_state(lm, prompts[row] + tokens))


def test_forked_rows_keep_their_own_cache_and_dropped_rows_leave_no_trace(lm):
    prompts = ragged_prompts([6, 2, 15])
    tree, _ = prefill(lm, prompts, rows=4, spare=5)
    tree.leaves(slice(0, 3), torch.tensor([[10, 11, 12], [20, 21, 22], [30, 31, 32]]))
    tree.select([0, 2, 0, 2], scratch=3)  # row 1 leaves, rows 0 and 2 fork
    tree.commit([0, 1, 2, 0])
    tree.advance()
    assert tree.lengths == [7, 16, 7, 16]
    after = tree.extend(slice(0, 4), torch.tensor([40, 41, 42, 43]))
    wanted = [prompts[0] + [10, 40], prompts[2] + [31, 41], prompts[0] + [12, 42], prompts[2] + [30, 43]]
    for row, ids in enumerate(wanted):
        assert _close(after[row], naive_state(lm, ids))


def test_extending_some_rows_leaves_the_others_as_they_were(lm):
    prompts = ragged_prompts([6, 9])
    tree, _ = prefill(lm, prompts, spare=3)
    tree.leaves(slice(0, 1), torch.tensor([[10, 11]]))
    tree.commit([1])
    state = tree.extend(slice(1, 2), torch.tensor([50]))
    tree.advance()
    assert _close(state[0], naive_state(lm, [*prompts[1], 50]))
    after = tree.extend(slice(0, 2), torch.tensor([60, 61]))
    assert _close(after[0], naive_state(lm, [*prompts[0], 11, 60]))
    assert _close(after[1], naive_state(lm, [*prompts[1], 50, 61]))


def test_branches_see_the_prompt_and_themselves_and_the_row_then_goes_on_as_if_they_had_not_been(lm):
    prompts = ragged_prompts([5, 12])
    branches = [[[10, 11, 12], [13]], [[], [20, 21, 22, 23, 24]]]
    tree, _ = prefill(lm, prompts, spare=5)
    states = tree.branches(slice(0, 2), branches)
    assert [[len(own) for own in row] for row in states] == [[3, 1], [0, 5]]
    for row, prompt in enumerate(prompts):
        for branch, own in zip(branches[row], states[row], strict=True):
            for t, state in enumerate(own):
                assert _close(state, naive_state(lm, prompt + branch[: t + 1]))
    after = tree.extend(slice(0, 2), torch.tensor([60, 61]))
    assert _close(after[0], naive_state(lm, [*prompts[0], 60]))
    assert _close(after[1], naive_state(lm, [*prompts[1], 61]))


def test_the_meter_counts_real_tokens_and_padded_slots():
    lm = tiny_llama()
    tree, _ = prefill(lm, ragged_prompts([4, 6]), spare=3)
    assert (lm.meter.tokens, lm.meter.slots, lm.meter.calls) == (10, 12, 1)
    tree.leaves(slice(0, 2), torch.tensor([[7, 8, 9], [7, 8, 9]]))
    assert (lm.meter.tokens, lm.meter.slots, lm.meter.calls) == (16, 18, 2)
    tree.branches(slice(0, 2), [[[7, 8, 9]], [[7]]])
    assert (lm.meter.tokens, lm.meter.slots, lm.meter.calls) == (20, 24, 3)


@pytest.mark.parametrize("length", [0, 4097])
def test_a_prompt_that_is_empty_or_beyond_the_window_is_refused(length):
    with pytest.raises(PrefselError, match=f"prompt 2 has {length} tokens; tiny-llama takes 1 to 4096"):
        prefill(tiny_llama(), [[5], [5] * length], spare=1)


def test_row_chunks_bound_the_padded_size():
    assert row_chunks([2, 3, 3, 9, 1], max_tokens=9) == [slice(0, 3), slice(3, 4), slice(4, 5)]
    assert row_chunks([], max_tokens=9) == []
