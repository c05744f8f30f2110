"""MPU, a model per user: one Bradley-Terry head for each user, on that user's pairs only."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from prefsel_ray.rewards.linear import HeadSettings, LinearHead
from prefsel_ray.rewards.protocol import PairFeatures
from prefsel_ray.rewards.solve import (
    L2_WITHOUT_SLICE,
    best_l2,
    bt_direction,
    held_out_rows,
    losses_on_grid,
    pair_weights,
)


@dataclass(frozen=True)
class MpuSettings(HeadSettings):
    """`own_slice`: held-out pairs from which on a user's slice chooses that user's l2 alone.

    With fewer (two of twenty pairs, say) one lucky pair would decide it, so the user takes the l2 that is best over
    all seen users' slices together.
    """

    own_slice: int = 5

    def __post_init__(self) -> None:
        """Raises PrefselError naming the setting that has an impossible value."""
        super().__post_init__()
        self._refuse({"own_slice": self.own_slice >= 1})


class MPU(LinearHead):
    """reward = v_u.hidden / scale with  min_{v_u}  mean over the user's pairs of BT + L2, solved to the optimum.

    No source survives for this baseline beyond its name.
    Heads see their own user's pairs only; the spread that standardises features comes from all training states.
    State of a user: its direction [D]. The prior is the mean of the seen users' directions.
    """

    method: ClassVar[str] = "mpu"
    settings_type: ClassVar[type[HeadSettings]] = MpuSettings

    def _learn(self, train: PairFeatures, inverse: Tensor, seed: int) -> None:
        own = [train.of_user(user) for user in self.users]
        slices = [self._held_out_losses(pairs) for pairs in own]
        measured = [losses for losses in slices if losses is not None]
        pooled = self.settings.l2
        if measured:
            together = {l2: np.concatenate([losses[l2] for losses in measured]) for l2 in measured[0]}
            pooled = best_l2(together)
            loss, count = float(together[pooled].mean()), len(together[pooled])
            self.fitted.update(held_out_pairs=count, held_out_loss=loss)
        self.fitted["l2"] = L2_WITHOUT_SLICE if pooled is None else pooled
        self.tensors["directions"] = torch.stack(
            [self._head(pairs, losses) for pairs, losses in zip(own, slices, strict=True)]
        )

    def adapt(self, user: str, support: PairFeatures | None) -> Tensor:
        """[D] head fitted on the user's support alone, by the same steps as a seen user's; the prior without any."""
        support = self._support(user, support)
        return self.prior() if support is None else self._head(support, self._held_out_losses(support))

    def prior(self) -> Tensor:
        """[D] mean direction of the seen users."""
        return self.tensors["directions"].mean(dim=0)

    def learned_state(self, row: int) -> Tensor:
        """[D] direction of a seen user."""
        return self.tensors["directions"][row]

    def direction(self, user_state: Tensor) -> Tensor:
        """[D] the state itself."""
        return user_state

    def _differences(self, pairs: PairFeatures) -> np.ndarray:
        return ((pairs.chosen - pairs.rejected).cpu() * self.tensors["inverse_spread"]).double().numpy()

    def _held_out_losses(self, pairs: PairFeatures) -> dict[float, np.ndarray] | None:
        """Losses of one user's held-out pairs by l2; None where l2 is set or no pair can be held out."""
        held = held_out_rows(pairs.users, self.settings.held_out_fraction, self.fitted["seed"])
        if self.settings.l2 is not None or not held.any():
            return None
        weights = pair_weights(pairs.users, "pairs")
        return losses_on_grid(self._differences(pairs), weights, held, self.settings.l2_grid)

    def _head(self, pairs: PairFeatures, losses: dict[float, np.ndarray] | None) -> Tensor:
        """[D] one user's direction on all its pairs, at its own l2 where its slice is large enough."""
        alone = losses is not None and len(next(iter(losses.values()))) >= self.settings.own_slice
        l2 = best_l2(losses) if alone else self.fitted["l2"]
        direction = torch.from_numpy(bt_direction(self._differences(pairs), pair_weights(pairs.users, "pairs"), l2))
        return direction.float() * self.tensors["inverse_spread"] * self.settings.scale
