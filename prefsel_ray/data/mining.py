"""Hard negatives: for each text, the nearest text of another user that is not a copy of it.

The rejected response of a pair is a real text of the same kind, written by somebody else about something else. It is
hard because it is the nearest one in a sentence encoder's space, and it is fair because of four rules:

- it comes from the same split, or from a pool of texts that are divided between the fit side and the test side by
  their hash, and no text serves on both sides;
- it is not by the same user, and that user has no such text either;
- it is no near-duplicate: below a similarity ceiling, neither equal to the text nor contained in it nor containing it,
  with few words in common;
- it is used at most a few times on each side.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from prefsel_ray.data.schema import FIT_SPLITS, TEST_SPLITS, stable_hash
from prefsel_ray.errors import PrefselError

BLOCK = 256  # rows whose similarities to all candidates are held at a time
# Similarities are compared after rounding: encoders differ in the last digits from batch to batch.
SIMILARITY_DIGITS = 4

Encode = Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True)
class Text:
    """One text and who wrote it. `split` is one of SPLITS, or None for a text of the pool."""

    user_id: str
    text: str
    split: str | None = None


@dataclass(frozen=True)
class MiningSpec:
    """What counts as a fair hard negative.

    Fields:
        max_similarity: cosine to the chosen text above which a candidate is taken for a copy of it.
        max_overlap: Jaccard overlap of the two sets of words above which it is, too.
        max_uses: how often one text may serve as a negative.
    """

    max_similarity: float = 0.85
    max_overlap: float = 0.7
    max_uses: int = 2

    def __post_init__(self) -> None:
        """Raises PrefselError for values outside their range."""
        if not 0 < self.max_similarity <= 1:
            raise PrefselError(f"mining: max_similarity must be above 0 and at most 1, got {self.max_similarity}")
        if not 0 <= self.max_overlap <= 1:
            raise PrefselError(f"mining: max_overlap must be between 0 and 1, got {self.max_overlap}")
        if self.max_uses < 1:
            raise PrefselError(f"mining: max_uses must be at least 1, got {self.max_uses}")


def mine_negatives(
    rows: Sequence[Text], pool: Sequence[Text], encode: Encode, spec: MiningSpec = MiningSpec()
) -> list[str | None]:
    """For each row its hard negative, or None where no candidate is fair; in the rows' order.

    `encode` maps texts to `[N, D]` unit vectors. Rows choose one after the other in an order given by their content, so
    the result does not depend on the order of `rows` and `pool`. Raises PrefselError for a row without a split.
    """
    splits = {row.split for row in rows}
    if unknown := splits - {*FIT_SPLITS, *TEST_SPLITS}:
        raise PrefselError(f"mining: a row has the split {sorted(map(str, unknown))[0]!r}; split the rows first")
    owners: dict[str, set[str]] = defaultdict(set)
    for item in (*rows, *pool):
        owners[normalised(item.text)].add(item.user_id)

    answers: list[str | None] = [None] * len(rows)
    candidates_of = _candidates(rows, pool)
    distinct = sorted({row.text for row in rows} | {text for texts in candidates_of.values() for text in texts})
    vectors = encode(distinct)
    index = {text: number for number, text in enumerate(distinct)}
    used: Counter[tuple[bool, str]] = Counter()  # by side and text: two splits of one side share the pool
    order = sorted(range(len(rows)), key=lambda i: stable_hash(["mine", *vars(rows[i]).values()], digits=16))
    for split in sorted(splits):
        candidates = candidates_of[split]
        if not candidates:
            continue
        candidate_vectors = vectors[[index[text] for text in candidates]]
        fit_side = split in FIT_SPLITS
        mine = [i for i in order if rows[i].split == split]
        for start in range(0, len(mine), BLOCK):
            block = mine[start : start + BLOCK]
            similarity = vectors[[index[rows[i].text] for i in block]] @ candidate_vectors.T
            for i, line in zip(block, np.round(similarity, SIMILARITY_DIGITS), strict=True):
                for text in _nearest_first(line, candidates, spec.max_similarity):
                    key = (fit_side, normalised(text))
                    if used[key] >= spec.max_uses or rows[i].user_id in owners[key[1]]:
                        continue
                    if near_duplicate(rows[i].text, text, spec.max_overlap):
                        continue
                    used[key] += 1
                    answers[i] = text
                    break
    return answers


def near_duplicate(one: str, other: str, max_overlap: float) -> bool:
    """Whether the texts are equal or contain each other as whole words, or share more than `max_overlap` of them.

    Case, punctuation and Unicode form do not count. The overlap is |A and B| / |A or B| over the sets of words.
    """
    a, b = normalised(one), normalised(other)
    if not a or not b or f" {a} " in f" {b} " or f" {b} " in f" {a} ":
        return True
    words_a, words_b = set(a.split()), set(b.split())
    return len(words_a & words_b) / len(words_a | words_b) > max_overlap


def normalised(text: str) -> str:
    """Words in lower case, NFKC, separated by single spaces."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def _candidates(rows: Sequence[Text], pool: Sequence[Text]) -> dict[str, list[str]]:
    """For each split the texts that may serve as its negatives: its own rows', and the pool's on its side.

    A text that the rows of one side have never serves the other side, wherever else it is found. Texts that differ in
    case or punctuation only are one text; its first spelling in sorted order stands for it.
    """
    sides: dict[str, set[bool]] = defaultdict(set)
    for row in rows:
        sides[normalised(row.text)].add(row.split in FIT_SPLITS)
    spelling: dict[str, dict[str, str]] = {split: {} for split in (*FIT_SPLITS, *TEST_SPLITS)}
    for row in sorted(rows, key=lambda row: row.text):
        key = normalised(row.text)
        if len(sides[key]) == 1:
            spelling[row.split or ""].setdefault(key, row.text)
    for spare in sorted(pool, key=lambda spare: spare.text):
        key = normalised(spare.text)
        if key and key not in sides:
            for split in FIT_SPLITS if on_fit_side(spare.text) else TEST_SPLITS:
                spelling[split].setdefault(key, spare.text)
    return {split: sorted(texts.values()) for split, texts in spelling.items()}


def on_fit_side(text: str) -> bool:
    """Whether a pool text serves train and support rows (True) or test rows (False): half of them each, by hash."""
    return int(stable_hash(["side", normalised(text)], digits=8), 16) % 2 == 0


def _nearest_first(similarity: np.ndarray, candidates: Sequence[str], ceiling: float) -> Iterator[str]:
    """Candidates at or below the ceiling, nearest first; equal ones in the order of `candidates`, which is sorted."""
    allowed = np.flatnonzero(similarity <= ceiling)
    for j in allowed[np.argsort(-similarity[allowed], kind="stable")]:
        yield candidates[j]
