"""Generated preferences whose users are known, so that a method's result can be held against the best possible one.

Both levels draw labels from the logistic model: P(a preferred to b) = sigmoid(u . (x_a - x_b) / noise), u the user's
vector and x the responses' features. A user's vector is a convex combination of a few basis directions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from prefsel_ray.data.ledger import Label, Ledger
from prefsel_ray.data.source import Rows
from prefsel_ray.errors import PrefselError

ATTRIBUTES = ("length", "formality", "emphasis", "list", "hedging")
LEVELS = ((-1, 0, 1), (-1, 1), (-1, 1), (-1, 1), (-1, 1))
# What kinds of user want of each attribute. All like lists, so that a model of everybody has something to find.
KINDS = np.array(
    [
        [-0.8, -0.6, 0.6, 0.4, -0.6],  # brief and lively
        [0.4, 1.0, -0.8, 0.2, 0.6],  # formal and careful
        [1.0, 0.2, -0.2, 1.0, -0.6],  # thorough and structured
    ]
)
SPREAD = 0.4  # Dirichlet concentration: below 1 most users are close to one kind
DRAWN_FOR_REFERENCE = 6  # responses beside the pair's own two, of which the user's favourite is the reference

OPENINGS = ("How should I", "What is a good way to", "Please tell me how to", "I would like to know how to")
TASKS = (
    *("clean a cast-iron pan", "store fresh basil", "repot a cactus", "sharpen a kitchen knife", "descale a kettle"),
    *("pack a suitcase", "paint a wooden chair", "bake a loaf of bread", "mend a bicycle tyre", "wash a wool jumper"),
    *("learn a short poem", "plan a picnic", "brew a pot of tea", "fold a paper boat", "build a bird house"),
    *("sort old photographs", "grow tomatoes", "polish leather boots", "tune a guitar", "hang a picture"),
    *("write a birthday card", "choose a ripe melon", "dry garden herbs", "tidy a bookshelf"),
)
SITUATIONS = (
    *("before a long trip", "in a small flat", "on a tight budget", "for the first time", "in the middle of winter"),
    *("with children around", "without special tools", "on a rainy day", "for a friend", "at short notice"),
    *("in a shared kitchen", "after a busy week", "with only one hand free", "for a large family", "in a hot summer"),
    *("on a quiet evening", "as a gift", "in an old house", "for a school class", "with a neighbour's help"),
)
STEPS = (
    *("gather what is needed", "clear enough space", "begin with the smallest part", "work slowly and evenly"),
    *("check the result in good light", "keep a dry cloth at hand", "let everything rest for an hour"),
    *("note what worked", "ask for a second opinion", "put everything back in its place"),
)


@dataclass(frozen=True)
class PlantedText:
    """Written advice in several styles, compared by users who weigh the styles differently.

    The responses of a pair say the same thing about the same task and differ in length, formality, emphasis, lists and
    hedging; so there is nothing to prefer but the style. `reference` is the response that the user likes best among
    eight. Each row's `meta` has the attributes of both sides, in the order of ATTRIBUTES.

    Fields:
        users, pairs_per_user: at least 1 each.
        seed: everything follows from it; a user's rows do not depend on the number of users.
        noise: scale of the logistic noise in the labels; 0 = none.
    """

    users: int
    pairs_per_user: int
    seed: int = 0
    noise: float = 0.3

    def __post_init__(self) -> None:
        """Raises PrefselError for numbers out of range."""
        _check_sizes(self.users, self.pairs_per_user, self.noise)
        if self.seed < 0:
            raise PrefselError(f"planted: seed must be at least 0, got {self.seed}")

    def read(self, cache: Path, progress: bool) -> Rows:
        """All rows, user by user, labelled by user and number. Nothing is read from or written to `cache`."""
        drawn = [
            row
            for user in tqdm(range(self.users), "planted text", unit=" users", disable=not progress)
            for row in self._user_rows(user)
        ]
        ledger = Ledger()
        ledger.read(len(drawn))
        bayes = 100 * float(np.mean([probability for _, _, probability in drawn]))
        note = f"planted text, {self.users} users, best possible accuracy {bayes:.1f} %"
        return Rows([(label, row) for label, row, _ in drawn], "planted", note, ledger=ledger)

    def weights(self) -> np.ndarray:
        """`[users, len(ATTRIBUTES)]` float64: how much each user likes each attribute."""
        return np.stack([self._user_weights(user) for user in range(self.users)])

    def _rng(self, user: int, what: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, user, what])

    def _user_weights(self, user: int) -> np.ndarray:
        return self._rng(user, 0).dirichlet([SPREAD] * len(KINDS)) @ KINDS

    def _user_rows(self, user: int) -> Iterator[tuple[Label, dict[str, Any], float]]:
        """(label, row, probability that the best guess of the label is right) of each of the user's pairs."""
        weights = self._user_weights(user)
        rng = self._rng(user, 1)
        prompts = np.random.default_rng(self.seed).permutation(len(OPENINGS) * len(TASKS) * len(SITUATIONS))
        styles = _all_styles()
        for number in range(self.pairs_per_user):
            which = int(prompts[(user * self.pairs_per_user + number) % len(prompts)])
            opening, task, situation = np.unravel_index(which, (len(OPENINGS), len(TASKS), len(SITUATIONS)))
            steps = [STEPS[i] for i in rng.permutation(len(STEPS))]
            pool = styles[rng.choice(len(styles), size=2 + DRAWN_FOR_REFERENCE, replace=False)]
            likes = pool @ weights
            first_is_chosen, probability = _draw(likes[:1], likes[1:2], self.noise, rng)
            chosen, rejected = (0, 1) if first_is_chosen[0] else (1, 0)
            favourite = int(np.argmax(likes))
            text = [write(TASKS[task], SITUATIONS[situation], steps, style) for style in pool]
            user_id = f"user-{user:04d}"
            row = {
                "user_id": user_id,
                "prompt": f"{OPENINGS[opening]} {TASKS[task]} {SITUATIONS[situation]}?",
                "chosen": text[chosen],
                "rejected": text[rejected],
                "reference": text[favourite],
                "meta": {
                    "chosen_attributes": pool[chosen].tolist(),
                    "rejected_attributes": pool[rejected].tolist(),
                },
            }
            yield f"{user_id} pair {number + 1}", row, float(probability[0])


