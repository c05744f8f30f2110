"""Protects the command line: exit codes, one-line errors, and what `data check` names."""

import json

import pytest
from typer.testing import CliRunner

from prefsel_ray.cli import app, parse_columns
from prefsel_ray.errors import PrefselError

GOOD = {"user_id": "u", "prompt": "why?", "chosen": "because", "rejected": "no"}


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def check(path, *options):
    return invoke("data", "check", path, "--model", "toy:2x32", *options)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_usable_file_is_shown_as_the_model_sees_it_and_exits_0(tmp_path):
    result = check(write(tmp_path / "good.jsonl", [GOOD, {**GOOD, "prompt": "how?"}]))
    assert result.exit_code == 0
    assert "2 rows read, 2 kept, 0 refused" in result.stdout
    assert "<|user|>why?<|eos|><|assistant|>because<|eos|>" in result.stdout


def test_a_file_with_nothing_usable_exits_1_and_names_its_rows(tmp_path):
    result = check(write(tmp_path / "bad.jsonl", [{**GOOD, "user_id": None}, {**GOOD, "chosen": ""}]))
    assert result.exit_code == 1
    assert "nothing usable is left" in result.stdout
    assert "row 1" in result.stdout
    assert "row 2" in result.stdout


def test_columns_are_mapped_by_flag(tmp_path):
    row = {"worker": "u", "prompt": "why?", "winner": "because", "loser": "no"}
    path = write(tmp_path / "mapped.jsonl", [row])
    options = ("--column", "user_id=worker", "--column", "chosen=winner", "--column", "rejected=loser")
    assert check(path, *options).exit_code == 0
    assert check(path).exit_code == 2


def test_a_window_given_by_flag_cuts_prompts_and_counts_them(tmp_path):
    result = check(write(tmp_path / "long.jsonl", [{**GOOD, "prompt": "x" * 500}]), "--window", 200)
    assert result.exit_code == 0
    assert "truncated" in result.stdout


def test_a_column_option_without_a_name_is_refused():
    assert parse_columns(["chosen=winner"]) == {"chosen": "winner"}
    with pytest.raises(PrefselError, match="--column winner: write NAME=COLUMN"):
        parse_columns(["winner"])


def test_status_and_ui_of_a_missing_store_exit_2(tmp_path):
    for command in ("status", "ui"):
        assert invoke(command, "--store", tmp_path / "absent").exit_code == 2
        assert not (tmp_path / "absent").exists()


def test_methods_lists_every_method_with_its_paper_name():
    result = invoke("methods")
    assert result.exit_code == 0
    for word in ("global_rm", "Global RM", "icl_rag", "zero_shot", "in_context"):
        assert word in result.stdout
