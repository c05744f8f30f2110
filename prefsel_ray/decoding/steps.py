"""The decoding loop: one row per distinct prefix, any number of guides on it, until each has ended.

Rows in which some guide steers stand first: they need k leaves, the others one token. Where the policy is the reward's
backbone, the hidden state of the chosen leaf is also the state that predicts the next token, so one pass of k leaves a
row does everything. Otherwise the policy reads the chosen token and the backbone the k leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prefsel_ray.decoding.guides import Decoded, DecodeReport, HeadGuide
from prefsel_ray.lm.reference import LanguageModel
from prefsel_ray.lm.tree import PrefixTree
from prefsel_ray.rewards.protocol import NonFiniteError


@dataclass(eq=False)
class Lane:
    """One guide of one example on its way: the tokens chosen so far."""

    guide: HeadGuide
    ids: list[int] = field(default_factory=list)
    finished: bool = False

    def decoded(self, lm: LanguageModel) -> Decoded:
        text = lm.tokenizer.decode(self.ids, skip_special_tokens=True)
        return Decoded(tuple(self.ids), text, self.finished)


Row = list[Lane]  # the lanes that have chosen the same tokens so far


@dataclass(frozen=True)
class Child:
    """What becomes of a row: it continues with leaf `leaf` of its parent, under these lanes."""

    parent: int
    leaf: int
    lanes: Row


def steers(row: Row) -> bool:
    return any(lane.guide.steers for lane in row)


@torch.no_grad()
def run(
    policy: PrefixTree,
    states: Tensor,
    backbone: PrefixTree | None,
    rows: Sequence[Row],
    *,
    k: int,
    max_new_tokens: int,
) -> DecodeReport:
    """Extend every lane until an end token or max_new_tokens, greedily: argmax of log p + w * reward (ARGS).

    policy, backbone: trees over the prompts, one row each, rows that steer first (`backbone` holds these alone; None
    where the policy is the backbone); states: [R, D] of the policy after each prompt. The trees are used up.
    Raises NonFiniteError where a reward is NaN or infinite.
    """
    lm = policy.lm
    rows, report = list(rows), DecodeReport()
    for step in range(max_new_tokens):
        wide = sum(map(steers, rows))
        report += DecodeReport(prefixes=len(rows), prefixes_asked=sum(map(len, rows)))
        tokens, logprobs = candidates(lm, states, k if wide else 1)
        leaves = None
        if wide:
            leaves = (backbone or policy).leaves(slice(0, wide), tokens[:wide])
        children = grow(rows, tokens.tolist(), choose(rows[:wide], logprobs, leaves), lm.eos_ids)
        if not children or step == max_new_tokens - 1:
            break
        children, read = _in_zones(children, wide, fused=backbone is None)
        rows = [child.lanes for child in children]
        parents, chosen = [child.parent for child in children], [child.leaf for child in children]
        scratch = tokens.shape[1] if wide else 0
        # First the children whose token has been read as a leaf: keep that leaf.
        reader = backbone or policy
        reader.select(parents if backbone is None else parents[:read], scratch)
        reader.commit(chosen[:read])
        if backbone is None:
            states = leaves[parents[:read], chosen[:read]] if read else states[:0]
            unread = slice(read, len(children))
        else:
            reader.advance()
            policy.select(parents)
            states, unread = states[:0], slice(0, len(children))
        # Then those whose token the policy has still to read.
        if unread.start < unread.stop:
            states = torch.cat([states, policy.extend(unread, tokens[parents, chosen][unread])])
        policy.advance()
    return report


def candidates(lm: LanguageModel, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """states: [R, D] -> ids [R, k] of the most likely next tokens, most likely first, and their log-probs, float32.

    Ids that a padded output head has beyond the tokenizer are not proposed.
    """
    logits = lm.logits(states)
    known = logits[:, : len(lm.tokenizer)]
    values, ids = known.topk(min(k, known.shape[1]), dim=-1)
    return ids, values - logits.logsumexp(dim=-1, keepdim=True)


def choose(rows: Sequence[Row], logprobs: Tensor, leaves: Tensor | None) -> list[list[int]]:
    """Leaf that each lane of each row picks: argmax of log p + w * reward; the most likely one where nothing steers.

    logprobs: [>= R, k]; leaves: [R, k, D] of the rewards' backbone. Each distinct reward is evaluated once, on all its
    rows together.
    """
    picks = [[0] * len(row) for row in rows]
    users: dict[int, list[tuple[int, int, Lane]]] = {}  # by reward: (row, place in the row, lane)
    for r, row in enumerate(rows):
        for place, lane in enumerate(row):
            if lane.guide.steers:
                users.setdefault(id(lane.guide.reward), []).append((r, place, lane))
    scores = []
    for members in users.values():
        at = sorted({r for r, _, _ in members})
        position = {r: i for i, r in enumerate(at)}
        rewards = members[0][2].guide.reward(leaves[at].float()).float().to(logprobs.device)
        weights = torch.tensor([lane.guide.weight for _, _, lane in members], device=rewards.device)
        own = rewards[[position[r] for r, _, _ in members]]
        scores.append(logprobs[[r for r, _, _ in members]] + weights[:, None] * own)
    if not scores:
        return picks
    together = torch.cat(scores)
    best = together.argmax(dim=-1).masked_fill_(~together.isfinite().all(dim=-1), -1).tolist()  # one transfer a step
    for (r, place, lane), leaf in zip((m for members in users.values() for m in members), best, strict=True):
        if leaf < 0:
            raise NonFiniteError(f"guide {lane.guide.key}: its reward is NaN or infinite at token {len(lane.ids) + 1}")
        picks[r][place] = leaf
    return picks


def grow(
    rows: Sequence[Row], tokens: Sequence[Sequence[int]], picks: Sequence[Sequence[int]], eos_ids: Sequence[int]
) -> list[Child]:
    """Give each lane its token; lanes that agree stay together, lanes that chose an end token are done.

    tokens: ids [R][k]; picks: of the first rows, the leaf of each lane (rows without picks take leaf 0).
    """
    children = []
    for r, row in enumerate(rows):
        together: dict[int, Row] = {}
        for place, lane in enumerate(row):
            leaf = picks[r][place] if r < len(picks) else 0
            if tokens[r][leaf] in eos_ids:
                lane.finished = True
            else:
                lane.ids.append(tokens[r][leaf])
                together.setdefault(leaf, []).append(lane)
        children += [Child(r, leaf, lanes) for leaf, lanes in together.items()]
    return children


def _in_zones(children: Sequence[Child], wide: int, fused: bool) -> tuple[list[Child], int]:
    """The children in the order of their new rows, and how many of them (the first) have been read as leaves.

    Rows that steer come first. A child of such a row that no longer steers comes next where the policy has read the
    leaves itself: its state is at hand. The others follow.
    """
    zones = [0 if steers(child.lanes) else 1 if fused and child.parent < wide else 2 for child in children]
    order = arrange([child.parent for child in children], zones)
    return [children[i] for i in order], sum(zone < 2 for zone in zones)


def arrange(parents: Sequence[int], zones: Sequence[int]) -> list[int]:
    """Order of the children: zone 0 first, then 1, then 2, and as many as can be in the place of their parent.

    A child in its parent's place needs no copy of the cache.
    """
    order: list[int | None] = [None] * len(parents)
    ends = [sum(zone <= z for zone in zones) for z in range(3)]
    begins = [0, *ends[:2]]
    waiting: list[list[int]] = [[], [], []]
    for child, (parent, zone) in enumerate(zip(parents, zones, strict=True)):
        if begins[zone] <= parent < ends[zone] and order[parent] is None:
            order[parent] = child
        else:
            waiting[zone].append(child)
    for zone in range(3):
        free = (place for place in range(begins[zone], ends[zone]) if order[place] is None)
        for place, child in zip(free, waiting[zone], strict=True):
            order[place] = child
    return order
