"""Protects MLflow tracking: one parent, one child a cell, nothing doubled on resume, nothing left RUNNING."""

import math

import pytest

from prefsel_ray.sweep.cell import Cell
from prefsel_ray.sweep.store import Store
from prefsel_ray.sweep.tracking import RUN_KEY, Tracker, close_abandoned_runs, safe_key

CELL = Cell("reward", "lore-seed0", {"seed": 0})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("tracking") / "runs")
    store.create()
    return store


def children(tracker, parent):
    return tracker.client.search_runs([tracker.experiment], f"tags.`mlflow.parentRunId` = '{parent}'")


def test_resuming_finds_the_parent_and_its_children_again(store):
    for _ in range(2):
        tracker = Tracker(store, "resumed")
        parent = tracker.start_parent("key-1", "resumed", {"seeds": (0, 1)})
        tracker.log_cell(parent, CELL, "FINISHED", {"method": "lore"}, [("rm_accuracy.micro", 81.25)])
        tracker.finish_parent(parent, "FINISHED", [], [])
    runs = tracker.client.search_runs([tracker.experiment])
    assert len(runs) == 2
    (child,) = children(tracker, parent)
    assert child.data.metrics == {"rm_accuracy.micro": 81.25}
    assert child.data.params["method"] == "lore"
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_failed_cell_that_succeeds_later_ends_as_finished(store):
    tracker = Tracker(store, "retried")
    parent = tracker.start_parent("key", "retried", {})
    tracker.log_cell(parent, CELL, "FAILED", {}, [], tags={"reason": "NaN"})
    tracker.log_cell(parent, CELL, "FINISHED", {}, [("rm_accuracy.micro", 70.0)])
    tracker.finish_parent(parent, "FINISHED", [], [])
    (child,) = children(tracker, parent)
    assert child.info.status == "FINISHED"
    assert child.data.metrics == {"rm_accuracy.micro": 70.0}


def test_a_run_left_behind_by_a_dead_driver_becomes_killed(store):
    tracker = Tracker(store, "abandoned")
    parent = tracker.start_parent("key", "abandoned", {})
    assert close_abandoned_runs(store) == 1
    assert tracker.client.get_run(parent).info.status == "KILLED"


def test_numbers_that_are_not_finite_become_tags_and_long_parameters_become_files(store):
    tracker = Tracker(store, "awkward")
    parent = tracker.start_parent("key", "awkward", {"long": "x" * 7000, "short": 1})
    tracker.finish_parent(parent, "FINISHED", [("bad (f1)", math.inf), ("good", 1.0)], [])
    run = tracker.client.get_run(parent)
    assert run.data.metrics == {"good": 1.0}
    assert run.data.tags["not_finite.bad _f1_"] == "inf"
    assert run.data.params == {"short": "1"}
    assert [item.path for item in tracker.client.list_artifacts(parent, "params")] == ["params/long.txt"]
    assert run.data.tags[RUN_KEY] == "key"


def test_names_keep_to_what_mlflow_accepts():
    assert safe_key("rouge1 (f1)@k=2") == "rouge1 _f1__k_2"
    assert len(safe_key("x" * 400)) == 250
