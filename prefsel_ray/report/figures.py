"""The report's figures: one function each, from the results to a PNG and its caption, or to the reason for none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prefsel_ray.report.drawing import (
    INK,
    MUTED,
    WHISKER,
    canvas,
    curve,
    diagonal,
    look,
    nothing,
    pad,
    reference_line,
    save,
    scatter,
    shared_legend,
    shorten,
    value_of,
    weight_axis,
    whiskers,
)
from prefsel_ray.report.read import Row, SweepData, kind_of, short_policy, shot_count, span
from prefsel_ray.report.tables import configurations, label_of, lookup

DEFINITIONS = ("prefix_sum", "prefix_mean", "prefix_centred", "terminal")


@dataclass(frozen=True)
class Drawing:
    """A written figure, or the reason why there is none."""

    name: str
    title: str
    caption: str
    path: Path | None = None
    reason: str = ""
    narrow: bool = False


def draw_all(data: SweepData, folder: Path) -> list[Drawing]:
    """Write every figure the results allow as PNG into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return [draw(data, folder) for draw in (overview, agreement, by_weight, shots, writing_by_weight)]


def overview(data: SweepData, folder: Path) -> Drawing:
    """1600 x 700 pixels: does ranking well go with being picked by the policy, and who writes best?"""
    title = "Ranking and writing at a glance"
    policy, w = next(iter(data.policies), None), data.main_w()
    bars = [
        (config, row)
        for config in configurations(data)
        if (row := lookup(data, "rouge1", *config, policy)) is not None and row["value"] is not None
    ]
    with canvas(10, 4.375) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        y_key = {"metric": "policy_accuracy", "variant": "prefix_sum", "policy": policy, "w": w}
        drawn, count = scatter(left, data, y_key)
        if not drawn and not bars:
            return Drawing("overview", title, "", reason="neither accuracies nor ROUGE-1 were measured")
        if drawn:
            pad(left)
            base = value_of(data.one(metric="policy_accuracy", variant="base", policy=policy, seed=None))
            if base is not None:
                reference_line(left, base, "policy alone (w = 0)")
            diagonal(left)
            left.legend(fontsize=8.5, loc="best", handletextpad=0.4)
        else:
            nothing(left, "no method has both accuracies")
        left.set(xlabel="Reward model accuracy (%)", ylabel=f"Policy accuracy, prefix_sum{_at(w)} (%)")
        left.set_title("How well they rank")
        _dot_plot(right, data, bars)
        right.set_title("How well they write")
        path = save(figure, folder, "overview")
    n = span([row["n"] for _, row in bars]) if bars else "0"
    caption = (
        f"Left: {count} points, one a method and seed; on the grey diagonal the guided policy would rank as well as "
        f"its reward. Right: ROUGE-1 of the written texts, mean over seeds, n = {n} test pairs. Bars are 95 % "
        f"intervals over users. Policy {short_policy(policy) if policy else 'not given'}."
    )
    return Drawing("overview", title, caption, path)


def _at(w: float | None) -> str:
    return "" if w is None else f" at w = {w:g}"


def _dot_plot(ax: Axes, data: SweepData, bars: Sequence[tuple[tuple[str, str | None, float | None], Row]]) -> None:
    ax.set_xlabel("ROUGE-1 (F1 × 100)")
    ax.set_ylabel("Method and setting")
    if not bars:
        nothing(ax, "ROUGE-1 was not measured")
        return
    names = []
    for at, (config, row) in enumerate(reversed(bars)):
        style = look(data, config[0])
        ax.errorbar(
            [row["value"]], [at], xerr=whiskers([row]), color=style["color"], marker=style["marker"],
            ecolor=style["color"] + "99", **{**WHISKER, "elinewidth": 1.6, "markersize": 7},
        )  # fmt: skip
        ax.annotate(
            f"{row['value']:.1f}", (row["value"], at), (0, 6), textcoords="offset points", ha="center", fontsize=8
        )
        name, setting = label_of(*config)
        names.append(shorten(name + (f" ({setting})" if setting else "")))
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, len(names) - 0.25)
    ax.grid(False, axis="y")


def _panels(figure: Figure, rows: int, columns: int, **kw: object) -> list[list[Axes]]:
    return figure.subplots(rows, columns, squeeze=False, **kw).tolist()


