"""Protects the whole graph at toy scale: it runs, runs again at no cost, survives kill -9, and says what it refused.

Every run is a process of its own, as a user starts it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient
from typer.testing import CliRunner

from prefsel_ray.cli import app

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "sweeps" / "quickstart.py"
METHODS = {"zero_shot", "icl_random", "icl_rag", "global_rm", "lore", "mpu"}
HEADS = {"global_rm", "lore", "mpu"}
TIMES = ("seconds", "started", "commit")


def command(store, *options):
    return [sys.executable, str(QUICKSTART), "--scale", "toy", "--store", str(store), *options]


def run(store, *options):
    return subprocess.run(command(store, *options), capture_output=True, text=True, timeout=500)


def prefsel(*arguments):
    program = [sys.executable, "-m", "prefsel_ray.cli", *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, timeout=500)


def changed_quickstart(path, *changes):
    """A sweep file at `path`: the quickstart with some fields replaced."""
    path.write_text(
        "from dataclasses import replace\nimport runpy\n"
        f"base = runpy.run_path({str(QUICKSTART)!r})['sweep']\n"
        f"def sweep(scale):\n    return replace(base(scale), {', '.join(changes)})\n"
    )
    return path


def results(store, name="quickstart-toy"):
    return pq.read_table(store / "sweeps" / name / "results.parquet")


def finished(store):
    return {path: path.stat().st_mtime_ns for path in store.glob("*/*/record.json")}


def runs_of(store, name="quickstart-toy"):
    client = MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
    return client.search_runs([client.get_experiment_by_name(name).experiment_id], max_results=1000)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(store, finished process) of one straight run."""
    store = tmp_path_factory.mktemp("straight") / "runs"
    process = run(store)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return store, process


def test_every_metric_is_there_for_every_method_that_has_it(undisturbed):
    rows = results(undisturbed[0]).to_pylist()
    have = {(row["metric"], row["method"]) for row in rows if row["value"] is not None}
    assert {m for metric, m in have if metric == "rm_accuracy"} == HEADS
    assert {m for metric, m in have if metric == "policy_accuracy"} == METHODS
    assert {m for metric, m in have if metric == "rouge1"} == METHODS
    assert {m for metric, m in have if metric == "rougeL"} == METHODS
    assert {m for metric, m in have if metric == "win_rate"} == HEADS
    assert {row["policy"] for row in rows if row["metric"] == "rouge1"} == {"toy:2x32", "toy:3x48"}
    assert {row["seed"] for row in rows if row["metric"] == "rm_accuracy"} == {None, 0, 1}


def test_a_missing_number_is_null_with_a_reason(undisturbed):
    rows = results(undisturbed[0]).to_pylist()
    assert all(row["note"] for row in rows if row["value"] is None)
    assert {row["note"] for row in rows if row["metric"] == "bertscore"} == {
        "BERTScore is off in this sweep; no row has a value"
    }


def test_at_weight_zero_prefix_sum_is_the_base_policy_accuracy(undisturbed):
    rows = results(undisturbed[0]).to_pylist()
    chosen = [r for r in rows if r["metric"] == "policy_accuracy" and r["policy"] == "toy:3x48" and r["seed"] is None]
    base = [row["value"] for row in chosen if row["variant"] == "base"]
    at_zero = [row["value"] for row in chosen if row["variant"] == "prefix_sum" and row["w"] == 0.0]
    assert len(base) == 1
    assert at_zero == base * 3  # one for each head


def test_the_report_and_the_places_to_look_are_printed(undisturbed):
    store, process = undisturbed
    page = store / "sweeps" / "quickstart-toy" / "report" / "index.html"
    assert page.stat().st_size > 10_000
    assert str(page) in process.stdout.replace("\n", "")
    assert "prefsel ui" in process.stdout


def test_mlflow_has_one_parent_and_a_child_for_every_cell_and_nothing_runs(undisturbed):
    runs = runs_of(undisturbed[0])
    parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    assert len(parents) == 1
    assert len(runs) - 1 == len(finished(undisturbed[0]))
    assert {r.info.status for r in runs} == {"FINISHED"}


def test_running_again_redoes_no_cell_and_starts_no_ray(undisturbed):
    store, _ = undisturbed
    before, started = finished(store), time.monotonic()
    again = run(store)
    assert again.returncode == 0
    assert finished(store) == before
    assert time.monotonic() - started < 60
    assert len(runs_of(store)) == len(before) + 1
    status = prefsel("status", "--store", store)
    assert "all done" in status.stdout


