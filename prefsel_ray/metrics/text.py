"""ROUGE and BERTScore of written texts against the user's own, per text and summed up over users."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.bertscore import BertScoreSpec, bertscore_f1
from prefsel_ray.metrics.measured import N_BOOT, Measured, check_rows, join_notes, micro_mean

TEXT_METRICS = ("rouge1", "rougeL", "bertscore")
ROUGE_SETTINGS = "rouge-score, F1, no stemmer, lower-cased, a-z and 0-9 only, one reference"
NOT_ASKED = "BERTScore: not asked for"

_TOKENIZER = DefaultTokenizer(use_stemmer=False)


@dataclass(frozen=True)
class TextScore:
    """One written text against its reference: F1 x 100 each, None where it is not defined.

    `note`: why a number is None, and marks such as "BERTScore: cut at 512 tokens"; None where there is nothing to say.
    """

    rouge1: float | None
    rougeL: float | None  # noqa: N815 (the metric's name)
    bertscore: float | None
    note: str | None = None


def rouge(candidate: str, reference: str) -> tuple[float, float] | None:
    """(ROUGE-1 F1, ROUGE-L F1) x 100 by rouge-score without stemmer; Lin, WAS 2004.

    None where the reference has no token: rouge-score keeps a-z and 0-9 only, so a Chinese or Hindi text has none and
    would get 0 even against itself. A candidate without a token against a reference with some is 0: nothing matches.
    """
    if not _TOKENIZER.tokenize(reference):
        return None
    score = RougeScorer(["rouge1", "rougeL"], tokenizer=_TOKENIZER).score(reference, candidate)
    return 100.0 * score["rouge1"].fmeasure, 100.0 * score["rougeL"].fmeasure


def text_scores(
    candidates: Sequence[str], references: Sequence[str | None], *, bertscore: BertScoreSpec | None
) -> list[TextScore]:
    """Scores of N texts, in order. Equal (candidate, reference) pairs are computed once: methods and seeds that write
    the same text cost nothing more. `bertscore=None` leaves that column None.

    Raises PrefselError on unequal lengths, a missing candidate (naming its 0-based row) or an unusable BERTScore model.
    """
    if len(candidates) != len(references):
        raise PrefselError(
            f"text_scores: {len(candidates)} candidates but {len(references)} references; give one of each a row"
        )
    for row, candidate in enumerate(candidates):
        if not isinstance(candidate, str):
            raise PrefselError(f"text_scores: candidate {row} is {type(candidate).__name__}, not text; drop that row")
    for row, reference in enumerate(references):
        if reference is not None and not isinstance(reference, str):
            raise PrefselError(f"text_scores: reference {row} is {type(reference).__name__}; give text, or None")
    rows = list(zip(candidates, references, strict=True))
    unique = sorted({pair for pair in rows if pair[1] is not None})
    semantic = dict(zip(unique, bertscore_f1(unique, bertscore), strict=True)) if bertscore and unique else {}
    known = {pair: _score(*pair, semantic.get(pair)) for pair in unique}
    absent = TextScore(None, None, None, "no reference")
    return [absent if pair[1] is None else known[pair] for pair in rows]


def column(scores: Sequence[TextScore], metric: str) -> np.ndarray:
    """[N] float64 of one of TEXT_METRICS, NaN where a text has no value (for `measured.mean_over_seeds`)."""
    if metric not in TEXT_METRICS:
        raise PrefselError(f"unknown text metric '{metric}'; choose from {', '.join(TEXT_METRICS)}")
    return np.asarray([getattr(score, metric) for score in scores], dtype=np.float64)


def summarise_texts(
    scores: Sequence[TextScore], users: Sequence[str], *, seed: int = 0, n_boot: int = N_BOOT
) -> dict[str, Measured]:
    """{metric: mean over N texts x 100, interval over users}; each note counts the reasons that concern its metric."""
    names = check_rows("summarise_texts", len(scores), users)
    return {
        metric: micro_mean(column(scores, metric), names, note=reasons(scores, metric), seed=seed, n_boot=n_boot)
        for metric in TEXT_METRICS
    }


def reasons(scores: Sequence[TextScore], metric: str) -> str | None:
    """What the notes say about one metric, counted: "no reference (1); no token in the candidate (2)"; or None."""
    other = "ROUGE: " if metric == "bertscore" else "BERTScore: "
    parts = [part for score in scores if score.note for part in score.note.split("; ") if not part.startswith(other)]
    counts = Counter(part.removeprefix("ROUGE: ").removeprefix("BERTScore: ") for part in parts)
    return join_notes(*(f"{reason} ({count})" for reason, count in sorted(counts.items())))


def _score(candidate: str, reference: str, semantic: tuple[float | None, str | None] | None) -> TextScore:
    lexical = rouge(candidate, reference)
    lexical_note = None
    if lexical is None:
        lexical_note = "ROUGE: no a-z or 0-9 in the reference"
    elif not _TOKENIZER.tokenize(candidate):
        lexical_note = "ROUGE: no a-z or 0-9 in the candidate"
    f1, f1_note = semantic or (None, NOT_ASKED)
    return TextScore(*(lexical or (None, None)), f1, join_notes(lexical_note, f1_note))