def write(task: str, situation: str, steps: list[str], style: np.ndarray) -> str:
    """Advice on a task in one style: `style` has a level for each of ATTRIBUTES. Different styles, different texts."""
    length, formality, emphasis, listed, hedging = (int(level) for level in style)
    said = steps[: {-1: 1, 0: 2, 1: 4}[length]]
    stop = "!" if emphasis > 0 else "."
    if formality > 0:
        lead = f"In order to {task} {situation}, one {'might perhaps' if hedging > 0 else 'should'}"
        close = "This ought to suffice" if hedging <= 0 else "This may well suffice"
    else:
        lead = f"To {task} {situation}, {'maybe you could' if hedging > 0 else 'you just'}"
        close = "That does it" if hedging <= 0 else "I guess that does it"
    if emphasis > 0:
        lead += " really"
    if listed > 0:
        body = f"{lead}:\n" + "\n".join(f"- {step}" for step in said)
        return f"{body}\n{close}{stop}"
    return f"{lead} {', then '.join(said)}{stop} {close}{stop}"


@dataclass(frozen=True)
class PlantedFeatures:
    """Pairs as feature vectors, and everything that they were made from. N = users * pairs_per_user, user by user.

    Fields:
        user_vectors: `[users, D]`, unit length; the true reward of a feature vector x is `user_vectors[u] @ x`.
        basis: `[rank, D]` orthonormal; user vectors are convex combinations of its rows, scaled to unit length.
        user_weights: `[users, rank]` non-negative, sum 1.
        users: `[N]` user number of each pair.
        chosen, rejected: `[N, D]` float32, standard normal before the label decided which is which.
        bayes_accuracy: expected accuracy of the true rewards on these pairs, 0 to 1; no method can expect more.
    """

    user_vectors: np.ndarray
    basis: np.ndarray
    user_weights: np.ndarray
    users: np.ndarray
    chosen: np.ndarray
    rejected: np.ndarray
    bayes_accuracy: float


def planted_features(
    users: int,
    pairs_per_user: int,
    dim: int,
    *,
    rank: int = 3,
    noise: float = 0.3,
    seed: int = 0,
    clustered: bool = False,
) -> PlantedFeatures:
    """Pairs of feature vectors with labels from the logistic model.

    `noise` is the scale of the logistic noise (0 = none) against margins of standard deviation sqrt(2). `clustered`
    gives each user exactly one basis direction, in turn. Raises PrefselError for sizes out of range.
    """
    _check_sizes(users, pairs_per_user, noise)
    if not 1 <= rank <= dim:
        raise PrefselError(f"planted: rank must be from 1 to the dimension {dim}, got {rank}")
    rng = np.random.default_rng([seed, dim, rank])
    q, r = np.linalg.qr(rng.standard_normal((dim, rank)))
    basis = (q * np.sign(np.diag(r))).T  # a fixed sign makes the decomposition unique
    weights = np.eye(rank)[np.arange(users) % rank] if clustered else rng.dirichlet([1.0] * rank, size=users)
    vectors = weights @ basis
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    user_of = np.repeat(np.arange(users), pairs_per_user)
    sides = rng.standard_normal((2, len(user_of), dim)).astype(np.float32)
    first, second = np.einsum("snd,nd->sn", sides.astype(np.float64), vectors[user_of])
    first_is_chosen, probability = _draw(first, second, noise, rng)
    return PlantedFeatures(
        user_vectors=vectors,
        basis=basis,
        user_weights=weights,
        users=user_of,
        chosen=np.where(first_is_chosen[:, None], sides[0], sides[1]),
        rejected=np.where(first_is_chosen[:, None], sides[1], sides[0]),
        bayes_accuracy=float(probability.mean()),
    )


def _draw(
    first: np.ndarray, second: np.ndarray, noise: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(whether the first is chosen, probability that the higher reward is the chosen one), both `[N]`."""
    margin = first - second
    uniform = rng.random(len(margin))
    if noise == 0:
        # Equal rewards leave the label to chance even without noise.
        return np.where(margin == 0, uniform < 0.5, margin > 0), np.where(margin == 0, 0.5, 1.0)
    wins = 1 / (1 + np.exp(-np.clip(margin / noise, -700, 700)))
    return uniform < wins, np.maximum(wins, 1 - wins)


def _all_styles() -> np.ndarray:
    """`[48, len(ATTRIBUTES)]` every combination of levels."""
    return np.stack([axis.ravel() for axis in np.meshgrid(*LEVELS, indexing="ij")], axis=1)


def _check_sizes(users: int, pairs_per_user: int, noise: float) -> None:
    for name, value in (("users", users), ("pairs_per_user", pairs_per_user)):
        if value < 1:
            raise PrefselError(f"planted: {name} must be at least 1, got {value}")
    if not noise >= 0:
        raise PrefselError(f"planted: noise must be at least 0, got {noise}")
