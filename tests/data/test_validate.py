"""Protects the validator: each kind of wrong row is refused or mended for its own reason, the rest comes through."""

import json

import pytest

from prefsel_ray.data.ledger import Ledger
from prefsel_ray.data.validate import fit_to_window, validate
from prefsel_ray.errors import PrefselError

GOOD = {"user_id": "ann", "prompt": "Say hello", "chosen": "Hello!", "rejected": "Go away."}


def run(*rows, **options):
    ledger = Ledger()
    labelled = validate(enumerate(rows, 1), ledger, dataset="d", where="pairs.jsonl", **options)
    ledger.read(len(rows))
    ledger.settle(len(labelled))
    return labelled, ledger


def the_reason(entries):
    ((reason, entry),) = entries.items()
    assert entry.rows == [1]
    return reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"user_id": None}, "null user"),
        ({"user_id": " "}, "null user"),
        ({"user_id": float("nan")}, "null user"),
        ({"user_id": True}, "bad type: column user_id: expected text, found a boolean"),
        ({"user_id": 1.5}, "bad type: column user_id: expected text, found a number"),
        ({"chosen": None}, "null chosen"),
        ({"chosen": ""}, "empty chosen"),
        ({"rejected": " \n"}, "empty rejected"),
        ({"rejected": "Hello! "}, "equal responses"),
        ({"chosen": "\ud800", "rejected": "\udfff"}, "equal responses"),
        ({"chosen": 7}, "bad type: column chosen: expected text, found a number"),
        ({"rejected": ["x"]}, "bad type: column rejected: expected text, found a list"),
        ({"prompt": None}, "empty prompt"),
        ({"prompt": "  "}, "empty prompt"),
        ({"prompt": []}, "empty prompt"),
        ({"prompt": 3}, "bad type: column prompt: expected text or list of messages, found a number"),
        ({"prompt": [{"role": "user"}]}, "bad type: column prompt: expected messages with role and content, "),
        ({"prompt": [{"role": "user", "content": 5}]}, "bad type: column prompt: expected text, found a number"),
        ({"prompt": [{"role": "model", "content": "x"}]}, "unknown role 'model' in column prompt"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "prompt does not end with a user message"),
        ({"reference": 1}, "bad type: column reference: expected text, found a number"),
        ({"group_id": ["g"]}, "bad type: column group_id: expected text, found a list"),
        ({"split": 0}, "bad type: column split: expected text, found a number"),
        ({"meta": "no json"}, "bad type: column meta: expected a JSON object, found text"),
        ({"meta": [1]}, "bad type: column meta: expected a JSON object, found a list"),
        ({"meta": {"x": float("nan")}}, "bad type: column meta: expected a JSON object, found an object"),
    ],
)
def test_a_wrong_row_is_refused_for_its_own_reason(change, reason):
    labelled, ledger = run({**GOOD, **change}, {**GOOD, "user_id": "bob"})
    assert [label for label, _ in labelled] == [2]
    assert the_reason(ledger.refused).startswith(reason)


def test_a_missing_key_is_the_same_as_null():
    _, ledger = run({"prompt": "x", "chosen": "a", "rejected": "b"})
    assert the_reason(ledger.refused) == "null user"


def test_lone_surrogates_are_replaced_and_counted_once_a_column():
    labelled, ledger = run({**GOOD, "chosen": "a\ud83dz\udc00", "prompt": "p\udc80"})
    ((_, pair),) = labelled
    assert pair.chosen == "a\ufffdz\ufffd"
    assert pair.prompt == ({"role": "user", "content": "p\ufffd"},)
    assert {reason: entry.rows for reason, entry in ledger.noted.items()} == {
        "lone surrogate replaced by U+FFFD in column prompt": [1],
        "lone surrogate replaced by U+FFFD in column chosen": [1],
    }
    json.dumps([pair.chosen]).encode()
    pair.chosen.encode()


def test_whole_emoji_are_left_alone():
    labelled, ledger = run({**GOOD, "chosen": json.loads('"\\ud83d\\ude00"')})
    assert labelled[0][1].chosen == "\U0001f600"
    assert not ledger.noted


@pytest.mark.parametrize("user", [42, 42.0])
def test_a_number_as_user_id_becomes_text_and_is_noted(user):
    labelled, ledger = run({**GOOD, "user_id": user})
    assert labelled[0][1].user_id == "42"
    assert the_reason(ledger.noted) == "number in column user_id taken as text"


def test_the_second_of_two_equal_rows_is_refused():
    labelled, ledger = run(GOOD, {**GOOD, "user_id": "bob"}, GOOD)
    assert [label for label, _ in labelled] == [1, 2]
    ((reason, entry),) = ledger.refused.items()
    assert reason.startswith("duplicate") and entry.rows == [3]


def test_a_good_row_comes_through_whole():
    row = {
        **GOOD,
        "prompt": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi", "name": None}],
        "reference": "Hello, you!",
        "split": "train",
        "group_id": 9,
        "meta": {"b": 1, "a": [2]},
    }
    ((label, pair),) = run(row)[0]
    assert label == 1
    assert pair.prompt == ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"})
    assert (pair.user_id, pair.dataset, pair.chosen, pair.rejected) == ("ann", "d", "Hello!", "Go away.")
    assert (pair.reference, pair.split, pair.group_id) == ("Hello, you!", "train", "9")
    assert pair.meta == '{"a": [2], "b": 1}'


def test_rows_with_the_same_prompt_share_a_group_by_default():
    labelled, _ = run(GOOD, {**GOOD, "user_id": "bob"}, {**GOOD, "prompt": "other"})
    first, second, third = (pair.group_id for _, pair in labelled)
    assert first == second != third


def test_an_unknown_split_is_an_error_that_names_file_and_row():
    with pytest.raises(PrefselError, match=r"pairs\.jsonl: row 2: unknown split 'dev'; use one of train, seen_test"):
        run(GOOD, {**GOOD, "user_id": "bob", "split": "dev"})


def test_rows_that_wait_for_negatives_need_no_rejected():
    labelled, _ = run({"user_id": "ann", "prompt": "x", "chosen": "a"}, with_rejected=False)
    assert labelled[0][1].rejected == ""


def test_fitting_notes_a_cut_prompt_refuses_a_hopeless_one_and_keeps_responses():
    labelled, ledger = run(GOOD, {**GOOD, "prompt": "long " * 20}, {**GOOD, "chosen": "x" * 99})

    def fit(messages, responses):
        room = 40 - max(map(len, responses))
        if room < 1:
            return None, False
        text = messages[0]["content"]
        return ({"role": "user", "content": text[-room:]},), len(text) > room

    fitted = fit_to_window(labelled, fit, ledger)
    assert [label for label, _ in fitted] == [1, 2]
    assert ledger.refused["does not fit the window"].rows == [3]
    assert ledger.noted["prompt truncated from the left"].rows == [2]
    assert fitted[1][1].prompt == ({"role": "user", "content": ("long " * 20)[-32:]},)
    assert fitted[1][1].chosen == "Hello!"
    assert fitted[1][1].example_id == labelled[1][1].example_id
