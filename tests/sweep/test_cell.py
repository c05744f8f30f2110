"""Protects cell identity: what changes a cell's folder, and what must not."""

from prefsel_ray.sweep import cell as cell_module
from prefsel_ray.sweep.cell import Cell, safe_name

PAIRS = Cell("pairs", "planted", {"seed": 1})


def test_name_and_label_do_not_change_the_key():
    assert Cell("pairs", "other", {"seed": 1}, label={"method": "x"}).key == PAIRS.key


def test_a_declared_field_changes_the_key():
    assert Cell("pairs", "planted", {"seed": 2}).key != PAIRS.key


def test_the_order_of_fields_does_not_change_the_key():
    one = Cell("reward", "lore", {"seed": 1, "method": "lore"}, (PAIRS,))
    two = Cell("reward", "lore", {"method": "lore", "seed": 1}, (PAIRS,))
    assert one.key == two.key


def test_a_changed_input_changes_every_cell_below_it():
    other = Cell("pairs", "planted", {"seed": 2})
    chains = [Cell("reward_trace", "t", {}, (Cell("reward", "r", {}, (pairs,)),)) for pairs in (PAIRS, other)]
    assert chains[0].key != chains[1].key


def test_a_stage_version_redoes_that_stage_and_what_depends_on_it(monkeypatch):
    reward = Cell("reward", "lore", {}, (PAIRS,))
    trace = Cell("reward_trace", "lore", {}, (reward,))
    before = (PAIRS.key, reward.key, trace.key)
    monkeypatch.setitem(cell_module.STAGE_VERSIONS, "reward", 99)
    assert PAIRS.key == before[0]
    assert reward.key != before[1]
    assert trace.key != before[2]


def test_the_key_is_the_same_on_every_machine():
    assert Cell("pairs", "planted", {"users": 3, "note": "é"}).key == "d2d71139"


def test_folder_names_hold_no_separators_and_stay_short():
    name = safe_name("package:llm/smol é" + "x" * 300)
    assert name.startswith("package-llm-smol--x")
    assert len(name) == 80
