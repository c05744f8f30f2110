"""The store: one folder per cell, finished when and only when its SUCCESS file exists."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from prefsel_ray.errors import PrefselError
from prefsel_ray.sweep.cell import Cell

STORE_FORMAT = 1


class Store:
    """Cells on a file system that the driver and every worker see under the same absolute path."""

    def __init__(self, root: Path | str) -> None:
        """Open or create the store.

        Raises PrefselError where the folder holds a store of another format, or something that is no store.
        """
        self.root = Path(root).resolve()
        marker = self.root / "store.json"
        if marker.exists():
            found = read_json(marker).get("format")
            if found != STORE_FORMAT:
                raise PrefselError(
                    f"{marker}: store format {found!r}, this version of prefsel_ray reads {STORE_FORMAT}: "
                    "choose another folder with --store, or use the version that wrote it"
                )
        elif self.root.exists() and not self.root.is_dir():
            raise PrefselError(f"--store {self.root}: not a folder")
        elif self.root.is_dir() and any(self.root.iterdir()):
            raise PrefselError(
                f"--store {self.root}: holds files but no store.json, so it is no store of prefsel_ray: "
                "choose an empty or a new folder"
            )

    def create(self) -> None:
        """Write the format marker; everything before this call leaves the disk untouched."""
        self.root.mkdir(parents=True, exist_ok=True)
        if not (self.root / "store.json").exists():
            write_json(self.root / "store.json", {"format": STORE_FORMAT})

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the store for one driver; the system frees the lock of a driver that died.

        Raises PrefselError where another living driver holds it.
        """
        lock = FileLock(self.root / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise PrefselError(
                f"{self.root}: another sweep is writing to this store; wait for it, or choose another --store"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def is_locked(self) -> bool:
        """True where a living driver holds the store."""
        if not (self.root / ".lock").exists():
            return False
        lock = FileLock(self.root / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        lock.release()
        return False

    def folder(self, cell: Cell) -> Path:
        return self.root / cell.path

    def is_done(self, cell: Cell) -> bool:
        return (self.folder(cell) / "SUCCESS").exists()

    def failure(self, cell: Cell) -> str | None:
        """The reason of a FAILED cell, else None."""
        path = self.folder(cell) / "FAILED"
        return path.read_text().strip() if path.exists() and not self.is_done(cell) else None

    def record(self, cell: Cell) -> dict[str, Any]:
        return read_json(self.folder(cell) / "record.json")

    def start(self, cell: Cell) -> Path:
        """The cell's folder, made where missing; an old FAILED mark is taken off, finished part files stay."""
        folder = self.folder(cell)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "FAILED").unlink(missing_ok=True)
        return folder

    def finish(self, cell: Cell, record: dict[str, Any]) -> None:
        """Write record.json, then SUCCESS: a reader that sees SUCCESS sees everything."""
        folder = self.folder(cell)
        identity = {
            "stage": cell.stage,
            "name": cell.name,
            "key": cell.key,
            "fields": dict(cell.fields),
            "inputs": [c.path for c in cell.inputs],
        }
        for left_over in folder.rglob(".*.tmp"):  # of a writer that was killed
            left_over.unlink()
        write_json(folder / "record.json", {**identity, **record})
        write_text(folder / "SUCCESS", "")

    def fail(self, cell: Cell, reason: str) -> None:
        write_text(self.start(cell) / "FAILED", reason + "\n")

    def discard(self, cell: Cell) -> None:
        """Remove whatever an unfinished cell left behind."""
        if not self.is_done(cell):
            shutil.rmtree(self.folder(cell), ignore_errors=True)

    def sweep_folder(self, name: str) -> Path:
        return self.root / "sweeps" / name

    @property
    def mlflow_uri(self) -> str:
        return f"sqlite:///{self.root / 'mlflow.db'}"


def write_text(path: Path, text: str) -> None:
    """Write through a temporary file in the same folder and rename: readers see all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """Raises PrefselError naming the file where it is not JSON."""
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise PrefselError(f"{path}: not valid JSON (line {error.lineno}); remove the file or the folder") from None
