"""Protects the win rate: ties at half and shown, equal texts tie whatever their scores, missing scores are dropped."""

import numpy as np
import pytest

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.win_rate import win_outcomes, win_rate


def test_a_win_is_100_a_tie_50_and_a_loss_0():
    assert win_outcomes([2.0, 1.0, 0.0], [1.0, 1.0, 1.0], ["a", "b", "c"], ["x", "y", "z"]).tolist() == [100, 50, 0]


def test_equal_texts_tie_even_where_rounding_moved_their_scores():
    assert win_outcomes([1.0, 3.0], [1.0 + 1e-5, 2.0], ["same", "new"], ["same", "old"]).tolist() == [50, 100]


def test_a_missing_score_is_dropped_and_counted():
    measured = win_rate([2.0, None, 0.0], [1.0, 1.0, float("nan")], list("abc"), list("xyz"), ["u", "v", "w"])
    assert (measured.value, measured.n, measured.n_dropped) == (100.0, 1, 2)
    assert "2 rows without both scores" in measured.note


def test_ties_and_equal_texts_are_counted():
    users = [f"u{i}" for i in range(6)]
    measured = win_rate([1, 1, 2, 2, 0, 5], [1, 1, 1, 1, 1, 1], list("abcdef"), list("axyzzz"), users)
    assert (measured.value, measured.n, measured.n_ties) == (pytest.approx(100 * 4 / 6), 6, 2)
    assert "1 of 6 texts equal" in measured.note
    assert 0 <= measured.ci_low <= measured.value <= measured.ci_high <= 100


def test_unequal_lengths_are_refused():
    with pytest.raises(PrefselError, match="2 scores, 1 guided and 2 plain texts"):
        win_outcomes(np.array([1.0, 2.0]), np.array([1.0, 2.0]), ["a"], ["x", "y"])
