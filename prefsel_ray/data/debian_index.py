"""`Packages` and `Translation-en` indexes as one table: from apt or from given files, parsed once and kept."""

import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from debian.deb822 import Deb822, Packages
from tqdm import tqdm

from prefsel_ray.data.apt import apt_indexes, open_list
from prefsel_ray.data.schema import stable_hash
from prefsel_ray.errors import PrefselError

FIELDS = ["Package", "Source", "Maintainer", "Original-Maintainer", "Description-md5", "Description-en"]
TABLE_VERSION = 1  # part of the cached table's name; raise it when the parsing changes
TABLE_SCHEMA = pa.schema(
    [
        ("package", pa.string()),
        ("source", pa.string()),
        ("user_id", pa.string()),  # null where the maintainer has no name
        ("synopsis", pa.string()),  # null where there is no English description
        ("description", pa.string()),
    ]
)


def index_from_apt(cache: Path, progress: bool) -> tuple[pa.Table, str]:
    """A table in TABLE_SCHEMA of the machine's own release, and the phrase that names the release.

    Once fetched it is read from the cache folder, so that the data stay the same. Raises NoAptIndex where apt has none.
    """
    path = cache / "debian" / f"apt-v{TABLE_VERSION}.parquet"
    if stored := _cached(path):
        return stored
    if progress:
        tqdm.write("Debian synopses: fetching the package indexes with apt")
    rows: list[dict[str, str | None]] = []
    with apt_indexes(path.with_name(f"apt.{os.getpid()}")) as indexes:
        for index in indexes:
            with open_list(index.packages) as packages, open_list(index.translation) as translation:
                rows.extend(_join(packages, translation, str(index.packages), str(index.translation), progress))
        return _store(path, rows, ", ".join(index.release for index in indexes))


def index_from_files(packages: str, translation: str, cache: Path, progress: bool) -> tuple[pa.Table, str]:
    """The same of two files or URLs, plain or compressed. Raises PrefselError where one cannot be read."""
    content = [_content_mark(place) for place in (packages, translation)]
    path = cache / "debian" / f"files-v{TABLE_VERSION}-{stable_hash(content, digits=16)}.parquet"
    if stored := _cached(path):
        return stored
    with _open_given(packages) as packages_file, _open_given(translation) as translation_file:
        rows = list(_join(packages_file, translation_file, packages, translation, progress))
    return _store(path, rows, f"{Path(packages).name} and {Path(translation).name}")


def _join(
    packages: BinaryIO, translation: BinaryIO, packages_name: str, translation_name: str, progress: bool
) -> Iterator[dict[str, str | None]]:
    """Rows of TABLE_SCHEMA, one a package and version, joined on (Package, Description-md5)."""
    descriptions = {}
    for entry in _paragraphs(Deb822, translation, translation_name, "descriptions", progress):
        if "Description-en" in entry:
            descriptions[entry.get("Package"), entry.get("Description-md5")] = entry["Description-en"]
    if not descriptions:
        raise PrefselError(f"{translation_name}: no Description-en field; give a Translation-en index")
    count = 0
    for entry in _paragraphs(Packages, packages, packages_name, "packages", progress):
        if "Package" not in entry or "Maintainer" not in entry:
            continue
        count += 1
        text = descriptions.get((entry["Package"], entry.get("Description-md5")))
        synopsis, description = split_description(text) if text else (None, None)
        yield {
            "package": entry["Package"],
            "source": entry.get("Source", entry["Package"]).split()[0],
            # Ubuntu writes its own list into Maintainer and keeps Debian's maintainer beside it.
            "user_id": hashed_name(entry.get("Original-Maintainer", entry["Maintainer"])),
            "synopsis": synopsis,
            "description": description,
        }
    if not count:
        raise PrefselError(f"{packages_name}: no package with a Maintainer field; give a Packages index")


def _paragraphs(kind: type, file: BinaryIO, name: str, unit: str, progress: bool) -> Iterator[Mapping[str, str]]:
    entries = kind.iter_paragraphs(_lines(file, name), fields=FIELDS, use_apt_pkg=False)
    try:
        yield from tqdm(entries, desc=Path(name).name[-40:], unit=f" {unit}", disable=not progress)
    except ValueError as error:  # not UTF-8, or not an index at all
        raise PrefselError(f"{name}: cannot be read as a package index: {error}") from error


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The file's lines. deb822 takes the EOFError of a cut archive for the end of the file, so it must not see one."""
    try:
        yield from file
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise PrefselError(f"{name}: cannot be read to the end: {error}") from error


def hashed_name(maintainer: str) -> str | None:
    """First 10 hex digits of sha256 of the maintainer's name; None where there is only an address."""
    name = " ".join(maintainer.rpartition("<")[0].split()).strip("\"' ")
    return hashlib.sha256(name.encode()).hexdigest()[:10] if name and "@" not in name else None


def split_description(text: str) -> tuple[str, str]:
    """Synopsis and long description of a Description field.

    Lines of a paragraph are joined; `.` lines separate paragraphs; lines indented by two or more (lists) stay lines.
    """
    synopsis, _, rest = text.partition("\n")
    lines: list[str] = []
    open_paragraph = False
    for line in rest.split("\n"):
        content = " ".join(line.split())
        if content in ("", "."):
            if lines and lines[-1]:
                lines.append("")
            open_paragraph = False
        elif line.startswith(("  ", " \t")) or not open_paragraph:
            lines.append(content)
            open_paragraph = True
        else:
            lines[-1] += " " + content
    return " ".join(synopsis.split()), "\n".join(lines).strip()


def _content_mark(place: str) -> list[Any]:
    """What tells one content of a file or URL from another without reading it: place, size and time."""
    if "://" in place:
        return [place]
    path = Path(place).expanduser()
    if not path.is_file():
        raise PrefselError(f"{place}: no such file; give a Packages and a Translation-en index")
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


@contextmanager
def _open_given(place: str) -> Iterator[BinaryIO]:
    """A file or URL, decompressed by its ending (.gz, .xz, .bz2, .zst)."""
    try:
        opened = fsspec.open(place, "rb", compression="infer").open()
    except (OSError, ValueError, ImportError) as error:
        reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise PrefselError(f"{place}: cannot be opened: {reason[0]}") from error
    with opened as file:
        yield file


def _cached(path: Path) -> tuple[pa.Table, str] | None:
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise PrefselError(f"{path}: not a readable table; delete it and run again") from error
    return table, (table.schema.metadata or {}).get(b"note", b"").decode()


def _store(path: Path, rows: Sequence[Mapping[str, Any]], note: str) -> tuple[pa.Table, str]:
    """Keep the table. Written aside and renamed, so that a reader never meets half a table."""
    table = pa.Table.from_pylist(list(rows), schema=TABLE_SCHEMA.with_metadata({"note": note}))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(table, aside, compression="zstd")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return table, note
