"""What guides a text, what comes out, and what it cost."""

from collections.abc import Callable
from dataclasses import dataclass, fields

from torch import Tensor


@dataclass(frozen=True)
class HeadGuide:
    """One guide of one example: a method x seed x user state x weight. `key` names it in the output.

    reward: hidden states [..., D] float32 -> rewards [...]; None for the policy alone. Guides that pass the very same
    callable (say, at several weights) share its evaluation.
    """

    key: str
    reward: Callable[[Tensor], Tensor] | None
    weight: float

    @property
    def steers(self) -> bool:
        """Whether the reward can change what is written."""
        return self.reward is not None and self.weight != 0


@dataclass(frozen=True)
class Decoded:
    """A written text. `ids` are without the token that ended it; `finished`: it ended by itself, not at the limit."""

    ids: tuple[int, ...]
    text: str
    finished: bool


@dataclass(frozen=True)
class DecodeReport:
    """What a call of `decode` computed against what it was asked for.

    prompts: distinct prompts read, of prompts_asked, one for every guide. prefixes: distinct (prompt, tokens so far) at
    which a next token was chosen, of prefixes_asked, one for every guide and step. policy_tokens, backbone_tokens:
    forward tokens without padding (backbone_tokens is 0 where the policy serves as the reward's backbone).
    """

    prompts: int = 0
    prompts_asked: int = 0
    prefixes: int = 0
    prefixes_asked: int = 0
    policy_tokens: int = 0
    backbone_tokens: int = 0

    def __add__(self, other: "DecodeReport") -> "DecodeReport":
        return DecodeReport(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
