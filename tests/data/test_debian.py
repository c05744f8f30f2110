"""Protects the Debian source: the join, every filter with its count, privacy, and apt's absence in one line."""

import functools
import gzip
import hashlib
import http.server
import lzma
import os
import subprocess
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prefsel_ray.data.apt import NoAptIndex
from prefsel_ray.data.debian import INSTRUCTION, DebianSynopses
from prefsel_ray.data.debian_index import hashed_name, split_description
from prefsel_ray.data.prepare import fingerprint, prepare
from prefsel_ray.data.splits import SplitSpec
from prefsel_ray.errors import PrefselError

ADA = "Ada Example <ada@example.org>"
LONG = (
    "This paragraph is long enough to be taken for a real description of what the software does, {} and of the way in "
)
LONG += "which it does that on every machine it is started on."


def entry(package, synopsis, description, maintainer=ADA, source=None, more=""):
    """(stanza of Packages, stanza of Translation-en)."""
    md5 = hashlib.md5(f"{package}{synopsis}".encode()).hexdigest()
    source_line = f"Source: {source}\n" if source else ""
    packages = (
        f"Package: {package}\n{source_line}Version: 1.0\nMaintainer: {maintainer}\n{more}Description: {synopsis}\n"
    )
    body = "\n".join(f" {line}" if line else " ." for line in description.split("\n"))
    translation = f"Package: {package}\nDescription-md5: {md5}\nDescription-en: {synopsis}\n{body}\n"
    return packages + f"Description-md5: {md5}\n", translation


def indexes(folder, entries):
    packages, translation = folder / "Packages", folder / "Translation-en"
    packages.write_text("\n".join(p for p, _ in entries), encoding="utf-8")
    translation.write_text("\n".join(t for _, t in entries if t), encoding="utf-8")
    return {"packages": str(packages), "translation": str(translation)}


def source_of(folder, entries, **fields):
    settings = {"min_packages_per_user": 1, "encoder": "hash:256", **fields}
    return DebianSynopses(**indexes(folder, entries), **settings)


def test_a_package_becomes_a_row_with_its_maintainer_s_synopsis(tmp_path):
    description = LONG.format("one") + "\n\nFeatures:\n * fast\n * small"
    rows = source_of(tmp_path, [entry("frob", "tool to frobnicate files", description)]).read(tmp_path / "cache", False)

    ((label, row),) = rows.rows
    assert label == "frob"
    assert row["user_id"] == "b9f00a2252"  # printf 'Ada Example' | sha256sum | head -c 10
    assert row["chosen"] == row["reference"] == "tool to frobnicate files"
    assert row["prompt"] == INSTRUCTION + description.replace("\n * ", "\n* ")
    assert "rejected" not in row
    assert row["meta"] == {"package": "frob", "source": "frob"}
    assert rows.needs_negatives
    assert rows.dataset == "debian"


def test_each_package_that_is_left_out_is_counted_with_its_reason(tmp_path):
    no_description = entry("bare", "tool without a long text", "")[0]
    entries = [
        entry("kept", "tool to keep things", LONG.format("kept")),
        entry("alone", "tool by an address", LONG.format("alone"), maintainer="<nobody@example.org>"),
        (no_description, ""),
        entry("old-name", "transitional package for kept", LONG.format("old")),
        entry("dumb", "Dummy package", LONG.format("dumb")),
        entry("short", "tool with a short text", "Too short."),
        entry("frob", "main program of frob", LONG.format("frob")),
        entry("frob-doc", "documentation of frob", LONG.format("doc"), source="frob (1.0-1)"),
        entry("endless", "tool with an endless text", " ".join(LONG.format(n) for n in range(4))),
        entry("echo", "every machine it is STARTED on", LONG.format("echo")),
        entry("twin", "Tool to keep things!", LONG.format("twin")),
        entry("rare", "tool by somebody with one package", LONG.format("rare"), maintainer="Bob <bob@example.org>"),
    ]
    source = source_of(tmp_path, entries, min_packages_per_user=2)

    rows = source.read(tmp_path / "cache", False)

    assert [label for label, _ in rows.rows] == ["frob", "kept"]
    assert {reason: found.rows for reason, found in rows.ledger.refused.items()} == {
        "maintainer without a name": ["alone"],
        "no English description": ["bare"],
        "dummy or transitional package": ["dumb", "old-name"],
        "description under 150 characters": ["short"],
        "another package of the same source stands for it": ["frob-doc"],
        "description over 400 characters": ["endless"],
        "synopsis stands in the description": ["echo"],
        "synopsis or description of an earlier package": ["twin"],
        "maintainer with fewer than 2 usable packages": ["rare"],
    }
    assert rows.ledger.rows_read == 12


def test_a_description_is_joined_by_its_checksum_not_by_name_alone(tmp_path):
    packages, translation = entry("frob", "tool to frobnicate files", LONG.format("new"))
    _, stale = entry("frob", "an older synopsis of frob", LONG.format("old"))
    rows = source_of(tmp_path, [(packages, stale), ("", translation)]).read(tmp_path / "cache", False)
    assert [row["chosen"] for _, row in rows.rows] == ["tool to frobnicate files"]


