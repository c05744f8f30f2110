"""Protects the registry: light to import, complete, and helpful where a name or a setting is wrong."""

import subprocess
import sys

import pytest

from prefsel_ray.errors import PrefselError
from prefsel_ray.rewards import METHODS, load_method, method_info, method_settings
from prefsel_ray.rewards.in_context import IclRag, IclRandom


def test_the_first_six_methods_are_registered_with_their_kind():
    kinds = {name: METHODS[name].kind for name in ("zero_shot", "icl_random", "icl_rag", "global_rm", "lore", "mpu")}
    assert kinds == {
        "zero_shot": "plain",
        "icl_random": "in_context",
        "icl_rag": "in_context",
        "global_rm": "head",
        "lore": "head",
        "mpu": "head",
    }


@pytest.mark.parametrize("name", list(METHODS))
def test_every_line_leads_to_a_class_of_that_name_with_default_settings(name):
    method = load_method(name)
    assert method.method == name
    assert method().settings == method_settings(name, {})


def test_the_registry_imports_no_torch():
    program = "import sys, prefsel_ray.rewards; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_a_misspelt_method_is_answered_with_the_near_one_and_the_list():
    with pytest.raises(PrefselError, match=r"unknown method 'lorre' \(did you mean lore\?\); methods: zero_shot, "):
        method_info("lorre")


def test_a_misspelt_setting_is_answered_with_the_near_one_and_the_list():
    with pytest.raises(PrefselError, match=r"lore: unknown setting 'rnak' \(did you mean rank\?\); .*adapt_steps"):
        method_settings("lore", {"rnak": 3})
    with pytest.raises(PrefselError, match="zero_shot: unknown setting 'k'; its settings: none"):
        method_settings("zero_shot", {"k": 3})


def test_random_demonstrations_depend_on_a_seed_and_retrieved_ones_do_not():
    assert (IclRandom().is_random, IclRandom().retriever) == (True, "random")
    assert (IclRag().is_random, IclRag().retriever) == (False, "bm25")


def test_an_unknown_style_of_demonstrations_is_named():
    with pytest.raises(PrefselError, match="style is 'both'; it is one of chosen, pairs"):
        method_settings("icl_rag", {"style": "both"})
