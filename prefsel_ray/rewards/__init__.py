"""Reward methods. The registry names them all and imports none of them until it is asked for one."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from prefsel_ray.errors import PrefselError


@dataclass(frozen=True)
class MethodInfo:
    """One line of the registry.

    `kind`: "head" reads hidden states and guides decoding, "in_context" shows demonstrations, "plain" does neither.
    `target` is "module:Class".
    """

    name: str
    paper_name: str
    kind: str
    trains: str
    unseen_user: str
    target: str


_ALL = (
    MethodInfo("zero_shot", "zero-shot", "plain", "nothing", "-", "prefsel_ray.rewards.in_context:ZeroShot"),
    MethodInfo(
        "icl_random",
        "ICL",
        "in_context",
        "nothing",
        "its own support pairs as demonstrations, drawn at random",
        "prefsel_ray.rewards.in_context:IclRandom",
    ),
    MethodInfo(
        "icl_rag",
        "ICL-RAG",
        "in_context",
        "nothing",
        "its own support pairs as demonstrations, retrieved",
        "prefsel_ray.rewards.in_context:IclRag",
    ),
    MethodInfo(
        "global_rm",
        "Global RM",
        "head",
        "one direction on all users' pairs",
        "the same direction",
        "prefsel_ray.rewards.global_rm:GlobalRM",
    ),
    MethodInfo(
        "lore",
        "LoRE",
        "head",
        "K directions and a mixture a user, jointly",
        "a mixture fitted on support, directions fixed; the mean mixture without support",
        "prefsel_ray.rewards.lore:LoRE",
    ),
    MethodInfo(
        "mpu",
        "MPU",
        "head",
        "one direction a user, on that user's pairs only",
        "a direction fitted on support; the mean direction without support",
        "prefsel_ray.rewards.mpu:MPU",
    ),
)

METHODS: dict[str, MethodInfo] = {info.name: info for info in _ALL}


def method_info(name: str) -> MethodInfo:
    """The registry line of a method. Raises PrefselError with near names and the list for an unknown one."""
    if name not in METHODS:
        raise PrefselError(f"unknown method {name!r}{_near(name, METHODS)}; methods: {', '.join(METHODS)}")
    return METHODS[name]


def load_method(name: str) -> type:
    """The class of a method, imported now. Raises PrefselError for an unknown name."""
    module, _, attribute = method_info(name).target.partition(":")
    return getattr(import_module(module), attribute)


def method_settings(name: str, values: Mapping[str, Any]) -> Any:
    """A method's frozen settings with `values` set. Raises PrefselError for a setting the method does not have."""
    settings_type = load_method(name).settings_type
    known = [field.name for field in fields(settings_type)]
    for key in values:
        if key not in known:
            listed = ", ".join(known) or "none"
            raise PrefselError(f"{name}: unknown setting {key!r}{_near(key, known)}; its settings: {listed}")
    return settings_type(**values)


def load_saved(folder: Path) -> Any:
    """The reward head saved in `folder`, whatever its method. Raises PrefselError where none is saved there."""
    path = Path(folder) / "reward.json"
    if not path.is_file():
        raise PrefselError(f"{path}: no such file; give a folder that a reward's save() wrote")
    return load_method(json.loads(path.read_text())["method"]).load(Path(folder))


def _near(name: str, known: Any) -> str:
    matches = difflib.get_close_matches(name, list(known), n=3)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""
