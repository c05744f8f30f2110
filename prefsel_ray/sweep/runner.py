"""Runs a plan: stage by stage, every finished cell skipped, every failure a FAILED cell with its reason."""

import importlib.metadata
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tqdm import tqdm

import prefsel_ray
from prefsel_ray.cluster import jobs
from prefsel_ray.cluster.fitting import HeadFit, fit_heads
from prefsel_ray.cluster.pool import Job, ModelPool, part_path
from prefsel_ray.cluster.preflight import shares
from prefsel_ray.cluster.session import session
from prefsel_ray.cluster.streams import stream_blocks
from prefsel_ray.data.prepare import prepare
from prefsel_ray.data.schema import FIT_SPLITS, Pair, stable_hash, table_from_pairs
from prefsel_ray.lm.reference import load_tokenizer, window_of
from prefsel_ray.lm.window import prompt_fitter
from prefsel_ray.sweep.cell import Cell
from prefsel_ray.sweep.plan import Plan
from prefsel_ray.sweep.store import Store, write_json

FIT_BLOCKS = 4  # pairs to learn from are traced in blocks so many times larger
PACKAGES = ("prefsel_ray", "ray", "torch", "transformers", "pyarrow", "numpy", "mlflow")


def prepare_pairs(plan: Plan, store: Store, cache: Path) -> None:
    """Run the pairs stage in this process: read, check, split, mine; write fit.parquet, test.parquet, ledger.json.

    Test rows are ordered by a hash of their id, so that the first `written` of them are an unbiased sample.
    """
    cell, sweep = plan.pairs, plan.sweep
    if store.is_done(cell):
        return
    started = time.monotonic()
    models = [(load_tokenizer(reference, cache), window_of(reference, cache)) for reference in plan.traces]
    fit = prompt_fitter(models, reserve=sweep.max_new_tokens)
    prepared = prepare(plan.source, sweep.splits, fit=fit, cache=cache, progress=True)
    fit_rows = sorted((p for p in prepared.pairs if p.split in FIT_SPLITS), key=lambda p: (p.user_id, p.example_id))
    test_rows = sorted((p for p in prepared.pairs if p.split not in FIT_SPLITS), key=_shuffled)
    folder = store.start(cell)
    pq.write_table(table_from_pairs(fit_rows), folder / "fit.parquet")
    pq.write_table(table_from_pairs(test_rows), folder / "test.parquet")
    write_json(folder / "ledger.json", prepared.ledger.to_dict())
    write_json(folder / "source.json", {"dataset": prepared.dataset, "note": prepared.source_note})
    for line in prepared.ledger.lines():
        tqdm.write(line)
    store.finish(cell, _record(started, {"fit_rows": len(fit_rows), "test_rows": len(test_rows)}))


def _shuffled(pair: Pair) -> str:
    return stable_hash(["test order", pair.example_id], digits=16)


