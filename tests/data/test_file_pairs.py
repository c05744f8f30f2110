"""Protects the reading of users' files: line numbers, formats, mapped columns, and errors that name file and column."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prefsel_ray.data.files import FilePairs
from prefsel_ray.errors import PrefselError

GOOD = {"user_id": "ann", "prompt": "Say hello", "chosen": "Hello!", "rejected": "Go away."}


def read(path, columns=None):
    rows = FilePairs(str(path), columns).read(path.parent, False)
    return list(rows.rows), rows


def test_bad_lines_are_refused_under_their_line_numbers(tmp_path):
    path = tmp_path / "pairs.jsonl"
    good = json.dumps(GOOD).encode()
    path.write_bytes(b"\n".join([good, b"{broken", b"", b"[1, 2]", b'{"user_id": "\xff"}', good, b"[" * 100_000]))
    got, rows = read(path)
    assert [label for label, _ in got] == [1, 6]
    assert {reason: entry.rows for reason, entry in rows.ledger.refused.items()} == {
        "invalid JSON": [2, 7],
        "not a JSON object": [4],
        "not UTF-8": [5],
    }
    assert rows.ledger.rows_read == 6
    assert (rows.dataset, rows.note) == ("pairs", str(path))


def test_byte_order_mark_windows_line_ends_and_line_separators_inside_text_are_read(tmp_path):
    path = tmp_path / "pairs.jsonl"
    text = json.dumps({**GOOD, "chosen": "a\u2028b"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n{text}\r\n".encode())
    got, _ = read(path)
    assert [(label, row["chosen"]) for label, row in got] == [(1, "a\u2028b"), (2, "a\u2028b")]


def test_compressed_lines_are_read_and_a_cut_archive_is_one_error(tmp_path):
    path = tmp_path / "pairs.jsonl.gz"
    whole = gzip.compress((json.dumps(GOOD) + "\n").encode())
    path.write_bytes(whole)
    got, rows = read(path)
    assert got[0][1]["chosen"] == "Hello!" and rows.dataset == "pairs"
    path.write_bytes(whole[:-12])
    with pytest.raises(PrefselError, match=r"pairs\.jsonl\.gz: cannot be read"):
        read(path)


def test_parquet_rows_equal_json_rows(tmp_path):
    extra = {**GOOD, "prompt": [{"role": "user", "content": "Hi"}], "group_id": "g", "other": 3}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(extra) + "\n")
    pq.write_table(pa.Table.from_pylist([extra]), tmp_path / "pairs.parquet")
    from_json, _ = read(tmp_path / "pairs.jsonl")
    from_parquet, _ = read(tmp_path / "pairs.parquet")
    assert from_json == from_parquet
    assert from_json[0][1]["group_id"] == "g" and "other" not in from_json[0][1]


def test_parquet_text_that_is_not_utf8_is_refused_by_row(tmp_path):
    rows = pa.Table.from_pylist([GOOD, GOOD, GOOD])
    broken = pa.array([b"fine", b"\xff\xfe", b"fine"]).view(pa.string())
    pq.write_table(rows.set_column(2, "chosen", broken), tmp_path / "pairs.parquet")
    got, read_rows = read(tmp_path / "pairs.parquet")
    assert [label for label, _ in got] == [1, 3]
    assert read_rows.ledger.refused["not UTF-8"].rows == [2]


def test_columns_can_be_mapped(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"worker": "w1", "prompt": "p", "good": "a", "bad": "b"}) + "\n")
    got, _ = read(path, {"user_id": "worker", "chosen": "good", "rejected": "bad"})
    assert {key: value for key, value in got[0][1].items() if value is not None} == {
        "user_id": "w1",
        "prompt": "p",
        "chosen": "a",
        "rejected": "b",
    }


def test_a_column_that_no_row_has_is_an_error_naming_it_and_those_found(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"worker": "w1", "prompt": "p", "chosen": "a", "rejected": "b"}) + "\n")
    with pytest.raises(PrefselError) as caught:
        read(path)
    assert "column user_id is in none of the rows; columns found: chosen, prompt, rejected, worker" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(PrefselError, match="column gold is in none"):
        read(path, {"user_id": "worker", "reference": "gold"})


def test_a_column_that_some_row_has_is_no_error(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"prompt": "p"}) + "\n" + json.dumps(GOOD) + "\n")
    got, _ = read(path)
    assert got[0][1]["user_id"] is None and got[1][1]["user_id"] == "ann"


def test_a_mapping_to_an_unknown_name_names_the_near_one(tmp_path):
    with pytest.raises(PrefselError, match="unknown name 'user'; did you mean user_id"):
        read(tmp_path / "pairs.jsonl", {"user": "worker"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.jsonl", None, r"absent\.jsonl: no such file"),
        ("pairs.csv", b"a,b", r"pairs\.csv: unknown kind of file"),
        ("pairs.parquet", b"not parquet", r"pairs\.parquet: not a readable Parquet file"),
        ("pairs.json", b'[{"user_id": 1}]', r"pairs\.json: is one JSON array; write one JSON object a line"),
    ],
)
def test_a_file_wrong_as_a_whole_is_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PrefselError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_folder_is_refused(tmp_path):
    (tmp_path / "pairs.parquet").mkdir()
    with pytest.raises(PrefselError, match="is a folder"):
        read(tmp_path / "pairs.parquet")
