"""The report page: one HTML file with its figures and styles inside, no script, nothing fetched."""

import base64
from collections.abc import Iterable
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from prefsel_ray.report.answer import answer
from prefsel_ray.report.examples import examples
from prefsel_ray.report.figures import Drawing, draw_all
from prefsel_ray.report.read import SweepData, read_sweep, short_policy
from prefsel_ray.report.tables import correlation_groups, ledger_lines, main_tables


def write_report(sweep_folder: Path) -> Path:
    """Write report/index.html and report/figures/*.png from the files of a sweep; returns the page's path.

    Raises PrefselError where a file of the sweep is missing or unreadable.
    """
    sweep_folder = Path(sweep_folder)
    data = read_sweep(sweep_folder)
    folder = sweep_folder / "report"
    folder.mkdir(parents=True, exist_ok=True)
    figures = {figure.name: _inlined(figure) for figure in draw_all(data, folder / "figures")}
    page = folder / "index.html"
    unfinished = page.with_suffix(".part")  # a page is there whole or not at all
    # A lone surrogate cannot be written as UTF-8; everything else survives as it is.
    unfinished.write_text(render(data, figures), encoding="utf-8", errors="replace")
    unfinished.replace(page)
    return page


def render(data: SweepData, figures: dict[str, dict[str, Any]]) -> str:
    """The page as HTML. Every text from data is escaped by the template."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(short=short_policy, count=lambda n: f"{n:,}")
    here = files("prefsel_ray.report")
    template = environment.from_string((here / "page.html.j2").read_text("utf-8"))
    return template.render(
        css=(here / "page.css").read_text("utf-8"),
        summary=data.summary,
        w=data.main_w(),
        facts=facts(data.summary),
        answer=answer(data),
        tables=main_tables(data),
        figures=figures,
        correlations=correlation_groups(data),
        ledger=data.ledger,
        ledger_lines=ledger_lines(data.ledger),
        examples=examples(data),
        settings=settings(data.summary),
        failed=data.summary.get("failed", []),
    )


def _inlined(figure: Drawing) -> dict[str, Any]:
    source = ""
    if figure.path is not None:
        source = "data:image/png;base64," + base64.b64encode(figure.path.read_bytes()).decode("ascii")
    return {
        "title": figure.title,
        "caption": figure.caption,
        "reason": figure.reason,
        "source": source,
        "narrow": figure.narrow,
    }


def facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The line of counts under the title; what the summary does not hold is left out."""
    counts = [
        ("n_users_seen", "seen users"),
        ("n_users_unseen", "unseen users"),
        ("n_train", "training pairs"),
        ("n_support", "support pairs"),
        ("n_ranked", "test pairs ranked"),
        ("n_written", "of them written"),
    ]
    return [(f"{summary[key]:,}", words) for key, words in counts if summary.get(key) is not None]


def settings(summary: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(heading, [(name, value)]) of everything else the summary holds."""
    models = {
        "backbone": summary.get("backbone"),
        "policies": summary.get("policies"),
        "methods": summary.get("methods"),
        "seeds": summary.get("seeds"),
        "demonstrations k": summary.get("shots"),
        "weights ranked": summary.get("weights"),
        "weights written": summary.get("decode_weights"),
        "candidates a step": summary.get("top_k"),
        "new tokens at most": summary.get("max_new_tokens"),
    }
    cells = summary.get("cells", {})
    run = {
        "started": _moment(summary.get("started")),
        "wall time of this run": _duration(summary.get("seconds")),
        "cells done": cells.get("done"),
        "cells failed": cells.get("failed"),
    }
    groups = [
        ("Experiment", models),
        ("Metrics", summary.get("metric_settings", {})),
        ("Forward tokens", summary.get("forward_tokens", {})),
        ("Run", run),
        ("Versions", summary.get("versions", {})),
    ]
    shown = [(heading, [(k, plain(v)) for k, v in values.items() if v is not None]) for heading, values in groups]
    return [(heading, lines) for heading, lines in shown if lines]


def plain(value: Any) -> str:
    """A setting as a reader writes it: '0, 1, 2' for a list, '1,234' for a count, 'a: 1; b: 2' for a mapping."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {plain(item)}" for key, item in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(plain(item) for item in value)
    return str(value)


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _moment(text: str | None) -> str | None:
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z").strip() if text else None
    except ValueError:
        return text
