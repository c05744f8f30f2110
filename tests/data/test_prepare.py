"""Protects the whole way from a source to pairs: every row accounted for, the same pairs on every hash seed."""

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from prefsel_ray.data.files import FilePairs
from prefsel_ray.data.prepare import fingerprint, prepare
from prefsel_ray.data.schema import make_example_id, pairs_from_table, table_from_pairs
from prefsel_ray.data.source import Rows
from prefsel_ray.data.splits import SplitSpec
from prefsel_ray.errors import PrefselError

PRISM = Path(__file__).parents[3] / "shared" / "data" / "prism_subset" / "pairs.jsonl"


def rows_of(users, each):
    return [
        {"user_id": f"u{u}", "prompt": f"question {n} of {u}", "chosen": f"yes {n}", "rejected": f"no {n}"}
        for u in range(users)
        for n in range(each)
    ]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return FilePairs(str(path))


@dataclass(frozen=True)
class Unmined:
    """A source without negatives: answers with the first text of another user in the same split, if there is one."""

    rows: tuple

    def read(self, cache, progress):
        rows = Rows(enumerate(self.rows, 1), dataset="unmined", note="made up", needs_negatives=True)
        rows.ledger.read(len(self.rows) + 1)
        rows.ledger.refuse("too long", "package-x")
        return rows

    def mine(self, rows, cache, progress):
        def negative(row):
            others = [o["chosen"] for _, o in rows if (o["split"] == row["split"]) and o["user_id"] != row["user_id"]]
            return others[0] if others else None

        return [(label, {**row, "rejected": negative(row)}) for label, row in rows]


def test_every_row_is_kept_or_refused_with_its_row_number(tmp_path):
    rows = rows_of(4, 10)
    rows[3] = {**rows[3], "user_id": None}
    rows[17] = {**rows[17], "rejected": rows[17]["chosen"]}
    source = write(tmp_path / "pairs.jsonl", rows)
    spec = SplitSpec(seen_users=2, unseen_users=1, train_per_user=4, seen_test_per_user=2)
    got = prepare(source, spec, cache=tmp_path)
    assert got.ledger.rows_read == 40 == got.ledger.rows_kept + got.ledger.rows_refused
    assert got.ledger.rows_kept == len(got.pairs)
    assert got.ledger.refused["null user"].rows == [4]
    assert got.ledger.refused["equal responses"].rows == [18]
    left_out = {reason: entry.rows for reason, entry in got.ledger.refused.items() if reason.startswith("left out: ")}
    kept_rows = {int(pair.user_id[1:]) * 10 + int(pair.chosen.split()[1]) + 1 for pair in got.pairs}
    assert sorted(kept_rows | {row for rows in left_out.values() for row in rows} | {4, 18}) == list(range(1, 41))
    assert (got.dataset, got.source_note) == ("pairs", str(tmp_path / "pairs.jsonl"))


def test_mined_rows_get_their_negative_and_their_final_id(tmp_path):
    rows = tuple({k: v for k, v in row.items() if k != "rejected"} for row in rows_of(4, 6))
    got = prepare(Unmined(rows), SplitSpec(unseen_users=1), cache=tmp_path)
    assert got.ledger.rows_read == 25
    assert got.ledger.refused["too long"].rows == ["package-x"]
    # The one unseen user has nobody else in their splits to take a negative from.
    assert got.ledger.refused["no hard negative under the ceiling"].count == 6
    assert {pair.split for pair in got.pairs} == {"train", "seen_test"}
    for pair in got.pairs:
        assert pair.rejected and pair.rejected != pair.chosen
        assert pair.example_id == make_example_id("unmined", pair.user_id, pair.prompt, pair.chosen, pair.rejected)


def test_prompts_are_fitted_with_both_responses_also_after_mining(tmp_path):
    asked = []

    def fit(messages, responses):
        asked.append(responses)
        return (None, False) if "question 0" in messages[0]["content"] else (messages, False)

    rows = tuple({k: v for k, v in row.items() if k != "rejected"} for row in rows_of(3, 4))
    got = prepare(Unmined(rows), SplitSpec(unseen_users=0), fit=fit, cache=tmp_path)
    assert all(chosen and rejected for chosen, rejected in asked)
    assert got.ledger.refused["does not fit the window"].count == 3
    got = prepare(write(tmp_path / "pairs.jsonl", rows_of(3, 4)), SplitSpec(), fit=fit, cache=tmp_path)
    assert got.ledger.refused["does not fit the window"].rows == [1, 5, 9]


