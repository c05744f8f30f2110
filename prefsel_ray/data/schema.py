"""The pair: one comparison of two responses by one user. Everything in the package speaks this schema."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

SPLITS = ("train", "seen_test", "support", "unseen_test")
FIT_SPLITS = ("train", "support")  # rows a method may learn from: seen users' train, unseen users' few shots
TEST_SPLITS = ("seen_test", "unseen_test")

MESSAGE_TYPE = pa.struct([("role", pa.string()), ("content", pa.string())])
PAIR_SCHEMA = pa.schema(
    [
        ("example_id", pa.string()),
        ("dataset", pa.string()),
        ("user_id", pa.string()),
        ("prompt", pa.list_(MESSAGE_TYPE)),
        ("chosen", pa.string()),
        ("rejected", pa.string()),
        ("reference", pa.string()),  # the user's own completion, null where there is none
        ("split", pa.string()),  # one of SPLITS, null until the rows are split
        ("group_id", pa.string()),  # rows that share it never straddle the fit and the test side
        ("meta", pa.string()),  # JSON object
    ]
)

Messages = tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Pair:
    """One row of PAIR_SCHEMA. `prompt` is a tuple of {"role", "content"}; `meta` a JSON object as text."""

    example_id: str
    dataset: str
    user_id: str
    prompt: Messages
    chosen: str
    rejected: str
    reference: str | None = None
    split: str | None = None
    group_id: str = ""
    meta: str = "{}"


def make_example_id(dataset: str, user_id: str, prompt: Messages, chosen: str, rejected: str) -> str:
    """16 hex digits that depend on the content alone, so a row keeps its id whatever its place in the file."""
    content = [dataset, user_id, [[m["role"], m["content"]] for m in prompt], chosen, rejected]
    return stable_hash(content, digits=16)


def make_group_id(prompt: Messages) -> str:
    """The default group: rows with the same prompt, whoever the user."""
    return stable_hash([[m["role"], m["content"]] for m in prompt], digits=16)


def stable_hash(content: Any, digits: int) -> str:
    """First hex digits of sha256 over the canonical JSON of `content`: the same on every machine and hash seed."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def table_from_pairs(pairs: Iterable[Pair]) -> pa.Table:
    """An Arrow table in PAIR_SCHEMA, one row per pair, in the given order."""
    rows = [{**vars(pair), "prompt": [dict(m) for m in pair.prompt]} for pair in pairs]
    return pa.Table.from_pylist(rows, schema=PAIR_SCHEMA)


def pairs_from_table(table: pa.Table) -> list[Pair]:
    """The inverse of `table_from_pairs`; columns outside the schema are an error."""
    rows = table.select(PAIR_SCHEMA.names).to_pylist()
    return [Pair(**{**row, "prompt": tuple(row["prompt"])}) for row in rows]
