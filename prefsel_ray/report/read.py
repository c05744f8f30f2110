"""The files of a finished sweep, read once, and the small selections that every table and figure makes from them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from prefsel_ray.errors import PrefselError
from prefsel_ray.rewards import METHODS

Row = dict[str, Any]  # one line of results.parquet or generations.parquet

_SEEDS = re.compile(r"sd (?P<sd>[0-9.]+) over (?P<n>\d+) seeds|1 seeds?")


@dataclass(frozen=True)
class SweepData:
    """results.parquet, generations.parquet, ledger.json and summary.json of one sweep."""

    results: list[Row]
    generations: list[Row]
    ledger: dict[str, Any]
    summary: dict[str, Any]

    @property
    def methods(self) -> list[str]:
        """Methods in the sweep's own order; a method that only the results know comes last."""
        named = list(self.summary.get("methods", []))
        found = sorted({row["method"] for row in self.results if row["method"]} - set(named))
        return named + found

    @property
    def policies(self) -> list[str]:
        named = list(self.summary.get("policies", []))
        found = sorted({row["policy"] for row in self.results if row["policy"]} - set(named))
        return named + found

    def where(self, **key: Any) -> list[Row]:
        """Rows of the results that equal `key` on the given columns."""
        return [row for row in self.results if all(row[name] == wanted for name, wanted in key.items())]

    def one(self, **key: Any) -> Row | None:
        """The first row that equals `key`, or None."""
        return next(iter(self.where(**key)), None)

    def decode_weights(self) -> list[float]:
        """The weights w that guided decoding wrote with, ascending."""
        return sorted({r["w"] for r in self.results if r["metric"] in ("rouge1", "win_rate") and r["w"] is not None})

    def main_w(self) -> float | None:
        """The weight the main table stands for: 1, guided decoding's usual one, if it was used, else the lowest."""
        known = self.decode_weights() or sorted(
            {r["w"] for r in self.results if r["metric"] == "policy_accuracy" and r["w"]}
        )
        return 1.0 if 1.0 in known else next(iter(known), None)

    def shots(self, method: str) -> list[str]:
        """The `k=…` variants of an in-context method, by k."""
        found = {
            part
            for row in self.results
            if row["method"] == method and row["variant"]
            for part in row["variant"].split(";")
            if re.fullmatch(r"k=\d+", part)
        }
        return sorted(found, key=shot_count)


def read_sweep(folder: Path) -> SweepData:
    """Raises PrefselError that names the file where one of the four is missing or is not what its name says."""
    folder = Path(folder)

    def load(name: str) -> Any:
        path = folder / name
        if not path.is_file():
            raise PrefselError(f"{path}: no such file; run the sweep to its end first (prefsel run)")
        try:
            return pq.read_table(path).to_pylist() if path.suffix == ".parquet" else json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:  # pyarrow's and json's errors are both ValueErrors
            raise PrefselError(f"{path}: unreadable ({str(error).splitlines()[0]}); run the sweep again") from error

    return SweepData(
        *(load(f"{n}.parquet") for n in ("results", "generations")), load("ledger.json"), load("summary.json")
    )


def kind_of(method: str) -> str:
    """head, in_context or plain; a method unknown to this version counts as a head."""
    return METHODS[method].kind if method in METHODS else "head"


def method_name(method: str) -> str:
    """The name readers know from the papers."""
    special = {"icl_random": "ICL, random", "icl_rag": "ICL, retrieved", "zero_shot": "Zero-shot"}
    return special.get(method) or (METHODS[method].paper_name if method in METHODS else method)


def shot_count(variant: str) -> int:
    """'k=4' or 'full;k=4' -> 4."""
    return int(variant.rpartition("k=")[2])


def short_policy(reference: str) -> str:
    """The telling end of a model reference: 'HuggingFaceTB/SmolLM2-135M' -> 'SmolLM2-135M'."""
    return reference.rstrip("/").rpartition("/")[2] or reference


def seed_spread(note: str | None) -> tuple[float, int] | None:
    """(sample standard deviation, number of seeds) that a row's note states, or None."""
    match = _SEEDS.search(note or "")
    return (float(match["sd"]), int(match["n"])) if match and match["sd"] else None


def remark(note: str | None) -> str | None:
    """A row's note without the part about seeds, which is shown as a number; None where nothing is left."""
    parts = [part.strip() for part in _SEEDS.sub("", note or "").split(";")]
    return "; ".join(part for part in parts if part) or None


def span(values: Sequence[int]) -> str:
    """'240', or '118–120' where the numbers differ."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def number(value: float, digits: int = 1) -> str:
    """Fixed decimals with a true minus sign; never '-0.0'."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def interval(low: float, high: float, digits: int = 1) -> str:
    """'29.0–35.2'; with negative ends '−0.20 to 0.31', as a dash would read as a sign."""
    joiner = " to " if low < 0 else "–"
    return f"{number(low, digits)}{joiner}{number(high, digits)}"
