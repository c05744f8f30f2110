"""LoRE, joint: a user's direction is a mixture of K shared ones (arXiv 2504.14439 and its code's joint trainer)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from prefsel_ray.rewards.linear import HeadSettings, LinearHead
from prefsel_ray.rewards.protocol import NonFiniteError, PairFeatures, bt_loss
from prefsel_ray.rewards.solve import L2_WITHOUT_SLICE, held_out_rows, one_thread_if_small, pair_weights


@dataclass(frozen=True)
class LoreSettings(HeadSettings):
    """The source's: K 5, scale 100, Adam at lr 0.5 for 1,000 full-batch steps; adaptation 500 steps at lr 0.1.

    `patience`: training ends after so many steps in which no l2 reached a lower held-out loss.
    `drop_below`: directions that no seen user weighs above it are dropped and the weights renormalised.
    """

    scale: float = 100.0
    rank: int = 5
    lr: float = 0.5
    steps: int = 1000
    patience: int = 200
    adapt_lr: float = 0.1
    adapt_steps: int = 500
    drop_below: float = 1e-2

    def __post_init__(self) -> None:
        """Raises PrefselError naming the setting that has an impossible value."""
        super().__post_init__()
        whole = {name: getattr(self, name) for name in ("rank", "steps", "patience", "adapt_steps")}
        self._refuse({name: value == int(value) and value >= 1 for name, value in whole.items()})
        self._refuse({name: getattr(self, name) > 0 for name in ("lr", "adapt_lr")})
        self._refuse({"drop_below": 0 <= self.drop_below < 1 / self.rank})


@dataclass
class Runs:
    """G training runs side by side, one an l2: basis [G, D, K], logits [G, U, K]. They share nothing but the start."""

    basis: Tensor
    logits: Tensor

    def margins(self, x: Tensor, owner: Tensor, scale: float) -> Tensor:
        """[N, G] margins of difference rows x [N, D] that belong to users `owner` [N] (rows of the logits)."""
        runs, width, rank = self.basis.shape
        along = (x @ self.basis.permute(1, 0, 2).reshape(width, runs * rank)).view(len(x), runs, rank)
        weights = torch.softmax(self.logits, dim=-1)[:, owner].transpose(0, 1)
        return (along * weights).sum(dim=-1) / scale


class LoRE(LinearHead):
    """reward = hidden.V.w / scale, w = softmax(a_u); V [D, K] and a [U, K] trained together.

    Loss: mean over users of each user's mean BT, plus l2/2 times the mean over k of |V_k/scale|^2; V and a start at
    N(0, 1). Differences from the source, which takes all steps on raw features with neither penalty nor held-out
    data: where features have more dimensions than there are pairs that memorises the pairs, so the l2 and the number
    of steps are those with the lowest loss on a held-out slice (the weights kept are the very ones measured, never
    refitted on the slice); and V is learned on standardised features, the spread being folded back in.

    State of a user: its K weights, which sum to 1. The prior is the mean of the seen users' weights; the source
    draws a random mixture for a user without support, and starts every adaptation from one.
    """

    method: ClassVar[str] = "lore"
    settings_type: ClassVar[type[HeadSettings]] = LoreSettings

    def _learn(self, train: PairFeatures, inverse: Tensor, seed: int) -> None:
        s = self.settings
        x = (train.chosen - train.rejected) * inverse.to(train.chosen.device)
        row_of = {user: row for row, user in enumerate(self.users)}
        owner = torch.tensor([row_of[user] for user in train.users], device=x.device)
        held = held_out_rows(train.users, s.held_out_fraction, seed)
        grid = [s.l2] if s.l2 is not None else sorted(s.l2_grid, reverse=True) if held.any() else [L2_WITHOUT_SLICE]
        generator = torch.Generator().manual_seed(seed)
        basis = torch.randn(x.shape[1], s.rank, generator=generator).to(x.device)
        logits = torch.randn(len(self.users), s.rank, generator=generator).to(x.device)

        with one_thread_if_small(x.numel() * s.rank * len(grid)):
            basis, logits, facts = train_jointly(x, owner, train.users, held, grid, basis, logits, s)
        weights = torch.softmax(logits, dim=-1)
        used = weights.amax(dim=0) > s.drop_below
        weights = weights[:, used] / weights[:, used].sum(dim=-1, keepdim=True)
        self.tensors["basis"] = basis[:, used].cpu() * inverse[:, None]
        self.tensors["weights"] = weights.cpu()
        self.fitted.update(facts, held_out_pairs=int(held.sum()), directions_kept=int(used.sum()))

    def adapt(self, user: str, support: PairFeatures | None) -> Tensor:
        """[K] weights after `adapt_steps` Adam steps on the user's logits with V fixed, from the prior's logits.

        Without support the prior. No penalty, as in the source: the mixture cannot leave the simplex.
        """
        support = self._support(user, support)
        if support is None:
            return self.prior()
        along = (support.chosen - support.rejected).cpu() @ self.tensors["basis"] / self.settings.scale
        logits = self.prior().log().requires_grad_()
        optimiser = torch.optim.Adam([logits], lr=self.settings.adapt_lr)
        with one_thread_if_small(along.numel()):
            for _ in range(self.settings.adapt_steps):
                optimiser.zero_grad()
                bt_loss(along @ torch.softmax(logits, dim=-1)).mean().backward()
                optimiser.step()
        weights = torch.softmax(logits.detach(), dim=-1)
        if not torch.isfinite(weights).all():
            raise NonFiniteError(f"lore: the adapted weights of user {user} are not finite; look for huge features")
        return weights

    def prior(self) -> Tensor:
        """[K] mean weights of the seen users."""
        return self.tensors["weights"].mean(dim=0)

    def learned_state(self, row: int) -> Tensor:
        """[K] weights of a seen user."""
        return self.tensors["weights"][row]

    def direction(self, user_state: Tensor) -> Tensor:
        """[D] the user's mixture of the K directions."""
        return self.tensors["basis"] @ user_state.to(self.tensors["basis"])


