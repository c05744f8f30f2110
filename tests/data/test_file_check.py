"""Protects `prefsel data check`: each planted fault of a file is named with its row and reason."""

import json

import pytest

from prefsel_ray.data.check import check_file
from prefsel_ray.errors import PrefselError

WINDOW = 60


def fit(messages, responses):
    """A window of 60 characters; a prompt is cut from the left, and one of 1,000 characters is given up."""
    text = messages[0]["content"]
    room = WINDOW - max(map(len, responses))
    if len(text) >= 1000 or room < 1:
        return None, False
    return ({"role": "user", "content": text[-room:]},), len(text) > room


def good(user, number):
    return {"user_id": user, "prompt": f"question {number}", "chosen": f"yes {number}", "rejected": f"no {number}"}


@pytest.fixture
def faulty(tmp_path):
    """Every fault once, at a known line."""
    lines = [
        json.dumps(good("ann", 1)),
        json.dumps({**good("ann", 2), "user_id": None}),
        json.dumps({**good("ann", 3), "rejected": "yes 3"}),
        json.dumps({**good("ann", 4), "chosen": ""}),
        json.dumps(good(12, 5)),
        json.dumps({**good("ann", 6), "chosen": 6}),
        '{"user_id": "ann", "prompt": "question 7", "chosen": "yes \\ud83d", "rejected": "no 7"}',
        json.dumps(good("lone", 8)),
        json.dumps({**good("ann", 9), "prompt": "q" * 80}),
        json.dumps({**good("ann", 10), "prompt": "q" * 1000}),
        "{not json",
        json.dumps(good(12, 12)),
    ]
    path = tmp_path / "faulty.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_each_fault_is_named_with_its_row_and_reason(faulty):
    report = check_file(faulty, fit=fit)
    assert {reason: entry.rows for reason, entry in report.ledger.refused.items()} == {
        "null user": [2],
        "equal responses": [3],
        "empty chosen": [4],
        "bad type: column chosen: expected text, found a number": [6],
        "does not fit the window": [10],
        "invalid JSON": [11],
    }
    assert {reason: entry.rows for reason, entry in report.ledger.noted.items()} == {
        "number in column user_id taken as text": [5, 12],
        "lone surrogate replaced by U+FFFD in column chosen": [7],
        "user with one pair": [8],
        "prompt truncated from the left": [9],
    }
    assert report.usable == 6
    assert report.pairs_per_user == {"ann": 3, "12": 2, "lone": 1}


def test_the_printed_report_shows_counts_reasons_and_three_rendered_examples(faulty):
    lines = check_file(
        faulty, fit=fit, render=lambda pair: f"<|user|>{pair.prompt[0]['content']}\n{pair.chosen}"
    ).lines()
    assert lines[:2] == [str(faulty), "12 rows read, 6 kept, 6 refused"]
    assert "  refused: null user: 1 (row 2)" in lines
    assert "3 users; pairs per user: least 1, median 2, most 3" in lines
    assert "splits: none 6" in lines
    assert "0 of 6 pairs have a reference" in lines
    start = lines.index("--- row 1, as the model sees it")
    assert lines[start:] == [
        "--- row 1, as the model sees it",
        "<|user|>question 1",
        "yes 1",
        "--- row 5, as the model sees it",
        "<|user|>question 5",
        "yes 5",
        "--- row 7, as the model sees it",
        "<|user|>question 7",
        "yes \ufffd",
    ]


def test_every_bad_row_is_named_however_many(tmp_path):
    rows = [{**good("ann", n), "user_id": None} for n in range(0, 40)] + [good("ann", 99)]
    rows[5] = good("ann", 5)
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "  refused: null user: 39 (rows 1-5, 7-40)" in check_file(path).lines()


def test_a_file_with_nothing_usable_says_so_and_does_not_raise(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_text(json.dumps({**good("ann", 1), "user_id": None}) + "\n")
    report = check_file(path)
    assert report.usable == 0
    assert report.lines()[-1] == "nothing usable is left"
    path.write_text("")
    assert check_file(path).lines() == [str(path), "0 rows read, 0 kept, 0 refused", "nothing usable is left"]


def test_splits_that_contradict_each_other_are_found_by_the_check(tmp_path):
    path = tmp_path / "splits.jsonl"
    rows = [{**good("ann", 1), "split": "train"}, {**good("ann", 2), "prompt": "question 1", "split": "seen_test"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(PrefselError, match=r"splits\.jsonl: row 2: group [0-9a-f]{16} is in seen_test and, at .*row 1"):
        check_file(path)
