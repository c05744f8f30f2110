"""Shared by all tests: offline models, quiet libraries, one cache of converted models for the whole run."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("RAY_ADDRESS", None)


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory) -> Path:
    """PREFSEL_CACHE where it is set, else a new folder: converting the packaged model takes some twenty seconds."""
    given = os.environ.get("PREFSEL_CACHE")
    return Path(given) if given else tmp_path_factory.mktemp("models")
