"""What the linear heads share: the held-out slice, feature scales, and the convex Bradley-Terry solver."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from prefsel_ray.data.schema import stable_hash
from prefsel_ray.rewards.protocol import NonFiniteError, PairFeatures, bt_loss

# L2 weights tried, strongest first. In units of the mean loss over standardised features: where real features
# (SmolLM2-135M, 600 pairs) put the best one, 0.01 to 0.1, stands in the middle.
L2_GRID = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
L2_WITHOUT_SLICE = 0.1  # used where there are too few pairs to hold any out


def held_out_rows(users: Sequence[str], fraction: float, seed: int) -> np.ndarray:
    """[N] bool: the rows kept back to choose regularisation, about `fraction` of every user's rows.

    A user's quota is its share rounded up or down by chance, so users with three pairs count too; the last pair of a
    user is never taken. Depends on the user's name, the seed and the order of the user's own rows only.
    """
    mask = np.zeros(len(users), dtype=bool)
    rows: dict[str, list[int]] = {}
    for row, user in enumerate(users):
        rows.setdefault(user, []).append(row)
    for user, own in rows.items():
        draw = np.random.default_rng([seed, int(stable_hash(user, digits=8), 16)])
        quota = min(int(len(own) * fraction + draw.random()), len(own) - 1)
        mask[draw.permutation(own)[:quota]] = True
    return mask


def inverse_spread(features: PairFeatures) -> Tensor:
    """[D] one over the standard deviation of each dimension over all N pairs' states; 0 for a constant dimension.

    The spread is taken over both responses together: a language model's states have dimensions that differ by
    orders of magnitude, and an L2 penalty or one Adam step size means the same in each only after this.
    """
    states = torch.cat([features.chosen, features.rejected]).double()
    spread = states.std(dim=0, unbiased=False)
    floor = 1e-6 * states.abs().amax(dim=0).clamp_min(1e-12)
    return torch.where(spread > floor, 1.0 / spread.clamp_min(1e-30), 0.0).float()


def pair_weights(users: Sequence[str], weighting: str) -> np.ndarray:
    """[N] weights that sum to 1: equal over pairs ("pairs"), or equal over users and then over a user's pairs."""
    if weighting == "pairs":
        return np.full(len(users), 1.0 / len(users))
    names, index, counts = np.unique(np.asarray(users), return_inverse=True, return_counts=True)
    return 1.0 / (len(names) * counts[index])


def bt_direction(x: np.ndarray, weights: np.ndarray, l2: float, start: np.ndarray | None = None) -> np.ndarray:
    """[D] minimiser b of  sum_i weights_i softplus(-x_i.b) + l2/2 |b|^2, the Bradley-Terry fit (convex, unique).

    x: [N, D] differences chosen minus rejected. Solved to the optimum in float64 by scipy's L-BFGS, so the answer
    depends neither on a step size nor on a seed. Raises NonFiniteError where the loss is not finite.
    """
    rows, share = torch.from_numpy(x), torch.from_numpy(weights)
    first = torch.zeros(x.shape[1], dtype=torch.float64) if start is None else torch.from_numpy(start)
    with one_thread_if_small(rows.numel()):
        span = None
        if 4 * len(x) <= x.shape[1]:
            # The minimiser lies in the span of the rows: a user's twenty pairs are a problem of twenty unknowns.
            span = torch.linalg.qr(rows.T)[0]
            rows, first = rows @ span, first @ span

        def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
            b = torch.from_numpy(values)
            margin = rows @ b
            gradient = l2 * b - (share * torch.sigmoid(-margin)) @ rows
            return float(share @ bt_loss(margin) + 0.5 * l2 * (b @ b)), gradient.numpy()

        options = {"maxiter": 5000, "gtol": 1e-8, "ftol": 1e-13}
        result = minimize(loss, first.numpy(), jac=True, method="L-BFGS-B", options=options)
        if not np.isfinite(result.fun) or not np.isfinite(result.x).all():
            raise NonFiniteError(f"Bradley-Terry loss is {result.fun} at l2={l2:g}; look for huge feature values")
        return result.x if span is None else (span @ torch.from_numpy(result.x)).numpy()


def losses_on_grid(
    x: np.ndarray, weights: np.ndarray, held: np.ndarray, grid: Sequence[float]
) -> dict[float, np.ndarray]:
    """{l2: [H] loss of each held-out row} for heads fitted on the other rows with each l2, strongest first."""
    kept = weights[~held] / weights[~held].sum()
    losses, start = {}, None
    for l2 in sorted(grid, reverse=True):
        start = bt_direction(x[~held], kept, l2, start)
        losses[l2] = np.logaddexp(0.0, -(x[held] @ start))
    return losses


def best_l2(losses: dict[float, np.ndarray]) -> float:
    """The l2 with the lowest mean held-out loss; of equals the strongest. Log-loss, since accuracy on tens of pairs
    moves in steps of per cents and cannot tell neighbours apart."""
    return min(sorted(losses, reverse=True), key=lambda l2: losses[l2].mean())


@contextmanager
def one_thread_if_small(multiplications: int) -> Iterator[None]:
    """One torch thread inside, unless a step does at least 100 million multiplications; the setting is put back after.

    Threads that wait for one another cost more than so small a product: on two busy cores a fit of LoRE on 180 pairs
    takes 1 to 2 s with one thread and 17 to 26 s with two. Numpy's own threads do the same and cannot be set from
    here, so the solver multiplies with torch.
    """
    before = torch.get_num_threads()
    if multiplications < 100_000_000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
