"""From messages to token ids under a model's chat template, and what of a long prompt fits the window."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from prefsel_ray.errors import PrefselError

Message = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": text}


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Ids of the conversation with the generation prompt, as the template writes it: the next token opens the response.

    The template alone decides on the beginning-of-text token (no second one is added). Where it refuses a system
    message, that text goes in front of the first user turn. Text in a message that reads like a special token is
    encoded as text. Raises PrefselError where there is no template or it refuses the conversation.
    """
    return _encode(tokenizer, *_render(tokenizer, messages))


def response_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], response: str) -> list[int]:
    """Ids of `response` as the continuation of `prompt_ids(tokenizer, messages)`, then the end-of-turn id.

    Rewards are read at that last id. The response is encoded after the prompt's text, so that tokenizers which treat
    the start of a text specially do not do so here; where the two would melt into one token, it is encoded alone, as
    a model that continues the prompt would write it.
    """
    text, protected = _render(tokenizer, messages)
    head = _encode(tokenizer, text, protected)
    ids = _encode(tokenizer, text, protected, tail=response)
    own = ids[len(head) :] if ids[: len(head)] == head else _encode_as_text(tokenizer, response)
    return [*own, end_of_turn_id(tokenizer)]


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The special token with which the template closes an assistant turn; the end-of-text id where it uses none.

    Raises PrefselError where the tokenizer has neither.
    """
    return _end_of_turn_id(tokenizer, tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None)


@lru_cache(maxsize=16)
def _end_of_turn_id(tokenizer: PreTrainedTokenizerBase, template: str | None) -> int:
    marker = "prefsel response"
    if template is not None:
        turns = [{"role": "user", "content": "prefsel prompt"}, {"role": "assistant", "content": marker}]
        rendered = _apply(tokenizer, turns, add_generation_prompt=False)
        after = tokenizer.encode(rendered.rpartition(marker)[2], add_special_tokens=False)
        special = set(tokenizer.all_special_ids) | {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        for token in after:
            if token in special:
                return token
    if tokenizer.eos_token_id is None:
        raise PrefselError(f"tokenizer {tokenizer.name_or_path!r} has no end-of-turn and no end-of-text token")
    return tokenizer.eos_token_id


def fit_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], responses: Sequence[str], window: int
) -> tuple[tuple[Message, ...] | None, bool]:
    """(messages that fit `window` tokens with the longest of `responses`, whether anything was dropped).

    Dropped first: the oldest turns (an assistant turn never comes first); then the start of the last message's text.
    System messages and responses are never cut. (None, False) where not even one character of the last message fits.
    """
    longest = max((len(response_ids(tokenizer, messages, response)) for response in responses), default=0)
    room = window - longest

    def fits(candidate: Sequence[Message]) -> bool:
        return len(prompt_ids(tokenizer, candidate)) <= room

    if fits(messages):
        return tuple(messages), False
    system = [message for message in messages if message["role"] == "system"]
    turns = [message for message in messages if message["role"] != "system"]
    starts = [i for i in range(1, len(turns)) if turns[i]["role"] == "user"]
    for start in starts:
        if fits([*system, *turns[start:]]):
            return (*system, *turns[start:]), True
    last = turns[-1:] if turns[-1:] and turns[-1]["role"] == "user" else turns[starts[-1] if starts else 0 :]
    if not last:
        return None, False
    content = last[0]["content"]

    def cut(start: int) -> list[Message]:
        return [*system, {**last[0], "content": content[start:].lstrip()}, *last[1:]]

    low, high = 0, len(content)  # fits(cut(high)) is what the search relies on; an empty text says whether it can
    if not fits(cut(high)):
        return None, False
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(cut(middle)) else (middle, high)
    kept = cut(high)
    return (tuple(kept), True) if kept[len(system)]["content"] else (None, False)


def render_for_humans(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], response: str | None = None
) -> str:
    """What the model sees, special tokens spelled out: the prompt, and the response with its end of turn if given."""
    ids = prompt_ids(tokenizer, messages)
    if response is not None:
        ids = ids + response_ids(tokenizer, messages, response)
    return tokenizer.decode(ids, skip_special_tokens=False)


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> tuple[str, dict[str, str]]:
    """(template text, {placeholder in it: text that must not become a special token})."""
    if tokenizer.chat_template is None:
        raise PrefselError(f"tokenizer {tokenizer.name_or_path!r} has no chat template; use an instruction-tuned model")
    protected: dict[str, str] = {}
    turns = [
        {"role": message["role"], "content": _protect(tokenizer, message["content"], protected)} for message in messages
    ]
    try:
        return _apply(tokenizer, turns, add_generation_prompt=True), protected
    except TemplateError as error:
        folded = _fold_system(turns)
        if folded is None:
            raise PrefselError(f"the chat template refuses the conversation: {_one_line(error)}") from error
    try:
        return _apply(tokenizer, folded, add_generation_prompt=True), protected
    except TemplateError as error:
        raise PrefselError(f"the chat template refuses the conversation: {_one_line(error)}") from error


def _apply(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Message], add_generation_prompt: bool) -> str:
    return tokenizer.apply_chat_template(
        [dict(turn) for turn in turns], tokenize=False, add_generation_prompt=add_generation_prompt
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _fold_system(turns: Sequence[Message]) -> list[Message] | None:
    """The system texts in front of the first user turn; None where there is no system text or no user turn."""
    system = [turn["content"] for turn in turns if turn["role"] == "system"]
    rest = [dict(turn) for turn in turns if turn["role"] != "system"]
    first = next((turn for turn in rest if turn["role"] == "user"), None)
    if not system or first is None:
        return None
    first["content"] = "\n\n".join([*system, first["content"]])
    return rest


@lru_cache(maxsize=16)
def _special_texts(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Texts that the tokenizer would turn into special tokens, longest first."""
    texts = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return tuple(sorted(texts | set(tokenizer.all_special_tokens), key=lambda text: (-len(text), text)))


def _protect(tokenizer: PreTrainedTokenizerBase, content: str, protected: dict[str, str]) -> str:
    """`content` with each text that reads like a special token replaced by a placeholder, noted in `protected`.

    Placeholders are private-use characters that occur in no content, so a template passes them through unchanged.
    """
    for text in _special_texts(tokenizer):
        if text in content:
            placeholder = next((key for key, value in protected.items() if value == text), None)
            if placeholder is None:
                placeholder = f"\ue000prefsel{len(protected)}\ue001"
                protected[placeholder] = text
            content = content.replace(text, placeholder)
    return content


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, protected: Mapping[str, str], tail: str = "") -> list[int]:
    """Ids of a rendered template: special tokens are read as such, except in protected texts and in `tail`."""
    protected = dict(protected)
    text += _protect(tokenizer, tail, protected)
    ids: list[int] = []
    for piece, is_text in _pieces(text, protected):
        ids += (
            _encode_as_text(tokenizer, piece)
            if is_text
            else tokenizer.encode(piece, add_special_tokens=False, verbose=False)
        )
    return ids


def _pieces(text: str, protected: Mapping[str, str]) -> list[tuple[str, bool]]:
    """`text` cut at its placeholders: (piece, whether it stands for protected text)."""
    pieces = [(text, False)]
    for placeholder, original in protected.items():
        cut: list[tuple[str, bool]] = []
        for piece, is_text in pieces:
            if is_text:
                cut.append((piece, True))
                continue
            parts = piece.split(placeholder)
            for i, part in enumerate(parts):
                cut += [(original, True)] if i else []
                cut += [(part, False)] if part else []
        pieces = cut
    return pieces


def _encode_as_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
