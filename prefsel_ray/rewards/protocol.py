"""What every reward head takes and gives: pair features in, one reward per hidden state out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from prefsel_ray.errors import PrefselError


class NonFiniteError(PrefselError):
    """NaN or infinity in features, loss or a fitted reward: the fit stops, its cell is FAILED with this message."""


@dataclass(frozen=True)
class PairFeatures:
    """Hidden states of N pairs: `chosen` and `rejected` are [N, D], cast to float32 before anything is computed.

    Row i belongs to `example_ids[i]` and `users[i]`. Methods sort by example_id, so the row order never matters.
    """

    example_ids: tuple[str, ...]
    users: tuple[str, ...]
    chosen: Tensor
    rejected: Tensor

    def __post_init__(self) -> None:
        """Raises PrefselError where the four columns disagree in length, width or rank."""
        n = len(self.example_ids)
        if self.chosen.ndim != 2 or self.chosen.shape != self.rejected.shape:
            shapes = f"{list(self.chosen.shape)} and {list(self.rejected.shape)}"
            raise PrefselError(f"pair features: chosen and rejected must both be [N, D], got {shapes}")
        if not n == len(self.users) == len(self.chosen):
            counts = f"{n} example ids, {len(self.users)} users, {len(self.chosen)} rows"
            raise PrefselError(f"pair features: the columns differ in length: {counts}")
        object.__setattr__(self, "chosen", self.chosen.float())
        object.__setattr__(self, "rejected", self.rejected.float())

    def __len__(self) -> int:
        return len(self.example_ids)

    def select(self, rows: Tensor | Sequence[int]) -> "PairFeatures":
        """The rows with these indices, in that order."""
        index = torch.as_tensor(rows, dtype=torch.long)
        ids, users = ([column[i] for i in index.tolist()] for column in (self.example_ids, self.users))
        at = index.to(self.chosen.device)
        return PairFeatures(tuple(ids), tuple(users), self.chosen[at], self.rejected[at])

    def of_user(self, user: str) -> "PairFeatures":
        """The rows of one user; none for a user who has none."""
        return self.select([i for i, name in enumerate(self.users) if name == user])

    def in_order(self) -> "PairFeatures":
        """The same rows sorted by example_id. Raises PrefselError where an id stands twice."""
        order = sorted(range(len(self)), key=self.example_ids.__getitem__)
        for before, after in zip(order, order[1:], strict=False):
            if self.example_ids[before] == self.example_ids[after]:
                raise PrefselError(f"pair features: example_id {self.example_ids[before]} stands twice; ids are unique")
        return self.select(order)

    def refuse_non_finite(self) -> None:
        """Raises NonFiniteError naming the first row whose state holds NaN or infinity."""
        for side, states in (("chosen", self.chosen), ("rejected", self.rejected)):
            bad = torch.nonzero(~torch.isfinite(states).all(dim=1)).flatten()
            if len(bad):
                first = self.example_ids[int(bad[0])]
                raise NonFiniteError(
                    f"pair features: NaN or infinity in the {side} state of {len(bad)} row(s), first {first}"
                )


@runtime_checkable
class HeadReward(Protocol):
    """A reward that reads hidden states. S is the method's own size of a user's state (0 where users share all)."""

    method: ClassVar[str]
    settings_type: ClassVar[type]
    settings: Any

    def fit(self, train: PairFeatures, *, seed: int) -> None:
        """Learn from the seen users' pairs. Same pairs in any order and same seed: the same model."""

    def adapt(self, user: str, support: PairFeatures | None) -> Tensor:
        """[S] state of an unseen user from its support pairs; without any, the population prior."""

    def user_state(self, user: str) -> Tensor:
        """[S] state learned for a seen user; the population prior for any other."""

    def token_rewards(self, hidden: Tensor, user_state: Tensor) -> Tensor:
        """hidden [..., D] -> float32 rewards [...], one a state, on the states' device."""

    def save(self, folder: Path) -> None:
        """Write the model into `folder` (made if absent)."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The saved model; its rewards equal those before saving bit for bit."""


def bt_loss(margin: Tensor) -> Tensor:
    """Bradley-Terry loss -log sigmoid(margin), elementwise and without overflow at any margin."""
    return functional.softplus(-margin)