def test_a_user_with_one_pair_is_noted(tmp_path):
    rows = [*rows_of(2, 3), {"user_id": "lone", "prompt": "p", "chosen": "a", "rejected": "b"}]
    got = prepare(write(tmp_path / "pairs.jsonl", rows), SplitSpec(), cache=tmp_path)
    assert got.ledger.noted["user with one pair"].rows == [7]
    assert "lone" in {pair.user_id for pair in got.pairs}


def test_splits_of_the_file_that_contradict_each_other_name_file_and_row(tmp_path):
    rows = [{**row, "split": "train"} for row in rows_of(1, 3)]
    rows[2] = {**rows[2], "split": None}
    with pytest.raises(PrefselError, match=r"pairs\.jsonl: row 3: has no split while 2 others have one"):
        prepare(write(tmp_path / "pairs.jsonl", rows), SplitSpec(), cache=tmp_path)


def test_nothing_usable_is_one_line_that_says_why(tmp_path):
    rows = [{**row, "user_id": None} for row in rows_of(1, 3)]
    with pytest.raises(PrefselError, match=r"pairs\.jsonl: no usable pair: 3 rows read, 3 null user$"):
        prepare(write(tmp_path / "pairs.jsonl", rows), SplitSpec(), cache=tmp_path)


def test_a_source_that_loses_a_row_is_found_out(tmp_path):
    @dataclass(frozen=True)
    class Losing:
        def read(self, cache, progress):
            rows = Rows(enumerate(rows_of(2, 3), 1), dataset="d", note="n")
            rows.ledger.read(7)
            return rows

    with pytest.raises(RuntimeError, match="7 rows read, 6 kept, 0 refused"):
        prepare(Losing(), SplitSpec(), cache=tmp_path)


def test_pairs_survive_arrow_and_the_fingerprint_sees_every_field(tmp_path):
    pairs = prepare(write(tmp_path / "pairs.jsonl", rows_of(3, 4)), SplitSpec(), cache=tmp_path).pairs
    assert fingerprint(pairs_from_table(table_from_pairs(pairs))) == fingerprint(pairs)
    assert fingerprint(pairs[::-1]) == fingerprint(pairs)
    for change in ({"reference": "x"}, {"split": "support"}, {"rejected": "other"}, {"meta": '{"a": 1}'}):
        assert fingerprint([replace(pairs[0], **change), *pairs[1:]]) != fingerprint(pairs)


def test_row_order_and_hash_seed_change_neither_pairs_nor_fingerprint(tmp_path):
    rows = rows_of(9, 7)
    write(tmp_path / "straight.jsonl", rows)
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "straight.jsonl", random.Random(1).sample(rows, len(rows)))
    program = (
        "import sys; from pathlib import Path\n"
        "from prefsel_ray.data.files import FilePairs; from prefsel_ray.data.splits import SplitSpec\n"
        "from prefsel_ray.data.prepare import prepare, fingerprint\n"
        "got = prepare(FilePairs(sys.argv[1]), SplitSpec(seed=4, seen_users=4, unseen_users=3, train_per_user=3),\n"
        "              cache=Path('.'))\n"
        "print(fingerprint(got.pairs), got.ledger.rows_kept, list(got.ledger.refused))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, path in (
            ("0", tmp_path / "straight.jsonl"),
            ("1", tmp_path / "straight.jsonl"),
            ("2", tmp_path / "other" / "straight.jsonl"),
        )
    }
    assert len(answers) == 1, answers


@pytest.mark.slow
@pytest.mark.skipif(not PRISM.is_file(), reason=f"real PRISM rows are not at {PRISM}")
def test_real_prism_rows_are_split_with_no_group_on_both_sides(tmp_path):
    got = prepare(FilePairs(str(PRISM)), SplitSpec(unseen_fraction=0.1, test_fraction=0.3), cache=tmp_path)
    assert got.ledger.rows_read == 2548
    test_groups = {pair.group_id for pair in got.pairs if pair.split in ("seen_test", "unseen_test")}
    fit_groups = {pair.group_id for pair in got.pairs if pair.split in ("train", "support")}
    assert test_groups and fit_groups and not test_groups & fit_groups