def agreement(data: SweepData, folder: Path) -> Drawing:
    """RM accuracy against policy accuracy (two definitions) and against ROUGE-1; a row of panels a policy."""
    title = "Does a more accurate reward model rank and write better?"
    w, policies = data.main_w(), data.policies
    targets: list[tuple[str, str, Callable[[str], dict[str, object]]]] = [
        ("Policy accuracy (%)", f"Ranking: prefix_sum{_at(w)}", lambda p: _accuracy(p, "prefix_sum", w)),
        ("Policy accuracy (%)", f"Ranking: terminal{_at(w)}", lambda p: _accuracy(p, "terminal", w)),
        ("ROUGE-1 (F1 × 100)", f"Writing: ROUGE-1{_at(w)}", lambda p: {"metric": "rouge1", "policy": p, "w": w}),
    ]
    with canvas(10, 0.5 + 3.1 * max(1, len(policies))) as figure:
        axes = _panels(figure, max(1, len(policies)), len(targets))
        total = 0
        for row, policy in zip(axes, policies, strict=False):
            for at, (ax, (label, heading, key)) in enumerate(zip(row, targets, strict=True)):
                drawn, count = scatter(ax, data, key(policy))
                total += count
                ax.set(xlabel="Reward model accuracy (%)", ylabel=label, title=heading)
                if not drawn:
                    nothing(ax, "no method has both values")
                    continue
                pad(ax)
                _references(ax, data, policy, is_text=at == 2)
                if at < 2:
                    diagonal(ax)
            if len(policies) > 1:
                row[0].set_ylabel(f"{shorten(short_policy(policy), 30)}\n{targets[0][0]}")
        if not total:
            return Drawing(
                "agreement", title, "", reason="no method has both a reward model accuracy and another value"
            )
        shared_legend(figure, [ax for row in axes for ax in row])
        path = save(figure, folder, "agreement")
    ranked, written = _n(data, "rm_accuracy"), _n(data, "rouge1")
    caption = (
        f"Each point is one method and seed; bars are 95 % intervals over users (ranked n = {ranked}, written n = "
        f"{written} test pairs). On the grey diagonal both accuracies are equal. Dashed: the policy alone; dotted: the "
        "best in-context line of the table, which has no reward model accuracy."
    )
    return Drawing("agreement", title, caption, path)


def _accuracy(policy: str | None, variant: str, w: float | None) -> dict[str, object]:
    return {"metric": "policy_accuracy", "variant": variant, "policy": policy, "w": w}


def _n(data: SweepData, metric: str) -> str:
    counts = [
        r["n"] for r in data.where(metric=metric) if r["value"] is not None and r["variant"] not in ("seen", "unseen")
    ]
    return span(counts) if counts else "0"


def _references(ax: Axes, data: SweepData, policy: str, *, is_text: bool) -> None:
    """Zero-shot, and the best in-context configuration, as horizontal lines."""
    key, plain = ("rouge1", "zero_shot") if is_text else ("full", "zero_shot")
    base = value_of(lookup(data, key, plain, "k=0", None, policy))
    if base is None and not is_text:
        base = value_of(data.one(metric="policy_accuracy", variant="base", policy=policy, seed=None))
    if base is not None:
        reference_line(ax, base, "policy alone (zero-shot)")
    values = [
        value
        for config in configurations(data)
        if kind_of(config[0]) == "in_context" and (value := value_of(lookup(data, key, *config, policy))) is not None
    ]
    if values:
        reference_line(ax, max(values), "best in-context", linestyle=(0, (1, 2)), color=INK, linewidth=1.2)


def by_weight(data: SweepData, folder: Path) -> Drawing:
    """Policy accuracy against w: a column a definition, a row a policy, a line a method."""
    title = "Policy accuracy against the weight of the reward"
    rows = [r for r in data.where(metric="policy_accuracy", seed=None) if r["w"] is not None and r["value"] is not None]
    definitions = [d for d in DEFINITIONS if any(r["variant"] == d for r in rows)]
    policies = [p for p in data.policies if any(r["policy"] == p for r in rows)]
    if not definitions or not policies:
        return Drawing("policy_accuracy_by_weight", title, "", reason="no policy accuracy over a grid of w")
    with canvas(10, 0.7 + 2.7 * len(policies)) as figure:
        axes = _panels(figure, len(policies), len(definitions), sharey="row")
        for line, policy in zip(axes, policies, strict=True):
            for ax, definition in zip(line, definitions, strict=True):
                here = [r for r in rows if r["policy"] == policy and r["variant"] == definition]
                weight_axis(ax, [r["w"] for r in here])
                for method in [m for m in data.methods if any(r["method"] == m for r in here)]:
                    curve(
                        ax, data, method, sorted((r for r in here if r["method"] == method), key=lambda r: r["w"]), "w"
                    )
                    rm = value_of(data.one(method=method, seed=None, metric="rm_accuracy", variant="micro"))
                    if rm is not None:
                        colour = look(data, method)["color"]
                        reference_line(ax, rm, "_", color=colour, linestyle=(0, (1, 2)), linewidth=1.1)
                base = value_of(data.one(metric="policy_accuracy", variant="base", policy=policy, seed=None))
                if base is not None:
                    reference_line(ax, base, "base: the policy alone")
                ax.set_title(definition)
                ax.set_xlabel("Weight w of the reward")
            named = f"{shorten(short_policy(policy), 30)}\n" if len(policies) > 1 else ""
            line[0].set_ylabel(f"{named}Policy accuracy (%)")
        axes[0][0].plot(
            [], [], color=MUTED, linestyle=(0, (1, 2)), linewidth=1.1, label="RM accuracy, in its method's colour"
        )
        shared_legend(figure, [ax for line in axes for ax in line])
        path = save(figure, folder, "policy_accuracy_by_weight")
    caption = (
        "One line a method, mean over seeds, bands are 95 % intervals over users, "
        f"n = {span([r['n'] for r in rows])} test pairs. "
        "The same traces under each definition: where a line leaves the dashed base for its dotted RM accuracy, the "
        "reward decides the ranking."
    )
    return Drawing("policy_accuracy_by_weight", title, caption, path)


