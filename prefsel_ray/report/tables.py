"""The report's tables as plain data, the same for the page and the terminal."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from prefsel_ray.report.read import (
    Row,
    SweepData,
    interval,
    kind_of,
    method_name,
    number,
    read_sweep,
    remark,
    seed_spread,
    short_policy,
    span,
)

DASH = "–"
GROUND_TRUTH = {"rouge1": "ROUGE-1", "rougeL": "ROUGE-L", "bertscore": "BERTScore"}


@dataclass(frozen=True)
class Column:
    """`title` with its `unit`, which also names the definition. `n` is the number of rows its values rest on."""

    key: str
    title: str
    unit: str
    n: str = ""


@dataclass
class Cell:
    """One value as text. `marks` are the numbers of its footnotes; `width` columns wide."""

    text: str
    interval: str = ""
    extra: str = ""
    marks: list[int] = field(default_factory=list)
    best: bool = False
    width: int = 1
    row: Row | None = None

    @property
    def missing(self) -> bool:
        return self.text == DASH


@dataclass
class Line:
    """One configuration: a method with its number of demonstrations or its weight."""

    method: str
    variant: str | None
    w: float | None
    label: str
    setting: str
    cells: list[Cell] = field(default_factory=list)


@dataclass
class MainTable:
    """All lines of one policy; footnotes are numbered from 1 in `notes` order."""

    policy: str | None
    columns: list[Column]
    lines: list[Line]
    notes: list[str]


def configurations(data: SweepData) -> Iterator[tuple[str, str | None, float | None]]:
    """(method, variant, w) of every line: one for a head at the main weight, one for each k of an in-context method."""
    for method in data.methods:
        kind = kind_of(method)
        if kind == "head":
            yield method, None, data.main_w()
        elif kind == "plain":
            yield method, "k=0", None
        else:
            for variant in data.shots(method) or [None]:
                yield method, variant, None


def label_of(method: str, variant: str | None, w: float | None) -> tuple[str, str]:
    """('ICL, retrieved', 'k = 4'): the name and the setting that tells lines of a table apart."""
    if w is not None:
        return method_name(method), f"w = {w:g}"
    return method_name(method), "" if variant in (None, "k=0") else variant.replace("=", " = ")


def lookup(
    data: SweepData, key: str, method: str, variant: str | None, w: float | None, policy: str | None
) -> Row | None:
    """The seed-mean row behind one cell of the main table."""
    base = {"method": method, "seed": None}
    if key == "rm_accuracy":
        return data.one(**base, metric=key, variant="micro")
    if key in ("prefix_sum", "terminal"):
        return data.one(**base, policy=policy, metric="policy_accuracy", variant=key, w=w)
    if key == "full":
        wanted = "full" if variant in (None, "k=0") else f"full;{variant}"
        return data.one(**base, policy=policy, metric="policy_accuracy", variant=wanted)
    if key == "win_rate":
        return data.one(**base, policy=policy, metric=key, w=w)
    rows = data.where(**base, policy=policy, metric=key, w=w)
    return next((row for row in rows if w is not None or row["variant"] == variant), None)


def main_tables(data: SweepData) -> list[MainTable]:
    """One table a policy (one without a policy where none wrote or ranked)."""
    return [_main_table(data, policy) for policy in (data.policies or [None])]


def _main_table(data: SweepData, policy: str | None) -> MainTable:
    columns = [
        Column("rm_accuracy", "RM accuracy", "%"),
        Column("prefix_sum", "Policy accuracy", "prefix_sum, %"),
        Column("terminal", "Policy accuracy", "terminal, %"),
        Column("rouge1", "ROUGE-1", "F1 × 100"),
        Column("rougeL", "ROUGE-L", "F1 × 100"),
        Column("bertscore", "BERTScore", "F1 × 100"),
        Column("win_rate", "Win rate", "own reward, %"),
    ]
    notes: list[str] = []

    def mark(note: str) -> int:
        if note not in notes:
            notes.append(note)
        return notes.index(note) + 1

    lines = []
    for method, variant, weight in configurations(data):
        line = Line(method, variant, weight, *label_of(method, variant, weight))
        keys = [column.key for column in columns]
        if kind_of(method) != "head":  # no reward: both definitions are the plain log-probability, shown once
            keys[1:3] = ["full"]
        for key in keys:
            row = lookup(data, key, method, variant, weight, policy)
            cell = _cell(row)
            if cell.missing:
                cell.marks.append(mark(_reason(data, key, method, row)))
            else:
                note = remark(row["note"])
                cell.marks += [mark(note)] if note else []
                if key == "full":
                    cell.marks.insert(0, mark("no reward: summed log-probability of each response under this prompt"))
            cell.width = 2 if key == "full" else 1
            line.cells.append(cell)
        lines.append(line)
    _mark_best(lines)
    return MainTable(policy, [_with_n(column, i, lines) for i, column in enumerate(columns)], lines, notes)


def _cell(row: Row | None, digits: int = 1) -> Cell:
    if row is None or row["value"] is None:
        return Cell(DASH, row=row)
    bounds = row["ci_low"] is not None and row["ci_high"] is not None
    extra = []
    if spread := seed_spread(row["note"]):
        extra.append(f"sd {number(spread[0], 2)}")
    if row["n_ties"]:
        extra.append(f"{row['n_ties']:,} tie" + ("s" if row["n_ties"] > 1 else ""))
    if row["n_dropped"]:
        extra.append(f"{row['n_dropped']:,} dropped")
    shown = interval(row["ci_low"], row["ci_high"], digits) if bounds else "no interval"
    return Cell(number(row["value"], digits), shown, " · ".join(extra), row=row)


def _reason(data: SweepData, key: str, method: str, row: Row | None) -> str:
    if row is not None and remark(row["note"]):
        return remark(row["note"])
    if kind_of(method) != "head" and key == "rm_accuracy":
        return "no reward model: nothing to rank with"
    if kind_of(method) != "head" and key == "win_rate":
        return "no reward of its own to judge by"
    return "not measured: a cell failed (see Failed cells)" if data.summary.get("failed") else "not part of this sweep"


def _columns_of(line: Line) -> Iterator[tuple[int, Cell]]:
    """(index of the column, cell), a wide cell at its first column."""
    at = 0
    for cell in line.cells:
        yield at, cell
        at += cell.width


def _mark_best(lines: list[Line]) -> None:
    """The highest value of each column, as displayed; none where only one line has a value."""
    columns: dict[int, list[Cell]] = {}
    for line in lines:
        for at, cell in _columns_of(line):
            for column in range(at, at + cell.width):
                columns.setdefault(column, []).append(cell)
    for cells in columns.values():
        shown = [cell for cell in cells if not cell.missing]
        for cell in shown:
            highest = all(round(cell.row["value"], 1) >= round(other.row["value"], 1) for other in shown)
            cell.best = cell.best or (highest and len(shown) > 1 and cell.width == 1)


def _with_n(column: Column, index: int, lines: list[Line]) -> Column:
    counts = [
        cell.row["n"]
        for line in lines
        for at, cell in _columns_of(line)
        if at <= index < at + cell.width and not cell.missing
    ]
    return Column(column.key, column.title, column.unit, f"n = {span(counts)}" if counts else "")


def correlation_groups(data: SweepData) -> list[dict[str, Any]]:
    """One group a policy and weight: lines of Kendall, Spearman and Pearson with interval and n."""
    groups: dict[tuple[str | None, float | None], dict[str, dict[str, Row]]] = {}
    for row in data.results:
        if row["metric"] in ("kendall", "spearman", "pearson"):
            pairs = groups.setdefault((row["policy"], row["w"]), {})
            pairs.setdefault(row["variant"] or "", {})[row["metric"]] = row
    result = []
    for (policy, w), pairs in groups.items():
        lines = []
        for variant, by_metric in pairs.items():
            cells = [_cell(by_metric.get(metric), digits=2) for metric in ("kendall", "spearman", "pearson")]
            notes = {row["note"] for row in by_metric.values() if row["note"]}
            counts = [row["n"] for row in by_metric.values()]
            x, _, y = variant.partition(" ~ ")
            lines.append(
                {
                    "x": metric_words(x),
                    "y": metric_words(y),
                    "cells": cells,
                    "n": span(counts),
                    "note": "; ".join(sorted(notes)),
                }
            )
        result.append({"policy": policy, "w": w, "lines": lines})
    return result


def metric_words(name: str) -> str:
    """'policy_accuracy prefix_sum' -> 'policy accuracy, prefix_sum'."""
    first, _, rest = name.strip().partition(" ")
    words = {"rm_accuracy": "RM accuracy", "policy_accuracy": "policy accuracy", "win_rate": "win rate", **GROUND_TRUTH}
    return words.get(first, first) + (f", {rest}" if rest else "")


def ledger_lines(ledger: dict[str, Any]) -> list[dict[str, Any]]:
    """Refused and noted reasons, most frequent first, each with its count and the first rows."""
    lines = []
    for kind in ("refused", "noted"):
        entries = sorted(ledger.get(kind, {}).items(), key=lambda item: (-item[1]["count"], item[0]))
        for reason, entry in entries:
            rows = ", ".join(str(row) for row in entry["rows"])
            rest = entry["count"] - len(entry["rows"])
            lines.append({"kind": kind, "reason": reason, "count": entry["count"], "rows": rows, "rest": max(rest, 0)})
    return lines


def print_summary(sweep_folder: Path, console: Console) -> None:
    """The main table in the terminal: value, interval beneath it, and why a value is missing."""
    data = read_sweep(sweep_folder)
    for table in main_tables(data):
        title = f"{data.summary.get('name', '')}: {short_policy(table.policy)}" if table.policy else None
        shown = RichTable(
            title=title, title_justify="left", title_style="bold", header_style="", pad_edge=False, box=None
        )
        shown.add_column("method", no_wrap=True)
        for column in table.columns:
            head = Text(column.title.replace("Policy accuracy", "Policy acc."), style="bold")
            shown.add_column(head + Text(f"\n{column.unit}", style="dim"), justify="right")
        for line in table.lines:
            cells: list[Text] = []
            for cell in line.cells:
                value = Text(cell.text, style="bold" if cell.best else "dim" if cell.missing else "")
                if cell.interval:
                    value += Text(f"\n{cell.interval}", style="dim")
                cells += [value] * cell.width
            shown.add_row(Text(line.label) + Text(f"\n{line.setting}", style="dim"), *cells)
        console.print(shown)
        console.print(f"[dim]95 % intervals over users; mean over seeds; {_counts(table)}[/dim]", highlight=False)
    console.print()


def _counts(table: MainTable) -> str:
    """'ranked n = 240, written n = 120'."""
    by_key = {column.key: column.n for column in table.columns}
    parts = [f"{word} {by_key[key]}" for word, key in (("ranked", "prefix_sum"), ("written", "rouge1")) if by_key[key]]
    return ", ".join(parts) or "no value measured"
