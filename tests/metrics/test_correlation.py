"""Protects correlations: right values with ties, no value where none is defined, an interval that respects methods."""

import numpy as np
import pytest
from scipy import stats

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.correlation import correlations, weighted_correlations

METHODS = ["a", "b", "c", "d", "e"]


def test_values_match_numbers_worked_out_by_hand():
    found = correlations([1, 2, 3, 4, 5], [1, 3, 2, 4, 5], METHODS)
    assert found["kendall"].value == pytest.approx(0.8)  # 9 pairs agree, 1 does not, of 10
    assert found["spearman"].value == pytest.approx(0.9)  # 1 - 6 * 2 / (5 * 24)
    assert found["pearson"].value == pytest.approx(0.9)  # the values are their own ranks
    assert found["kendall"].n == 5


def test_float_noise_does_not_break_a_tie():
    # With 0.1 + 0.2 above 0.3, tau is 0.33; with the tie it is 2 / sqrt(2 * 3) = 0.82 on these three and a fourth.
    noisy = correlations([0.1 + 0.2, 0.3, 0.4, 0.5], [2, 1, 3, 4], METHODS[:4])["kendall"]
    clean = correlations([0.3, 0.3, 0.4, 0.5], [2, 1, 3, 4], METHODS[:4])["kendall"]
    assert noisy.value == clean.value == pytest.approx(5 / np.sqrt(5 * 6))
    assert noisy.n_ties == 1


def test_values_are_rounded_to_the_given_resolution_before_ranking():
    # Accuracies over 200 pairs move in steps of 0.25: 80.10 and 79.95 are the same.
    found = correlations([80.10, 79.95, 85.0, 90.0], [1, 2, 3, 4], METHODS[:4], x_resolution=0.25)
    assert found["kendall"].n_ties == 1


def test_fewer_than_four_points_have_no_correlation_and_the_note_says_how_many():
    found = correlations([1, 2, None, 4], [1, 2, 3, 4], METHODS[:4])
    assert all(m.value is None and m.note == "3 points; a correlation needs 4" for m in found.values())
    assert found["pearson"].n_dropped == 1


def test_a_constant_side_has_no_correlation_rather_than_nan_or_zero():
    found = correlations([80.0] * 5, [1, 2, 3, 4, 5], METHODS)
    assert all(m.value is None and m.note == "constant x over 5 points" for m in found.values())
    assert correlations([], [], [])["kendall"].note == "0 points; a correlation needs 4"


def test_weighted_resamples_equal_scipy_on_the_points_written_out():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, 9).astype(float), rng.integers(0, 6, 9).astype(float)
    weights = rng.multinomial(9, np.full(9, 1 / 9), size=40).astype(float)
    found = weighted_correlations(x, y, weights)
    for row, counts in enumerate(weights):
        points = np.repeat(np.arange(9), counts.astype(int))
        if len(set(x[points])) < 2 or len(set(y[points])) < 2:
            assert np.isnan([found[kind][row] for kind in found]).all()
            continue
        assert found["kendall"][row] == pytest.approx(stats.kendalltau(x[points], y[points]).statistic, abs=1e-9)
        assert found["spearman"][row] == pytest.approx(stats.spearmanr(x[points], y[points]).statistic, abs=1e-9)
        assert found["pearson"][row] == pytest.approx(stats.pearsonr(x[points], y[points]).statistic, abs=1e-9)


def test_copies_of_a_method_as_seeds_do_not_narrow_the_interval():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=8), rng.normal(size=8)
    methods = [f"m{i}" for i in range(8)]
    single = correlations(x, y, methods)["kendall"]
    tripled = correlations(np.tile(x, 3), np.tile(y, 3), methods * 3)["kendall"]
    assert (tripled.n, single.n) == (24, 8)
    assert tripled.value == pytest.approx(single.value)
    width = single.ci_high - single.ci_low
    assert abs((tripled.ci_high - tripled.ci_low) - width) < 0.1 * width


def test_the_interval_does_not_depend_on_the_order_of_points():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=12), rng.normal(size=12)
    methods = [f"m{i % 6}" for i in range(12)]
    order = rng.permutation(12)
    assert correlations(x, y, methods) == correlations(x[order], y[order], [methods[i] for i in order])


def test_with_few_methods_points_are_resampled_and_the_note_says_so():
    found = correlations([1, 2, 3, 4, 6, 5], [1, 2, 4, 3, 5, 6], ["a", "a", "a", "b", "b", "b"])
    assert found["spearman"].note.startswith("interval over points: 2 methods")
    assert found["spearman"].ci_low is not None


def test_constant_resamples_are_left_out_and_counted():
    # One method differs: a resample without it is constant, (4/5)^5 = 33 % of them, and so is all of it, 0.03 %.
    found = correlations([1, 1, 1, 1, 2], [1, 2, 3, 4, 5], METHODS)["pearson"]
    lost = int(found.note.split(" of ")[0])
    assert 270 <= lost <= 390
    assert found.note.endswith("of 1000 resamples constant, left out")


def test_unequal_lengths_are_refused():
    with pytest.raises(PrefselError, match="one of each a point"):
        correlations([1, 2], [1], ["a", "b"])
