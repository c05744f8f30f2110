"""The ledger: how many rows were read, how many were kept, and why each of the others was refused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Label = int | str  # 1-based row number in the file, or an id where there are no numbered rows

ROWS_SHOWN = 5  # labels per reason in the stored form; the counts are always complete


@dataclass
class Entry:
    """One reason: how many rows it concerns, and their labels in the order met."""

    count: int = 0
    rows: list[Label] = field(default_factory=list)

    def add(self, row: Label) -> None:
        self.count += 1
        self.rows.append(row)


@dataclass
class Ledger:
    """Counts of rows read, kept and refused; `noted` rows were passed on but changed or marked.

    Whoever reads the raw rows calls `read()` once for each, whether it is passed on or refused on the spot. A refused
    row is refused once, with one reason. `settle(kept)` closes the account.
    """

    rows_read: int = 0
    rows_kept: int = 0
    refused: dict[str, Entry] = field(default_factory=dict)
    noted: dict[str, Entry] = field(default_factory=dict)

    @property
    def rows_refused(self) -> int:
        return sum(entry.count for entry in self.refused.values())

    def read(self, count: int = 1) -> None:
        """Count raw rows met."""
        self.rows_read += count

    def refuse(self, reason: str, row: Label) -> None:
        """Row `row` will not be used, for `reason`."""
        self.refused.setdefault(reason, Entry()).add(row)

    def note(self, reason: str, row: Label) -> None:
        """Row `row` is passed on, but something about it was changed or is worth knowing."""
        self.noted.setdefault(reason, Entry()).add(row)

    def settle(self, kept: int) -> None:
        """State how many rows are kept at the end. Raises RuntimeError unless read = kept + refused."""
        self.rows_kept = kept
        if self.rows_read != kept + self.rows_refused:
            raise RuntimeError(
                f"ledger out of balance: {self.rows_read} rows read, {kept} kept, {self.rows_refused} refused"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: {"rows_read", "rows_kept", "refused": {reason: {"count", "rows"}}, "noted": {...}}.

        The first five labels of each reason are kept.
        """
        return {
            "rows_read": self.rows_read,
            "rows_kept": self.rows_kept,
            "refused": _entries_to_dict(self.refused),
            "noted": _entries_to_dict(self.noted),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Ledger":
        """The inverse of `to_dict`."""
        return cls(
            rows_read=stored["rows_read"],
            rows_kept=stored["rows_kept"],
            refused=_entries_from_dict(stored["refused"]),
            noted=_entries_from_dict(stored["noted"]),
        )

    def lines(self, rows_shown: int | None = ROWS_SHOWN) -> list[str]:
        """Lines to print: the totals, then one line a reason, most frequent first. `rows_shown` None = every row."""
        lines = [f"{self.rows_read} rows read, {self.rows_kept} kept, {self.rows_refused} refused"]
        for word, entries in (("refused", self.refused), ("noted", self.noted)):
            for reason, entry in sorted(entries.items(), key=lambda item: (-item[1].count, item[0])):
                lines.append(f"  {word}: {reason}: {entry.count} ({_labels(entry, rows_shown)})")
        return lines


def _entries_to_dict(entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {reason: {"count": entry.count, "rows": entry.rows[:ROWS_SHOWN]} for reason, entry in entries.items()}


def _entries_from_dict(stored: Mapping[str, Any]) -> dict[str, Entry]:
    return {reason: Entry(entry["count"], list(entry["rows"])) for reason, entry in stored.items()}


def _labels(entry: Entry, rows_shown: int | None) -> str:
    """ "row 3", "rows 3, 7-12" or "rows 3, 7, 9, ..." where some are not shown."""
    shown = entry.rows if rows_shown is None else entry.rows[:rows_shown]
    words = list(_runs(shown))
    if len(shown) < entry.count:
        words.append("...")
    return f"row{'s' if entry.count > 1 else ''} {', '.join(words)}"


def _runs(labels: Iterable[Label]) -> Iterable[str]:
    """Runs of at least three consecutive row numbers become "7-12"; everything else stands alone."""
    run: list[Label] = []
    for label in [*labels, None]:
        if run and isinstance(label, int) and isinstance(run[-1], int) and label == run[-1] + 1:
            run.append(label)
            continue
        yield from ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(one) for one in run])
        run = [label] if label is not None else []
