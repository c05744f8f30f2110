"""MLflow: one parent run a sweep, one child a cell, found again by key; written by the driver alone."""

import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from prefsel_ray.sweep.cell import Cell
from prefsel_ray.sweep.store import Store

for _name in ("alembic", "mlflow.store.db.utils"):
    logging.getLogger(_name).setLevel(logging.ERROR)  # a new database logs a screenful of migrations

RUN_KEY = "prefsel.key"
LONGEST_PARAM = 500
BATCH = 900  # MLflow refuses more than 1,000 metrics in one call


class Tracker:
    """The experiment of one sweep in the store's MLflow database, or at MLFLOW_TRACKING_URI where that is set."""

    def __init__(self, store: Store, sweep: str) -> None:
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or store.mlflow_uri
        self.client = MlflowClient(self.uri)
        found = self.client.get_experiment_by_name(sweep)
        if found is None:
            # The default artifact folder is below the process's own folder, which a Ray job throws away.
            location = None if self.uri.startswith("http") else (store.root / "mlflow-artifacts").as_uri()
            self.experiment = self.client.create_experiment(sweep, artifact_location=location)
        else:
            self.experiment = found.experiment_id

    def start_parent(self, key: str, name: str, params: Mapping[str, Any]) -> str:
        """The sweep's run, found by `key` or made; every other run left RUNNING by a dead driver becomes KILLED."""
        parent = self._find(key)
        if parent is None:
            parent = self._create(key, name, {})
            self._log(parent, params, [])
        self.close_abandoned()
        self.client.update_run(parent, status="RUNNING")
        return parent

    def log_cell(
        self,
        parent: str,
        cell: Cell,
        status: str,
        params: Mapping[str, Any],
        metrics: Sequence[tuple[str, float]],
        artifacts: Iterable[Path] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """The cell's child run, made and ended in one go; a child that is already FINISHED is left as it is."""
        key = f"{parent}:{cell.path}"
        run = self._find(key)
        if run is None:
            run = self._create(
                key, f"{cell.stage}/{cell.name}", {"mlflow.parentRunId": parent, "prefsel.cell": cell.path}
            )
            self._log(run, params, [])
        elif self.client.get_run(run).info.status == "FINISHED":
            return
        self._log(run, {}, metrics, tags)
        for path in artifacts:
            self.client.log_artifact(run, str(path))
        self.client.set_terminated(run, status=status)

    def finish_parent(
        self, parent: str, status: str, metrics: Sequence[tuple[str, float]], artifacts: Iterable[Path]
    ) -> None:
        self._log(parent, {}, metrics)
        for path in artifacts:
            self.client.log_artifacts(parent, str(path), path.name) if path.is_dir() else self.client.log_artifact(
                parent, str(path)
            )
        self.client.set_terminated(parent, status=status)

    def close_abandoned(self) -> int:
        """Mark runs of this experiment that are RUNNING as KILLED; call it only where no driver is alive."""
        running = self.client.search_runs([self.experiment], "attributes.status = 'RUNNING'", max_results=1000)
        for run in running:
            self.client.set_terminated(run.info.run_id, status="KILLED")
        return len(running)

    def _find(self, key: str) -> str | None:
        runs = self.client.search_runs([self.experiment], f"tags.`{RUN_KEY}` = '{key}'", max_results=1)
        return runs[0].info.run_id if runs else None

    def _create(self, key: str, name: str, tags: Mapping[str, str]) -> str:
        run = self.client.create_run(self.experiment, run_name=name, tags={RUN_KEY: key, **tags})
        return run.info.run_id

    def _log(
        self,
        run: str,
        params: Mapping[str, Any],
        metrics: Sequence[tuple[str, float]],
        tags: Mapping[str, str] | None = None,
    ) -> None:
        # MLflow cuts a long parameter without a word and stores infinity as 1.8e308: keep both out, in plain sight.
        long = {name: str(value) for name, value in params.items() if len(str(value)) > LONGEST_PARAM}
        entries = [Param(safe_key(name), str(value)) for name, value in params.items() if name not in long]
        finite = [(name, value) for name, value in metrics if math.isfinite(value)]
        unfinite = {f"not_finite.{safe_key(name)}": str(value) for name, value in metrics if not math.isfinite(value)}
        labels = [RunTag(name, value) for name, value in {**(tags or {}), **unfinite}.items()]
        for start in range(0, max(len(entries), 1), 100):
            self.client.log_batch(run, params=entries[start : start + 100], tags=labels if start == 0 else [])
        for start in range(0, len(finite), BATCH):
            batch = [Metric(safe_key(n), float(v), 0, 0) for n, v in finite[start : start + BATCH]]
            self.client.log_batch(run, metrics=batch)
        for name, value in long.items():
            self.client.log_text(run, value, f"params/{safe_key(name)}.txt")


def safe_key(name: str) -> str:
    """A name that MLflow accepts: letters, digits, `_ - . / :` and spaces, the rest as `_`; 250 characters at most."""
    return re.sub(r"[^A-Za-z0-9_\-./ :]", "_", name)[:250]


def close_abandoned_runs(store: Store) -> int:
    """Mark the RUNNING runs of every sweep in the store KILLED, where no driver holds the store; returns how many."""
    if store.is_locked() or not (store.root / "mlflow.db").exists():
        return 0
    client = MlflowClient(store.mlflow_uri)
    return sum(Tracker(store, experiment.name).close_abandoned() for experiment in client.search_experiments())
