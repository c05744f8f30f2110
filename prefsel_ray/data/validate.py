"""The one validator: raw rows of any source to pairs, with a reason in the ledger for each row it refuses or mends."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefsel_ray.data.ledger import Label, Ledger
from prefsel_ray.data.schema import SPLITS, Messages, Pair, make_example_id, make_group_id
from prefsel_ray.errors import PrefselError

ROLES = ("system", "user", "assistant")

Labelled = tuple[Label, Pair]
# (messages, responses) -> (messages cut from the left to fit beside each response, or None; whether anything was cut)
Fit = Callable[[Messages, Sequence[str]], tuple[Messages | None, bool]]

_SURROGATE = re.compile("[\ud800-\udfff]")


class RowRefused(Exception):
    """Raised inside the validator; its text is the ledger's reason."""


@dataclass
class _Row:
    """One raw row under inspection, and what had to be mended in it."""

    raw: Mapping[str, Any]
    mended: list[str]

    def text(self, column: str, value: Any) -> str:
        """`value` as text that can be encoded. Raises RowRefused unless it is text."""
        if not isinstance(value, str):
            raise RowRefused(f"bad type: column {column}: expected text, found {_type_name(value)}")
        if _SURROGATE.search(value):
            self.mended.append(f"lone surrogate replaced by U+FFFD in column {column}")
            value = _SURROGATE.sub("\ufffd", value)
        return value

    def identifier(self, column: str) -> str:
        """The column as an id: text, or a whole number written as text."""
        value = self.raw[column]
        # A pandas column of whole numbers turns to floats as soon as one of them is missing.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            self.mended.append(f"number in column {column} taken as text")
            value = str(value)
        return self.text(column, value)


def validate(
    rows: Iterable[tuple[Label, Mapping[str, Any]]],
    ledger: Ledger,
    *,
    dataset: str,
    where: str,
    with_rejected: bool = True,
) -> list[Labelled]:
    """(label, pair) of every usable row, in order; the others are in `ledger` with their reason.

    `where` begins error messages. `with_rejected` False is for rows whose negatives are mined later: their pairs have
    an empty `rejected`. Raises PrefselError for an unknown split name, which is a wrong file and no mere wrong row.
    """
    pairs: dict[str, Labelled] = {}
    for label, raw in rows:
        row = _Row(raw, [])
        try:
            pair = _pair(row, dataset, with_rejected)
            if pair.example_id in pairs:
                raise RowRefused("duplicate of an earlier row (same user, prompt and responses)")
        except RowRefused as refused:
            ledger.refuse(str(refused), label)
            continue
        if pair.split is not None and pair.split not in SPLITS:
            raise PrefselError(f"{where}: row {label}: unknown split {pair.split!r}; use one of {', '.join(SPLITS)}")
        for what in dict.fromkeys(row.mended):
            ledger.note(what, label)
        pairs[pair.example_id] = (label, pair)
    return list(pairs.values())


def with_negatives(
    labelled: Sequence[Labelled], rejected: Sequence[str | None], ledger: Ledger, *, no_negative: str
) -> list[Labelled]:
    """The pairs with their mined `rejected` and their final `example_id`; None is refused for `no_negative`."""
    done = []
    for (label, pair), negative in zip(labelled, rejected, strict=True):
        try:
            if negative is None:
                raise RowRefused(no_negative)
            _check_responses({"chosen": pair.chosen, "rejected": negative})
        except RowRefused as refused:
            ledger.refuse(str(refused), label)
            continue
        example_id = make_example_id(pair.dataset, pair.user_id, pair.prompt, pair.chosen, negative)
        done.append((label, replace(pair, rejected=negative, example_id=example_id)))
    return done


def fit_to_window(labelled: Iterable[Labelled], fit: Fit, ledger: Ledger) -> list[Labelled]:
    """The pairs whose prompt and each response fit the model's window together.

    Prompts may be cut from the left (noted), responses never; what cannot fit is refused. A cut pair keeps its id and
    its group, which are those of the row as it was read.
    """
    kept = []
    for label, pair in labelled:
        messages, truncated = fit(pair.prompt, (pair.chosen, pair.rejected))
        if messages is None:
            ledger.refuse("does not fit the window", label)
            continue
        if truncated:
            ledger.note("prompt truncated from the left", label)
            pair = replace(pair, prompt=tuple(messages))
        kept.append((label, pair))
    return kept


