"""From finished cells to numbers: `results.parquet`, `generations.parquet`, and the metrics of each MLflow run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prefsel_ray.data.schema import Pair, pairs_from_table
from prefsel_ray.metrics.correlation import correlations
from prefsel_ray.metrics.measured import Measured, macro_mean, mean_over_seeds, micro_mean
from prefsel_ray.metrics.policy_accuracy import PairTrace, Totals, grid_outcomes, scores, totals
from prefsel_ray.metrics.ranking import is_tie, outcomes
from prefsel_ray.metrics.text import TEXT_METRICS
from prefsel_ray.metrics.win_rate import win_outcomes
from prefsel_ray.sweep.cell import Cell
from prefsel_ray.sweep.plan import Plan
from prefsel_ray.sweep.store import Store, read_json

RESULTS_SCHEMA = pa.schema(
    [
        ("sweep", pa.string()),
        ("dataset", pa.string()),
        ("method", pa.string()),  # null for correlations
        ("seed", pa.int64()),  # null for the mean over seeds
        ("policy", pa.string()),  # null where no policy takes part
        ("metric", pa.string()),
        ("variant", pa.string()),  # definition, split or number of demonstrations
        ("w", pa.float64()),  # weight of the reward, null where there is none
        ("value", pa.float64()),  # per cent for accuracies, win rates and text metrics; null with the reason in note
        ("n", pa.int64()),
        ("n_ties", pa.int64()),
        ("n_dropped", pa.int64()),
        ("ci_low", pa.float64()),  # 95 per cent, bootstrap over users (over points for correlations)
        ("ci_high", pa.float64()),
        ("note", pa.string()),
    ]
)
HEAD_DEFINITIONS = ("prefix_sum", "prefix_mean", "prefix_centred", "terminal", "reward")
CONTROLS = ("base", "length_shorter", "length_longer")
CORRELATED = (
    ("rm_accuracy", "policy_accuracy prefix_sum"),
    ("rm_accuracy", "policy_accuracy terminal"),
    ("rm_accuracy", "rouge1"),
    ("policy_accuracy prefix_sum", "rouge1"),
    ("policy_accuracy terminal", "rouge1"),
    ("win_rate", "rouge1"),
)


@dataclass
class Results:
    """Result rows in RESULTS_SCHEMA, the metrics of each cell for MLflow, and every written text."""

    sweep: str
    dataset: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    by_cell: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    generations: list[dict[str, Any]] = field(default_factory=list)

    def add(self, measured: Measured, cell: Cell | None = None, **key: Any) -> None:
        """One row; `key` gives method, seed, policy, metric, variant, w. With a cell the value goes to its run too."""
        row = {name: key.get(name) for name in ("method", "seed", "policy", "metric", "variant", "w")}
        self.rows.append({"sweep": self.sweep, "dataset": self.dataset, **row, **vars(measured)})
        if cell is not None and measured.value is not None:
            self.by_cell.setdefault(cell.path, []).append((metric_name(row), measured.value))

    def add_seeds(
        self,
        by_seed: Mapping[int | None, np.ndarray],
        users: Sequence[str],
        cells: Mapping[int | None, Cell],
        *,
        macro: bool = False,
        note: str | None = None,
        **key: Any,
    ) -> None:
        """A row for each seed and one, with seed null, for their mean; `by_seed` maps seeds to [N] row values."""
        summarise = macro_mean if macro else micro_mean
        for seed, values in by_seed.items():
            if seed is not None:
                ties = int(is_tie(values).sum()) if key["metric"] not in TEXT_METRICS else 0
                self.add(summarise(values, users, n_ties=ties, note=note), cells[seed], seed=seed, **key)
        stacked = np.stack(list(by_seed.values()))
        ties = is_tie(stacked) if key["metric"] not in TEXT_METRICS else None
        only = cells[None] if None in by_seed else None
        self.add(mean_over_seeds(stacked, users, ties=ties, summarise=summarise, note=note), only, seed=None, **key)

    def value(self, **key: Any) -> float | None:
        """The value of the row that matches `key` exactly on the given columns; None where there is none."""
        for row in self.rows:
            if all(row[name] == wanted for name, wanted in key.items()):
                return row["value"]
        return None

    def sweep_metrics(self) -> list[tuple[str, float]]:
        """The rows that hold for the sweep as a whole (seed null), named for the parent run."""
        rows = [row for row in self.rows if row["seed"] is None and row["value"] is not None]
        return [
            (".".join(p for p in (row["method"], row["policy"], metric_name(row)) if p), row["value"]) for row in rows
        ]

    def write(self, folder: Path) -> None:
        pq.write_table(pa.Table.from_pylist(self.rows, schema=RESULTS_SCHEMA), folder / "results.parquet")
        pq.write_table(
            pa.Table.from_pylist(self.generations, schema=GENERATIONS_SCHEMA), folder / "generations.parquet"
        )


GENERATIONS_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("example_id", "user_id", "split", "method")),
        ("seed", pa.int64()),
        *((name, pa.string()) for name in ("policy", "variant")),
        ("w", pa.float64()),
        *((name, pa.string()) for name in ("prompt_text", "reference", "text")),
        ("finished", pa.bool_()),
        *((name, pa.float64()) for name in TEXT_METRICS),
        ("note", pa.string()),
    ]
)


def metric_name(row: Mapping[str, Any]) -> str:
    """`policy_accuracy.prefix_sum.w1`: the name of a result row as an MLflow metric."""
    parts = [row["metric"], row["variant"], None if row["w"] is None else f"w{row['w']:g}"]
    return ".".join(part for part in parts if part)


def collect(plan: Plan, store: Store) -> Results:
    """All numbers of the finished cells; what failed is absent here and named with its reason in the summary."""
    results = Results(plan.sweep.name, read_json(store.folder(plan.pairs) / "source.json")["dataset"])
    pairs = pairs_from_table(pq.read_table(store.folder(plan.pairs) / "test.parquet"))
    if pairs:
        _reward_model_accuracy(results, plan, store, pairs)
        for policy in plan.sweep.policies:
            _policy_accuracy(results, plan, store, pairs, policy)
        _texts(results, plan, store, {pair.example_id: pair for pair in pairs})
        _win_rates(results, plan, store)
        for policy in plan.sweep.policies:
            _correlations(results, plan, policy)
    return results


def read_parts(folder: Path) -> pa.Table:
    """The part files of a cell as one table, in block order."""
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))


def _groups(store: Store, cells: Sequence[Cell], *names: str) -> dict[tuple[Any, ...], dict[int | None, Cell]]:
    """Finished cells grouped by the named labels, each group by seed."""
    groups: dict[tuple[Any, ...], dict[int | None, Cell]] = {}
    for cell in cells:
        if store.is_done(cell):
            groups.setdefault(tuple(cell.label.get(name) for name in names), {})[cell.label["seed"]] = cell
    return groups


def _reward_model_accuracy(results: Results, plan: Plan, store: Store, pairs: Sequence[Pair]) -> None:
    users = np.asarray([pair.user_id for pair in pairs])
    seen = np.asarray([pair.split == "seen_test" for pair in pairs])
    for (method,), cells in _groups(store, plan.reward_traces, "method").items():
        by_seed = {}
        for seed, cell in cells.items():
            table = read_parts(store.folder(cell))
            last = {
                side: np.asarray([row[-1] for row in table[f"rewards_{side}"].to_pylist()])
                for side in ("chosen", "rejected")
            }
            by_seed[seed] = outcomes(last["chosen"], last["rejected"])
        key = {"method": method, "metric": "rm_accuracy"}
        results.add_seeds(by_seed, users, cells, variant="micro", **key)
        results.add_seeds(by_seed, users, cells, variant="macro", macro=True, **key)
        for variant, rows in (("seen", seen), ("unseen", ~seen)):
            if rows.any():
                part = {seed: values[rows] for seed, values in by_seed.items()}
                results.add_seeds(part, users[rows], cells, variant=variant, **key)
            else:
                results.add(Measured(None, 0, note=f"no {variant} users in the test pairs"), variant=variant, **key)


def _policy_accuracy(results: Results, plan: Plan, store: Store, pairs: Sequence[Pair], policy: str) -> None:
    trace = plan.traces[policy]
    if not store.is_done(trace):
        return
    users = [pair.user_id for pair in pairs]
    table = read_parts(store.folder(trace) / "test")
    logprobs = {side: table[f"logprobs_{side}"].to_pylist() for side in ("chosen", "rejected")}
    plain = totals([PairTrace(c, r) for c, r in zip(logprobs["chosen"], logprobs["rejected"], strict=True)])
    base = {"method": "zero_shot", "policy": policy, "metric": "policy_accuracy"}
    for definition in (*CONTROLS, "full"):
        row = {None: outcomes(*scores(plain, definition))}
        results.add_seeds(row, users, {None: trace}, variant=definition, **base)
    for (method,), cells in _groups(store, plan.reward_traces, "method").items():
        grids = {}
        for seed, cell in cells.items():
            sides = _with_rewards(logprobs, read_parts(store.folder(cell)))
            grids[seed] = grid_outcomes(sides, HEAD_DEFINITIONS, plan.sweep.weights)
        for definition, w in next(iter(grids.values())):
            by_seed = {seed: grid[definition, w] for seed, grid in grids.items()}
            key = {"method": method, "policy": policy, "metric": "policy_accuracy", "variant": definition, "w": w}
            results.add_seeds(by_seed, users, cells, **key)
    in_context = [c for c in plan.in_context if c.label["policy"] == policy]
    for (method, variant), cells in _groups(store, in_context, "method", "variant").items():
        by_seed, ranked = {}, users
        for seed, cell in cells.items():
            shown = read_parts(store.folder(cell))
            ranked = shown["user_id"].to_pylist()
            sides = (shown["logprobs_chosen"].to_pylist(), shown["logprobs_rejected"].to_pylist())
            traces = [PairTrace(c, r) for c, r in zip(*sides, strict=True)]
            by_seed[seed] = outcomes(*scores(traces, "full"))
        key = {"method": method, "policy": policy, "metric": "policy_accuracy", "variant": f"full;{variant}"}
        note = f"ranked on {len(ranked)} of {len(users)} test pairs" if len(ranked) < len(users) else None
        results.add_seeds(by_seed, ranked, cells, note=note, **key)


def _with_rewards(logprobs: Mapping[str, Sequence[Any]], rewards: pa.Table) -> tuple[Totals, Totals]:
    columns = (
        logprobs["chosen"],
        logprobs["rejected"],
        rewards["rewards_chosen"].to_pylist(),
        rewards["rewards_rejected"].to_pylist(),
        rewards["reward_prompt"].to_pylist(),
    )
    return totals([PairTrace(*row) for row in zip(*columns, strict=True)])


def _texts(results: Results, plan: Plan, store: Store, pairs: Mapping[str, Pair]) -> None:
    for (method, policy, variant, w), cells in _groups(
        store, plan.text_scores, "method", "policy", "variant", "w"
    ).items():
        shown_variant = "k=0" if method == "zero_shot" else variant
        tables = {seed: read_parts(store.folder(cell)) for seed, cell in cells.items()}
        users = next(iter(tables.values()))["user_id"].to_pylist()
        for metric in TEXT_METRICS:
            key = {"method": method, "policy": policy, "metric": metric, "variant": shown_variant, "w": w}
            values = {s: np.asarray(t[metric].to_pylist(), dtype=np.float64) for s, t in tables.items()}
            note = _why_missing(metric, plan, tables) if all(np.isnan(v).all() for v in values.values()) else None
            results.add_seeds(values, users, cells, note=note, **key)
        for seed, table in tables.items():
            texts = read_parts(store.folder(cells[seed].inputs[0]))
            written = {row["example_id"]: row for row in texts.select(["example_id", "text", "finished"]).to_pylist()}
            for row in table.to_pylist():
                pair = pairs[row["example_id"]]
                results.generations.append(
                    {
                        **row,
                        **written[row["example_id"]],
                        "method": method,
                        "seed": seed,
                        "policy": policy,
                        "variant": shown_variant,
                        "w": w,
                        "prompt_text": pair.prompt[-1]["content"],
                        "reference": pair.reference,
                    }
                )


def _why_missing(metric: str, plan: Plan, tables: Mapping[int | None, pa.Table]) -> str:
    if metric == "bertscore" and plan.sweep.bertscore is None:
        return "BERTScore is off in this sweep"
    notes = {note for table in tables.values() for note in table["note"].to_pylist() if note}
    return "; ".join(sorted(notes)[:3])


def _win_rates(results: Results, plan: Plan, store: Store) -> None:
    for (method, policy, w), cells in _groups(store, plan.own_rewards, "method", "policy", "w").items():
        by_seed, users, equal = {}, [], []
        for seed, cell in cells.items():
            table = read_parts(store.folder(cell))
            users = table["user_id"].to_pylist()
            guided, plain = (read_parts(store.folder(c))["text"].to_pylist() for c in cell.inputs)
            rewards = (table["reward_guided"].to_pylist(), table["reward_zero_shot"].to_pylist())
            by_seed[seed] = win_outcomes(*rewards, guided, plain)
            equal.append(np.mean([g == p for g, p in zip(guided, plain, strict=True)]))
        note = f"{100 * np.mean(equal):.0f} % of the texts equal the zero-shot text"
        key = {"method": method, "policy": policy, "metric": "win_rate", "variant": "own_reward", "w": w}
        results.add_seeds(by_seed, users, cells, note=note, **key)


def _correlations(results: Results, plan: Plan, policy: str) -> None:
    """Kendall, Spearman and Pearson over the method x seed points of the head methods, for each decoding weight."""
    sweep = plan.sweep
    for w in sweep.decode_weights:
        points = [_point(results, method, seed, policy, w) for method in sweep.of_kind("head") for seed in sweep.seeds]
        for x, y in CORRELATED:
            found = correlations([p[x] for p in points], [p[y] for p in points], [p["method"] for p in points])
            for kind, measured in found.items():
                results.add(measured, policy=policy, metric=kind, variant=f"{x} ~ {y}", w=w)


def _point(results: Results, method: str, seed: int, policy: str, w: float) -> dict[str, Any]:
    one = {"method": method, "seed": seed}
    policy_accuracy = {**one, "policy": policy, "metric": "policy_accuracy", "w": w}
    return {
        "method": method,
        "rm_accuracy": results.value(**one, metric="rm_accuracy", variant="micro"),
        "policy_accuracy prefix_sum": results.value(**policy_accuracy, variant="prefix_sum"),
        "policy_accuracy terminal": results.value(**policy_accuracy, variant="terminal"),
        "rouge1": results.value(**one, policy=policy, metric="rouge1", w=w),
        "win_rate": results.value(**one, policy=policy, metric="win_rate", w=w),
    }
