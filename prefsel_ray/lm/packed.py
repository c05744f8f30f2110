"""Log-probabilities and hidden states of several responses to one prompt, from one forward pass over prompt and all.

A row is the prompt followed by its branches. Every branch sees the prompt and itself, and its positions continue from
the end of the prompt, so each gets the numbers it would get alone; the prompt is computed once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from prefsel_ray.errors import PrefselError
from prefsel_ray.lm.reference import LanguageModel

LOGIT_SLOTS = 2**24  # most logits alive at a time: 64 MiB of float32


@dataclass(frozen=True)
class PromptBranches:
    """A prompt (at least one token) and the token ids of the responses to it: none, one or several, empty ones too."""

    prompt: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.prompt) + sum(map(len, self.branches))


@dataclass(frozen=True)
class BranchOutput:
    """Results of one item, float32 on the CPU. A field that was not asked for is None.

    logprobs: per branch [T_b], log p(token | prompt, earlier tokens of the branch), of the full vocabulary;
    states: per branch [T_b, D], last hidden state (after the final norm) once each token has been read;
    prompt_state: [D], the same at the last token of the prompt.
    """

    logprobs: list[torch.Tensor] | None
    states: list[torch.Tensor] | None
    prompt_state: torch.Tensor | None


def packed_forward(
    lm: LanguageModel,
    items: Sequence[PromptBranches],
    *,
    logprobs: bool,
    states: bool,
    max_batch_tokens: int = 4096,
    padding_side: str = "right",
) -> list[BranchOutput]:
    """One BranchOutput per item, in the order of `items`.

    Rows of similar length share a batch of at most `max_batch_tokens` slots, padding included (a longer row gets a
    batch of its own); results do not depend on who shares a batch. The output head is applied only where a branch
    token is predicted, a bounded number of positions at a time, and not at all without `logprobs`.
    Raises PrefselError for an empty prompt or a branch that does not fit the model's window.
    """
    outputs: list[BranchOutput | None] = [None] * len(items)
    for index, output in iterate_packed(
        lm, items, logprobs=logprobs, states=states, max_batch_tokens=max_batch_tokens, padding_side=padding_side
    ):
        outputs[index] = output
    return outputs


def iterate_packed(
    lm: LanguageModel,
    items: Sequence[PromptBranches],
    *,
    logprobs: bool,
    states: bool,
    max_batch_tokens: int = 4096,
    padding_side: str = "right",
) -> Iterator[tuple[int, BranchOutput]]:
    """(index in `items`, output) as the batches finish, longest rows first: for callers that reduce as they go."""
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side must be 'right' or 'left', not {padding_side!r}")
    for index, item in enumerate(items):
        _check(lm, index, item)
    for batch in _batches(items, max_batch_tokens):
        chosen = [items[index] for index in batch]
        yield from zip(batch, _forward(lm, chosen, logprobs, states, padding_side), strict=True)


def _check(lm: LanguageModel, index: int, item: PromptBranches) -> None:
    if not item.prompt:
        raise PrefselError(f"item {index}: the prompt has no tokens; a response needs a token to follow")
    needed = len(item.prompt) + max(map(len, item.branches), default=0)
    if needed > lm.window:
        raise PrefselError(
            f"item {index}: prompt and response need {needed} tokens but the window of {lm.reference} is {lm.window}; "
            "shorten the prompt (lm.chat.fit_prompt)"
        )


def _batches(items: Sequence[PromptBranches], max_batch_tokens: int) -> list[list[int]]:
    """Indices of `items` in batches, longest rows first.

    Rows with one branch and rows with several never share a batch: the former need no mask, which is faster, and the
    attention kernel of a row must not depend on its company.
    """
    batches: list[list[int]] = []
    for several in (True, False):
        group = [i for i, item in enumerate(items) if (len(item.branches) > 1) is several]
        group.sort(key=lambda i: (-len(items[i]), i))
        batch: list[int] = []
        for i in group:
            if batch and (len(batch) + 1) * len(items[batch[0]]) > max_batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(i)
        batches += [batch] if batch else []
    return batches


# No inference_mode: its tensors could not be used in a later training step of a head.
@torch.no_grad()
def _forward(
    lm: LanguageModel, items: list[PromptBranches], logprobs: bool, states: bool, padding_side: str
) -> list[BranchOutput]:
    width = max(map(len, items))
    offsets = [width - len(item) if padding_side == "left" else 0 for item in items]
    ids, positions, segments = _layout(items, offsets, width, lm.filler_id)
    # With one branch and the padding at the end, plain causality is the mask.
    plain = padding_side == "right" and all(len(item.branches) <= 1 for item in items)
    hidden = lm.base(
        input_ids=ids.to(lm.device),
        position_ids=positions.to(lm.device),
        attention_mask=None if plain else branch_mask(segments.to(lm.device), lm.model.dtype),
        use_cache=False,
    ).last_hidden_state
    lm.meter.add(sum(map(len, items)), ids.numel())

    targets = [token for item in items for branch in item.branches for token in branch]
    logps = states_out = prompt_states = None
    rows = torch.arange(len(items), device=lm.device)
    if logprobs:
        at = _places(items, offsets, width, shift=-1)
        logps = _token_logprobs(lm, hidden.flatten(0, 1), at, targets).cpu()
    if states:
        at = _places(items, offsets, width, shift=0)
        states_out = hidden.flatten(0, 1)[torch.tensor(at, dtype=torch.long, device=lm.device)].float().cpu()
        ends = torch.tensor([o + len(item.prompt) - 1 for o, item in zip(offsets, items, strict=True)])
        prompt_states = hidden[rows, ends.to(lm.device)].float().cpu()
    return _split(items, logps, states_out, prompt_states)


def _layout(
    items: list[PromptBranches], offsets: list[int], width: int, filler: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids, positions, segments, each [B, width]. Segment: 0 prompt, 1.. branches, -1 padding."""
    ids = torch.full((len(items), width), filler, dtype=torch.long)
    # Padding after a row carries the row's slot numbers on: positions that ever jump back without a mask would be
    # taken for several sequences packed into one row.
    positions = torch.arange(width).repeat(len(items), 1)
    segments = torch.full((len(items), width), -1, dtype=torch.long)
    for row, (item, offset) in enumerate(zip(items, offsets, strict=True)):
        length, prompt = len(item), len(item.prompt)
        tokens = [*item.prompt, *(token for branch in item.branches for token in branch)]
        places = list(range(prompt))
        owner = [0] * prompt
        for number, branch in enumerate(item.branches, start=1):
            places += range(prompt, prompt + len(branch))
            owner += [number] * len(branch)
        span = slice(offset, offset + length)
        ids[row, span] = torch.tensor(tokens)
        positions[row, span] = torch.tensor(places)
        segments[row, span] = torch.tensor(owner)
    return ids, positions, segments