def test_killed_half_way_and_run_again_gives_the_same_numbers_without_redoing_cells(undisturbed, tmp_path):
    store = tmp_path / "runs"
    driver = subprocess.Popen(
        command(store), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    half = len(finished(undisturbed[0])) // 2
    deadline = time.monotonic() + 300
    while len(list(store.glob("*/*/SUCCESS"))) < half:
        assert time.monotonic() < deadline and driver.poll() is None
        time.sleep(0.2)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    before = {
        path: path.stat().st_mtime_ns for path in store.glob("*/*/record.json") if (path.parent / "SUCCESS").exists()
    }
    assert len(before) < len(finished(undisturbed[0]))
    again = run(store)
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
    after = finished(store)
    assert {path: after[path] for path in before} == before
    assert results(store).equals(results(undisturbed[0]))
    assert {r.info.status for r in runs_of(store)} == {"FINISHED"}


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    store = tmp_path / "runs"
    process = run(store, "--dry-run")
    assert process.returncode == 0
    assert "text_scores" in process.stdout
    assert not store.exists()


def pairs_with_defects():
    good = [
        {
            "user_id": f"u{user}",
            "prompt": f"Question {user}-{i}: what is best?",
            "chosen": f"Answer {i} in the way of {user}.",
            "rejected": f"Something else {i}",
        }
        for user in range(5)
        for i in range(8)
    ]
    bad = [
        {**good[0], "user_id": None},
        {**good[1], "rejected": good[1]["chosen"]},
        {**good[2], "chosen": ""},
        {**good[3], "user_id": 7, "prompt": "int user"},
        {**good[4], "chosen": 3},
        {**good[5], "prompt": "surrogate", "chosen": "a \ud83d b"},
        {**good[6], "user_id": "alone"},
        {**good[7], "prompt": "x" * 9000},
    ]
    return good, bad


def test_a_file_with_defects_runs_and_its_ledger_is_that_of_data_check(tmp_path):
    good, bad = pairs_with_defects()
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*good, *bad]))
    check = prefsel("data", "check", path, "--model", "toy:2x32", "--reserve", "8")
    assert check.returncode == 0, check.stderr
    for row, word in (
        (41, "user"),
        (42, "equal"),
        (43, "empty"),
        (44, "user_id"),
        (45, "chosen"),
        (46, "surrogate"),
        (48, "prompt"),
    ):
        assert any(str(row) in line and word in line for line in check.stdout.splitlines()), (row, word, check.stdout)
    assert any("47" in line and "one pair" in line for line in check.stdout.splitlines()), check.stdout
    # Without heads there is no training, which would take most of the time and knows nothing of the ledger.
    sweep = changed_quickstart(tmp_path / "headless.py", "methods=('zero_shot', 'icl_rag')", "settings={}")
    store = tmp_path / "runs"
    process = prefsel("run", sweep, "--scale", "toy", "--store", store, "--data", path)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    folder = store / "sweeps" / "quickstart-toy-pairs"
    ledger = json.loads((folder / "ledger.json").read_text())
    refused = sum(entry["count"] for entry in ledger["refused"].values())
    assert ledger["rows_read"] == 48 == ledger["rows_kept"] + refused
    page = (folder / "report" / "index.html").read_text()
    in_check = [line.split(":")[1].strip() for line in check.stdout.splitlines() if line.startswith("  refused")]
    assert len(in_check) == 4
    for reason in [*in_check, "lone surrogate"]:
        assert reason in page, reason


def test_wrong_input_is_one_line_and_exit_code_two(tmp_path):
    (tmp_path / "s3").mkdir()
    (tmp_path / "s3" / "store.json").write_text('{"format": 99}')
    typo = changed_quickstart(tmp_path / "typo.py", "methods=('zero_shot', 'lorre')", "settings={}")
    model = changed_quickstart(tmp_path / "model.py", "policies=('./nowhere',)")
    cases = [
        (
            [QUICKSTART, "--scale", "toy", "--store", tmp_path / "s1", "--data", "absent.jsonl"],
            "absent.jsonl: no such file",
        ),
        ([QUICKSTART, "--scale", "huge", "--store", tmp_path / "s2"], "--scale huge"),
        ([QUICKSTART, "--scale", "toy", "--store", tmp_path / "s3"], "store format 99"),
        ([typo, "--scale", "toy", "--store", tmp_path / "s4"], "did you mean lore"),
        ([model, "--scale", "toy", "--store", tmp_path / "s5"], "nowhere"),
        ([tmp_path / "absent.py", "--store", tmp_path / "s6"], "absent.py: no such sweep file"),
    ]
    for arguments, words in cases:
        result = CliRunner().invoke(app, ["run", *map(str, arguments)])
        assert result.exit_code == 2, result.output
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert [path.name for path in tmp_path.glob("s*/*") if path.name != "store.json"] == []
