"""What a store holds: each sweep's cells by stage, from the plan that its driver left there."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from prefsel_ray.errors import PrefselError
from prefsel_ray.sweep.plan import Plan
from prefsel_ray.sweep.store import Store, read_json, write_json


def write_plan(plan: Plan, store: Store) -> None:
    """Leave the list of cells in the sweep's folder, for `prefsel status`."""
    folder = store.sweep_folder(plan.sweep.name)
    folder.mkdir(parents=True, exist_ok=True)
    stages = {stage: [cell.path for cell in cells] for stage, cells in plan.stages}
    write_json(folder / "plan.json", {"scale": plan.sweep.scale, "stages": stages})


def sweep_status(folder: Path, root: Path) -> dict[str, dict[str, int]]:
    """{stage: {"cells", "done", "failed", "left"}} of the sweep whose folder is given."""
    counts: dict[str, dict[str, int]] = {}
    for stage, paths in read_json(folder / "plan.json")["stages"].items():
        done = sum((root / path / "SUCCESS").exists() for path in paths)
        failed = sum((root / path / "FAILED").exists() and not (root / path / "SUCCESS").exists() for path in paths)
        counts[stage] = {"cells": len(paths), "done": done, "failed": failed, "left": len(paths) - done - failed}
    return counts


def print_status(store_root: Path, console: Console) -> int:
    """Print every sweep of the store. Raises PrefselError where there is no store."""
    if not (store_root / "store.json").exists():
        raise PrefselError(f"--store {store_root}: no store there; run a sweep first")
    store = Store(store_root)
    alive = store.is_locked()
    for plan in sorted((store.root / "sweeps").glob("*/plan.json")):
        counts = sweep_status(plan.parent, store.root)
        console.print(_table(plan.parent.name, counts))
        total = {name: sum(stage[name] for stage in counts.values()) for name in ("cells", "done", "failed", "left")}
        if total["done"] == total["cells"]:
            console.print("all done")
        else:
            console.print(
                f"{total['done']} of {total['cells']} cells done, {total['failed']} failed, {total['left']} left"
            )
    if alive:
        console.print("a driver is running")
    elif (store.root / "mlflow.db").exists():
        from prefsel_ray.sweep.tracking import close_abandoned_runs

        killed = close_abandoned_runs(store)
        if killed:
            console.print(f"{killed} MLflow runs of a driver that died are now marked KILLED")
    return 0


def _table(name: str, counts: dict[str, dict[str, Any]]) -> Table:
    table = Table(title=f"sweep {name}", title_justify="left")
    for column in ("stage", "cells", "done", "failed", "left"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage, row in counts.items():
        table.add_row(stage, *(str(row[column]) for column in ("cells", "done", "failed", "left")))
    return table
