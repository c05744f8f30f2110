"""Which of two scores is higher: outcomes per pair, and accuracy with ties at half.

Used for reward-model accuracy, for every definition of policy accuracy and for win rates, so that all follow one rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.measured import N_BOOT, Measured, as_floats, check_rows, macro_mean, micro_mean

# Scores are sums in float64 of float32 numbers: their order of summation moves them by about 1e-15 of their size, while
# real differences of float32 scores are 1e-7 of it or more. A band between the two keeps 0.1 + 0.2 equal to 0.3.
TIE_RTOL = 1e-9
TIE_ATOL = 1e-12

RIGHT, TIE, WRONG = 100.0, 50.0, 0.0  # per cent


@dataclass(frozen=True)
class Accuracy:
    """Per cent: `micro` is the mean over pairs, `macro` the mean over users of each user's own accuracy."""

    micro: Measured
    macro: Measured


def outcomes(
    chosen_scores: Sequence[float | None] | np.ndarray, rejected_scores: Sequence[float | None] | np.ndarray
) -> np.ndarray:
    """[N] float64 per cent: 100 where the chosen side scores higher, 50 for a tie, 0 where it scores lower, NaN where
    either score is missing or not finite. Also broadcasts over leading axes. Raises PrefselError on unequal shapes.
    """
    chosen, rejected = as_floats(chosen_scores), as_floats(rejected_scores)
    if chosen.shape != rejected.shape:
        raise PrefselError(
            f"outcomes: {chosen.shape} chosen scores but {rejected.shape} rejected ones; give one a pair"
        )
    result = np.where(chosen > rejected, RIGHT, WRONG)
    result[np.isclose(chosen, rejected, rtol=TIE_RTOL, atol=TIE_ATOL)] = TIE
    result[np.isnan(chosen) | np.isnan(rejected)] = np.nan
    return result


def is_tie(row_outcomes: np.ndarray) -> np.ndarray:
    """Bool, same shape: which outcomes are ties (for `mean_over_seeds(..., ties=)`)."""
    return row_outcomes == TIE


def accuracy(
    chosen_scores: Sequence[float | None] | np.ndarray,
    rejected_scores: Sequence[float | None] | np.ndarray,
    users: Sequence[str],
    *,
    seed: int = 0,
    n_boot: int = N_BOOT,
) -> Accuracy:
    """Accuracy in per cent of N pairs; ties count half and are shown, pairs without both scores are dropped."""
    return accuracy_of(outcomes(chosen_scores, rejected_scores), users, seed=seed, n_boot=n_boot)


def accuracy_of(row_outcomes: np.ndarray, users: Sequence[str], *, seed: int = 0, n_boot: int = N_BOOT) -> Accuracy:
    """Accuracy from the [N] outcomes of `outcomes`."""
    names = check_rows("accuracy", len(row_outcomes), users)
    n_ties = int(is_tie(row_outcomes).sum())
    note = None
    dropped = int(np.isnan(row_outcomes).sum())
    if dropped:
        note = f"{dropped} pair{'' if dropped == 1 else 's'} without a finite score on both sides"
    settings = {"n_ties": n_ties, "note": note, "seed": seed, "n_boot": n_boot}
    return Accuracy(micro_mean(row_outcomes, names, **settings), macro_mean(row_outcomes, names, **settings))
