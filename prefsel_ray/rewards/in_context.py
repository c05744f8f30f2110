"""Methods without a reward: what they are is their settings. Decoding reads these and does the work.

They have no fit, adapt, token_rewards, save or load: nothing is learned, and the user's state is the user's pairs.
"""

from dataclasses import dataclass
from typing import ClassVar

from prefsel_ray.errors import PrefselError

STYLES = ("chosen", "pairs")
LAYOUTS = ("turns", "block")


@dataclass(frozen=True)
class ZeroShotSettings:
    """Nothing to set."""


class ZeroShot:
    """The policy as it is: the prompt alone, plain greedy text."""

    method: ClassVar[str] = "zero_shot"
    settings_type: ClassVar[type] = ZeroShotSettings

    def __init__(self, settings: ZeroShotSettings | None = None) -> None:
        self.settings = settings or ZeroShotSettings()


@dataclass(frozen=True)
class DemonstrationSettings:
    """`style`: show the preferred response ("chosen") or both ("pairs"). `layout`: chat turns or one text block."""

    style: str = "chosen"
    layout: str = "turns"

    def __post_init__(self) -> None:
        """Raises PrefselError for a style or layout that does not exist."""
        for name, value, known in (("style", self.style, STYLES), ("layout", self.layout, LAYOUTS)):
            if value not in known:
                raise PrefselError(f"in-context setting {name} is {value!r}; it is one of {', '.join(known)}")


@dataclass(frozen=True)
class RetrievalSettings(DemonstrationSettings):
    """`retriever` ranks the user's own pairs by likeness with the query; "bm25" or a retriever decoding knows."""

    retriever: str = "bm25"


class IclRandom:
    """The user's own pairs as demonstrations, drawn at random by (user, example, seed)."""

    method: ClassVar[str] = "icl_random"
    settings_type: ClassVar[type] = DemonstrationSettings
    is_random: ClassVar[bool] = True  # other seeds draw other demonstrations
    retriever: ClassVar[str] = "random"

    def __init__(self, settings: DemonstrationSettings | None = None) -> None:
        self.settings = settings or DemonstrationSettings()


class IclRag:
    """The user's own pairs most like the query as demonstrations, the most similar last."""

    method: ClassVar[str] = "icl_rag"
    settings_type: ClassVar[type] = RetrievalSettings
    is_random: ClassVar[bool] = False  # retrieval draws nothing: every seed gives the same text

    def __init__(self, settings: RetrievalSettings | None = None) -> None:
        self.settings = settings or RetrievalSettings()

    @property
    def retriever(self) -> str:
        """Name of the retriever."""
        return self.settings.retriever