def test_no_name_and_no_address_is_stored(tmp_path):
    source_of(tmp_path, [entry("frob", "tool to frobnicate files", LONG)]).read(tmp_path / "cache", False)
    (stored,) = (tmp_path / "cache").rglob("*.parquet")
    text = str(pq.read_table(stored).to_pylist())
    assert "Ada" not in text
    assert "example.org" not in text


def test_ubuntu_s_original_maintainer_is_the_user(tmp_path):
    more = "Original-Maintainer: Ada Example <ada@example.org>\n"
    ubuntu = entry("frob", "tool to frobnicate", LONG, maintainer="Ubuntu Developers <u@example.org>", more=more)
    ((_, row),) = source_of(tmp_path, [ubuntu]).read(tmp_path / "cache", False).rows
    assert row["user_id"] == "b9f00a2252"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Ada Example <ada@example.org>", "Ada  Example <ada@other.example>", True),
        ('"Ada Example" <ada@example.org>', "Ada Example <ada@example.org>", True),
        ("Ada Example <ada@example.org>", "Ada Exampel <ada@example.org>", False),
    ],
)
def test_a_maintainer_is_the_name_whatever_the_address(one, other, same):
    assert (hashed_name(one) == hashed_name(other)) is same


@pytest.mark.parametrize("nameless", ["ada@example.org", "<ada@example.org>", "", "ada@example.org <ada@example.org>"])
def test_an_address_is_never_taken_for_a_name(nameless):
    assert hashed_name(nameless) is None


def test_paragraphs_are_joined_and_lists_keep_their_lines():
    text = "the  synopsis\n A paragraph\n in two lines.\n .\n .\n Features:\n  * one\n  * two\n more\n ."
    assert split_description(text) == (
        "the synopsis",
        "A paragraph in two lines.\n\nFeatures:\n* one\n* two more",
    )


def many(users=6, each=12):
    """Packages of several maintainers on shared subjects, so that each has neighbours at other maintainers."""
    subjects = [
        "image viewer",
        "text editor",
        "mail server",
        "chess game",
        "date parser",
        "audio player",
        "file manager",
    ]
    styles = ["{}", "fast {}", "{} for the console", "{} with plugins", "graphical {}", "tiny {}"]
    entries = []
    for user in range(users):
        for n in range(each):
            what = styles[(n + user) % 6].format(subjects[(3 * n + user) % 7])
            text = LONG.format(f"which is of sort {user} and of letter {chr(97 + n)}")
            entries.append(
                entry(f"p{user}-{n:02d}", f"{what} number {chr(97 + user)}{n}", text, f"U{user} <u@example.org>")
            )
    return entries


SPLITS = SplitSpec(seen_users=3, unseen_users=1, train_per_user=4, seen_test_per_user=2, support_per_user=4)


def test_pairs_get_negatives_by_other_maintainers_from_one_side_only(tmp_path):
    entries = many()
    prepared = prepare(source_of(tmp_path, entries, max_similarity=0.95), SPLITS, cache=tmp_path / "cache")
    maintainer_of = {}
    for packages, _ in entries:
        fields = dict(line.split(": ", 1) for line in packages.strip().splitlines())
        maintainer_of[fields["Description"]] = hashed_name(fields["Maintainer"])

    assert len(prepared.pairs) > 15
    assert all(maintainer_of[pair.rejected] != pair.user_id for pair in prepared.pairs)
    assert all(maintainer_of[pair.chosen] == pair.user_id for pair in prepared.pairs)
    fit, test = (
        {p.rejected for p in prepared.pairs if (p.split in ("train", "support")) is side} for side in (True, False)
    )
    assert fit and test and not fit & test
    sampled = {pair.user_id for pair in prepared.pairs}
    assert any(maintainer_of[pair.rejected] not in sampled for pair in prepared.pairs)  # the pool serves too
    assert prepared.ledger.rows_read == 72


def test_the_second_reading_needs_neither_the_files_nor_the_encoder(tmp_path, monkeypatch):
    source = source_of(tmp_path, many())
    first = fingerprint(prepare(source, SPLITS, cache=tmp_path / "cache").pairs)

    def forbidden(*args):
        raise AssertionError("must come from the cache")

    monkeypatch.setattr("prefsel_ray.data.debian_index._join", forbidden)
    monkeypatch.setattr("prefsel_ray.data.encoder.load_encoder", forbidden)
    assert fingerprint(prepare(source, SPLITS, cache=tmp_path / "cache").pairs) == first


def test_a_changed_index_is_read_anew(tmp_path):
    source = source_of(tmp_path, many(users=1, each=2))
    assert len(source.read(tmp_path / "cache", False).rows) == 2
    source = source_of(tmp_path, many(users=1, each=3))
    assert len(source.read(tmp_path / "cache", False).rows) == 3


