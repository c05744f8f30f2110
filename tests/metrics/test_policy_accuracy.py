"""Protects every definition of policy accuracy against hand-computed scores and its stated invariances."""

import numpy as np
import pytest

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.policy_accuracy import PairTrace, grid_outcomes, policy_accuracy, scores, totals

# log p and rewards chosen so that each definition's score can be added up by eye.
PAIR = PairTrace([-1.0, -2.0], [-1.0, -1.0, -0.5], [0.5, 3.0], [1.0, 1.0, 2.0], 0.25)


@pytest.mark.parametrize(
    ("definition", "w", "chosen", "rejected"),
    [
        ("prefix_sum", 2.0, 4.0, 5.5),  # -3 + 2 * 3.5;  -2.5 + 2 * 4
        ("prefix_mean", 2.0, 2.0, 5.5 / 3),
        ("prefix_centred", 2.0, 3.0, 4.0),  # -3 + 2 * (3.5 - 0.5);  -2.5 + 2 * (4 - 0.75)
        ("terminal", 2.0, 3.0, 1.5),  # -3 + 2 * 3;  -2.5 + 2 * 2
        ("base", None, -3.0, -2.5),
        ("full", None, -3.0, -2.5),
        ("reward", None, 3.0, 2.0),
        ("length_shorter", None, -2.0, -3.0),
        ("length_longer", None, 2.0, 3.0),
    ],
)
def test_each_definition_gives_the_score_worked_out_by_hand(definition, w, chosen, rejected):
    first, second = scores([PAIR], definition, w)
    assert first == pytest.approx([chosen], abs=1e-12)
    assert second == pytest.approx([rejected], abs=1e-12)


def test_weight_zero_is_the_base_policy_for_every_sum():
    rows = grid_outcomes([PAIR], ["prefix_sum", "prefix_centred", "terminal", "base"], [0.0])
    assert {key: row.tolist() for key, row in rows.items()} == {
        ("prefix_sum", 0.0): [0.0],
        ("prefix_centred", 0.0): [0.0],
        ("terminal", 0.0): [0.0],
        ("base", None): [0.0],
    }


def _random_pairs(count: int) -> list[PairTrace]:
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(count):
        sizes = rng.integers(1, 12, 2)
        logprobs = [-rng.exponential(2.0, size) for size in sizes]
        rewards = [rng.normal(0.0, 1.0, size) for size in sizes]
        pairs.append(PairTrace(*logprobs, *rewards, float(rng.normal())))
    return pairs


def _shifted(pair: PairTrace, offset: float) -> PairTrace:
    return PairTrace(
        pair.logprobs_chosen,
        pair.logprobs_rejected,
        pair.rewards_chosen + offset,
        pair.rewards_rejected + offset,
        pair.reward_prompt + offset,
    )


def test_only_the_offset_free_definitions_ignore_a_constant_added_to_the_reward():
    pairs = _random_pairs(60)
    shifted = [_shifted(pair, 40.0) for pair in pairs]
    plain = grid_outcomes(pairs, ["prefix_sum", "prefix_centred", "terminal", "reward"], [1.0])
    moved = grid_outcomes(shifted, ["prefix_sum", "prefix_centred", "terminal", "reward"], [1.0])
    for key in [("prefix_centred", 1.0), ("terminal", 1.0), ("reward", None)]:
        assert np.array_equal(plain[key], moved[key])
    # A large offset makes prefix_sum rank by length, the artefact that the length control exposes.
    longer = grid_outcomes(pairs, ["length_longer"], [])[("length_longer", None)]
    unequal = longer != 50.0
    assert np.array_equal(moved[("prefix_sum", 1.0)][unequal], longer[unequal])
    assert not np.array_equal(plain[("prefix_sum", 1.0)], moved[("prefix_sum", 1.0)])


def test_the_two_length_controls_add_up_to_a_hundred_with_ties_at_half():
    pairs = _random_pairs(60)
    found = policy_accuracy(pairs, [f"u{i % 7}" for i in range(60)], ["length_shorter", "length_longer"], [])
    shorter, longer = found[("length_shorter", None)].micro, found[("length_longer", None)].micro
    assert shorter.value + longer.value == pytest.approx(100.0)
    assert shorter.n_ties == longer.n_ties == sum(len(p.logprobs_chosen) == len(p.logprobs_rejected) for p in pairs) > 0


def test_the_grid_equals_a_loop_over_pairs_weights_and_definitions():
    pairs = _random_pairs(40)
    grid = grid_outcomes(totals(pairs), ["prefix_sum", "prefix_mean", "terminal"], [0.1, 1.0, 10.0])
    for w in (0.1, 1.0, 10.0):
        for row, pair in enumerate(pairs):
            sides = [
                (list(pair.logprobs_chosen), list(pair.rewards_chosen)),
                (list(pair.logprobs_rejected), list(pair.rewards_rejected)),
            ]
            summed = [sum(p + w * r for p, r in zip(*side, strict=True)) for side in sides]
            means = [total / len(side[0]) for total, side in zip(summed, sides, strict=True)]
            last = [sum(side[0]) + w * side[1][-1] for side in sides]
            for name, (chosen, rejected) in {"prefix_sum": summed, "prefix_mean": means, "terminal": last}.items():
                assert grid[(name, w)][row] == (100.0 if chosen > rejected else 0.0)


def test_two_orders_of_the_same_tokens_tie():
    logprobs = [-0.1, -0.2, -0.3, -1e3, -1e-3]
    pair = PairTrace(logprobs, logprobs[::-1], [0.1] * 5, [0.1] * 5, 0.0)
    rows = grid_outcomes([pair], ["prefix_sum", "prefix_mean", "terminal", "base"], [0.3])
    assert {row[0] for row in rows.values()} == {50.0}


def test_a_nan_in_a_trace_drops_that_pair_and_counts_it():
    broken = PairTrace([-1.0], [-1.0], [float("nan")], [0.0], 0.0)
    found = policy_accuracy([PAIR, broken], ["a", "b"], ["terminal", "base"], [1.0])
    assert (found[("terminal", 1.0)].micro.n, found[("terminal", 1.0)].micro.n_dropped) == (1, 1)
    assert found[("base", None)].micro.n == 2


@pytest.mark.parametrize(
    ("traces", "definition", "w", "message"),
    [
        ([PAIR], "prefix", 1.0, "unknown policy accuracy 'prefix'"),
        ([PAIR], "terminal", None, "needs a weight"),
        ([PAIR], "base", 1.0, "takes no weight"),
        ([PairTrace([-1.0], [-1.0])], "terminal", 1.0, "needs rewards"),
        ([PairTrace([-1.0], [-1.0], [1.0], [1.0])], "prefix_centred", 1.0, "needs reward_prompt"),
        ([PAIR, PairTrace([-1.0], [])], "base", None, "trace 1: logprobs_rejected is empty"),
        ([PairTrace([-1.0, -1.0], [-1.0], [1.0], [1.0])], "base", None, "trace 0: rewards_chosen has 1 numbers"),
        ([PairTrace([-1.0], [-1.0], [1.0], None)], "base", None, "one side of the pair only"),
    ],
)
def test_a_wrong_request_names_what_is_wrong(traces, definition, w, message):
    with pytest.raises(PrefselError, match=message):
        scores(traces, definition, w)
