"""What `prefsel data check FILE` says of a file of pairs: counts, every refused row, and pairs as a model sees them."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from prefsel_ray.data.files import FilePairs
from prefsel_ray.data.ledger import Ledger
from prefsel_ray.data.prepare import split_labelled, validated
from prefsel_ray.data.schema import Pair
from prefsel_ray.data.splits import SplitSpec
from prefsel_ray.data.validate import Fit, fit_to_window, note_single_pairs

EXAMPLES = 3

Render = Callable[[Pair], str]


@dataclass(frozen=True)
class CheckReport:
    """A checked file. `splits`: split name, or "none", -> pairs; `examples`: rendered pairs with their row numbers."""

    path: str
    ledger: Ledger
    pairs_per_user: Mapping[str, int]
    splits: Mapping[str, int]
    with_reference: int
    examples: tuple[tuple[int | str, str], ...]

    @property
    def usable(self) -> int:
        """How many pairs a sweep could use."""
        return self.ledger.rows_kept

    def lines(self) -> list[str]:
        """The report, line by line; every refused or noted row is named."""
        lines = [f"{self.path}", *self.ledger.lines(rows_shown=None)]
        if not self.usable:
            return [*lines, "nothing usable is left"]
        counts = sorted(self.pairs_per_user.values())
        lines.append(
            f"{len(counts)} users; pairs per user: least {counts[0]}, median {median(counts):g}, most {counts[-1]}"
        )
        lines.append("splits: " + ", ".join(f"{name} {count}" for name, count in sorted(self.splits.items())))
        lines.append(f"{self.with_reference} of {self.usable} pairs have a reference")
        for label, text in self.examples:
            lines += [f"--- row {label}, as the model sees it", *text.splitlines()]
        return lines


def check_file(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    fit: Fit | None = None,
    render: Render | None = None,
    *,
    progress: bool = False,
) -> CheckReport:
    """Read and check a file as a sweep would, without splitting it.

    `columns` as in FilePairs; `fit` as in `fit_to_window`; `render` gives a pair's text for people, by default its
    plain fields. Raises PrefselError where the file as a whole is wrong; wrong rows are in the report's ledger.
    """
    rows = FilePairs(str(path), columns).read(Path(), progress)
    labelled = validated(rows, progress)
    if fit is not None:
        labelled = fit_to_window(labelled, fit, rows.ledger)
    note_single_pairs(labelled, rows.ledger)
    if any(pair.split is not None for _, pair in labelled):
        split_labelled(rows, labelled, SplitSpec())  # raises where the file's own splits contradict each other
    rows.ledger.settle(len(labelled))
    return CheckReport(
        path=str(path),
        ledger=rows.ledger,
        pairs_per_user=Counter(pair.user_id for _, pair in labelled),
        splits=Counter(pair.split or "none" for _, pair in labelled),
        with_reference=sum(pair.reference is not None for _, pair in labelled),
        examples=tuple((label, (render or plain)(pair)) for label, pair in labelled[:EXAMPLES]),
    )


def plain(pair: Pair) -> str:
    """A pair's fields as text, without any chat template."""
    prompt = [f"{message['role']}: {message['content']}" for message in pair.prompt]
    return "\n".join([f"user {pair.user_id}", *prompt, f"chosen: {pair.chosen}", f"rejected: {pair.rejected}"])
