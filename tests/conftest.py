"""Shared by all tests: offline models, one cache of converted models, and how tests are dealt to parallel workers."""

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


def pytest_collection_modifyitems(items):
    """Under pytest-xdist: Ray on one worker only, since two sessions of one machine confuse its State API; the packaged
    model on one, so that it is converted once; every other file as a whole. Ray's tests are the longest and go first.
    """

    def group(item):
        if "cluster" in item.path.parts or item.path.name == "test_end_to_end.py":
            return "ray"
        return "packaged-model" if "model_cache" in item.fixturenames else item.path.name

    first = {"ray": 0, "packaged-model": 1}
    items.sort(key=lambda item: first.get(group(item), 2))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