@dataclass
class Runner:
    """Runs the stages after `pairs` on Ray. `failed` maps cell paths to reasons."""

    plan: Plan
    store: Store
    cache: Path
    actors: int | None = None
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Do what is not done. Ray starts only if something is left."""
        if all(self.store.is_done(cell) for cell in self.plan.cells):
            return
        with ExitStack() as stack:
            cluster = stack.enter_context(session())
            self.shares = shares(cluster, self.actors)
            self.pool = stack.enter_context(ModelPool(self.shares, self.cache))
            self._traces()
            self._in_context()
            self._rewards()
            self._reward_traces()
            self._generations()
            self._own_rewards()
            self._text_scores()

    # Stages. Each takes its pending cells, says what one block needs, and leaves the rest to _blocks.

    def _traces(self) -> None:
        for reference, cell in self.plan.traces.items():
            if not self._pending([cell]):
                continue
            settings = {"model": reference, "logprobs": cell.fields["logprobs"]}
            states = cell.fields["states"]
            if states:  # methods learn from the pair as a whole: its last state, and no log-probability
                fit = {"model": reference, "logprobs": False, "states": "final"}
                fit_done = self._blocks("features", jobs.trace, [cell], "fit", lambda _, s=fit: s, subfolder="fit")
                if not fit_done:
                    continue
            settings["states"] = "all" if states else None
            self._blocks("traces", jobs.trace, [cell], "test", lambda _, s=settings: s, subfolder="test")
            self._finish([cell], [cell])

    def _in_context(self) -> None:
        pairs = self.store.folder(self.plan.pairs)
        for policy in self.plan.sweep.policies:
            group = self._pending([c for c in self.plan.in_context if c.label["policy"] == policy])
            settings = {
                "policy": policy,
                "max_new_tokens": self.plan.sweep.max_new_tokens,
                "supports": str(pairs / "fit.parquet"),
                "written": self._written_ids() if group else [],
            }

            def block_settings(cells: Sequence[Cell], settings: dict[str, Any] = settings) -> dict[str, Any]:
                specs = [
                    {
                        "folder": str(self.store.folder(c)),
                        **{name: c.fields[name] for name in ("method", "settings", "k", "seed")},
                    }
                    for c in cells
                ]
                return {**settings, "cells": specs}

            ranked = max(self.plan.sweep.in_context_ranked or self._rows("test"), self.plan.sweep.written)
            self._blocks(f"in-context examples, {policy}", jobs.in_context, group, ranked, block_settings)
            self._finish(group, group)

    def _rewards(self) -> None:
        group = self._pending(self.plan.rewards)
        if not group:
            return
        started = time.monotonic()
        for cell in group:
            self.store.discard(cell)
            self.store.start(cell)
        backbone = self.store.folder(self.plan.traces[self.plan.sweep.backbone])
        fits = [
            HeadFit(c.fields["method"], c.fields["settings"], c.fields["seed"], str(self.store.folder(c)))
            for c in group
        ]
        run_folder = self.store.root / "ray" / stable_hash([c.path for c in group], digits=8)
        shutil.rmtree(run_folder, ignore_errors=True)
        trials = len({fit.seed for fit in fits})
        tqdm.write(f"reward models: {len(fits)} heads in {trials} Ray Tune trials, one Ray Train job each")
        try:
            outcomes = fit_heads(fits, backbone / "fit", run_folder, self.shares)
        except Exception as error:
            outcomes = {fit.folder: _reason(error) for fit in fits}
        shutil.rmtree(run_folder, ignore_errors=True)
        for cell in group:
            reason = outcomes[str(self.store.folder(cell))]
            if reason is None:
                self.store.finish(cell, _record(started, {"cells_in_job": len(group)}))
            else:
                self._fail(cell, reason)

    def _reward_traces(self) -> None:
        group = self._pending(self.plan.reward_traces)

        def settings(cells: Sequence[Cell]) -> dict[str, Any]:
            return {"heads": [{**self._head(c.inputs[0]), "folder": str(self.store.folder(c))} for c in cells]}

        states = self.store.folder(self.plan.traces[self.plan.sweep.backbone]) / "test"
        self._blocks("reward traces", jobs.reward_trace, group, states, settings)
        self._finish(group, group)

    def _generations(self) -> None:
        sweep = self.plan.sweep
        for policy in sweep.policies:
            group = self._pending([c for c in self.plan.generations if c.label["policy"] == policy])
            common = {
                "policy": policy,
                "backbone": sweep.backbone,
                "k": sweep.top_k,
                "max_new_tokens": sweep.max_new_tokens,
            }

            def settings(cells: Sequence[Cell], common: dict[str, Any] = common) -> dict[str, Any]:
                guides = [
                    {
                        "folder": str(self.store.folder(c)),
                        "w": c.label["w"],
                        **(self._head(c.inputs[1]) if len(c.inputs) > 1 else {"model": None}),
                    }
                    for c in cells
                ]
                return {**common, "guides": guides}

            self._blocks(f"guided decoding, {policy}", jobs.generate, group, self.plan.sweep.written, settings)
            self._finish(group, group)

    def _own_rewards(self) -> None:
        for policy in self.plan.sweep.policies:
            group = self._pending([c for c in self.plan.own_rewards if c.label["policy"] == policy])

            def settings(cells: Sequence[Cell]) -> dict[str, Any]:
                specs = []
                for cell in cells:
                    guided = cell.inputs[0]
                    texts, folder = str(self.store.folder(guided)), str(self.store.folder(cell))
                    specs.append({"folder": folder, "texts": texts, **self._head(guided.inputs[1])})
                zero_shot = str(self.store.folder(cells[0].inputs[1]))
                return {"backbone": self.plan.sweep.backbone, "zero_shot": zero_shot, "cells": specs}

            self._blocks(f"own rewards, {policy}", jobs.own_reward, group, self.plan.sweep.written, settings)
            self._finish(group, group)

    def _text_scores(self) -> None:
        group = self._pending(self.plan.text_scores)

        def settings(cells: Sequence[Cell]) -> dict[str, Any]:
            specs = [{"folder": str(self.store.folder(c)), "texts": str(self.store.folder(c.inputs[0]))} for c in cells]
            return {"bertscore": cells[0].fields["bertscore"], "cells": specs}

        self._blocks("ROUGE and BERTScore", jobs.score_texts, group, self.plan.sweep.written, settings)
        self._finish(group, group)

    # Shared machinery.

    def _pending(self, cells: Sequence[Cell]) -> list[Cell]:
        """Cells to do now; those whose inputs are missing become FAILED with that reason. Starts the stage's meters."""
        self._started = time.monotonic()
        self._tokens: dict[str, int] = {}
        pending = []
        for cell in cells:
            if self.store.is_done(cell):
                continue
            missing = [c for c in cell.inputs if not self.store.is_done(c)]
            if missing:
                self._fail(cell, f"its input {missing[0].path} failed")
            else:
                self.store.start(cell)
                pending.append(cell)
        return pending

    def _blocks(
        self,
        title: str,
        job: Job,
        cells: Sequence[Cell],
        rows: str | int | Path,
        settings: Callable[[Sequence[Cell]], Mapping[str, Any]],
        subfolder: str = "",
    ) -> bool:
        """Send every block that some cell still lacks through the pool; True where all blocks are there.

        `rows`: "fit" or "test" pairs, so many of the test pairs, or a folder of parts. On an error all `cells` fail.
        """
        if not cells:
            return True
        total = self._count_blocks(rows)

        def wanted() -> Iterator[tuple[int, Any, Mapping[str, Any]]]:
            for block_id, block in self._read(rows):
                lacking = [c for c in cells if not part_path(self.store.folder(c) / subfolder, block_id).exists()]
                if not lacking:
                    bar.update()
                    continue
                extra = {"folder": str(self.store.folder(cells[0]) / subfolder)} if subfolder else {}
                yield block_id, block, {**settings(lacking), **extra}

        try:
            with tqdm(total=total, desc=title, unit="block", mininterval=1.0) as bar:
                for _, tokens in self.pool.run(job, wanted()):
                    for model, count in tokens.items():
                        self._tokens[model] = self._tokens.get(model, 0) + count
                    bar.update()
        except Exception as error:
            for cell in cells:
                self._fail(cell, _reason(error))
            return False
        return True

    def _finish(self, cells: Sequence[Cell], group: Sequence[Cell]) -> None:
        for cell in cells:
            if cell.path not in self.failed:
                tokens = {model: count for model, count in self._tokens.items() if count}
                self.store.finish(
                    cell, _record(self._started, {"cells_in_job": len(group), "forward_tokens_of_job": tokens})
                )

    def _read(self, rows: str | int | Path) -> Iterator[tuple[int, Any]]:
        pairs = self.store.folder(self.plan.pairs)
        if isinstance(rows, Path):
            for path in sorted(rows.glob("part-*.parquet")):
                yield int(path.stem.removeprefix("part-")), pq.read_table(path)
            return
        left = rows if isinstance(rows, int) else self._rows(rows)
        path = pairs / ("fit.parquet" if rows == "fit" else "test.parquet")
        for block_id, block in stream_blocks([path], self._block_size(rows)):
            if left <= 0:
                return
            yield block_id, block.slice(0, left)
            left -= block.num_rows

    def _rows(self, side: str) -> int:
        """Pairs on the "fit" or the "test" side."""
        return self.store.record(self.plan.pairs)[f"{side}_rows"]

    def _count_blocks(self, rows: str | int | Path) -> int:
        if isinstance(rows, Path):
            return len(list(rows.glob("part-*.parquet")))
        count = self._rows(rows) if isinstance(rows, str) else min(rows, self._rows("test"))
        return -(-count // self._block_size(rows))

    def _block_size(self, rows: str | int) -> int:
        # Every Train job reads all part files of the fit side: few large ones start it sooner.
        return FIT_BLOCKS * self.plan.sweep.block_rows if rows == "fit" else self.plan.sweep.block_rows

    def _written_ids(self) -> list[str]:
        test = pq.read_table(self.store.folder(self.plan.pairs) / "test.parquet", columns=["example_id"])
        return test["example_id"].to_pylist()[: self.plan.sweep.written]

    def _head(self, reward: Cell) -> dict[str, str]:
        return {"model": str(self.store.folder(reward))}

    def _fail(self, cell: Cell, reason: str) -> None:
        self.failed[cell.path] = reason
        self.store.fail(cell, reason)
        tqdm.write(f"FAILED {cell.path}: {reason}")


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"


def _record(started: float, more: Mapping[str, Any]) -> dict[str, Any]:
    return {"seconds": round(time.monotonic() - started, 3), "versions": versions(), "commit": git_commit(), **more}


@lru_cache
def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


@lru_cache
def git_commit() -> str | None:
    """The commit of the checkout that the package runs from, None where it is installed without one."""
    command = ["git", "-C", str(Path(prefsel_ray.__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
