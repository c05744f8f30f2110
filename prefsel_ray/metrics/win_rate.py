"""Win rate: how often a text beats another under a score, ties at half and shown."""

from collections.abc import Sequence

import numpy as np

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.measured import N_BOOT, Measured, check_rows, join_notes, micro_mean
from prefsel_ray.metrics.ranking import TIE, is_tie, outcomes


def win_outcomes(
    guided_scores: Sequence[float | None] | np.ndarray,
    plain_scores: Sequence[float | None] | np.ndarray,
    guided_texts: Sequence[str],
    plain_texts: Sequence[str],
) -> np.ndarray:
    """[N] float64 per cent: 100 where the guided text's own reward beats the plain text's, 50 for a tie, 0 for a loss,
    NaN where a score is missing. Equal texts tie by definition: scored in different batches, the last digit of their
    rewards can differ. Raises PrefselError on unequal lengths.
    """
    result = outcomes(guided_scores, plain_scores)
    if not len(result) == len(guided_texts) == len(plain_texts):
        raise PrefselError(
            f"win_outcomes: {len(result)} scores, {len(guided_texts)} guided and {len(plain_texts)} plain texts; "
            "give one of each a row"
        )
    same = np.asarray([guided == plain for guided, plain in zip(guided_texts, plain_texts, strict=True)], dtype=bool)
    result[same & ~np.isnan(result)] = TIE
    return result


def win_rate(
    guided_scores: Sequence[float | None] | np.ndarray,
    plain_scores: Sequence[float | None] | np.ndarray,
    guided_texts: Sequence[str],
    plain_texts: Sequence[str],
    users: Sequence[str],
    *,
    seed: int = 0,
    n_boot: int = N_BOOT,
) -> Measured:
    """Win rate in per cent of guided over plain text by the guide's own reward; the note counts equal texts."""
    result = win_outcomes(guided_scores, plain_scores, guided_texts, plain_texts)
    names = check_rows("win_rate", len(result), users)
    equal = sum(guided == plain for guided, plain in zip(guided_texts, plain_texts, strict=True))
    note = f"{equal} of {len(result)} texts equal" if equal else None
    dropped = int(np.isnan(result).sum())
    missing = f"{dropped} row{'' if dropped == 1 else 's'} without both scores" if dropped else None
    return micro_mean(
        result, names, n_ties=int(is_tie(result).sum()), note=join_notes(note, missing), seed=seed, n_boot=n_boot
    )