def train_jointly(
    x: Tensor,
    owner: Tensor,
    users: Sequence[str],
    held: np.ndarray,
    grid: Sequence[float],
    basis: Tensor,
    logits: Tensor,
    settings: LoreSettings,
) -> tuple[Tensor, Tensor, dict[str, float | int | None]]:
    """The basis [D, K] and logits [U, K] with the lowest held-out loss over l2 and step, and what was chosen.

    x: [N, D] standardised differences; `held` [N] marks the held-out rows. All l2 run in one loop: their losses are
    added, and since Adam works elementwise each run is the one it would be alone. Without held-out rows the one l2
    runs all steps. Raises NonFiniteError where a training loss is not finite, naming the step.
    """
    s, out = settings, torch.from_numpy(held).to(x.device)
    runs = Runs(basis.repeat(len(grid), 1, 1).requires_grad_(), logits.repeat(len(grid), 1, 1).requires_grad_())
    weights = torch.as_tensor(pair_weights([u for u, h in zip(users, held, strict=True) if not h], "users"))
    weights, l2 = weights.to(x), torch.tensor(grid).to(x)
    x_in, owner_in, x_out, owner_out = x[~out], owner[~out], x[out], owner[out]
    optimiser = torch.optim.Adam([runs.basis, runs.logits], lr=s.lr)
    best_loss, best_step = torch.full((len(grid),), torch.inf, device=x.device), [0] * len(grid)
    best = Runs(runs.basis.detach().clone(), runs.logits.detach().clone())

    for step in range(1, s.steps + 1):
        optimiser.zero_grad()
        penalty = (runs.basis / s.scale).square().sum(dim=1).mean(dim=1) * l2 / 2
        loss = (weights @ bt_loss(runs.margins(x_in, owner_in, s.scale)) + penalty).sum()
        if not torch.isfinite(loss):
            raise NonFiniteError(
                f"lore: training loss is {loss.item()} at step {step}; lower lr or look for huge features"
            )
        loss.backward()
        optimiser.step()
        if not held.any():
            continue
        with torch.no_grad():
            held_loss = bt_loss(runs.margins(x_out, owner_out, s.scale)).mean(dim=0)
        for run in torch.nonzero(held_loss < best_loss).flatten().tolist():
            best_loss[run], best_step[run] = held_loss[run], step
            best.basis[run], best.logits[run] = runs.basis[run].detach(), runs.logits[run].detach()
        if step - max(best_step) >= s.patience:
            break
    if not held.any():
        return runs.basis[0].detach(), runs.logits[0].detach(), {"l2": grid[0], "steps": s.steps, "held_out_loss": None}
    run = int(best_loss.argmin())
    facts = {"l2": grid[run], "steps": best_step[run], "held_out_loss": float(best_loss[run])}
    return best.basis[run], best.logits[run], facts