def test_the_order_of_packages_in_the_index_does_not_matter(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    forward = prepare(source_of(tmp_path / "one", many()), SPLITS, cache=tmp_path / "c1")
    backward = prepare(source_of(tmp_path / "two", many()[::-1]), SPLITS, cache=tmp_path / "c2")
    assert fingerprint(forward.pairs) == fingerprint(backward.pairs)


def test_versions_of_one_program_share_a_group(tmp_path):
    entries = [entry(f"gcc-{n}", f"compiler {n}", LONG.format(f"release {n}")) for n in (11, 12)]
    entries.append(entry("gdb", "debugger", LONG.format("debugging")))
    rows = source_of(tmp_path, entries).read(tmp_path / "cache", False).rows
    groups = {label: row["group_id"] for label, row in rows}
    assert groups["gcc-11"] == groups["gcc-12"] != groups["gdb"]


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_indexes_are_read_from_files_and_urls(tmp_path, ending, compress):
    plain = indexes(tmp_path, many(users=1, each=3))
    for path in plain.values():
        with open(path, "rb") as file, open(path + ending, "wb") as out:
            out.write(compress(file.read()))
    fields = {"min_packages_per_user": 1, "encoder": "hash:64"}
    expected = DebianSynopses(**plain, **fields).read(tmp_path / "c0", False).rows

    from_files = DebianSynopses(**{name: path + ending for name, path in plain.items()}, **fields)
    assert from_files.read(tmp_path / "c1", False).rows == expected

    handler = functools.partial(_Silent, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        urls = DebianSynopses(
            packages=f"{root}/Packages{ending}", translation=f"{root}/Translation-en{ending}", **fields
        )
        assert urls.read(tmp_path / "c2", False).rows == expected
        server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_wrong_files_are_named_in_one_line(tmp_path):
    good = indexes(tmp_path, many(users=1, each=2))
    cut = tmp_path / "cut.xz"
    cut.write_bytes(lzma.compress(Path(good["translation"]).read_bytes() * 50)[:-40])
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)) * 10)
    closed = "http://127.0.0.1:9/Packages"
    for wrong, says in (
        ({"packages": str(tmp_path / "absent")}, "absent: no such file"),
        ({"translation": str(cut)}, "cut.xz: cannot be read"),
        ({"packages": good["translation"], "translation": good["packages"]}, "no Description-en field"),
        ({"packages": good["translation"]}, "no package with a Maintainer field"),
        ({"translation": str(noise)}, "noise"),
        ({"packages": closed}, "127.0.0.1:9/Packages: cannot be"),
    ):
        with pytest.raises(PrefselError, match=says) as caught:
            DebianSynopses(**{**good, **wrong}).read(tmp_path / "cache", False)
        assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.parquet"))


def test_settings_out_of_range_are_refused_by_name():
    for wrong, says in (
        ({"packages": "x"}, "both `packages` and `translation`"),
        ({"min_packages_per_user": 0}, "min_packages_per_user"),
        ({"max_description_chars": 100}, "max_description_chars"),
        ({"pool_size": -1}, "pool_size"),
        ({"max_uses": 0}, "max_uses"),
    ):
        with pytest.raises(PrefselError, match=says):
            DebianSynopses(**wrong)


def test_a_machine_without_apt_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoAptIndex, match="no apt-get on this machine"):
        DebianSynopses().read(tmp_path, False)


FAKE_APT = """#!/bin/sh
case "$*" in *update*) echo "W: Failed to fetch http://mirror.example/InRelease" >&2 ;; esac
"""


def test_an_unreachable_mirror_is_named_and_leaves_nothing_behind(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("apt-get", "apt-config"):
        (programs / name).write_text(FAKE_APT)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    with pytest.raises(NoAptIndex, match="mirror.example") as caught:
        DebianSynopses().read(tmp_path / "cache", False)
    assert "\n" not in str(caught.value)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name != "debian"]


@pytest.mark.slow
def test_the_machine_s_own_release_gives_hundreds_of_maintainers_and_touches_no_system_file(tmp_path):
    watched = ["/var/lib/apt/lists", "/var/cache/apt"]
    before = subprocess.run(["ls", "-lR", "--time-style=full-iso", *watched], capture_output=True, text=True).stdout
    try:
        rows = DebianSynopses(max_description_chars=10**6).read(tmp_path / "cache", False)
    except NoAptIndex as error:
        pytest.skip(str(error))
    after = subprocess.run(["ls", "-lR", "--time-style=full-iso", *watched], capture_output=True, text=True).stdout

    # Debian 12 has 110 maintainers with at least 20 usable packages; a release of another size is of that order.
    users = {row["user_id"] for _, row in rows.rows}
    assert len(users) > 50
    assert len(rows.rows) > 5000
    assert rows.ledger.rows_read == len(rows.rows) + rows.ledger.rows_refused
    assert before == after
    assert sorted(path.name for path in (tmp_path / "cache" / "debian").iterdir()) == ["apt-v1.parquet"]
