"""The user's own pairs: a JSON Lines or Parquet file, one row a comparison."""

import difflib
import json
import lzma
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from prefsel_ray.data.ledger import Ledger
from prefsel_ray.data.source import Rows
from prefsel_ray.errors import PrefselError

REQUIRED = ("user_id", "prompt", "chosen", "rejected")
OPTIONAL = ("reference", "split", "group_id", "meta")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class FilePairs:
    """Pairs in a file: `.jsonl`, `.ndjson` (also `.gz`, `.xz`, `.bz2`) or `.parquet`.

    `columns` maps this project's names (REQUIRED and OPTIONAL) to the file's where they differ:
    `{"user_id": "worker"}`. A row's label in the ledger is its line number (JSON Lines) or its 1-based row number.
    """

    path: str | Path
    columns: Mapping[str, str] | None = None

    def read(self, cache: Path, progress: bool) -> Rows:
        """The file's rows under this project's column names.

        Raises PrefselError where the file is missing, of unknown format or unreadable as a whole, and where a required
        or mapped column is in none of its rows. A line that is no JSON object is refused in the ledger.
        """
        path = Path(self.path)
        names = self._names()
        if path.is_dir():
            raise PrefselError(f"{path}: is a folder; give one .jsonl or .parquet file")
        if not path.is_file():
            raise PrefselError(f"{path}: no such file; give an existing .jsonl or .parquet file")
        ledger = Ledger()
        dataset, kind = _stem_and_kind(path)
        if kind == "json":
            raw_rows, found = _read_json_lines(path, ledger, progress)
        else:
            raw_rows, found = _read_parquet(path, names.values(), ledger, progress)
        needed = dict.fromkeys((*REQUIRED, *(self.columns or {})))
        missing = [names[name] for name in needed if names[name] not in found]
        if missing and raw_rows:
            raise PrefselError(
                f"{path}: column {', '.join(missing)} is in none of the rows; columns found: "
                f"{', '.join(sorted(found)) or 'none'}; rename them or map them, such as user_id=NAME"
            )
        rows = [(label, {name: row.get(column) for name, column in names.items()}) for label, row in raw_rows]
        return Rows(rows, dataset=dataset, note=str(path), ledger=ledger)

    def _names(self) -> dict[str, str]:
        """This project's column name -> the file's, for every column that is read."""
        known = (*REQUIRED, *OPTIONAL)
        for name in self.columns or {}:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
                raise PrefselError(f"{self.path}: cannot map a column to unknown name {name!r}; {hint}")
        return {name: (self.columns or {}).get(name, name) for name in known}


def _stem_and_kind(path: Path) -> tuple[str, str]:
    """(name without suffixes, "json" or "parquet")."""
    bare = path.with_suffix("") if path.suffix in (".gz", ".xz", ".bz2") else path
    if bare.suffix in JSON_SUFFIXES:
        return bare.stem, "json"
    if path.suffix == ".parquet":
        return path.stem, "parquet"
    raise PrefselError(f"{path}: unknown kind of file; give a name that ends in .jsonl or .parquet")


def _read_json_lines(path: Path, ledger: Ledger, progress: bool) -> tuple[list[tuple[int, dict[str, Any]]], set[str]]:
    """Objects with their line numbers, and all keys met."""
    rows, found = [], set()
    try:
        with fsspec.open(str(path), "rb", compression="infer") as file:
            for number, line in enumerate(tqdm(_lines(file), path.name, unit=" rows", disable=not progress), 1):
                if not line.strip():
                    continue
                if number == 1 and line.lstrip().startswith(b"["):
                    raise PrefselError(f"{path}: is one JSON array; write one JSON object a line")
                ledger.read()
                row, reason = _parse(line)
                if row is None:
                    ledger.refuse(reason, number)
                    continue
                found.update(row)
                rows.append((number, row))
    except (
        OSError,
        EOFError,
        lzma.LZMAError,
        zlib.error,
    ) as error:  # a broken archive shows itself only while it is read
        raise PrefselError(f"{path}: cannot be read: {error}") from error
    return rows, found


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines split at newlines only: U+2028 and its like may stand inside JSON strings."""
    first = True
    for line in file:
        yield line.removeprefix(b"\xef\xbb\xbf") if first else line
        first = False


def _parse(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The line's object, or None and the reason."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        return None, "not UTF-8"
    except (ValueError, RecursionError):
        return None, "invalid JSON"
    return (row, "") if isinstance(row, dict) else (None, "not a JSON object")


def _read_parquet(
    path: Path, wanted: Collection[str], ledger: Ledger, progress: bool
) -> tuple[list[tuple[int, dict[str, Any]]], set[str]]:
    """Rows, their `wanted` columns only, with their 1-based numbers; and the names of all the file's columns."""
    rows = []
    try:
        file = pq.ParquetFile(path)
        found = file.schema_arrow.names
        number = 0
        with tqdm(desc=path.name, total=file.metadata.num_rows, unit=" rows", disable=not progress) as bar:
            for batch in file.iter_batches(columns=[name for name in found if name in wanted]):
                for row in _batch_rows(batch):
                    number += 1
                    ledger.read()
                    if row is None:
                        ledger.refuse("not UTF-8", number)
                    else:
                        rows.append((number, row))
                bar.update(batch.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise PrefselError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error
    return rows, set(found)


def _batch_rows(batch: pa.RecordBatch) -> list[dict[str, Any] | None]:
    """The batch's rows; None for a row whose text is not UTF-8."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        return [_one_row(batch.slice(i, 1)) for i in range(batch.num_rows)]


def _one_row(batch: pa.RecordBatch) -> dict[str, Any] | None:
    try:
        return batch.to_pylist()[0]
    except UnicodeDecodeError:
        return None
