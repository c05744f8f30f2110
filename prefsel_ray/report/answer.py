"""The answer in words, computed: which configuration leads by each ground-truth metric, and how sure that is."""

from dataclasses import dataclass

import numpy as np

from prefsel_ray.metrics.measured import bootstrap_over_users
from prefsel_ray.report.read import Row, SweepData, interval, kind_of, number, short_policy
from prefsel_ray.report.tables import GROUND_TRUTH, configurations, label_of, lookup

Span = tuple[str, bool]  # words, and whether they are set in bold


@dataclass(frozen=True)
class Standing:
    """One configuration's value by one metric."""

    method: str
    variant: str | None
    w: float | None
    row: Row

    @property
    def name(self) -> str:
        label, setting = label_of(self.method, self.variant, self.w)
        return f"{label} ({setting})".replace(" = ", "\u00a0=\u00a0") if setting else label

    @property
    def numbers(self) -> str:
        low, high = (self.row["ci_low"], self.row["ci_high"]) if has_interval(self.row) else (None, None)
        return with_interval(self.row["value"], low, high)


def with_interval(value: float, low: float | None, high: float | None, digits: int = 1) -> str:
    """'34.6 [32.1–37.1]' that no line break cuts: no-break spaces, and word joiners about the dash."""
    bounds = "no interval" if low is None or high is None else interval(low, high, digits)
    return f"{number(value, digits)} [{bounds}]".replace(" ", "\u00a0").replace("–", "\u2060–\u2060")


def has_interval(row: Row) -> bool:
    return row["ci_low"] is not None and row["ci_high"] is not None


def standings(data: SweepData, metric: str, policy: str | None) -> list[Standing]:
    """The main table's configurations with a value, best first; equal values keep the sweep's order."""
    found = []
    for method, variant, w in configurations(data):
        row = lookup(data, metric, method, variant, w, policy)
        if row is not None and row["value"] is not None:
            found.append(Standing(method, variant, w, row))
    return sorted(found, key=lambda standing: -standing.row["value"])


def answer(data: SweepData) -> list[list[Span]]:
    """One paragraph a policy."""
    return [_paragraph(data, policy) for policy in (data.policies or [None])]


def _paragraph(data: SweepData, policy: str | None) -> list[Span]:
    spans: list[Span] = []
    if policy and len(data.policies) > 1:
        spans.append((f"With {short_policy(policy)} as the policy: ", False))
    by_metric = {metric: standings(data, metric, policy) for metric in GROUND_TRUTH}
    leader = None
    for metric, title in GROUND_TRUTH.items():
        ranked = by_metric[metric]
        if not ranked:
            spans.append((f"{title} was not measured. ", False))
            continue
        if leader is None:
            leader = ranked[0]
            spans += _leads(data, metric, title, ranked, policy)
        else:
            best = ranked[0]
            same = (best.method, best.variant, best.w) == (leader.method, leader.variant, leader.w)
            spans.append((f"By {title} ", False))
            spans.append(("it leads again" if same else best.name, not same))
            spans.append((f" at {best.numbers}" if same else f" leads at {best.numbers}", False))
            spans.append((f", {_apart(ranked)}. ", False))
    spans += _ranking(data, by_metric["rouge1"], policy)
    return spans


def _leads(data: SweepData, metric: str, title: str, ranked: list[Standing], policy: str | None) -> list[Span]:
    best, n = ranked[0], ranked[0].row["n"]
    spans: list[Span] = [
        (best.name, True),
        (f" writes the texts closest to the users' own by {title}: {best.numbers} over {n:,} test pairs. ", False),
    ]
    rival = next((other for other in ranked if other.method != best.method), None)
    if rival is None:
        return [*spans, ("No other method has a value to compare with. ", False)]
    spans.append((f"The best other method is {rival.name} at {rival.numbers}; ", False))
    spans.append((_overlap(best, rival), False))
    difference = paired_difference(data, metric, best, rival, policy)
    if difference:
        mean, low, high = difference
        spans.append((f", and on the same test pairs it is ahead by {with_interval(mean, low, high)}", False))
    return [*spans, (". ", False)]


def _overlap(best: Standing, rival: Standing) -> str:
    if not (has_interval(best.row) and has_interval(rival.row)):
        return "without an interval on both sides their order is not established"
    if best.row["ci_low"] > rival.row["ci_high"]:
        return "the two intervals do not overlap"
    return "the two intervals overlap, so the order of the two is open"


def _apart(ranked: list[Standing]) -> str:
    """Whether the leader's interval is clear of every other method's."""
    best, others = ranked[0], [standing for standing in ranked[1:] if standing.method != ranked[0].method]
    if not others:
        return "with no other method to compare"
    if not all(has_interval(standing.row) for standing in [best, *others]):
        return "without intervals for all methods"
    touching = {s.method for s in others if s.row["ci_high"] >= best.row["ci_low"]}
    if not touching:
        return "its interval clear of every other method's"
    count, total = len(touching), len({s.method for s in others})
    return f"its interval overlapping that of {count} of the {total} other method" + ("s" if total > 1 else "")


def _ranking(data: SweepData, written: list[Standing], policy: str | None) -> list[Span]:
    """What reward model accuracy would have chosen, and where that choice stands by ROUGE-1."""
    ranked = [standing for standing in standings(data, "rm_accuracy", policy) if kind_of(standing.method) == "head"]
    if not ranked:
        return [("No reward model was ranked. ", False)]
    best = ranked[0]
    spans: list[Span] = [
        ("Reward model accuracy would choose ", False),
        (best.name, True),
        (f", {best.numbers} %", False),
    ]
    place = next((i for i, s in enumerate(written, 1) if (s.method, s.w) == (best.method, best.w)), None)
    if place is not None:
        spans.append((f"; by ROUGE-1 it comes {ordinal(place)} of {len(written)} configurations", False))
    spans.append((". ", False))
    tau = data.one(metric="kendall", policy=policy, w=data.main_w(), variant="rm_accuracy ~ rouge1")
    tau = tau or data.one(metric="kendall", variant="rm_accuracy ~ rouge1")
    if tau and tau["value"] is not None and has_interval(tau):
        found = with_interval(tau["value"], tau["ci_low"], tau["ci_high"], 2)
        words = f"Kendall's τ between RM accuracy and ROUGE-1 is {found} over {tau['n']} points."
        spans.append((words, False))
    return spans


def paired_difference(
    data: SweepData, metric: str, best: Standing, rival: Standing, policy: str | None
) -> tuple[float, float, float] | None:
    """Mean of best - rival over examples both wrote (seeds averaged), with a 95 % interval over users."""

    def per_example(one: Standing) -> dict[tuple[str, str], list[float]]:
        values: dict[tuple[str, str], list[float]] = {}
        for row in data.generations:
            same = (row["method"], row["policy"], row["w"]) == (one.method, policy, one.w)
            if same and row.get(metric) is not None and (one.variant is None or row["variant"] in (one.variant, None)):
                values.setdefault((row["user_id"], row["example_id"]), []).append(row[metric])
        return values

    first, second = per_example(best), per_example(rival)
    shared = sorted(first.keys() & second.keys())
    if len(shared) < 2:
        return None
    differences = np.asarray([np.mean(first[key]) - np.mean(second[key]) for key in shared])
    found = bootstrap_over_users(differences, [user for user, _ in shared])
    return (float(differences.mean()), found.low, found.high) if found.low is not None else None


def ordinal(place: int) -> str:
    """1 -> '1st', 12 -> '12th', 23 -> '23rd'."""
    suffix = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{suffix}"
