"""Debian synopses: write a package's one-line synopsis for its long description, as its maintainer would.

User = maintainer, prompt = long description, chosen = reference = the maintainer's own synopsis, rejected = the nearest
synopsis of another maintainer's package. From the `Packages` and `Translation-en` indexes of a Debian or Ubuntu mirror.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from prefsel_ray.data.apt import NoAptIndex
from prefsel_ray.data.debian_index import index_from_apt, index_from_files
from prefsel_ray.data.encoder import MINILM, encode_cached
from prefsel_ray.data.ledger import Label, Ledger
from prefsel_ray.data.mining import MiningSpec, Text, mine_negatives, normalised
from prefsel_ray.data.schema import stable_hash
from prefsel_ray.data.source import RawRow, Rows
from prefsel_ray.errors import PrefselError

__all__ = ["DebianSynopses", "NoAptIndex"]

INSTRUCTION = "Write the one-line synopsis of the software package that is described here.\n\n"
MIN_DESCRIPTION_CHARS = 150  # shorter ones say little more than the synopsis


@dataclass(frozen=True)
class DebianSynopses:
    """The synopses of one release of Debian or Ubuntu.

    Fields:
        packages, translation: paths or URLs of a `Packages` and a `Translation-en` index, plain or compressed; both
            None = fetched by apt from the machine's own sources.
        min_packages_per_user: maintainers with fewer usable packages are left out.
        max_description_chars: longer descriptions are left out.
        encoder: sentence encoder of the hard-negative miner.
        pool_size: synopses of packages outside the splits that may serve as negatives; None = all. More of them make
            harder negatives, and each must be encoded once.
        max_similarity, max_overlap, max_uses: see `MiningSpec`.
    """

    packages: str | None = None
    translation: str | None = None
    min_packages_per_user: int = 20
    max_description_chars: int = 400
    encoder: str = MINILM
    pool_size: int | None = 6000
    max_similarity: float = 0.85
    max_overlap: float = 0.7
    max_uses: int = 2

    def __post_init__(self) -> None:
        """Raises PrefselError where only one index is given or a number is out of range."""
        if (self.packages is None) != (self.translation is None):
            raise PrefselError("debian: give both `packages` and `translation`, or neither to fetch them by apt")
        for name, least in (("min_packages_per_user", 1), ("max_description_chars", MIN_DESCRIPTION_CHARS)):
            if getattr(self, name) < least:
                raise PrefselError(f"debian: {name} must be at least {least}, got {getattr(self, name)}")
        if self.pool_size is not None and self.pool_size < 0:
            raise PrefselError(f"debian: pool_size must be at least 0, or None for all, got {self.pool_size}")
        self._mining_spec()

    def read(self, cache: Path, progress: bool) -> Rows:
        """One row a usable source package. The parsed indexes are kept in the cache folder.

        Raises NoAptIndex where no index is given and apt has none; PrefselError where a given one cannot be read.
        """
        table, note = self._table(cache, progress)
        ledger = Ledger()
        items = [self._row(package) for package in self._usable(table.to_pylist(), ledger)]
        return Rows(items, "debian", f"Debian synopses ({note})", needs_negatives=True, ledger=ledger)

    def mine(self, rows: Sequence[tuple[Label, dict[str, Any]]], cache: Path, progress: bool) -> list[RawRow]:
        """The rows with `rejected` = the nearest synopsis by another maintainer of the same split or of the pool.

        The pool holds the synopses of usable packages that are not among `rows`, so that a few sampled users still get
        hard negatives; its texts are by the same kind of maintainers (`min_packages_per_user`).
        """
        table, _ = self._table(cache, progress)
        spare = [Text(p["user_id"], p["synopsis"]) for p in self._usable(table.to_pylist(), Ledger())]
        wanted = [Text(row["user_id"], row["chosen"], row["split"]) for _, row in rows]
        taken = {normalised(text.text) for text in wanted}
        pool = [text for text in spare if normalised(text.text) not in taken]
        pool.sort(key=lambda text: stable_hash(["pool", text.text], digits=16))
        encode = partial(encode_cached, reference=self.encoder, cache=cache, progress=progress)
        negatives = mine_negatives(wanted, pool[: self.pool_size], encode, self._mining_spec())
        return [(label, {**row, "rejected": text}) for (label, row), text in zip(rows, negatives, strict=True)]

    def _mining_spec(self) -> MiningSpec:
        return MiningSpec(self.max_similarity, self.max_overlap, self.max_uses)

    def _row(self, package: Mapping[str, str]) -> tuple[Label, dict[str, Any]]:
        prompt = INSTRUCTION + package["description"]
        # Versions of one program (gcc-11, gcc-12) have descriptions that differ in their numbers only.
        group = stable_hash(re.sub(r"\d+", "", normalised(package["description"])), digits=16)
        return package["package"], {
            "user_id": package["user_id"],
            "prompt": prompt,
            "chosen": package["synopsis"],
            "reference": package["synopsis"],
            "group_id": group,
            "meta": {"package": package["package"], "source": package["source"]},
        }

    def _usable(self, packages: Sequence[dict[str, Any]], ledger: Ledger) -> list[dict[str, Any]]:
        """The packages that become rows, sorted by name; each of the others is refused in the ledger by its name."""
        ledger.read(len(packages))
        described = []
        for package in sorted(packages, key=lambda p: (p["package"], p["synopsis"] or "")):
            reason = _unfit(package)
            if reason:
                ledger.refuse(reason, package["package"])
            else:
                described.append(package)

        representative = _one_per_source(described)
        synopses: set[str] = set()
        descriptions: set[str] = set()
        kept = []
        for package in described:
            synopsis, description = normalised(package["synopsis"]), normalised(package["description"])
            if representative[package["source"]] is not package:
                reason = "another package of the same source stands for it"
            elif len(package["description"]) > self.max_description_chars:
                reason = f"description over {self.max_description_chars} characters"
            elif f" {synopsis} " in f" {description} ":
                reason = "synopsis stands in the description"
            elif synopsis in synopses or description in descriptions:
                reason = "synopsis or description of an earlier package"
            else:
                synopses.add(synopsis)
                descriptions.add(description)
                kept.append(package)
                continue
            ledger.refuse(reason, package["package"])

        of_user = Counter(package["user_id"] for package in kept)
        few = [p for p in kept if of_user[p["user_id"]] < self.min_packages_per_user]
        for package in few:
            ledger.refuse(
                f"maintainer with fewer than {self.min_packages_per_user} usable packages", package["package"]
            )
        return [p for p in kept if of_user[p["user_id"]] >= self.min_packages_per_user]

    def _table(self, cache: Path, progress: bool) -> tuple[pa.Table, str]:
        if self.packages is None or self.translation is None:
            return index_from_apt(cache, progress)
        return index_from_files(self.packages, self.translation, cache, progress)


def _unfit(package: Mapping[str, Any]) -> str | None:
    """Why the package cannot be a row, whatever the settings."""
    if package["user_id"] is None:
        return "maintainer without a name"
    if package["synopsis"] is None:
        return "no English description"
    if not normalised(package["synopsis"]):
        return "empty synopsis"
    if re.search("dummy|transitional", package["synopsis"], flags=re.IGNORECASE):
        return "dummy or transitional package"
    if len(package["description"]) < MIN_DESCRIPTION_CHARS:
        return f"description under {MIN_DESCRIPTION_CHARS} characters"
    return None


def _one_per_source(packages: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """source -> the package that has its name, else the one with the shortest name (foo before foo-doc)."""
    best: dict[str, dict[str, Any]] = {}
    for package in packages:
        rank = (package["package"] != package["source"], len(package["package"]), package["package"])
        other = best.get(package["source"])
        if other is None or rank < (other["package"] != other["source"], len(other["package"]), other["package"]):
            best[package["source"]] = package
    return best
