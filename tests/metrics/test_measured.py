"""Protects the numbers beside every metric: n, ties, dropped rows, intervals over users, spread over seeds."""

import numpy as np
import pytest

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.measured import Measured, bootstrap_over_users, macro_mean, mean_over_seeds, micro_mean


def _population(users: int, rows: int, user_sd: float, seed: int) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    level = rng.normal(50.0, user_sd, users)
    values = (level[:, None] + rng.normal(0.0, 1.0, (users, rows))).ravel()
    return values, [f"u{user}" for user in range(users) for _ in range(rows)]


def test_a_measured_refuses_nan_and_a_missing_value_without_a_reason():
    with pytest.raises(ValueError, match="missing number is None"):
        Measured(float("nan"), 3)
    with pytest.raises(ValueError, match="needs a note"):
        Measured(None, 0)


def test_the_micro_mean_weighs_rows_and_the_macro_mean_weighs_users():
    values, users = [100, 100, 100, 0], ["a", "a", "a", "b"]
    assert micro_mean(values, users).value == 75.0
    macro = macro_mean(values, users)
    assert (macro.value, macro.n) == (50.0, 4)
    assert macro.ci_low is None
    assert macro.note == "mean over 2 users; no interval: fewer than 5 users"


def test_missing_rows_are_dropped_and_counted_never_filled():
    measured = micro_mean([10.0, None, float("nan"), float("inf"), 30.0], ["a", "a", "b", "b", "c"])
    assert (measured.value, measured.n, measured.n_dropped) == (20.0, 2, 3)


def test_no_row_with_a_value_gives_none_and_the_reason():
    measured = micro_mean([None, None], ["a", "b"])
    assert (measured.value, measured.n, measured.n_dropped) == (None, 0, 2)
    assert measured.note == "no row has a value"
    assert micro_mean([], []).value is None


def test_the_interval_matches_a_loop_that_resamples_whole_users():
    values, users = _population(users=12, rows=5, user_sd=6.0, seed=1)
    by_user = [[v for v, name in zip(values, users, strict=True) if name == user] for user in sorted(set(users))]
    rng = np.random.default_rng(99)
    means = []
    for _ in range(4000):
        drawn = [by_user[i] for i in rng.integers(0, 12, 12)]
        means.append(np.mean([v for rows in drawn for v in rows]))
    low, high = np.percentile(means, [2.5, 97.5])
    interval = bootstrap_over_users(values, users, seed=0, n_boot=4000)
    assert abs(interval.low - low) < 0.25
    assert abs(interval.high - high) < 0.25


def test_the_interval_covers_the_true_mean_about_19_times_in_20():
    hits = 0
    for seed in range(200):
        values, users = _population(users=30, rows=4, user_sd=8.0, seed=seed)
        interval = bootstrap_over_users(values, users, n_boot=400)
        hits += interval.low <= 50.0 <= interval.high
    assert 178 <= hits <= 198  # 95 % of 200, less the percentile method's small shortfall


def test_rows_of_one_user_widen_the_interval_as_they_are_not_independent():
    values, users = _population(users=20, rows=20, user_sd=8.0, seed=3)
    over_users = bootstrap_over_users(values, users)
    as_if_independent = bootstrap_over_users(values, [str(row) for row in range(len(values))])
    assert over_users.high - over_users.low > 2 * (as_if_independent.high - as_if_independent.low)


def test_the_interval_does_not_depend_on_row_order_and_repeats_with_its_seed():
    values, users = _population(users=9, rows=3, user_sd=5.0, seed=5)
    order = np.random.default_rng(0).permutation(len(values))
    plain = bootstrap_over_users(values, users, seed=7)
    shuffled = bootstrap_over_users(values[order], [users[i] for i in order], seed=7)
    assert np.allclose([plain.low, plain.high], [shuffled.low, shuffled.high], atol=1e-12)
    assert plain.low != bootstrap_over_users(values, users, seed=8).low


def test_with_too_few_users_rows_are_resampled_and_the_note_says_so():
    interval = bootstrap_over_users([0.0, 100.0] * 20, ["a"] * 40)
    assert interval.note == "interval over rows: 1 user"
    assert 30 < interval.low < 40 < 60 < interval.high < 70  # 50 +- 1.96 * 50 / sqrt(40)
    assert bootstrap_over_users([100.0], ["a"]).note == "no interval: 1 row"


def test_users_and_rows_must_match():
    with pytest.raises(PrefselError, match="2 rows but 1 users"):
        micro_mean([1.0, 2.0], ["a"])


def test_the_mean_over_seeds_carries_the_sample_standard_deviation():
    # Seeds' means 50, 60, 70: sample standard deviation 10.
    measured = mean_over_seeds([[0, 100], [20, 100], [40, 100]], ["a", "b"])
    assert (measured.value, measured.n) == (60.0, 2)
    assert measured.note.startswith("sd 10.00 over 3 seeds")


def test_a_row_missing_in_one_seed_is_dropped_from_all_so_that_seeds_are_compared_on_the_same_rows():
    measured = mean_over_seeds([[0, 100, 90], [20, 100, None]], ["a", "b", "c"])
    assert (measured.value, measured.n, measured.n_dropped) == (55.0, 2, 1)
    assert "sd 7.07 over 2 seeds" in measured.note


def test_the_macro_mean_over_seeds_takes_users_equally():
    measured = mean_over_seeds([[100, 100, 0], [100, 100, 50]], ["a", "a", "b"], summarise=macro_mean)
    assert measured.value == 62.5  # seeds 50 and 75
    assert measured.note.startswith("sd 17.68 over 2 seeds; mean over 2 users")


def test_ties_of_any_seed_are_counted_once():
    ties = np.array([[True, False, False], [True, True, False]])
    measured = mean_over_seeds([[50, 100, 0], [50, 50, 0]], ["a", "b", "c"], ties=ties)
    assert measured.n_ties == 2


def test_one_seed_says_so_and_seeds_of_different_length_are_refused():
    assert mean_over_seeds([[1.0, 2.0]], ["a", "b"]).note.startswith("1 seed")
    with pytest.raises(PrefselError, match="same examples"):
        mean_over_seeds([[1.0], [1.0, 2.0]], ["a"])
