"""The user's own pairs as in-context examples: which, in what order, in what form, and how many fit."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import bm25s
from transformers import PreTrainedTokenizerBase

from prefsel_ray.data.schema import TEST_SPLITS, Pair, stable_hash
from prefsel_ray.errors import PrefselError
from prefsel_ray.lm.chat import prompt_ids
from prefsel_ray.rewards.in_context import LAYOUTS, STYLES

RETRIEVERS = ("random", "bm25")
Message = Mapping[str, str]


@dataclass(frozen=True)
class Shown:
    """A prompt with demonstrations: `kept` are in it, `dropped` did not fit the budget."""

    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    kept: int
    dropped: int


def demonstrate(
    query: Pair,
    support: Sequence[Pair],
    *,
    k: int,
    retriever: str,
    seed: int,
    style: str,
    layout: str,
    tokenizer: PreTrainedTokenizerBase,
    budget: int,
) -> Shown:
    """The query's prompt after up to k of the user's own support pairs, in at most `budget` tokens.

    retriever: "random" (by user, example and seed) or "bm25" (draws nothing; the seed is ignored). Where the prompt is
    too long, the least similar demonstration (for "random": the last drawn) goes first; without any, the prompt is
    returned as it is. Fewer than k support pairs: all of them. Raises PrefselError as the two `choose_` functions do.
    """
    if retriever == "random":
        _refuse_others(query, support)
        chosen = choose_random(query.user_id, query.example_id, seed, support, k)
    else:
        chosen = choose_by_similarity(query, support, k, retriever)
    for dropped in range(len(chosen) + 1):
        messages = with_demonstrations(query.prompt, chosen[dropped:], style=style, layout=layout)
        ids = tuple(prompt_ids(tokenizer, messages))
        if len(ids) <= budget:
            break
    return Shown(messages, ids, len(chosen) - dropped, dropped)


def choose_random(user_id: str, example_id: str, seed: int, support: Sequence[Pair], k: int) -> list[Pair]:
    """k pairs drawn without replacement; the draw depends on (user, example, seed) and the support's ids alone.

    First drawn stands last, so a smaller k is the end of a larger one.
    """
    drawn = sorted(support, key=lambda pair: pair.example_id)
    random.Random(stable_hash(["demonstrations", user_id, example_id, seed], digits=16)).shuffle(drawn)
    return drawn[:k][::-1]


def choose_by_similarity(query: Pair, support: Sequence[Pair], k: int, retriever: str = "bm25") -> list[Pair]:
    """The k support pairs whose prompts are most like the query's, the most similar last; ties by example_id.

    Raises PrefselError for an unknown retriever, or a support pair of another user, of a test split, or the query.
    """
    if retriever != "bm25":
        raise PrefselError(f"retriever {retriever!r} is not known; use one of {', '.join(RETRIEVERS)}")
    _refuse_others(query, support)
    scores = _bm25(prompt_text(query), [prompt_text(pair) for pair in support])
    ranked = sorted(zip(scores, support, strict=True), key=lambda scored: (-scored[0], scored[1].example_id))
    return [pair for _, pair in ranked[:k]][::-1]


def prompt_text(pair: Pair) -> str:
    """What retrieval compares: the text of all turns but the system's."""
    return "\n".join(message["content"] for message in pair.prompt if message["role"] != "system")


def with_demonstrations(
    messages: Sequence[Message], demos: Sequence[Pair], *, style: str = "chosen", layout: str = "turns"
) -> tuple[Message, ...]:
    """`messages` with the demonstrations before them, in the given order.

    style: "chosen" shows the preferred response, "pairs" the other one too. layout: "turns" makes each demonstration
    earlier turns of the conversation (with "pairs": a first answer, an objection, the preferred answer), "block" puts
    all into the first user message. A system message stays in front; those of demonstrations are left out.
    Raises PrefselError for an unknown style or layout.
    """
    for name, value, known in (("style", style, STYLES), ("layout", layout, LAYOUTS)):
        if value not in known:
            raise PrefselError(f"in-context {name} {value!r} is not known; use one of {', '.join(known)}")
    if not demos:
        return tuple(messages)
    system = [message for message in messages if message["role"] == "system"]
    turns = [message for message in messages if message["role"] != "system"]
    if layout == "turns":
        return (*system, *(turn for demo in demos for turn in _as_turns(demo, style)), *turns)
    first = next((i for i, message in enumerate(turns) if message["role"] == "user"), None)
    if first is None:
        raise PrefselError("in-context layout 'block' needs a user message in the prompt; use layout 'turns'")
    block = "\n\n".join(
        ["Earlier requests of mine, and how I wanted them answered:"]
        + [_as_text(number, demo, style) for number, demo in enumerate(demos, start=1)]
        + ["Answer the next request the way I like it.", turns[first]["content"]]
    )
    return (*system, *turns[:first], {"role": "user", "content": block}, *turns[first + 1 :])


def _as_turns(demo: Pair, style: str) -> list[Message]:
    turns = [dict(message) for message in demo.prompt if message["role"] != "system"]
    if style == "pairs":
        turns += [
            {"role": "assistant", "content": demo.rejected},
            {"role": "user", "content": "I do not like that answer. Please answer the way I like it."},
        ]
    return [*turns, {"role": "assistant", "content": demo.chosen}]


def _as_text(number: int, demo: Pair, style: str) -> str:
    lines = [f"Request {number}: {prompt_text(demo)}"]
    if style == "pairs":
        lines.append(f"Answer I did not like: {demo.rejected}")
    return "\n".join([*lines, f"Answer I liked: {demo.chosen}"])


def _bm25(query: str, texts: Sequence[str]) -> list[float]:
    """BM25 of the query with each text; zeros where the texts share no word with it."""
    words = bm25s.tokenize([query, *texts], stopwords="en", return_ids=False, show_progress=False)
    if not any(words[1:]) or not words[0]:
        return [0.0] * len(texts)
    index = bm25s.BM25()
    index.index(words[1:], show_progress=False)
    return index.get_scores(words[0]).tolist()


def _refuse_others(query: Pair, support: Sequence[Pair]) -> None:
    for pair in support:
        if pair.user_id != query.user_id:
            raise PrefselError(
                f"demonstration {pair.example_id} is of user {pair.user_id}, the query of {query.user_id}; "
                "show a user only own pairs"
            )
        if pair.split in TEST_SPLITS or pair.example_id == query.example_id:
            raise PrefselError(f"demonstration {pair.example_id} is a test row; draw from the train and support splits")
