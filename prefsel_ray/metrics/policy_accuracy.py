"""Policy accuracy: does the score S(y) that a guided policy gives to a text rank a user's pair as the user did?

Every definition is arithmetic on stored traces, for every weight w, with no forward pass. The paper (arXiv 2512.23067)
leaves the formula open; the definitions, with y_<=t the response up to and with token t and x the prompt:

    prefix_sum      sum_t [log p_t + w r(x, y_<=t)]
    prefix_mean     the same, divided by the number of tokens
    prefix_centred  sum_t [log p_t + w (r(x, y_<=t) - r(x))], free of the Bradley-Terry offset of each prompt
    terminal        sum_t log p_t + w r(x, y): the KL-optimal policy's log-likelihood up to a constant of the prompt
    base, full      sum_t log p_t: the policy alone (`base`: w = 0, the control; `full`: the same sum where the trace is
                    already that of the policy in use, such as one with demonstrations in its prompt)
    reward          r(x, y): reward-model accuracy, the control
    length_shorter, length_longer   minus and plus the number of tokens: the controls that expose length artefacts
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.measured import N_BOOT
from prefsel_ray.metrics.ranking import Accuracy, accuracy_of, outcomes


@dataclass(frozen=True)
class PairTrace:
    """What a policy, and optionally a reward, say about one pair.

    logprobs_*: [T] log p of each response token, the end-of-turn token with them
    rewards_*: [T] reward after each response token, or None without a reward
    reward_prompt: r(x), the reward after the prompt alone; needed by prefix_centred only
    """

    logprobs_chosen: Sequence[float]
    logprobs_rejected: Sequence[float]
    rewards_chosen: Sequence[float] | None = None
    rewards_rejected: Sequence[float] | None = None
    reward_prompt: float | None = None


@dataclass(frozen=True)
class Totals:
    """The sufficient sums of N responses, each [N] float64; NaN in the reward columns where there is no reward."""

    tokens: np.ndarray
    logprob: np.ndarray
    reward_sum: np.ndarray
    reward_last: np.ndarray
    reward_prompt: np.ndarray


def prefix_sum(side: Totals, w: float) -> np.ndarray:
    """[N] scores; see the module's table."""
    return side.logprob + w * side.reward_sum


def prefix_mean(side: Totals, w: float) -> np.ndarray:
    """[N] scores; see the module's table."""
    return prefix_sum(side, w) / side.tokens


def prefix_centred(side: Totals, w: float) -> np.ndarray:
    """[N] scores; see the module's table."""
    return side.logprob + w * (side.reward_sum - side.tokens * side.reward_prompt)


def terminal(side: Totals, w: float) -> np.ndarray:
    """[N] scores; see the module's table."""
    return side.logprob + w * side.reward_last


def base(side: Totals) -> np.ndarray:
    """[N] scores; see the module's table."""
    return side.logprob


def reward(side: Totals) -> np.ndarray:
    """[N] scores; see the module's table."""
    return side.reward_last


def length_shorter(side: Totals) -> np.ndarray:
    """[N] scores; see the module's table."""
    return -side.tokens


def length_longer(side: Totals) -> np.ndarray:
    """[N] scores; see the module's table."""
    return side.tokens


WEIGHTED: dict[str, Callable[[Totals, float], np.ndarray]] = {
    "prefix_sum": prefix_sum,
    "prefix_mean": prefix_mean,
    "prefix_centred": prefix_centred,
    "terminal": terminal,
}
UNWEIGHTED: dict[str, Callable[[Totals], np.ndarray]] = {
    "base": base,
    "full": base,
    "reward": reward,
    "length_shorter": length_shorter,
    "length_longer": length_longer,
}
NEED_REWARDS = ("prefix_sum", "prefix_mean", "prefix_centred", "terminal", "reward")


def totals(traces: Sequence[PairTrace]) -> tuple[Totals, Totals]:
    """Sums of the chosen and of the rejected sides, in float64. Raises PrefselError, naming the row (0-based), for an
    empty response, rewards that do not match the tokens, or rewards on one side only.
    """
    for row, trace in enumerate(traces):
        if (trace.rewards_chosen is None) != (trace.rewards_rejected is None):
            raise PrefselError(f"trace {row}: rewards on one side of the pair only; give both or neither")
    return (
        _side(traces, "logprobs_chosen", "rewards_chosen"),
        _side(traces, "logprobs_rejected", "rewards_rejected"),
    )


