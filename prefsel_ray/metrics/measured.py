"""A metric is never a bare float: the value comes with n, ties, dropped rows and an interval over users."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from prefsel_ray.errors import PrefselError

N_BOOT = 1000
# Below this many users a resample of users says little more than which of them was drawn; rows are resampled instead.
MIN_USERS = 5


@dataclass(frozen=True)
class Measured:
    """One metric. `value` and the 95 % interval share the metric's unit (per cent for accuracies and win rates).

    n        rows (or points) the value rests on
    n_ties   of these, rows counted half because both sides were equal
    n_dropped  rows left out because they have no finite number
    note     what a reader must know; where `value` is None, the reason
    """

    value: float | None
    n: int
    n_ties: int = 0
    n_dropped: int = 0
    ci_low: float | None = None
    ci_high: float | None = None
    note: str | None = None

    def __post_init__(self):
        for name in ("value", "ci_low", "ci_high"):
            number = getattr(self, name)
            if number is not None and not np.isfinite(number):
                raise ValueError(f"Measured.{name} is {number}; a missing number is None with a note")
        if self.value is None and not self.note:
            raise ValueError("a Measured without a value needs a note with the reason")


@dataclass(frozen=True)
class Interval:
    """A 95 % percentile interval; both ends None where the data allow none, and `note` says why."""

    low: float | None
    high: float | None
    note: str | None = None


def as_floats(values: Sequence[float | None] | np.ndarray) -> np.ndarray:
    """[...] float64 with NaN for None and for non-finite numbers, so that every kind of missing is one kind."""
    numbers = np.asarray(values, dtype=np.float64)  # numpy turns None into NaN for a float dtype
    return np.where(np.isfinite(numbers), numbers, np.nan)


def check_rows(what: str, rows: int, users: Sequence[str]) -> np.ndarray:
    """Users as a [N] array of str; raises PrefselError where their number differs from that of the rows."""
    if len(users) != rows:
        raise PrefselError(f"{what}: {rows} rows but {len(users)} users; give one user id a row")
    return np.asarray([str(user) for user in users], dtype=object)


def bootstrap_over_users(
    values_per_row: Sequence[float | None] | np.ndarray, users: Sequence[str], seed: int = 0, n_boot: int = N_BOOT
) -> Interval:
    """95 % percentile interval of the micro mean of [N] values under resampling of users with all their rows.

    Rows without a number are left out. With fewer than MIN_USERS users, rows are resampled and the note says so.
    Independent of the order of the rows.
    """
    values = as_floats(values_per_row)
    names = check_rows("bootstrap_over_users", len(values), users)
    present = ~np.isnan(values)
    values, names = values[present], names[present]
    if len(values) < 2:
        return Interval(None, None, f"no interval: {len(values)} row" + ("" if len(values) == 1 else "s"))
    sums, sizes = _per_user(values, names)
    note = None
    if len(sums) < MIN_USERS:
        note = f"interval over rows: {len(sums)} user" + ("" if len(sums) == 1 else "s")
        sums, sizes = np.sort(values), np.ones(len(values))
    counts = _resamples(len(sums), seed, n_boot)
    return _percentiles((counts @ sums) / (counts @ sizes), note)


def micro_mean(
    values_per_row: Sequence[float | None] | np.ndarray,
    users: Sequence[str],
    *,
    n_ties: int = 0,
    note: str | None = None,
    seed: int = 0,
    n_boot: int = N_BOOT,
) -> Measured:
    """Mean over rows: every row weighs the same. Missing rows are dropped and counted."""
    values = as_floats(values_per_row)
    names = check_rows("micro_mean", len(values), users)
    n = int((~np.isnan(values)).sum())
    dropped = len(values) - n
    if n == 0:
        return Measured(None, 0, 0, dropped, note=join_notes(note, "no row has a value"))
    interval = bootstrap_over_users(values, names, seed, n_boot)
    mean = float(np.nanmean(values))
    return Measured(mean, n, n_ties, dropped, interval.low, interval.high, join_notes(note, interval.note))


def macro_mean(
    values_per_row: Sequence[float | None] | np.ndarray,
    users: Sequence[str],
    *,
    n_ties: int = 0,
    note: str | None = None,
    seed: int = 0,
    n_boot: int = N_BOOT,
) -> Measured:
    """Mean over users of each user's mean: every user weighs the same. `n` stays the number of rows; the note names
    the number of users. With fewer than MIN_USERS users there is no interval.
    """
    values = as_floats(values_per_row)
    names = check_rows("macro_mean", len(values), users)
    present = ~np.isnan(values)
    n = int(present.sum())
    dropped = len(values) - n
    if n == 0:
        return Measured(None, 0, 0, dropped, note=join_notes(note, "no row has a value"))
    sums, sizes = _per_user(values[present], names[present])
    means = sums / sizes
    note = join_notes(note, f"mean over {len(means)} user" + ("" if len(means) == 1 else "s"))
    if len(means) < MIN_USERS:
        interval = Interval(None, None, f"no interval: fewer than {MIN_USERS} users")
    else:
        interval = _percentiles(_resamples(len(means), seed, n_boot) @ means / len(means), None)
    return Measured(
        float(means.mean()), n, n_ties, dropped, interval.low, interval.high, join_notes(note, interval.note)
    )


def mean_over_seeds(
    per_seed_values: Sequence[Sequence[float | None]] | np.ndarray,
    users: Sequence[str],
    *,
    ties: np.ndarray | None = None,
    summarise: Callable[..., Measured] = micro_mean,
    note: str | None = None,
    seed: int = 0,
    n_boot: int = N_BOOT,
) -> Measured:
    """Mean over seeds of a metric whose [S, N] row values are aligned by example.

    The interval comes from resampling users of the [N] seed-means, so it holds the spread over users, not over seeds;
    the note gives the sample standard deviation over seeds ("sd 0.42 over 3 seeds"). A row that lacks a number in any
    seed is dropped from all, so that every seed is judged on the same rows. `ties` [S, N] bool: a row counts as a tie
    where it is one in any seed. `summarise`: micro_mean or macro_mean.
    """
    if len({len(row) for row in per_seed_values}) != 1:
        raise PrefselError("mean_over_seeds: the seeds must have the same examples in the same order, one row a seed")
    values = as_floats(per_seed_values)
    names = check_rows("mean_over_seeds", values.shape[1], users)
    complete = ~np.isnan(values).any(axis=0)
    row_means = np.where(complete, values.mean(axis=0), np.nan)
    n_ties = 0 if ties is None else int((np.asarray(ties, dtype=bool).any(axis=0) & complete).sum())
    spread = None
    if complete.any():
        # The spread is that of the same summary as the value: a macro mean's seeds are compared as macro means.
        per_seed = [summarise(row[complete], names[complete], n_boot=1).value for row in values]
        spread = seed_spread(per_seed)
    return summarise(row_means, names, n_ties=n_ties, note=join_notes(spread, note), seed=seed, n_boot=n_boot)


def seed_spread(per_seed: Sequence[float]) -> str:
    """'sd 0.42 over 3 seeds' (sample standard deviation, n - 1), or '1 seed'."""
    if len(per_seed) < 2:
        return f"{len(per_seed)} seed"
    return f"sd {np.std(per_seed, ddof=1):.2f} over {len(per_seed)} seeds"


def join_notes(*notes: str | None) -> str | None:
    """The given notes in order, '; ' between them; None where there is none."""
    return "; ".join(note for note in notes if note) or None


def _per_user(values: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of rows of each user [U], users in sorted order."""
    _, index = np.unique(names.astype(str), return_inverse=True)
    return np.bincount(index, weights=values), np.bincount(index).astype(np.float64)


@lru_cache(maxsize=8)
def _resamples(units: int, seed: int, n_boot: int) -> np.ndarray:
    """[n_boot, units] float64: how often each unit is drawn. Kept, as a sweep asks for the same ones hundreds of times.

    Metrics over the same users thus share their resamples.
    """
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(units, np.full(units, 1.0 / units), size=n_boot).astype(np.float64)
    counts.setflags(write=False)
    return counts


def _percentiles(replicates: np.ndarray, note: str | None) -> Interval:
    low, high = np.percentile(replicates, [2.5, 97.5])
    return Interval(float(low), float(high), note)
