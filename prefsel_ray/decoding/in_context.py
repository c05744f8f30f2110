"""In-context examples: one reading of a prompt serves the log-probs of given responses and the greedy text."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefsel_ray.decoding.args import MAX_CACHE_SLOTS
from prefsel_ray.decoding.greedy import PLAIN
from prefsel_ray.decoding.guides import Decoded
from prefsel_ray.decoding.steps import Lane, run
from prefsel_ray.errors import PrefselError
from prefsel_ray.lm.reference import LanguageModel
from prefsel_ray.lm.tree import PrefixTree, pass_tokens, prefill, row_chunks

MAX_LOGITS = 2**25  # floats of one block of logits: 128 MiB


@dataclass(frozen=True)
class InContextItem:
    """A prompt with its demonstrations, the responses to rate under it, and whether a text is wanted too."""

    prompt_ids: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]
    write: bool


@dataclass(frozen=True)
class InContextOutput:
    """logprobs: for each branch log p(token | prompt, earlier tokens), [T] float32 on the CPU.

    decoded: the greedy text, None where none was asked for.
    """

    logprobs: tuple[Tensor, ...]
    decoded: Decoded | None


@torch.no_grad()
def write_and_trace(
    lm: LanguageModel, items: Sequence[InContextItem], max_new_tokens: int, *, max_rows: int = 64
) -> list[InContextOutput]:
    """For each item, in order: log-probs of its branches and, where asked, the greedy text; the prompt is read once.

    The branches are scratch columns of the same cache: each sees the prompt and itself; the text then starts from the
    prompt as if they had not been there. Batches group prompts of similar length, which changes nothing but rounding.
    Raises PrefselError where a prompt with its longest branch or max_new_tokens does not fit the window.
    """
    for row, item in enumerate(items, start=1):
        need = max([len(branch) for branch in item.branches] + [max_new_tokens if item.write else 0])
        if not 0 < len(item.prompt_ids) <= lm.window - need:
            raise PrefselError(
                f"in-context item {row} has {len(item.prompt_ids)} prompt tokens and needs {need} after them; "
                f"the window of {lm.window} takes 1 to {lm.window - need}; show fewer demonstrations"
            )
    outputs: list[InContextOutput | None] = [None] * len(items)
    for batch in _batches(items, max_new_tokens, max_rows):
        done = _batch([items[i] for i in batch], lm, max_new_tokens)
        for i, output in zip(batch, done, strict=True):
            outputs[i] = output
    return outputs


def _batches(items: Sequence[InContextItem], max_new_tokens: int, max_rows: int) -> list[list[int]]:
    """Indices of items in groups of similar prompt length, within max_rows and MAX_CACHE_SLOTS."""
    groups: list[list[int]] = []
    widest = 0
    for i in sorted(range(len(items)), key=lambda i: (len(items[i].prompt_ids), i)):
        columns = len(items[i].prompt_ids) + _spare([items[i]], max_new_tokens)
        size = len(groups[-1]) + 1 if groups else 0
        if not groups or size > max_rows or size * max(widest, columns) > MAX_CACHE_SLOTS:
            groups.append([])
            widest = 0
        groups[-1].append(i)
        widest = max(widest, columns)
    return groups


def _spare(items: Sequence[InContextItem], max_new_tokens: int) -> int:
    """Columns needed after the prompt: for all branches side by side, or for the text."""
    return max(max(sum(map(len, item.branches)), max_new_tokens if item.write else 0) for item in items)


def _batch(items: Sequence[InContextItem], lm: LanguageModel, max_new_tokens: int) -> list[InContextOutput]:
    """The items ascend in prompt length."""
    tree, states = prefill(lm, [item.prompt_ids for item in items], spare=_spare(items, max_new_tokens))
    logprobs: list[tuple[Tensor, ...]] = []
    for rows in row_chunks([sum(map(len, item.branches)) for item in items], pass_tokens(lm)):
        logprobs += _trace(tree, states, rows, items)
    lanes = {i: Lane(PLAIN) for i, item in enumerate(items) if item.write}
    if lanes and max_new_tokens:
        tree.select(list(lanes))
        run(tree, states[list(lanes)], None, [[lane] for lane in lanes.values()], k=1, max_new_tokens=max_new_tokens)
    texts = {i: lane.decoded(lm) for i, lane in lanes.items()}
    return [InContextOutput(own, texts.get(i)) for i, own in enumerate(logprobs)]


def _trace(tree: PrefixTree, states: Tensor, rows: slice, items: Sequence[InContextItem]) -> list[tuple[Tensor, ...]]:
    """Log-probs of the branches of these rows. The last token of a branch predicts nothing here and is not read."""
    branches = [items[i].branches for i in range(rows.start, rows.stop)]
    read = tree.branches(rows, [[branch[:-1] for branch in own] for own in branches])
    before, tokens, counts = [], [], []
    for row, (own, after) in enumerate(zip(branches, read, strict=True), start=rows.start):
        for branch, states_after in zip(own, after, strict=True):
            before += [states[row : row + 1], states_after] if branch else []
            tokens += branch
            counts.append(len(branch))
    flat = iter(_token_logprobs(tree.lm, before, tokens).split(counts))
    return [tuple(next(flat) for _ in own) for own in branches]


def _token_logprobs(lm: LanguageModel, states: Sequence[Tensor], tokens: Sequence[int]) -> Tensor:
    """states: [N, D] in pieces, each before the token of the same place -> log p [N] float32, in bounded blocks."""
    if not tokens:
        return torch.zeros(0)
    stacked, ids = torch.cat(list(states)), torch.tensor(tokens, device=lm.device)
    block = max(1, MAX_LOGITS // lm.model.config.vocab_size)
    found = []
    for part, own in zip(stacked.split(block), ids.split(block), strict=True):
        logits = lm.logits(part)
        found.append(logits.gather(1, own[:, None])[:, 0] - logits.logsumexp(dim=-1))
    return torch.cat(found).cpu()
