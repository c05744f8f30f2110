"""Planted pair features for the tests: every user has a known direction, labels come from the logistic model."""

import numpy as np
import torch

from prefsel_ray.rewards.protocol import PairFeatures


def user_directions(users: int, width: int, clusters: int, seed: int, strength: float = 3.0) -> np.ndarray:
    """[U, D]: each user a convex mixture of `clusters` directions, scaled to the same length `strength`."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(width, clusters)))[0].T
    mixed = rng.dirichlet(np.full(clusters, 0.3), size=users) @ basis
    return strength * mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def planted_pairs(directions: np.ndarray, per_user: int, seed: int, prefix: str = "u") -> PairFeatures:
    """Pairs of standard normal states, dimension d stretched by 1 + d/8 and shifted, labelled by the user's direction
    on the unstretched difference."""
    rng = np.random.default_rng(seed)
    users, width = directions.shape
    stretch, shift = 1 + np.arange(width) / 8, np.arange(width) - 3.0
    first, second = rng.normal(size=(2, users, per_user, width))
    margin = np.einsum("und,ud->un", first - second, directions) / np.sqrt(2)
    prefers_first = (rng.random((users, per_user)) < 1 / (1 + np.exp(-margin)))[..., None]
    chosen, rejected = np.where(prefers_first, first, second), np.where(prefers_first, second, first)
    names = [f"{prefix}{u:02d}" for u in range(users) for _ in range(per_user)]
    ids = [f"{prefix}{u:02d}-{seed}-{i:03d}" for u in range(users) for i in range(per_user)]
    return PairFeatures(
        tuple(ids),
        tuple(names),
        torch.from_numpy((chosen * stretch + shift).reshape(-1, width)),
        torch.from_numpy((rejected * stretch + shift).reshape(-1, width)),
    )


def bayes_accuracy(directions: np.ndarray, pairs: PairFeatures, prefix: str = "u") -> float:
    """Accuracy on `pairs` of the planted directions themselves."""
    stretch = 1 + np.arange(directions.shape[1]) / 8
    difference = (pairs.chosen - pairs.rejected).double().numpy() / stretch
    row = [int(user.removeprefix(prefix)) for user in pairs.users]
    return float((np.einsum("nd,nd->n", difference, directions[row]) > 0).mean())


def accuracy(head, pairs: PairFeatures, states: dict | None = None) -> float:
    """Share of pairs that the head ranks as labelled, each under its own user's state."""
    right = 0
    for i, user in enumerate(pairs.users):
        state = states[user] if states is not None else head.user_state(user)
        right += float(head.token_rewards(pairs.chosen[i], state) > head.token_rewards(pairs.rejected[i], state))
    return right / len(pairs)
