"""Does one metric predict another? Kendall, Spearman and Pearson over method x seed points, with an interval and n."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.measured import N_BOOT, Measured, as_floats, join_notes

KINDS = ("kendall", "spearman", "pearson")
MIN_POINTS = 4
# A resample in which one side is constant has no correlation. With more than half of them lost, the rest say nothing.
MAX_UNDEFINED = 0.5


def correlations(
    x: Sequence[float | None] | np.ndarray,
    y: Sequence[float | None] | np.ndarray,
    methods: Sequence[str],
    *,
    x_resolution: float = 1e-6,
    y_resolution: float = 1e-6,
    seed: int = 0,
    n_boot: int = N_BOOT,
) -> dict[str, Measured]:
    """{kind: Measured} of N points (one a method x seed), each in -1..1: Kendall tau-b, Spearman rho, Pearson r.

    Both sides are rounded to their resolution first (for an accuracy in per cent over n pairs: 50 / n), so that float
    noise neither makes nor breaks a tie. Points without both numbers are dropped and counted. Fewer than four points
    or a constant side: value None with the reason (scipy would give NaN, or 1.0 for any two points).

    The 95 % interval resamples methods with all their seeds, as the seeds of one method are near-copies of each other;
    with fewer than four methods it resamples points, and the note says so. `n_ties`: pairs of points tied on a side.
    """
    if not len(x) == len(y) == len(methods):
        raise PrefselError(f"correlations: {len(x)} x, {len(y)} y and {len(methods)} methods; give one of each a point")
    first = np.round(as_floats(x) / x_resolution)
    second = np.round(as_floats(y) / y_resolution)
    present = ~(np.isnan(first) | np.isnan(second))
    first, second = first[present], second[present]
    names = np.asarray([str(method) for method in methods], dtype=object)[present]
    n, dropped = len(first), int((~present).sum())
    reason = _undefined(first, second)
    if reason:
        return {kind: Measured(None, n, 0, dropped, note=reason) for kind in KINDS}

    order = np.lexsort((second, first, names.astype(str)))  # the interval must not depend on the order of the points
    first, second, names = first[order], second[order], names[order]
    values = {
        "kendall": stats.kendalltau(first, second).statistic,
        "spearman": stats.spearmanr(first, second).statistic,
        "pearson": stats.pearsonr(first, second).statistic,
    }
    weights, note = _resampled_weights(names, seed, n_boot)
    replicates = weighted_correlations(first, second, weights)
    upper = np.triu_indices(n, 1)
    tied = int(((first[upper[0]] == first[upper[1]]) | (second[upper[0]] == second[upper[1]])).sum())
    return {kind: _with_interval(float(values[kind]), replicates[kind], n, tied, dropped, note) for kind in KINDS}


def weighted_correlations(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """{kind: [B]} correlations of B resamples of N points, given as counts [B, N]. NaN where a side is constant.

    Equal to scipy's on the points written out as often as counted, without B calls.
    """
    sign_x, sign_y = np.sign(x[:, None] - x), np.sign(y[:, None] - y)

    def over_pairs(matrix: np.ndarray) -> np.ndarray:
        return np.einsum("bi,ij,bj->b", weights, matrix, weights, optimize=True)

    def pearson(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        total = weights.sum(axis=1, keepdims=True)
        left = left - (weights * left).sum(axis=1, keepdims=True) / total
        right = right - (weights * right).sum(axis=1, keepdims=True) / total
        return _ratio(
            (weights * left * right).sum(axis=1), (weights * left**2).sum(axis=1), (weights * right**2).sum(axis=1)
        )

    def ranks(sign: np.ndarray) -> np.ndarray:
        # Mid-ranks up to a constant: how many points lie below, and half of those level with it.
        return weights @ (sign > 0).T + 0.5 * (weights @ (sign == 0).T)

    concordant = over_pairs(sign_x * sign_y)
    result = {
        "kendall": _ratio(concordant, over_pairs(np.abs(sign_x)), over_pairs(np.abs(sign_y))),
        "spearman": pearson(ranks(sign_x), ranks(sign_y)),
        "pearson": pearson(np.broadcast_to(x, weights.shape), np.broadcast_to(y, weights.shape)),
    }
    # Rounding can leave a constant side with a spread of 1e-30, so constancy is read from the signs, which are exact.
    constant = (over_pairs(np.abs(sign_x)) == 0) | (over_pairs(np.abs(sign_y)) == 0)
    return {kind: np.where(constant, np.nan, values) for kind, values in result.items()}


def _undefined(x: np.ndarray, y: np.ndarray) -> str | None:
    if len(x) < MIN_POINTS:
        return f"{len(x)} point{'' if len(x) == 1 else 's'}; a correlation needs {MIN_POINTS}"
    constant = [name for name, side in (("x", x), ("y", y)) if np.all(side == side[0])]
    if constant:
        return f"constant {' and '.join(constant)} over {len(x)} points"
    return None


def _resampled_weights(names: np.ndarray, seed: int, n_boot: int) -> tuple[np.ndarray, str | None]:
    """[B, N] counts and a note."""
    unique, index = np.unique(names.astype(str), return_inverse=True)
    note = None
    if len(unique) < MIN_POINTS:
        note = f"interval over points: {len(unique)} method" + ("" if len(unique) == 1 else "s")
        index = np.arange(len(names))
    units = int(index.max()) + 1
    draws = np.random.default_rng(seed).multinomial(units, np.full(units, 1.0 / units), size=n_boot)
    return draws[:, index].astype(np.float64), note


def _with_interval(value: float, replicates: np.ndarray, n: int, tied: int, dropped: int, note: str | None) -> Measured:
    defined = replicates[np.isfinite(replicates)]
    undefined = len(replicates) - len(defined)
    if undefined > MAX_UNDEFINED * len(replicates):
        return Measured(value, n, tied, dropped, note=join_notes(note, "no interval: most resamples are constant"))
    lost = f"{undefined} of {len(replicates)} resamples constant, left out" if undefined else None
    low, high = np.percentile(defined, [2.5, 97.5])
    return Measured(value, n, tied, dropped, float(low), float(high), join_notes(note, lost))


def _ratio(top: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """top / sqrt(left right), NaN where that is 0 / 0, kept within -1..1 against rounding."""
    bottom = np.sqrt(left * right)
    return np.clip(np.divide(top, bottom, out=np.full_like(bottom, np.nan), where=bottom > 0), -1.0, 1.0)
