"""What a data set is to the rest of the package: a frozen record with a `read` method that yields raw rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prefsel_ray.data.ledger import Label, Ledger

RawRow = tuple[Label, dict[str, Any] | None]


@dataclass
class Rows:
    """Raw rows of one source, before validation.

    Fields:
        rows: (label, row) in the source's order. A row has the keys `user_id`, `prompt` (text or list of messages),
            `chosen`, `rejected` (absent when `needs_negatives`) and, where the source has them, `reference`, `split`,
            `group_id`, `meta` (mapping or JSON text).
        dataset: short name that goes into the pairs' `dataset` and into their ids.
        note: one phrase for people: where the rows came from. Error messages begin with it.
        needs_negatives: the rows have no `rejected`; the source's `mine` sets it after the split.
        ledger: the source's account. The source calls `ledger.read()` for every raw row it meets, yielded or not, and
            `ledger.refuse(reason, label)` for those it does not yield. Yielded rows are accounted for by the validator.
    """

    rows: Iterable[tuple[Label, dict[str, Any]]]
    dataset: str
    note: str
    needs_negatives: bool = False
    ledger: Ledger = field(default_factory=Ledger)


class Source(Protocol):
    """A data set spec: a frozen dataclass whose fields say what to read."""

    def read(self, cache: Path, progress: bool) -> Rows:
        """The raw rows. `cache` is a folder the source may keep parsed tables in; `progress` shows a bar."""
        ...


class MiningSource(Source, Protocol):
    """A source without rejected responses: they are mined after the split."""

    def mine(self, rows: Sequence[tuple[Label, dict[str, Any]]], cache: Path, progress: bool) -> Sequence[RawRow]:
        """The same rows in the same order with `rejected` set to the hard negative, or to None where there is none.

        Each row has the validated `user_id`, `prompt` (tuple of messages), `chosen`, `reference`, `split`, `group_id`.
        """
        ...