def note_single_pairs(labelled: Sequence[Labelled], ledger: Ledger) -> None:
    """Note the row of every user who has only one: nothing of theirs can be both learnt from and tested on."""
    counts = Counter(pair.user_id for _, pair in labelled)
    for label, pair in labelled:
        if counts[pair.user_id] == 1:
            ledger.note("user with one pair", label)


def _pair(row: _Row, dataset: str, with_rejected: bool) -> Pair:
    if not isinstance(row.raw, Mapping):
        raise RowRefused(f"bad type: the row: expected an object, found {_type_name(row.raw)}")
    raw = {name: None if _is_nan(value) else value for name, value in row.raw.items()}
    row.raw = raw
    user_id = "" if raw.get("user_id") is None else row.identifier("user_id")
    if not user_id.strip():
        raise RowRefused("null user")
    prompt = _messages(row, raw.get("prompt"))
    responses = {}
    for column in ("chosen", "rejected") if with_rejected else ("chosen",):
        if raw.get(column) is None:
            raise RowRefused(f"null {column}")
        responses[column] = row.text(column, raw[column])
    _check_responses(responses)
    reference = None if raw.get("reference") is None else row.text("reference", raw["reference"])
    if reference is not None and not reference.strip():
        row.mended.append("empty reference taken as none")
        reference = None
    rejected = responses.get("rejected", "")
    return Pair(
        example_id=make_example_id(dataset, user_id, prompt, responses["chosen"], rejected),
        dataset=dataset,
        user_id=user_id,
        prompt=prompt,
        chosen=responses["chosen"],
        rejected=rejected,
        reference=reference,
        split=None if raw.get("split") is None else row.text("split", raw["split"]),
        group_id=make_group_id(prompt) if raw.get("group_id") is None else row.identifier("group_id"),
        meta=_meta(raw.get("meta")),
    )


def _check_responses(responses: Mapping[str, str]) -> None:
    for column, text in responses.items():
        if not text.strip():
            raise RowRefused(f"empty {column}")
    if len({text.strip() for text in responses.values()}) < len(responses):
        raise RowRefused("equal responses")


def _messages(row: _Row, prompt: Any) -> Messages:
    """The prompt as chat messages; text becomes one user message."""
    if prompt is None:
        raise RowRefused("empty prompt")
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list | tuple):
        raise RowRefused(f"bad type: column prompt: expected text or list of messages, found {_type_name(prompt)}")
    messages = []
    for message in prompt:
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise RowRefused(
                f"bad type: column prompt: expected messages with role and content, found {_what(message)}"
            )
        role = row.text("prompt", message["role"])
        if role not in ROLES:
            raise RowRefused(f"unknown role {role[:20]!r} in column prompt, not one of {', '.join(ROLES)}")
        messages.append({"role": role, "content": row.text("prompt", message["content"])})
    if not any(message["content"].strip() for message in messages):
        raise RowRefused("empty prompt")
    if messages[-1]["role"] != "user":
        raise RowRefused("prompt does not end with a user message")
    return tuple(messages)


def _meta(meta: Any) -> str:
    """`meta` as the text of a JSON object. Values that JSON lacks (dates, say) become their text."""
    if meta is None:
        return "{}"
    try:
        content = json.loads(meta) if isinstance(meta, str) else meta
        if isinstance(content, Mapping):
            return json.dumps(content, sort_keys=True, default=str, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        pass
    raise RowRefused(f"bad type: column meta: expected a JSON object, found {_type_name(meta)}")


def _what(message: Any) -> str:
    return f"keys {sorted(map(str, message))}" if isinstance(message, Mapping) else _type_name(message)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _type_name(value: Any) -> str:
    names = {str: "text", int: "a number", float: "a number", bool: "a boolean", list: "a list", dict: "an object"}
    names[type(None)] = "null"
    return names.get(type(value), type(value).__name__)
