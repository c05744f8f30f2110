"""Package indexes through apt's own tools, in a private folder: no root, no system file touched, no hook run."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from debian.deb822 import Deb822

from prefsel_ray.errors import PrefselError

APT_HELPER = "/usr/lib/apt/apt-helper"  # prints a list file in whatever compression apt keeps it
# Ubuntu keeps most of what Debian has in universe.
COMPONENTS = ("main", "universe")
# Parts of a release that change between its point releases; they hold newer versions of what is in the release itself.
POCKETS = ("-security", "-updates", "-backports", "-proposed", "-proposed-updates")
UPDATE_SECONDS = 240


class NoAptIndex(PrefselError):
    """There is no apt on this machine, or it has no index with English descriptions and cannot fetch one."""


@dataclass(frozen=True)
class AptIndex:
    """One component of a release: its list of packages, their descriptions, and a phrase that names the release."""

    packages: Path
    translation: Path
    release: str


@contextmanager
def apt_indexes(folder: Path) -> Iterator[list[AptIndex]]:
    """The base release's indexes, fetched into `folder`, which is removed afterwards.

    Without a network the system's own lists are read, if they have descriptions. Raises NoAptIndex where neither works.
    """
    if shutil.which("apt-get") is None:
        raise NoAptIndex("no apt-get on this machine; give the source two index files, or use planted data")
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "cache").mkdir()
    try:
        config = _private_config(folder)
        failure = _update(config)
        indexes = _complete_indexes(config) or _complete_indexes(None)
        if not indexes:
            reason = failure or "the sources have no release with English descriptions (Translation-en)"
            raise NoAptIndex(f"no apt index: {reason}; give the source two index files, or use planted data")
        yield indexes
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def open_list(path: Path) -> Iterator[BinaryIO]:
    """The list file's content as bytes. Raises PrefselError where apt cannot read it to the end."""
    with subprocess.Popen([APT_HELPER, "cat-file", str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout
    if process.returncode != 0:
        raise PrefselError(f"{path}: apt-helper cannot read this list file (exit {process.returncode})")


def _private_config(folder: Path) -> Path:
    """A configuration on top of the system's: its sources, keys and proxies, but our folder and English descriptions.

    The system's update hooks are switched off, and so are all indexes but the two that are read: a desktop's sources
    also fetch icons and file lists.
    """
    lines = [
        *(f"#clear APT::Update::{hook};" for hook in ("Pre-Invoke", "Post-Invoke", "Post-Invoke-Success")),
        "#clear Acquire::Languages;",
        'Acquire::Languages { "en"; };',
        'Acquire::Retries "1";',
        'Acquire::http::Timeout "20";',
        'Acquire::https::Timeout "20";',
        f'Dir::State::Lists "{folder}/lists";',
        f'Dir::Cache "{folder}/cache";',
    ]
    known = _apt("apt-config", "dump", "Acquire::IndexTargets").stdout
    for name in re.findall(r"^Acquire::IndexTargets::deb::([^:\s]+) ", known, flags=re.MULTILINE):
        if name not in ("Packages", "Translations"):
            lines.append(f'Acquire::IndexTargets::deb::{name}::DefaultEnabled "false";')
    lines.append('Acquire::IndexTargets::deb-src::Sources::DefaultEnabled "false";')
    config = folder / "apt.conf"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


def _update(config: Path) -> str:
    """Fetch the indexes. Returns apt's first complaint, or an empty text: one dead source must not hide the others."""
    try:
        result = _apt("apt-get", "-c", str(config), "update", "-q", timeout=UPDATE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"apt-get update took more than {UPDATE_SECONDS} s"
    complaints = [line for line in result.stderr.splitlines() if line.startswith(("E:", "W:"))]
    if result.returncode == 0 and not complaints:
        return ""
    return f"apt-get update says {complaints[0]!r}" if complaints else f"apt-get update exits {result.returncode}"


def _complete_indexes(config: Path | None) -> list[AptIndex]:
    """The indexes at hand of the first release in the sources that has packages and descriptions."""
    options = ["-c", str(config)] if config else ["-o", "Acquire::Languages::=en"]
    listing = _apt("apt-get", *options, "indextargets").stdout
    files: dict[tuple[str, str, str], dict[str, Path]] = {}
    names: dict[tuple[str, str, str], str] = {}
    for target in Deb822.iter_paragraphs(listing, use_apt_pkg=False):
        release, component = target.get("Release", ""), target.get("Component", "")
        path = Path(target.get("Filename", ""))
        if target.get("Target-Of") != "deb" or component not in COMPONENTS or release.endswith(POCKETS):
            continue
        if not path.is_file() or not os.access(path, os.R_OK):
            continue
        place = (target.get("Repo-URI", ""), release, component)
        if target.get("Created-By") == "Packages":
            files.setdefault(place, {}).setdefault("packages", path)  # the native architecture comes first
            names[place] = " ".join(filter(None, (target.get("Origin"), target.get("Version"), release, component)))
        elif target.get("Created-By") == "Translations" and target.get("Language") == "en":
            files.setdefault(place, {})["translation"] = path
    complete = [place for place, found in files.items() if len(found) == 2]
    return [
        AptIndex(release=names[place], **files[place])
        for place in complete
        if place[:2] == complete[0][:2]  # one repository and release; two would hold the same packages
    ]


def _apt(*command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
