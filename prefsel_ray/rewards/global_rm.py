"""Global RM: one Bradley-Terry direction for all users on a frozen backbone (LoRE with rank 1)."""

from dataclasses import dataclass
from typing import ClassVar

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
class GlobalSettings(HeadSettings):
    """`weighting`: "pairs", each pair counts the same, or "users", each user does (LoRE's loss)."""

    weighting: str = "pairs"

    def __post_init__(self) -> None:
        """Raises PrefselError naming the setting that has an impossible value."""
        super().__post_init__()
        self._refuse({"weighting": self.weighting in ("pairs", "users")})


class GlobalRM(LinearHead):
    """reward = v.hidden / scale with  min_v  mean BT(v.(e+ - e-)/scale) + L2.

    The loss is LoRE's at K = 1 (arXiv 2504.14439; facebookresearch/LoRe). Two things differ from that source, which
    takes 1,000 Adam steps without a penalty on raw features: with more dimensions than pairs the unpenalised loss has
    no minimum, so an L2 penalty is chosen on a held-out slice and the head then refitted on all pairs, at the exact
    optimum; and features are standardised first, the spread being folded back into v. So a seed decides the
    held-out slice only, and seeds that agree on the penalty give the same head. State of a user: empty, S = 0.
    """

    method: ClassVar[str] = "global_rm"
    settings_type: ClassVar[type[HeadSettings]] = GlobalSettings

    def _learn(self, train: PairFeatures, inverse: Tensor, seed: int) -> None:
        x = ((train.chosen - train.rejected).cpu() * inverse).double().numpy()
        weights = pair_weights(train.users, self.settings.weighting)
        l2, held = self.settings.l2, held_out_rows(train.users, self.settings.held_out_fraction, seed)
        if l2 is None and held.any():
            losses = losses_on_grid(x, weights, held, self.settings.l2_grid)
            l2 = best_l2(losses)
            self.fitted.update(held_out_pairs=int(held.sum()), held_out_loss=float(losses[l2].mean()))
        l2 = L2_WITHOUT_SLICE if l2 is None else l2
        direction = torch.from_numpy(bt_direction(x, weights, l2)).float()
        self.tensors["direction"] = direction * inverse * self.settings.scale
        self.fitted["l2"] = l2

    def adapt(self, user: str, support: PairFeatures | None) -> Tensor:
        """[0]: every user shares the head."""
        self._support(user, support)
        return self.prior()

    def prior(self) -> Tensor:
        """[0], empty."""
        return torch.zeros(0)

    def learned_state(self, row: int) -> Tensor:
        """[0], empty."""
        return torch.zeros(0)

    def direction(self, user_state: Tensor) -> Tensor:
        """[D] the shared direction."""
        return self.tensors["direction"]