def scores(
    traces: Sequence[PairTrace] | tuple[Totals, Totals], definition: str, w: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """S(chosen), S(rejected), each [N] float64; NaN where a trace holds a number that is not finite.

    Give the result of `totals` in place of traces to score many (definition, w) from one pass over the traces.
    Raises PrefselError for an unknown definition, a missing or superfluous w, or traces without the rewards it needs.
    """
    sides = traces if isinstance(traces, tuple) and all(isinstance(side, Totals) for side in traces) else totals(traces)
    if definition not in WEIGHTED and definition not in UNWEIGHTED:
        raise PrefselError(f"unknown policy accuracy '{definition}'; choose from {', '.join([*WEIGHTED, *UNWEIGHTED])}")
    if definition in WEIGHTED and w is None:
        raise PrefselError(f"policy accuracy '{definition}' needs a weight w")
    if definition in UNWEIGHTED and w is not None:
        raise PrefselError(f"policy accuracy '{definition}' takes no weight w; leave it None")
    if definition in NEED_REWARDS and any(len(s.tokens) and np.isnan(s.reward_last).all() for s in sides):
        raise PrefselError(f"policy accuracy '{definition}' needs rewards, and no trace has a finite one")
    if definition == "prefix_centred" and len(sides[0].tokens) and np.isnan(sides[0].reward_prompt).all():
        raise PrefselError("policy accuracy 'prefix_centred' needs reward_prompt, and no trace has a finite one")
    if definition in WEIGHTED:
        return tuple(WEIGHTED[definition](side, w) for side in sides)
    return tuple(UNWEIGHTED[definition](side) for side in sides)


def grid_outcomes(
    traces: Sequence[PairTrace] | tuple[Totals, Totals], definitions: Iterable[str], weights: Iterable[float]
) -> dict[tuple[str, float | None], np.ndarray]:
    """{(definition, w): [N] per cent outcomes of `ranking.outcomes`}; w is None for the definitions without a weight.

    Feed rows of several seeds to `measured.mean_over_seeds`, or one seed's to `ranking.accuracy_of`.
    """
    sides = traces if isinstance(traces, tuple) and all(isinstance(side, Totals) for side in traces) else totals(traces)
    grid = list(weights)
    return {
        (definition, w): outcomes(*scores(sides, definition, w))
        for definition in definitions
        for w in (grid if definition in WEIGHTED else [None])
    }


def policy_accuracy(
    traces: Sequence[PairTrace] | tuple[Totals, Totals],
    users: Sequence[str],
    definitions: Iterable[str],
    weights: Iterable[float],
    *,
    seed: int = 0,
    n_boot: int = N_BOOT,
) -> dict[tuple[str, float | None], Accuracy]:
    """{(definition, w): Accuracy in per cent} over N pairs, keys as in `grid_outcomes`."""
    rows = grid_outcomes(traces, definitions, weights)
    return {key: accuracy_of(row, users, seed=seed, n_boot=n_boot) for key, row in rows.items()}


def _side(traces: Sequence[PairTrace], logprobs_name: str, rewards_name: str) -> Totals:
    columns = np.full((5, len(traces)), np.nan)
    for row, trace in enumerate(traces):
        logprobs = np.asarray(getattr(trace, logprobs_name), dtype=np.float64)
        if logprobs.size == 0:
            raise PrefselError(f"trace {row}: {logprobs_name} is empty; a response has at least its end-of-turn token")
        columns[0, row], columns[1, row] = len(logprobs), logprobs.sum()
        if getattr(trace, rewards_name) is None:
            continue
        rewards = np.asarray(getattr(trace, rewards_name), dtype=np.float64)
        if rewards.shape != logprobs.shape:
            raise PrefselError(
                f"trace {row}: {rewards_name} has {rewards.size} numbers, {logprobs_name} {logprobs.size}; "
                "both are one a response token"
            )
        columns[2, row], columns[3, row] = rewards.sum(), rewards[-1]
        if trace.reward_prompt is not None:
            columns[4, row] = trace.reward_prompt
    return Totals(*columns)
