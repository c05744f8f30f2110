"""From a source to pairs ready for a sweep: read, validate, fit to the window, split, mine negatives where needed."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from tqdm import tqdm

from prefsel_ray.data.ledger import Ledger
from prefsel_ray.data.schema import Pair
from prefsel_ray.data.source import MiningSource, Rows, Source
from prefsel_ray.data.splits import Assignment, SplitSpec, assign_splits
from prefsel_ray.data.validate import Fit, Labelled, fit_to_window, note_single_pairs, validate, with_negatives
from prefsel_ray.errors import PrefselError

NO_NEGATIVE = "no hard negative under the ceiling"


@dataclass(frozen=True)
class PairSet:
    """Pairs with their splits, sorted by user and id, and the account of every row of the source."""

    pairs: list[Pair]
    ledger: Ledger
    dataset: str
    source_note: str


def prepare(
    source: Source, splits: SplitSpec, *, fit: Fit | None = None, cache: Path, progress: bool = False
) -> PairSet:
    """The source's usable pairs, split by `splits`, with rows read = kept + refused to the last row.

    `fit` cuts prompts to the models' window (see `fit_to_window`). Rows beyond the splits' limits are refused under
    reasons that begin with "left out: ". Negatives are mined after the split, because a negative must come from the
    same split; what is refused then is not made up for from rows left out before.

    Raises PrefselError where the source cannot be read, its splits contradict each other, or no pair is usable.
    """
    rows = source.read(cache, progress)
    ledger = rows.ledger
    labelled = validated(rows, progress)
    if fit is not None and not rows.needs_negatives:
        labelled = fit_to_window(_bar(labelled, "fit to window", progress), fit, ledger)
    note_single_pairs(labelled, ledger)

    assigned = split_labelled(rows, labelled, splits)
    for label, pair in labelled:
        if pair.example_id in assigned.left_out:
            ledger.refuse(assigned.left_out[pair.example_id], label)
    label_of = {pair.example_id: label for label, pair in labelled}
    labelled = [(label_of[pair.example_id], pair) for pair in assigned.pairs]

    if rows.needs_negatives:
        labelled = _mined(cast(MiningSource, source), labelled, ledger, cache, progress)
        if fit is not None:
            labelled = fit_to_window(_bar(labelled, "fit to window", progress), fit, ledger)

    pairs = sorted((pair for _, pair in labelled), key=lambda pair: (pair.user_id, pair.example_id))
    ledger.settle(len(pairs))
    if not pairs:
        raise PrefselError(f"{rows.note}: no usable pair: {_in_one_line(ledger)}")
    return PairSet(pairs, ledger, rows.dataset, "; ".join([rows.note, *assigned.notes]))


def validated(rows: Rows, progress: bool = False) -> list[Labelled]:
    """The usable rows of a source as labelled pairs; the rest is in `rows.ledger`."""
    return validate(
        _bar(rows.rows, "check rows", progress),
        rows.ledger,
        dataset=rows.dataset,
        where=rows.note,
        with_rejected=not rows.needs_negatives,
    )


def split_labelled(rows: Rows, labelled: Sequence[Labelled], splits: SplitSpec) -> Assignment:
    """`assign_splits` whose errors name the source and the row."""
    label_of = {pair.example_id: label for label, pair in labelled}
    return assign_splits(
        [pair for _, pair in labelled], splits, name=lambda pair: f"{rows.note}: row {label_of[pair.example_id]}"
    )


def fingerprint(pairs: Iterable[Pair]) -> str:
    """16 hex digits over the whole content of the pairs, whatever their order."""
    lines = sorted(json.dumps(asdict(pair), sort_keys=True, default=dict) for pair in pairs)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _mined(
    source: MiningSource, labelled: Sequence[Labelled], ledger: Ledger, cache: Path, progress: bool
) -> list[Labelled]:
    """The pairs with the source's hard negatives, asked for in an order that does not depend on the file's."""
    labelled = sorted(labelled, key=lambda item: (item[1].user_id, item[1].example_id))
    bare = [
        (label, {name: value for name, value in vars(pair).items() if name != "rejected"}) for label, pair in labelled
    ]
    answers = source.mine(bare, cache, progress)
    if [label for label, _ in answers] != [label for label, _ in bare]:
        raise RuntimeError(f"{type(source).__name__}.mine must answer with the same rows in the same order")
    rejected = [None if row is None else row.get("rejected") for _, row in answers]
    return with_negatives(labelled, rejected, ledger, no_negative=NO_NEGATIVE)


def _bar(items: Iterable, what: str, progress: bool) -> Iterable:
    return tqdm(items, what, unit=" rows", disable=not progress)


def _in_one_line(ledger: Ledger) -> str:
    reasons = sorted(ledger.refused.items(), key=lambda item: (-item[1].count, item[0]))
    return ", ".join([f"{ledger.rows_read} rows read", *(f"{entry.count} {reason}" for reason, entry in reasons)])
