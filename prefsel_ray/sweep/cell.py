"""A cell is one step of a sweep as data: a frozen record whose folder is named by a hash of what it declares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefsel_ray.data.schema import stable_hash

# Raised by one when a stage's output changes meaning; its cells and all that depend on them are then new cells.
STAGE_VERSIONS = {
    "pairs": 1,
    "trace": 1,
    "reward": 1,
    "reward_trace": 1,
    "in_context": 1,
    "generate": 1,
    "own_reward": 1,
    "text_scores": 1,
}


@dataclass(frozen=True)
class Cell:
    """One unit of resumable work.

    `fields` (JSON values) and the keys of `inputs` are the identity; `name` only makes the folder readable.
    `label` says what the cell is about (method, seed, policy, w, ...) for the results and MLflow; it is not hashed.
    """

    stage: str
    name: str
    fields: Mapping[str, Any]
    inputs: tuple["Cell", ...] = ()
    label: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        """8 hex digits of the hash over stage, stage version, declared fields and the inputs' keys."""
        identity = [self.stage, STAGE_VERSIONS[self.stage], dict(self.fields), [cell.key for cell in self.inputs]]
        return stable_hash(identity, digits=8)

    @property
    def path(self) -> str:
        """Folder below the store: `<stage>/<name>-<key>`."""
        return f"{self.stage}/{safe_name(self.name)}-{self.key}"

    def __hash__(self) -> int:
        return hash((self.stage, self.key))


def safe_name(text: str, longest: int = 80) -> str:
    """`text` with only letters, digits, '.', '_' and '-', at most `longest` characters (file systems stop at 255)."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text)[:longest]
