"""Reward-guided greedy decoding (ARGS, Khanov et al. 2024) over a shared tree of prefixes."""

from collections.abc import Iterable, Sequence

import torch

from prefsel_ray.decoding.guides import Decoded, DecodeReport, HeadGuide
from prefsel_ray.decoding.steps import Lane, Row, run, steers
from prefsel_ray.errors import PrefselError
from prefsel_ray.lm.reference import LanguageModel
from prefsel_ray.lm.tree import prefill

MAX_CACHE_SLOTS = 32_768  # rows x columns of one batch's cache: 1.5 GB for SmolLM2-135M in float32
VOCABULARY_PROBE = "Préférence: 12.5 % of naïve users (α ≥ 3)\n\tdef f(x): return x**2  # ✓ 東京 🙂"


@torch.no_grad()
def decode(
    policy: LanguageModel,
    prompts: Sequence[Sequence[int]],
    guides: Sequence[Sequence[HeadGuide]],
    *,
    k: int = 10,
    max_new_tokens: int,
    backbone: LanguageModel | None = None,
    max_rows: int = 64,
) -> tuple[list[dict[str, Decoded]], DecodeReport]:
    """One text per prompt and guide, each token the argmax over the policy's k likeliest of log p + weight * reward.

    The reward reads the backbone's hidden state after the candidate. Guides (of equal prompts too) that have chosen
    the same tokens so far are one row of the batch and share its passes; they part when they choose differently.

    backbone: the model whose states the rewards read; None or the policy's reference for the policy itself.
    max_rows: most rows of a batch, counted as if no guide agreed with another; an example with more guides stands
    alone. Neither it nor the order of the prompts changes what is written, up to rounding.
    Returns, in the order of `prompts`, {guide key: Decoded}, and what was computed against what was asked for.
    Raises PrefselError for a prompt that leaves no room in the window, a key that stands twice, or a backbone with
    another vocabulary; NonFiniteError for a reward that is NaN or infinite.
    """
    separate = None if backbone is None or backbone.reference == policy.reference else backbone
    _check(policy, separate, prompts, guides, k, max_new_tokens)
    lanes = [[Lane(guide) for guide in own] for own in guides]
    rows: dict[tuple[int, ...], Row] = {}
    for prompt, own in zip(prompts, lanes, strict=True):
        if own:
            rows.setdefault(tuple(prompt), []).extend(own)
    report = DecodeReport(prompts=len(rows), prompts_asked=sum(map(len, guides)))
    if max_new_tokens:
        models = [policy] if separate is None else [policy, separate]
        for batch in batches(rows.items(), max_new_tokens + k, max_rows):
            before = [model.meter.tokens for model in models]
            report += _decode_batch(policy, separate, batch, k, max_new_tokens)
            spent = [model.meter.tokens - old for model, old in zip(models, before, strict=True)]
            report += DecodeReport(policy_tokens=spent[0], backbone_tokens=sum(spent[1:]))
    return [{lane.guide.key: lane.decoded(policy) for lane in own} for own in lanes], report


Prompted = tuple[tuple[int, ...], Row]


def batches(rows: Iterable[Prompted], spare: int, max_rows: int) -> list[list[Prompted]]:
    """Rows grouped by prompt length, so that little is padded, within max_rows and MAX_CACHE_SLOTS.

    spare: columns a batch needs beyond its longest prompt. Inside a batch the rows that steer stand first.
    """
    groups: list[list[Prompted]] = []
    used = 0
    for prompt, lanes in sorted(rows, key=lambda row: (len(row[0]), row[0])):
        need = forks(lanes)
        room = min(max_rows, MAX_CACHE_SLOTS // (len(prompt) + spare))  # prompts ascend: this one is the longest
        if not groups or used + need > room:
            groups.append([])
            used = 0
        groups[-1].append((prompt, lanes))
        used += need
    return [sorted(group, key=lambda row: not steers(row[1])) for group in groups]


def forks(lanes: Row) -> int:
    """Most rows that one row can become: one for each guide that steers, and one for all that do not."""
    return sum(lane.guide.steers for lane in lanes) + (not all(lane.guide.steers for lane in lanes))


def _decode_batch(
    policy: LanguageModel, backbone: LanguageModel | None, batch: Sequence[Prompted], k: int, max_new_tokens: int
) -> DecodeReport:
    prompts, rows = [prompt for prompt, _ in batch], [lanes for _, lanes in batch]
    # Columns: the last token is never read; leaves start where it would stand.
    spare = max_new_tokens - 1 + k
    most = sum(map(forks, rows))
    tree, states = prefill(policy, prompts, rows=most, spare=spare)
    guided = sum(map(steers, rows))
    other = None
    if backbone is not None and guided:
        other, _ = prefill(backbone, prompts[:guided], rows=most, spare=spare)
    return run(tree, states, other, rows, k=k, max_new_tokens=max_new_tokens)


def _check(
    policy: LanguageModel,
    backbone: LanguageModel | None,
    prompts: Sequence[Sequence[int]],
    guides: Sequence[Sequence[HeadGuide]],
    k: int,
    max_new_tokens: int,
) -> None:
    if len(prompts) != len(guides):
        raise PrefselError(f"decode: {len(prompts)} prompts but {len(guides)} lists of guides; give one list a prompt")
    if k < 1 or max_new_tokens < 0:
        raise PrefselError(f"decode: k is {k} and max_new_tokens {max_new_tokens}; k is at least 1, max_new_tokens 0")
    window = min(model.window for model in (policy, backbone or policy))
    for row, (prompt, own) in enumerate(zip(prompts, guides, strict=True), start=1):
        if not 0 < len(prompt) <= window - max_new_tokens:
            raise PrefselError(
                f"decode: prompt {row} has {len(prompt)} tokens; with max_new_tokens {max_new_tokens} "
                f"the window of {window} takes 1 to {window - max_new_tokens}"
            )
        keys = [guide.key for guide in own]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise PrefselError(f"decode: guide key {twice!r} stands twice at prompt {row}; keys of a prompt are unique")
    if backbone is not None:
        check_same_vocabulary(policy, backbone)


def check_same_vocabulary(policy: LanguageModel, backbone: LanguageModel) -> None:
    """Raises PrefselError unless both tokenizers give the same ids, ends of text included."""
    left, right = policy.tokenizer, backbone.tokenizer
    same = (
        len(left) == len(right)
        and left.encode(VOCABULARY_PROBE) == right.encode(VOCABULARY_PROBE)
        and left.convert_ids_to_tokens(list(policy.eos_ids)) == right.convert_ids_to_tokens(list(policy.eos_ids))
    )
    if not same:
        raise PrefselError(
            f"policy {policy.reference!r} and reward backbone {backbone.reference!r} have different vocabularies; "
            "use models that share one tokenizer"
        )