def branch_mask(segments: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """segments: [B, L] (0 prompt, 1.. branches, -1 padding) -> additive mask [B, 1, L, L], 0 where a slot may look.

    A slot looks at earlier slots of the prompt and of its own branch, and at itself. Padding is a segment of its own:
    nobody sees it, and as it sees at least itself, no row of the attention is empty (which would give NaN).
    """
    slots = torch.arange(segments.shape[1], device=segments.device)
    earlier = slots[:, None] >= slots[None, :]
    query, key = segments[:, :, None], segments[:, None, :]
    allowed = earlier & ((key == 0) | (key == query))
    mask = torch.zeros(allowed.shape, dtype=dtype, device=segments.device)
    return mask.masked_fill_(~allowed, float("-inf"))[:, None]


def _places(items: list[PromptBranches], offsets: list[int], width: int, shift: int) -> list[int]:
    """Flat slot of every branch token (shift 0), or of the token that predicts it (shift -1), in order."""
    places: list[int] = []
    for row, (item, offset) in enumerate(zip(items, offsets, strict=True)):
        start = row * width + offset
        last_of_prompt = start + len(item.prompt) - 1
        begin = last_of_prompt + 1
        for branch in item.branches:
            end = begin + len(branch)
            if branch and shift == -1:
                places += [last_of_prompt, *range(begin, end - 1)]
            else:
                places += range(begin, end)
            begin = end
    return places


def _token_logprobs(lm: LanguageModel, flat: torch.Tensor, at: list[int], targets: list[int]) -> torch.Tensor:
    """flat: [slots, D]; log p of `targets` [N] from the states at `at` [N] -> [N] float32, some logits at a time."""
    place = torch.tensor(at, dtype=torch.long, device=flat.device)
    target = torch.tensor(targets, dtype=torch.long, device=flat.device)
    out = torch.empty(len(targets), dtype=torch.float32, device=flat.device)
    step = max(1, LOGIT_SLOTS // lm.model.config.vocab_size)
    for begin in range(0, len(targets), step):
        span = slice(begin, begin + step)
        out[span] = -F.cross_entropy(lm.logits(flat[place[span]]), target[span], reduction="none")
    return out


def _split(
    items: list[PromptBranches],
    logps: torch.Tensor | None,
    states: torch.Tensor | None,
    prompt_states: torch.Tensor | None,
) -> list[BranchOutput]:
    """The batch's tensors cut per item. Each item gets its own memory: keeping one must not keep the whole batch."""
    lengths = [[len(branch) for branch in item.branches] for item in items]
    totals = [sum(per_branch) for per_branch in lengths]

    def cut(whole: torch.Tensor | None) -> list[list[torch.Tensor] | None]:
        if whole is None:
            return [None] * len(items)
        parts = whole.split(totals)
        return [list(part.clone().split(each)) if each else [] for part, each in zip(parts, lengths, strict=True)]

    prompts = [None] * len(items) if prompt_states is None else [state.clone() for state in prompt_states]
    return [BranchOutput(*fields) for fields in zip(cut(logps), cut(states), prompts, strict=True)]
