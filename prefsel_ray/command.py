"""What `prefsel run SWEEP.py` and `python sweeps/SWEEP.py` do: plan, run, collect, report, track."""

import importlib.util
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from prefsel_ray.data.debian import NoAptIndex
from prefsel_ray.data.files import FilePairs
from prefsel_ray.data.splits import SplitSpec
from prefsel_ray.errors import PrefselError
from prefsel_ray.sweep.spec import SCALES, Sweep

DEFAULT_STORE = Path("runs")
OWN_SPLITS = SplitSpec(support_per_user=8)  # for --data files that bring no splits of their own: every user takes part
SweepFunction = Callable[[str], Sweep]


def cache_folder() -> Path:
    """Converted models, parsed indexes and embeddings: PREFSEL_CACHE, or the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PREFSEL_CACHE") or Path(base) / "prefsel_ray").expanduser().resolve()


def main(sweep: SweepFunction) -> None:
    """The command line of one sweep file: --scale, --store, --data, --dry-run, --actors."""

    def command(
        scale: Annotated[str, typer.Option(help=f"One of {', '.join(SCALES)}.")] = "small",
        store: Annotated[Path, typer.Option(help="Folder that keeps every finished cell.")] = DEFAULT_STORE,
        data: Annotated[
            Path | None, typer.Option(help="Your own pairs (.jsonl or .parquet) in place of the sweep's.")
        ] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
        actors: Annotated[int | None, typer.Option(help="Size of the model pool.")] = None,
    ) -> None:
        raise typer.Exit(guarded(lambda: run(sweep, scale, store, data=data, dry_run=dry_run, actors=actors)))

    typer.run(command)


def guarded(action: Callable[[], int]) -> int:
    """Run `action`; a PrefselError becomes one line on stderr and exit code 2."""
    try:
        return action()
    except PrefselError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def load_sweep_function(path: Path) -> SweepFunction:
    """The function `sweep(scale)` of a sweep file. Raises PrefselError where file or function is missing."""
    if not path.is_file():
        raise PrefselError(f"{path}: no such sweep file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "sweep", None)):
        raise PrefselError(f"{path}: a sweep file defines a function sweep(scale) that returns a Sweep")
    return module.sweep


def run(
    sweep_function: SweepFunction,
    scale: str,
    store_root: Path,
    *,
    data: Path | None = None,
    dry_run: bool = False,
    actors: int | None = None,
) -> int:
    """Run a sweep to its report. Returns 0, or 1 where cells failed.

    Raises PrefselError for wrong input, before anything is written.
    """
    from prefsel_ray.sweep.plan import build
    from prefsel_ray.sweep.runner import prepare_pairs
    from prefsel_ray.sweep.status import write_plan
    from prefsel_ray.sweep.store import Store

    if scale not in SCALES:
        raise PrefselError(f"--scale {scale}: choose one of {', '.join(SCALES)}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    sweep = sweep_function(scale)
    if data is not None:
        sweep = replace(
            sweep, name=f"{sweep.name}-{data.stem}", data=FilePairs(str(data)), splits=OWN_SPLITS, fallback=None
        )
    cache = cache_folder()
    store = Store(store_root)
    plan = build(sweep, sweep.data, cache)
    if dry_run:
        print_plan(plan, store, console)
        return 0
    _stop_on_sigterm()
    started = time.monotonic()
    store.create()
    with store.lock():
        try:
            prepare_pairs(plan, store, cache)
        except NoAptIndex as error:
            if sweep.fallback is None:
                raise
            console.print(f"[yellow]{error}: using planted data instead[/yellow]")
            plan = build(sweep, sweep.fallback, cache)
            prepare_pairs(plan, store, cache)
        write_plan(plan, store)
        print_plan(plan, store, console)
        return _run_plan(plan, store, cache, actors, started, console)


def _run_plan(plan: Any, store: Any, cache: Path, actors: int | None, started: float, console: Console) -> int:
    from prefsel_ray.data.schema import stable_hash
    from prefsel_ray.report.page import write_report
    from prefsel_ray.report.tables import print_summary
    from prefsel_ray.sweep.results import collect
    from prefsel_ray.sweep.runner import Runner
    from prefsel_ray.sweep.store import write_json
    from prefsel_ray.sweep.summary import cell_params, summarise, sweep_params
    from prefsel_ray.sweep.tracking import Tracker

    tracker = Tracker(store, plan.sweep.name)
    key = stable_hash([cell.path for cell in plan.cells], digits=16)
    parent = tracker.start_parent(key, plan.sweep.name, sweep_params(plan))
    status = "KILLED"
    try:
        runner = Runner(plan, store, cache, actors)
        runner.run()
        folder = store.sweep_folder(plan.sweep.name)
        folder.mkdir(parents=True, exist_ok=True)
        results = collect(plan, store)
        results.write(folder)
        shutil.copyfile(store.folder(plan.pairs) / "ledger.json", folder / "ledger.json")
        summary = summarise(plan, store, runner.failed, seconds=time.monotonic() - started)
        write_json(folder / "summary.json", summary)
        page = write_report(folder)
        for cell in plan.cells:
            done = store.is_done(cell)
            tags = {} if done else {"reason": store.failure(cell) or "not run"}
            artifacts = (
                sorted(store.folder(cell).glob("part-*.parquet")) if cell.stage == "text_scores" and done else []
            )
            tracker.log_cell(
                parent,
                cell,
                "FINISHED" if done else "FAILED",
                cell_params(cell),
                results.by_cell.get(cell.path, []),
                artifacts,
                tags,
            )
        tables = [folder / "results.parquet", folder / "generations.parquet", folder / "ledger.json", folder / "report"]
        tracker.finish_parent(parent, "FAILED" if runner.failed else "FINISHED", results.sweep_metrics(), tables)
        status = None
    finally:
        if status is not None:
            tracker.finish_parent(
                parent, "KILLED" if isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit)) else "FAILED", [], []
            )
    print_summary(folder, console)
    console.print(f"results  {folder / 'results.parquet'}", soft_wrap=True)
    console.print(f"report   {page}", soft_wrap=True)
    console.print(f"mlflow   run {parent} in {tracker.uri} (prefsel ui --store {store.root})", soft_wrap=True)
    if runner.failed:
        console.print(f"[red]{len(runner.failed)} cells failed; their reasons are in the report[/red]")
    return 1 if runner.failed else 0


def print_plan(plan: Any, store: Any, console: Console) -> None:
    """Cells by stage: in all, done, to do."""
    from prefsel_ray.sweep.plan import remaining

    table = Table(title=f"sweep {plan.sweep.name}, scale {plan.sweep.scale}", title_justify="left")
    for column in ("stage", "cells", "done", "to do"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage, (left, total) in remaining(plan, store).items():
        table.add_row(stage, str(total), str(total - left), str(left))
    console.print(table)


def _stop_on_sigterm() -> None:
    """SIGTERM ends the run as Ctrl-C does, so that MLflow runs are closed and Ray is shut down."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, stop)
