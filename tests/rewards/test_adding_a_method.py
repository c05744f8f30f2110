"""Protects docs/adding-a-method.md: its three code blocks, taken as they stand, make a working method."""

import re
from pathlib import Path

import pytest

import prefsel_ray.rewards as rewards
from tests.rewards import test_every_head as every_head

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The example's method importable and registered; yields the source of its test."""
    method, line, test = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "mean_shift.py").write_text(method)
    monkeypatch.setattr(rewards, "__path__", [*rewards.__path__, str(tmp_path)])
    (info,) = eval(f"({line})", {"MethodInfo": rewards.MethodInfo})
    monkeypatch.setitem(rewards.METHODS, info.name, info)
    return test


def test_the_pages_own_test_passes_on_the_pages_method(written):
    names: dict = {}
    exec(compile(written, str(PAGE), "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_the_pages_method_keeps_what_every_head_promises(written, tmp_path):
    head = {"mean_shift": every_head.fitted("mean_shift")}
    every_head.test_a_head_has_every_part_of_the_protocol("mean_shift", head)
    every_head.test_a_head_ranks_its_training_pairs_well_above_chance("mean_shift", head)
    every_head.test_the_order_of_rows_does_not_matter("mean_shift", head)
    every_head.test_a_user_without_support_gets_the_prior_of_an_unknown_user("mean_shift", head)
    every_head.test_states_of_different_users_share_no_memory("mean_shift", head)
    every_head.test_a_saved_head_gives_the_same_rewards_bit_for_bit("mean_shift", head, tmp_path)
    every_head.test_nan_in_a_feature_stops_the_fit_and_names_the_row("mean_shift", "chosen")
