"""The sweep as data: what to compare, on which pairs, with which models. `sweeps/*.py` build one of these."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prefsel_ray.data.files import FilePairs
from prefsel_ray.data.schema import stable_hash
from prefsel_ray.data.source import Source
from prefsel_ray.data.splits import SplitSpec
from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.bertscore import BertScoreSpec
from prefsel_ray.rewards import METHODS, method_info, method_settings

SCALES = ("toy", "small", "paper")


@dataclass(frozen=True)
class Sweep:
    """One comparison of personalisation methods.

    `weights` is the grid of w for policy accuracy (arithmetic on traces); `decode_weights` are the w that guided
    decoding really writes with. All test pairs are ranked and `written` of them get texts; in-context methods, whose
    prompts are several times longer, rank the first `in_context_ranked` (None: all). `settings` gives a method's own
    settings by name. `bertscore` None leaves BERTScore out, with that as the reason.
    """

    name: str
    scale: str
    data: Source
    splits: SplitSpec
    backbone: str
    policies: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    in_context_seeds: tuple[int, ...] = (0,)
    shots: tuple[int, ...] = (2, 4)
    weights: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
    decode_weights: tuple[float, ...] = (1.0,)
    top_k: int = 10
    written: int = 100
    in_context_ranked: int | None = None
    max_new_tokens: int = 32
    block_rows: int = 8
    bertscore: BertScoreSpec | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fallback: Source | None = None  # used, and named in the report, where `data` needs an apt index and there is none

    def __post_init__(self) -> None:
        """Raises PrefselError where the sweep names unknown methods, none at all, or the same thing twice."""
        for name in self.methods:
            method_info(name)
        for label, values in (("methods", self.methods), ("seeds", self.seeds), ("policies", self.policies)):
            if not values:
                raise PrefselError(f"sweep {self.name}: `{label}` is empty; name at least one")
            if len(set(values)) != len(values):
                raise PrefselError(f"sweep {self.name}: `{label}` names the same thing twice: {values}")
        for name, values in self.settings.items():
            if name not in self.methods:
                raise PrefselError(f"sweep {self.name}: `settings` names {name!r}, which is not among its methods")
            method_settings(name, values)

    def of_kind(self, kind: str) -> list[str]:
        """The sweep's methods of one kind (head, in_context, plain), in the sweep's order."""
        return [name for name in self.methods if METHODS[name].kind == kind]


def source_fields(source: Source) -> dict[str, Any]:
    """What of a source enters a cell's identity: its class and fields, and for a file its content, not its place."""
    fields = {"source": type(source).__name__, **asdict(source)}
    if isinstance(source, FilePairs):
        path = Path(source.path)
        if not path.is_file():
            raise PrefselError(f"{path}: no such file; give an existing .jsonl or .parquet file")
        fields["path"] = path.name
        fields["content"] = stable_hash(path.read_bytes().hex(), digits=16)
    return fields
