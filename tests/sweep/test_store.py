"""Protects the store: a cell is done when SUCCESS exists and not before, and a foreign folder is never written to."""

import json
import subprocess
import sys
import textwrap

import pytest

from prefsel_ray.errors import PrefselError
from prefsel_ray.sweep.cell import Cell
from prefsel_ray.sweep.store import Store

CELL = Cell("pairs", "planted", {"seed": 1})


def made(root):
    store = Store(root)
    store.create()
    return store


def test_a_started_cell_is_not_done(tmp_path):
    store = made(tmp_path / "runs")
    (store.start(CELL) / "part-00000.parquet").write_text("half")
    assert not store.is_done(CELL)


def test_finish_writes_the_record_and_then_success(tmp_path):
    store = made(tmp_path / "runs")
    store.start(CELL)
    store.finish(CELL, {"seconds": 1.5})
    assert store.is_done(CELL)
    record = json.loads((store.folder(CELL) / "record.json").read_text())
    assert record["fields"] == {"seed": 1}
    assert record["seconds"] == 1.5


def test_starting_a_failed_cell_again_takes_the_mark_off_and_keeps_its_parts(tmp_path):
    store = made(tmp_path / "runs")
    (store.start(CELL) / "part-00000.parquet").write_text("whole")
    store.fail(CELL, "NonFiniteError: NaN in row 3")
    assert store.failure(CELL) == "NonFiniteError: NaN in row 3"
    folder = store.start(CELL)
    assert store.failure(CELL) is None
    assert (folder / "part-00000.parquet").exists()


def test_a_store_of_another_format_is_refused_in_one_line(tmp_path):
    (tmp_path / "store.json").write_text('{"format": 99}')
    with pytest.raises(PrefselError, match=r"store\.json: store format 99.*--store") as error:
        Store(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_with_other_files_is_no_store_and_stays_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(PrefselError, match="no store"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_opening_a_store_writes_nothing(tmp_path):
    Store(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_second_driver_is_refused_while_the_first_lives_and_let_in_after_it_was_killed(tmp_path):
    store = made(tmp_path / "runs")
    code = f"""
        from prefsel_ray.sweep.store import Store
        with Store({str(store.root)!r}).lock():
            print("locked", flush=True)
            input()
    """
    first = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "locked\n"
    assert store.is_locked()
    with pytest.raises(PrefselError, match="another sweep"), store.lock():
        pass
    first.kill()
    first.wait()
    with store.lock():
        assert (store.root / "store.json").exists()
