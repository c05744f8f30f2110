"""Rows of a decoding batch and the ways to extend them: one token, k candidate leaves at once, whole branches.

All rows end at one column, the cursor; shorter prompts are padded on the left, and explicit masks and positions make
each row see itself alone. Leaves and branches go into scratch columns from the cursor on: they cost one forward pass
over the shared prefix, and keeping a leaf means moving one column.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from prefsel_ray.errors import PrefselError
from prefsel_ray.lm.cache import SlotCache
from prefsel_ray.lm.reference import LanguageModel

# Slots of one prefill or branch pass. It bounds activations and masks; on a CPU, products are no faster beyond 1024
# slots, and smaller groups of like length have less padding.
PASS_TOKENS = {"cpu": 1024, "cuda": 8192}


class PrefixTree:
    """Prefixes that a model has read, one a row. `starts[i]` is the first column of row i, `cursor` the next free one.

    Made by `prefill`. Rows may fork and leave (`select`); every method keeps the cursor except `advance`.
    """

    def __init__(self, lm: LanguageModel, starts: Sequence[int], cursor: int, rows: int, columns: int) -> None:
        self.lm = lm
        self.starts = list(starts)
        self.cursor = cursor
        self.cache = SlotCache(lm.model.config.num_hidden_layers, rows, columns)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> list[int]:
        """Tokens in each row."""
        return [self.cursor - start for start in self.starts]

    def extend(self, rows: slice, tokens: Tensor) -> Tensor:
        """Write one token a row at the cursor. tokens: [R] -> hidden states [R, D] after it."""
        return self.leaves(rows, tokens[:, None])[:, 0]

    def leaves(self, rows: slice, tokens: Tensor) -> Tensor:
        """k alternatives for each row's next token in one pass: all at the same position, each sees its row and itself.

        tokens: [R, k], written to scratch columns cursor..cursor+k-1 -> hidden states [R, k, D].
        """
        tokens = tokens.to(self.lm.device)
        eye = torch.eye(tokens.shape[1], dtype=torch.bool, device=self.lm.device)
        offsets = torch.zeros_like(tokens)
        states = self._forward(rows, tokens, eye.expand(len(tokens), -1, -1), offsets)
        self.lm.meter.add(tokens.numel())
        return states

    def branches(self, rows: slice, branches: Sequence[Sequence[Sequence[int]]]) -> list[list[Tensor]]:
        """Several continuations of each row in one pass; each branch sees its row and itself, never its siblings.

        branches[i]: the branches of row rows.start + i (any number, any lengths), written to scratch columns.
        Returns the hidden states [T, D] after each token, in the same nesting.
        """
        lengths = [[len(branch) for branch in row] for row in branches]
        width = max((sum(row) for row in lengths), default=0)
        if width == 0:
            empty = torch.zeros(0, self.lm.hidden_size, device=self.lm.device)
            return [[empty for _ in row] for row in lengths]
        ids = torch.full((len(branches), width), self.lm.filler_id)
        offsets = torch.zeros(len(branches), width, dtype=torch.long)
        # Padding slots each form a branch of their own, so that no softmax is over nothing.
        owner = -1 - torch.arange(width).repeat(len(branches), 1)
        for r, row in enumerate(branches):
            at = 0
            for b, branch in enumerate(row):
                end = at + len(branch)
                ids[r, at:end] = torch.tensor(branch, dtype=torch.long)
                offsets[r, at:end] = torch.arange(len(branch))
                owner[r, at:end] = b
                at = end
        owner = owner.to(self.lm.device)
        own = (owner[:, :, None] == owner[:, None, :]).tril()
        states = self._forward(rows, ids.to(self.lm.device), own, offsets.to(self.lm.device))
        self.lm.meter.add(sum(map(sum, lengths)), ids.numel())
        return [list(states[r, : sum(row)].split(row)) for r, row in enumerate(lengths)]

    def commit(self, leaves: Sequence[int]) -> None:
        """Of the rows 0..len(leaves)-1, keep leaf leaves[i]: its column moves to the cursor."""
        self.cache.copy_columns([self.cursor + leaf for leaf in leaves], self.cursor)

    def select(self, rows: Sequence[int], scratch: int = 0) -> None:
        """Row i becomes the old row rows[i]: a row named twice forks, one not named leaves the batch.

        scratch: how many columns from the cursor on hold leaves that must move along.
        """
        self.cache.select(rows, min(self.starts, default=0), self.cursor + scratch)
        self.starts = [self.starts[row] for row in rows]

    def advance(self) -> None:
        """Make the column at the cursor part of every row."""
        self.cursor += 1

    def _forward(self, rows: slice, ids: Tensor, own: Tensor, offsets: Tensor) -> Tensor:
        """ids: [R, q] at the cursor; own: [R, q, q] bool, what a new slot sees of the new ones; offsets: [R, q]."""
        starts = torch.tensor(self.starts[rows], device=self.lm.device)
        first = int(min(self.starts[rows]))
        prefix = torch.arange(first, self.cursor, device=self.lm.device) >= starts[:, None]
        seen = torch.cat([prefix[:, None].expand(-1, ids.shape[1], -1), own], dim=2)
        positions = self.cursor - starts[:, None] + offsets
        return _states(self.lm, ids, seen, positions, self.cache.put(rows, first, self.cursor))


@torch.no_grad()
def prefill(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], *, rows: int | None = None, spare: int
) -> tuple[PrefixTree, Tensor]:
    """Read prompts, one a row; neighbours of similar length share a pass, so sort them by length.

    rows: most rows the tree will ever have (default: no forks); spare: columns after the prompts, for new tokens and
    scratch. Returns the tree and the hidden state [R, D] after each prompt. No logits are computed.
    Raises PrefselError for an empty prompt or one beyond the model's window.
    """
    for row, prompt in enumerate(prompts):
        if not 0 < len(prompt) <= lm.window:
            raise PrefselError(f"prompt {row + 1} has {len(prompt)} tokens; {lm.reference} takes 1 to {lm.window}")
    longest = max(map(len, prompts))
    starts = [longest - len(prompt) for prompt in prompts]
    tree = PrefixTree(lm, starts, longest, rows or len(prompts), longest + spare)
    states = []
    for chunk in row_chunks([len(prompt) for prompt in prompts], pass_tokens(lm)):
        part = prompts[chunk]
        width = max(map(len, part))
        ids = torch.full((len(part), width), lm.filler_id)
        for row, prompt in zip(ids, part, strict=True):
            row[width - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
        padding = torch.tensor([width - len(prompt) for prompt in part], device=lm.device)[:, None]
        column = torch.arange(width, device=lm.device)
        real = (column >= padding)[:, None, :]
        # Padding sees itself, so that no softmax is over nothing; no real token sees padding.
        seen = (real & (column[:, None] >= column)) | torch.eye(width, dtype=torch.bool, device=lm.device)
        positions = (column - padding).clamp(min=0)
        cache = tree.cache.put(chunk, longest - width, longest - width)
        states.append(_states(lm, ids.to(lm.device), seen, positions, cache)[:, -1].clone())
        lm.meter.add(sum(map(len, part)), ids.numel())
    return tree, torch.cat(states)


def pass_tokens(lm: LanguageModel) -> int:
    """Most slots of one pass on the model's device."""
    return PASS_TOKENS.get(lm.device.type, PASS_TOKENS["cuda"])


def row_chunks(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Consecutive rows whose padded size stays within max_tokens (a longer row stands alone)."""
    chunks, begin, width = [], 0, 0
    for row, length in enumerate(lengths):
        width = max(width, length)
        if row > begin and (row + 1 - begin) * width > max_tokens:
            chunks.append(slice(begin, row))
            begin, width = row, length
    if lengths:
        chunks.append(slice(begin, len(lengths)))
    return chunks


@torch.no_grad()
def _states(lm: LanguageModel, ids: Tensor, seen: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
    """ids, positions: [R, q]; seen: [R, q, columns] bool -> hidden states [R, q, D]."""
    dtype = lm.model.dtype
    # Additive, made once: a boolean mask would be converted again in every layer.
    mask = torch.zeros(seen.shape, dtype=dtype, device=lm.device).masked_fill_(~seen, float("-inf"))[:, None]
    out = lm.base(input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True)
    return out.last_hidden_state
