"""What all figures share: style, colours, points with whiskers, lines with bands, one legend.

Matplotlib's object interface only: no pyplot, so no figure or style outlives a call.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from prefsel_ray.report.read import Row, SweepData, kind_of, method_name, shot_count

# Okabe and Ito's colours without the yellow, which is too light for lines on white. Markers tell methods apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, MUTED, GRID = "#222222", "#777777", "#e6e6e6"
STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.parse_math": False,  # a method's or model's name may hold a dollar sign
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "figure.facecolor": "white",
}
WHISKER = {
    "elinewidth": 0.8,
    "capsize": 0,
    "linestyle": "none",
    "markersize": 7,
    "markeredgecolor": "white",
    "markeredgewidth": 0.6,
}


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """A figure of the given inches in this module's style, which ends with the block."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.06, wspace=0.02)
        FigureCanvasAgg(figure)
        yield figure


def look(data: SweepData, method: str) -> dict[str, str]:
    """Colour and marker of a method, the same in every figure."""
    if kind_of(method) == "plain":
        return {"color": INK, "marker": "o"}
    order = [name for name in data.methods if kind_of(name) != "plain"]
    at = order.index(method)
    return {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[(at + at // len(COLOURS)) % len(MARKERS)]}


def whiskers(rows: Sequence[Row]) -> list[list[float]] | None:
    """Error bars [below, above] of rows with a value; a row without an interval gets none."""
    if not any(row["ci_low"] is not None for row in rows):
        return None
    return [
        [max(0.0, row["value"] - row["ci_low"]) if row["ci_low"] is not None else 0.0 for row in rows],
        [max(0.0, row["ci_high"] - row["value"]) if row["ci_high"] is not None else 0.0 for row in rows],
    ]


def points(data: SweepData, method: str, **key: object) -> dict[int | None, Row]:
    """Rows with a value by seed; the mean over seeds only where there are no seeds of its own."""
    rows = {row["seed"]: row for row in data.where(method=method, **key) if row["value"] is not None}
    seeds = {seed: row for seed, row in rows.items() if seed is not None}
    return seeds or rows


def scatter(ax: Axes, data: SweepData, y_key: dict[str, object]) -> tuple[list[str], int]:
    """RM accuracy against `y_key`, one point a method and seed. Returns the methods drawn and the number of points."""
    drawn, count = [], 0
    for method in data.methods:
        if kind_of(method) != "head":
            continue
        xs = points(data, method, metric="rm_accuracy", variant="micro")
        ys = points(data, method, **y_key)
        seeds = [seed for seed in xs if seed in ys]
        if not seeds:
            continue
        x, y = [xs[seed] for seed in seeds], [ys[seed] for seed in seeds]
        style = look(data, method)
        ax.errorbar(
            [r["value"] for r in x], [r["value"] for r in y], yerr=whiskers(y), xerr=whiskers(x),
            label=shorten(method_name(method)), **style, ecolor=style["color"] + "59", **WHISKER,
        )  # fmt: skip
        drawn.append(method)
        count += len(seeds)
    return drawn, count


def reference_line(ax: Axes, value: float, label: str, **style: object) -> None:
    ax.axhline(
        value, **{"color": MUTED, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1, "label": label, **style}
    )


def diagonal(ax: Axes) -> None:
    """Give both axes the same range and draw where they are equal."""
    low = min(ax.get_xlim()[0], ax.get_ylim()[0])
    high = max(ax.get_xlim()[1], ax.get_ylim()[1])
    ax.set(xlim=(low, high), ylim=(low, high))
    ax.plot([low, high], [low, high], color="#bbbbbb", linewidth=0.9, zorder=0)


def value_of(row: Row | None) -> float | None:
    return row["value"] if row else None


def pad(ax: Axes) -> None:
    ax.margins(0.08)


def curve(ax: Axes, data: SweepData, method: str, rows: Sequence[Row], x: str) -> None:
    """A line with its band; `x` is 'w' or 'k'."""
    style = look(data, method)
    xs = [row["w"] if x == "w" else shot_count(row["variant"]) for row in rows]
    ax.plot(xs, [r["value"] for r in rows], label=shorten(method_name(method)), linewidth=1.5, markersize=4, **style)
    banded = [(at, r) for at, r in zip(xs, rows, strict=True) if r["ci_low"] is not None and r["ci_high"] is not None]
    if len(banded) > 1:
        lows, highs = [r["ci_low"] for _, r in banded], [r["ci_high"] for _, r in banded]
        ax.fill_between([at for at, _ in banded], lows, highs, color=style["color"], alpha=0.12, linewidth=0)


def weight_axis(ax: Axes, weights: Sequence[float]) -> None:
    """Logarithmic in w with room for w = 0; ticks at the weights of the grid. Call it before anything is drawn."""
    grid = sorted(set(weights))
    positive = [w for w in grid if w > 0]
    if len(positive) > 1 and positive[-1] / positive[0] > 8:
        ax.set_xscale("symlog", linthresh=positive[0], linscale=0.5)
    ax.set_xticks(grid, [f"{w:g}" for w in grid])
    ax.minorticks_off()


def shared_legend(figure: Figure, axes: Sequence[Axes], columns: int = 6) -> None:
    """One legend below all panels, every label once; whiskers are left out of its keys."""
    keys: dict[str, Line2D] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            line = handle[0] if isinstance(handle, tuple) else getattr(handle, "lines", [handle])[0]
            keys.setdefault(label, line)
    if keys:
        longest = max(len(label) for label in keys)
        width = max(1, min(columns, len(keys), int(figure.get_figwidth() * 14 / (longest + 7))))
        figure.legend(keys.values(), keys.keys(), loc="outside lower center", ncols=width, fontsize=8.5)


def nothing(ax: Axes, why: str) -> None:
    ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center", va="center", color=MUTED)
    ax.set(xticks=[], yticks=[])
    ax.grid(False)


def save(figure: Figure, folder: Path, name: str, dpi: int = 160) -> Path:
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=dpi, metadata={"Software": None})
    return path


def shorten(text: str, length: int = 26) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
