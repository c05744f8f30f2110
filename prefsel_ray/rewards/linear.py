"""The frame of heads that are linear in the hidden state: settings, centring, scale, saving. Methods add the fit."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prefsel_ray.errors import PrefselError
from prefsel_ray.rewards.protocol import NonFiniteError, PairFeatures, bt_loss
from prefsel_ray.rewards.solve import L2_GRID, inverse_spread

FORMAT = 1  # raised when saved files change meaning


@dataclass(frozen=True)
class HeadSettings:
    """What every linear head can be told.

    trained_at: "final", the state after the response's last token, as the sources train.
    scale: logits are divided by it in training and in scoring alike, so a training margin is a reward difference.
        It sets the size of the optimiser's steps and of the random start (LoRE, 1/100 in its source). Where the fit
        reaches its optimum the direction grows by the same factor: rewards then are log-odds whatever the scale,
        and w is what makes a reward steer more or less.
    normalise: None, or "candidate_std": rewards are divided by the number given to `set_candidate_std`, meant to be
        the standard deviation of the reward over a policy's candidate tokens, so that one w serves all methods.
    centring: "none", the reward is direction.hidden / scale as in the sources; "train_mean" subtracts a constant
        that makes the mean reward over the training responses zero. Margins and guided decoding do not see it,
        definitions that add rewards over prefixes do (Bradley-Terry leaves one constant per prompt free).
    l2: penalty l2/2 |direction|^2 on standardised features beside the mean loss; None chooses from `l2_grid` by the
        loss on a held-out slice of `held_out_fraction` of the pairs, drawn within users by the seed.
    """

    trained_at: str = "final"
    scale: float = 1.0
    normalise: str | None = None
    centring: str = "none"
    l2: float | None = None
    l2_grid: tuple[float, ...] = L2_GRID
    held_out_fraction: float = 0.1

    def __post_init__(self) -> None:
        """Raises PrefselError naming the setting that has an impossible value."""
        object.__setattr__(self, "l2_grid", tuple(float(l2) for l2 in self.l2_grid))
        checks = {
            "trained_at": self.trained_at == "final",
            "scale": math.isfinite(self.scale) and self.scale > 0,
            "normalise": self.normalise in (None, "candidate_std"),
            "centring": self.centring in ("none", "train_mean"),
            "l2": self.l2 is None or (math.isfinite(self.l2) and self.l2 > 0),
            "l2_grid": bool(self.l2_grid) and all(math.isfinite(l2) and l2 > 0 for l2 in self.l2_grid),
            "held_out_fraction": 0 < self.held_out_fraction < 1,
        }
        self._refuse(checks)

    def _refuse(self, checks: Mapping[str, bool]) -> None:
        for name, fine in checks.items():
            if not fine:
                allowed = ALLOWED.get(name, "a positive number")
                raise PrefselError(f"head setting {name} is {getattr(self, name)!r}; it must be {allowed}")


ALLOWED = {
    "trained_at": "'final'",
    "normalise": "None or 'candidate_std'",
    "centring": "'none' or 'train_mean'",
    "l2": "None or a positive number",
    "l2_grid": "one or more positive numbers",
    "held_out_fraction": "between 0 and 1",
    "weighting": "'pairs' or 'users'",
    **dict.fromkeys(("rank", "steps", "patience", "adapt_steps", "own_slice"), "a whole number of 1 or more"),
    "drop_below": "at least 0 and less than 1/rank",
}


class LinearHead(ABC):
    """reward = direction(user_state) . (hidden - centre) / scale.

    A method implements `_learn` (fills `tensors` and `fitted`), `adapt`, `prior` and `direction`. `tensors` and
    `fitted` (JSON values: chosen l2, steps, losses, margin_std) are all there is to save.
    """

    method: ClassVar[str]
    settings_type: ClassVar[type[HeadSettings]] = HeadSettings

    def __init__(self, settings: HeadSettings | None = None) -> None:
        self.settings = settings or self.settings_type()
        self.tensors: dict[str, Tensor] = {}
        self.users: tuple[str, ...] = ()
        self.fitted: dict[str, Any] = {}

    @abstractmethod
    def _learn(self, train: PairFeatures, inverse: Tensor, seed: int) -> None:
        """Fit on rows in order; `inverse` [D] turns states into standardised features."""

    @abstractmethod
    def adapt(self, user: str, support: PairFeatures | None) -> Tensor:
        """[S] state of a user from its support pairs; the prior without any."""

    @abstractmethod
    def prior(self) -> Tensor:
        """[S] state of a user of whom nothing is known."""

    @abstractmethod
    def learned_state(self, row: int) -> Tensor:
        """[S] state of the seen user `users[row]`."""

    @abstractmethod
    def direction(self, user_state: Tensor) -> Tensor:
        """[D] direction in the space of raw hidden states, before the division by scale."""

    def fit(self, train: PairFeatures, *, seed: int) -> None:
        """Learn from the seen users' pairs.

        Raises PrefselError without pairs, NonFiniteError where features or the fitted reward are not finite.
        """
        if not len(train):
            raise PrefselError(f"{self.method}: no training pairs; give seen users with pairs in split 'train'")
        train.refuse_non_finite()
        train = train.in_order()
        inverse = inverse_spread(train).cpu()
        self.users = tuple(sorted(set(train.users)))
        self.tensors, self.fitted = {"inverse_spread": inverse}, {"pairs": len(train), "seed": seed}
        centre = torch.cat([train.chosen, train.rejected]).double().mean(dim=0).float().cpu()
        self.tensors["centre"] = centre if self.settings.centring == "train_mean" else torch.zeros_like(centre)
        self._learn(train, inverse, seed)
        for name, tensor in self.tensors.items():
            if not torch.isfinite(tensor).all():
                raise NonFiniteError(f"{self.method}: the fitted {name} holds NaN or infinity")
        margins = self._margins(train)
        self.fitted["train_loss"] = float(bt_loss(margins.double()).mean())
        self.fitted["train_accuracy"] = float((margins > 0).double().mean())
        self.fitted["margin_std"] = float(margins.std(unbiased=False))

    def user_state(self, user: str) -> Tensor:
        """[S] state learned for a seen user; the prior for any other."""
        self._ready()
        return self.learned_state(self.users.index(user)).clone() if user in self.users else self.prior()

    def token_rewards(self, hidden: Tensor, user_state: Tensor) -> Tensor:
        """hidden [..., D], any dtype -> float32 rewards [...] on the same device.

        Raises PrefselError before fit or load, and where normalise is set but `set_candidate_std` was not called.
        """
        self._ready()
        unit = self.settings.scale
        if self.settings.normalise == "candidate_std":
            if "candidate_std" not in self.fitted:
                raise PrefselError(
                    f"{self.method}: normalise='candidate_std' needs set_candidate_std() with the measured value first"
                )
            unit *= self.fitted["candidate_std"]
        direction = self.direction(user_state).to(hidden.device)
        return (hidden.float() - self.tensors["centre"].to(hidden.device)) @ direction / unit

    def set_candidate_std(self, value: float) -> None:
        """Give the divisor of normalise="candidate_std": the reward's standard deviation over candidate tokens,
        measured with normalise=None. It is saved with the model. Raises PrefselError unless positive and finite."""
        if not (math.isfinite(value) and value > 0):
            raise PrefselError(f"{self.method}: candidate_std is {value!r}; measure a positive number")
        self.fitted["candidate_std"] = float(value)

    def save(self, folder: Path) -> None:
        """Write reward.safetensors and then reward.json into `folder`."""
        self._ready()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous().clone() for name, tensor in self.tensors.items()}
        save_file(tensors, folder / "reward.safetensors")
        record = {
            "format": FORMAT,
            "method": self.method,
            "settings": asdict(self.settings),
            "users": list(self.users),
            "fitted": self.fitted,
        }
        (folder / "reward.json").write_text(json.dumps(record, indent=1, sort_keys=True, allow_nan=False))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The model that `save` wrote. Raises PrefselError where files are missing or of another method or format."""
        folder = Path(folder)
        for name in ("reward.json", "reward.safetensors"):
            if not (folder / name).is_file():
                raise PrefselError(f"{folder / name}: no such file; give a folder that a reward's save() wrote")
        record = json.loads((folder / "reward.json").read_text())
        found = (record["method"], record["format"])
        if found != (cls.method, FORMAT):
            raise PrefselError(f"{folder}: holds method {found[0]} format {found[1]}, not {cls.method} format {FORMAT}")
        head = cls(cls.settings_type(**record["settings"]))
        head.users, head.fitted = tuple(record["users"]), record["fitted"]
        head.tensors = load_file(folder / "reward.safetensors")
        return head

    def _margins(self, pairs: PairFeatures) -> Tensor:
        """[N] reward differences, each row under its own user's learned state, from the fitted float32 tensors."""
        difference = pairs.chosen - pairs.rejected
        out = torch.empty(len(pairs), device=difference.device)
        for user in sorted(set(pairs.users)):
            rows = [i for i, name in enumerate(pairs.users) if name == user]
            direction = self.direction(self.user_state(user)).to(difference.device)
            out[rows] = difference[rows] @ direction / self.settings.scale
        return out

    def _support(self, user: str, support: PairFeatures | None) -> PairFeatures | None:
        """The support rows in order, None where there are none; checked for NaN and width."""
        self._ready()
        if support is None or not len(support):
            return None
        width = len(self.tensors["centre"])
        if support.chosen.shape[1] != width:
            raise PrefselError(
                f"{self.method}: support of user {user} is {support.chosen.shape[1]} wide, the model {width}"
            )
        support.refuse_non_finite()
        return support.in_order()

    def _ready(self) -> None:
        if not self.tensors:
            raise PrefselError(f"{self.method}: not fitted yet; call fit() or load() first")
