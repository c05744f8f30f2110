"""Protects the one rule for right, tie and wrong that accuracies and win rates share."""

import numpy as np
import pytest

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.ranking import accuracy, is_tie, outcomes
from prefsel_ray.metrics.win_rate import win_outcomes, win_rate


def test_a_tie_counts_half_and_is_shown():
    result = accuracy([2.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], ["a", "b", "c", "d"]).micro
    assert (result.value, result.n, result.n_ties) == (50.0, 4, 2)


def test_float_noise_does_not_break_a_tie_and_a_real_float32_difference_does():
    assert outcomes([0.1 + 0.2], [0.3]).tolist() == [50.0]
    one = np.float32(-100.0)
    assert outcomes([np.nextafter(one, np.float32(0))], [one]).tolist() == [100.0]
    assert outcomes([0.0], [0.0]).tolist() == [50.0]


def test_scores_that_are_missing_or_not_finite_are_dropped_and_counted():
    result = accuracy([1.0, None, float("nan"), 3.0], [0.0, 1.0, 1.0, float("inf")], ["a", "b", "c", "d"]).micro
    assert (result.value, result.n, result.n_dropped) == (100.0, 1, 3)
    assert "3 pairs without a finite score on both sides" in result.note


def test_micro_and_macro_differ_where_users_have_unequal_numbers_of_pairs():
    result = accuracy([1, 1, 1, 0], [0, 0, 0, 1], ["a", "a", "a", "b"])
    assert (result.micro.value, result.macro.value) == (75.0, 50.0)


def test_all_pairs_tied_is_half_and_not_a_crash():
    result = accuracy([1.0] * 6, [1.0] * 6, list("abcdef")).micro
    assert (result.value, result.n_ties, result.ci_low, result.ci_high) == (50.0, 6, 50.0, 50.0)


def test_outcomes_work_on_seeds_by_pairs_and_refuse_unequal_shapes():
    seeds = outcomes([[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]])
    assert seeds.tolist() == [[100.0, 0.0], [50.0, 100.0]]
    assert is_tie(seeds).tolist() == [[False, False], [True, False]]
    with pytest.raises(PrefselError, match="one a pair"):
        outcomes([1.0, 2.0], [1.0])


def test_equal_texts_tie_in_the_win_rate_whatever_their_scores_last_digits():
    result = win_rate([1.0001, 5.0, 0.0], [1.0, 1.0, 1.0], ["same", "x", "y"], ["same", "p", "q"], ["a", "b", "c"])
    assert (result.value, result.n, result.n_ties) == (50.0, 3, 1)
    assert result.note.startswith("1 of 3 texts equal")


def test_a_missing_score_stays_missing_even_where_the_texts_are_equal():
    assert np.isnan(win_outcomes([None], [1.0], ["a"], ["a"])[0])
    with pytest.raises(PrefselError, match="one of each a row"):
        win_outcomes([1.0], [1.0], ["a", "b"], ["a"])