def shots(data: SweepData, folder: Path) -> Drawing:
    """ROUGE-1 against the number of demonstrations, k = 0 being zero-shot; a panel a policy."""
    title = "What demonstrations buy"
    curves: dict[str, list[tuple[str, list[Row]]]] = {}
    for policy in data.policies:
        start = lookup(data, "rouge1", "zero_shot", "k=0", None, policy)
        for method in [m for m in data.methods if kind_of(m) == "in_context"]:
            found = [lookup(data, "rouge1", method, variant, None, policy) for variant in data.shots(method)]
            rows = [row for row in (start, *found) if row is not None and row["value"] is not None]
            if any(row is not start for row in rows):
                curves.setdefault(policy, []).append((method, rows))
    if not curves:
        return Drawing("shots", title, "", reason="no in-context method has a ROUGE-1 value")
    with canvas(max(5.2, min(10, 3.6 * len(curves))), 3.4) as figure:
        axes = _panels(figure, 1, len(curves), sharey=True)[0]
        for ax, (policy, lines) in zip(axes, curves.items(), strict=True):
            for method, rows in lines:
                curve(ax, data, method, rows, "k")
            start = lookup(data, "rouge1", "zero_shot", "k=0", None, policy)
            if start is not None and start["value"] is not None:
                reference_line(ax, start["value"], "zero-shot (k = 0)")
            ks = sorted({shot_count(row["variant"]) for _, rows in lines for row in rows})
            ax.set_xticks(ks)
            pad(ax)
            ax.set_xlabel("Demonstrations k in the prompt")
            if len(curves) > 1:
                ax.set_title(shorten(short_policy(policy)))
        axes[0].set_ylabel("ROUGE-1 (F1 × 100)")
        shared_legend(figure, axes)
        path = save(figure, folder, "shots")
    n = span([row["n"] for lines in curves.values() for _, rows in lines for row in rows])
    caption = f"Mean over seeds; bands are 95 % intervals over users, n = {n} test pairs."
    return Drawing("shots", title, caption, path, narrow=len(curves) == 1)


def writing_by_weight(data: SweepData, folder: Path) -> Drawing:
    """ROUGE-1 and own win rate of guided texts against the decoding weight, where more than one weight wrote."""
    name, title = "writing_by_weight", "Written text against the weight of the reward"
    if len(data.decode_weights()) < 2:
        return Drawing(name, title, "", reason="one decoding weight: no line to draw")
    panels = [("rouge1", "ROUGE-1 (F1 × 100)"), ("win_rate", "Win rate by own reward (%)")]
    panels = [p for p in panels if any(r["w"] is not None and r["value"] is not None for r in data.where(metric=p[0]))]
    counts: list[int] = []
    with canvas(10 if len(panels) > 1 else 5.2, 0.5 + 2.9 * len(data.policies)) as figure:
        axes = _panels(figure, len(data.policies), len(panels))
        for line, policy in zip(axes, data.policies, strict=True):
            for ax, (metric, label) in zip(line, panels, strict=True):
                weight_axis(ax, data.decode_weights())
                for method in [m for m in data.methods if kind_of(m) == "head"]:
                    rows = data.where(method=method, seed=None, policy=policy, metric=metric)
                    rows = sorted(
                        (r for r in rows if r["w"] is not None and r["value"] is not None), key=lambda r: r["w"]
                    )
                    if rows:
                        curve(ax, data, method, rows, "w")
                        counts += [r["n"] for r in rows]
                start = (
                    value_of(lookup(data, "rouge1", "zero_shot", "k=0", None, policy)) if metric == "rouge1" else 50.0
                )
                if start is not None:
                    words = "zero-shot" if metric == "rouge1" else "as often as not"
                    reference_line(ax, start, words, linestyle=(0, (4, 3)) if metric == "rouge1" else (0, (1, 2)))
                ax.set(xlabel="Weight w in guided decoding", ylabel=label)
            if len(data.policies) > 1:
                line[0].set_title(shorten(short_policy(policy), 40))
        shared_legend(figure, [ax for line in axes for ax in line])
        path = save(figure, folder, name)
    n = span(counts) if counts else "0"
    return Drawing(name, title, f"Mean over seeds; bands are 95 % intervals over users, n = {n} test pairs.", path)
