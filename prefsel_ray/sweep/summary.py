"""What a sweep was: the settings, counts, costs and failures that stand beside its numbers."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq

from prefsel_ray.metrics.text import ROUGE_SETTINGS
from prefsel_ray.sweep.cell import Cell
from prefsel_ray.sweep.plan import Plan
from prefsel_ray.sweep.runner import git_commit, versions
from prefsel_ray.sweep.store import Store, read_json


def summarise(plan: Plan, store: Store, failed: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """The content of summary.json. `failed` maps cell paths to reasons, `seconds` is the wall time of this run."""
    sweep, folder = plan.sweep, store.folder(plan.pairs)
    source = read_json(folder / "source.json")
    rows = [
        row
        for name in ("fit", "test")
        for row in pq.read_table(folder / f"{name}.parquet", columns=["user_id", "split"]).to_pylist()
    ]
    users = {side: {row["user_id"] for row in rows if row["split"] in side} for side in (SEEN, UNSEEN)}
    splits = Counter(row["split"] for row in rows)
    ranked = splits["seen_test"] + splits["unseen_test"]
    return {
        "name": sweep.name,
        "scale": sweep.scale,
        "dataset": source["dataset"],
        "dataset_note": source["note"],
        "backbone": sweep.backbone,
        "policies": list(sweep.policies),
        "methods": list(sweep.methods),
        "seeds": list(sweep.seeds),
        "shots": list(sweep.shots),
        "weights": list(sweep.weights),
        "decode_weights": list(sweep.decode_weights),
        "top_k": sweep.top_k,
        "max_new_tokens": sweep.max_new_tokens,
        "n_users_seen": len(users[SEEN]),
        "n_users_unseen": len(users[UNSEEN]),
        "n_train": splits["train"],
        "n_support": splits["support"],
        "n_ranked": ranked,
        "n_written": min(ranked, sweep.written),
        "metric_settings": {
            "rouge": ROUGE_SETTINGS,
            "bertscore": sweep.bertscore.describe() if sweep.bertscore else "off",
            "intervals": "95 per cent, bootstrap over users (correlations: over method x seed points)",
        },
        "forward_tokens": forward_tokens(plan, store),
        "seconds": round(seconds, 1),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {**versions(), "commit": git_commit()},
        "cells": {
            "done": sum(store.is_done(cell) for cell in plan.cells),
            "failed": sum(not store.is_done(cell) for cell in plan.cells),
        },
        "failed": [{"cell": path, "reason": reason} for path, reason in sorted(failed.items())],
    }


SEEN = ("train", "seen_test")
UNSEEN = ("support", "unseen_test")


def forward_tokens(plan: Plan, store: Store) -> dict[str, int]:
    """Tokens through each model by stage, "stage, model": n, counted by the models themselves.

    Cells that ran in one job share its count; tokens of blocks redone after a kill are not in it.
    """
    totals: Counter[str] = Counter()
    for stage, cells in plan.stages:
        for cell in cells:
            if store.is_done(cell):
                record = store.record(cell)
                for model, count in record.get("forward_tokens_of_job", {}).items():
                    totals[f"{stage}, {model}"] += count / record["cells_in_job"]
    return {name: round(count) for name, count in sorted(totals.items())}


def sweep_params(plan: Plan) -> dict[str, Any]:
    """The parameters of the parent run."""
    sweep = plan.sweep
    names = ("scale", "backbone", "policies", "methods", "seeds", "in_context_seeds", "shots", "weights")
    more = ("decode_weights", "top_k", "written", "max_new_tokens")
    fields = {f"data.{name}": value for name, value in plan.pairs.fields.items()}
    return {**{name: getattr(sweep, name) for name in (*names, *more)}, **flat(fields)}


def cell_params(cell: Cell) -> dict[str, Any]:
    """The parameters of a cell's run: what it is about, what it declares, what it depends on."""
    label = {name: value for name, value in cell.label.items() if value is not None}
    inputs = {f"input.{i}": c.path for i, c in enumerate(cell.inputs)}
    return {"stage": cell.stage, "cell": cell.path, **label, **flat(cell.fields), **inputs}


def flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names."""
    result: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{name}."))
        else:
            result[f"{prefix}{name}"] = value
    return result
