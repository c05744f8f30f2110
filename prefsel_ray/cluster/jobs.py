"""What a model actor does with one block of pairs, one function a stage.

A job is `job(models, block, block_id, **settings) -> {folder: table}`; `models[reference]` gives a loaded
LanguageModel, `block` is a table in PAIR_SCHEMA, and each table becomes the part file of `block_id` in its folder.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from prefsel_ray.cluster.fitting import FittedHead
from prefsel_ray.cluster.pool import part_path
from prefsel_ray.data.schema import Pair, pairs_from_table
from prefsel_ray.decoding.args import decode
from prefsel_ray.decoding.demonstrations import demonstrate
from prefsel_ray.decoding.guides import HeadGuide
from prefsel_ray.decoding.in_context import InContextItem, write_and_trace
from prefsel_ray.lm.chat import prompt_ids, response_ids
from prefsel_ray.lm.packed import packed_forward
from prefsel_ray.metrics.bertscore import BertScoreSpec
from prefsel_ray.metrics.text import text_scores
from prefsel_ray.rewards import load_method, method_settings
from prefsel_ray.rewards.scoring import final_states, prompt_branches

Tables = Mapping[str, pa.Table]
FLOATS = pa.list_(pa.float32())


def trace(
    models: Any, block: pa.Table, block_id: int, *, folder: str, model: str, logprobs: bool, states: str | None
) -> Tables:
    """Trace pairs through one model: log-probabilities of both responses, or hidden states, or both, in one pass.

    `states`: None, "final" (after the whole response) or "all" (after every response token and after the prompt).
    """
    lm = models[model]
    pairs = pairs_from_table(block)
    outputs = packed_forward(
        lm,
        [prompt_branches(lm, pair.prompt, (pair.chosen, pair.rejected)) for pair in pairs],
        logprobs=logprobs,
        states=states is not None,
    )
    columns: dict[str, Any] = _keys(pairs)
    if logprobs:
        for side, name in enumerate(("chosen", "rejected")):
            columns[f"logprobs_{name}"] = pa.array([_list(out.logprobs[side]) for out in outputs], FLOATS)
    if states is not None:
        for side, name in enumerate(("chosen", "rejected")):
            columns[f"final_{name}"] = pa.array([_list(out.states[side][-1]) for out in outputs], FLOATS)
            if states == "all":
                columns[f"states_{name}"] = pa.array([_list(out.states[side].flatten()) for out in outputs], FLOATS)
        if states == "all":
            columns["state_prompt"] = pa.array([_list(out.prompt_state) for out in outputs], FLOATS)
    return {folder: pa.table(columns)}


def reward_trace(models: Any, block: pa.Table, block_id: int, *, heads: Sequence[Mapping[str, str]]) -> Tables:
    """Rewards after the prompt and after every response token, of every head, from stored states alone.

    `heads`: mappings with `model` (folder of the fitted head) and `folder` (where the trace goes).
    """
    users = block["user_id"].to_pylist()
    prompt = [torch.tensor(row) for row in block["state_prompt"].to_pylist()]
    sides = {
        name: [torch.tensor(row).reshape(-1, len(prompt[0])) for row in block[f"states_{name}"].to_pylist()]
        for name in ("chosen", "rejected")
    }
    tables = {}
    for spec in heads:
        head = FittedHead(Path(spec["model"]))
        columns: dict[str, Any] = {name: block[name] for name in ("example_id", "user_id", "split")}
        for name, states in sides.items():
            rewards = [_list(head.head.token_rewards(h, head.state(u))) for h, u in zip(states, users, strict=True)]
            columns[f"rewards_{name}"] = pa.array(rewards, FLOATS)
        at_prompt = [float(head.head.token_rewards(h, head.state(u))) for h, u in zip(prompt, users, strict=True)]
        columns["reward_prompt"] = pa.array(at_prompt, pa.float32())
        tables[spec["folder"]] = pa.table(columns)
    return tables


def generate(
    models: Any,
    block: pa.Table,
    block_id: int,
    *,
    policy: str,
    backbone: str,
    k: int,
    max_new_tokens: int,
    guides: Sequence[Mapping[str, Any]],
) -> Tables:
    """Write one text per (pair, guide); guides that agree so far share their forward passes.

    `guides`: mappings with `folder` (where the texts go), `w` and `model` (folder of a fitted head, or None for the
    policy alone).
    """
    lm = models[policy]
    pairs = pairs_from_table(block)
    heads = {path: FittedHead(Path(path)) for path in sorted({g["model"] for g in guides if g["model"] is not None})}
    rows = [_guides(guides, heads, pair.user_id) for pair in pairs]
    prompts = [prompt_ids(lm.tokenizer, pair.prompt) for pair in pairs]
    separate = models[backbone] if backbone != policy and heads else None
    texts, _ = decode(lm, prompts, rows, k=k, max_new_tokens=max_new_tokens, backbone=separate)
    return {spec["folder"]: _texts(pairs, [row[spec["folder"]] for row in texts]) for spec in guides}


def _guides(specs: Sequence[Mapping[str, Any]], heads: Mapping[str, FittedHead], user: str) -> list[HeadGuide]:
    """The guides of one user. All weights of a head share one callable, so its rewards are computed once a step."""
    rewards = {path: _reward(head, user) for path, head in heads.items()}
    return [HeadGuide(s["folder"], rewards.get(s["model"]), 0.0 if s["model"] is None else s["w"]) for s in specs]


def _reward(fitted: FittedHead, user: str) -> Callable[[torch.Tensor], torch.Tensor]:
    state = fitted.state(user)
    return lambda hidden: fitted.head.token_rewards(hidden, state)


def in_context(
    models: Any,
    block: pa.Table,
    block_id: int,
    *,
    policy: str,
    max_new_tokens: int,
    supports: str,
    written: Sequence[str],
    cells: Sequence[Mapping[str, Any]],
) -> Tables:
    """Log-probabilities of both responses under the user's demonstrations and, for `written` ids, the greedy text.

    `supports`: Parquet file of the pairs that methods may learn from. `cells`: mappings with `folder`, `method`,
    `settings`, `k`, `seed`.
    """
    lm = models[policy]
    pairs = pairs_from_table(block)
    users = sorted({pair.user_id for pair in pairs})
    support = pairs_from_table(pq.read_table(supports, filters=pc.field("user_id").isin(users)))
    tables = {}
    for cell in cells:
        method = load_method(cell["method"])(method_settings(cell["method"], cell["settings"]))
        items, kept, dropped = [], [], []
        for pair in pairs:
            own = [row for row in support if row.user_id == pair.user_id]
            branches = tuple(tuple(response_ids(lm.tokenizer, pair.prompt, y)) for y in (pair.chosen, pair.rejected))
            budget = lm.window - max(max_new_tokens, sum(len(branch) for branch in branches))
            shown = demonstrate(
                pair,
                own,
                k=cell["k"],
                retriever=method.retriever,
                seed=cell["seed"],
                style=method.settings.style,
                layout=method.settings.layout,
                tokenizer=lm.tokenizer,
                budget=budget,
            )
            items.append(InContextItem(tuple(shown.prompt_ids), branches, pair.example_id in set(written)))
            kept.append(shown.kept)
            dropped.append(shown.dropped)
        outputs = write_and_trace(lm, items, max_new_tokens)
        columns: dict[str, Any] = _keys(pairs)
        for side, name in enumerate(("chosen", "rejected")):
            columns[f"logprobs_{name}"] = pa.array([_list(out.logprobs[side]) for out in outputs], FLOATS)
        columns["demonstrations"] = pa.array(kept, pa.int32())
        columns["demonstrations_dropped"] = pa.array(dropped, pa.int32())
        columns["text"] = pa.array([out.decoded.text if out.decoded else None for out in outputs], pa.string())
        columns["finished"] = pa.array([out.decoded.finished if out.decoded else None for out in outputs], pa.bool_())
        tables[cell["folder"]] = pa.table(columns)
    return tables


def own_reward(
    models: Any, block: pa.Table, block_id: int, *, backbone: str, zero_shot: str, cells: Sequence[Mapping[str, str]]
) -> Tables:
    """Final reward of each guided text and of the zero-shot text, by the head that guided it.

    One packed pass an example: its prompt once, every different text a branch. `zero_shot` is the folder of the
    zero-shot texts; `cells` are mappings with `folder`, `texts` (folder of guided texts) and `model`.
    """
    lm = models[backbone]
    pairs = pairs_from_table(block)
    baseline = _read_texts(zero_shot, block_id, pairs)
    guided = {cell["folder"]: _read_texts(cell["texts"], block_id, pairs) for cell in cells}
    distinct = [sorted({baseline[i], *(texts[i] for texts in guided.values())}) for i in range(len(pairs))]
    states = final_states(lm, [(pair.prompt, texts) for pair, texts in zip(pairs, distinct, strict=True)])
    final = [dict(zip(texts, own, strict=True)) for texts, own in zip(distinct, states, strict=True)]
    tables = {}
    for cell in cells:
        head = FittedHead(Path(cell["model"]))
        columns: dict[str, Any] = _keys(pairs)
        for name, texts in (("guided", guided[cell["folder"]]), ("zero_shot", baseline)):
            rewards = [
                float(head.head.token_rewards(final[i][texts[i]], head.state(pair.user_id)))
                for i, pair in enumerate(pairs)
            ]
            columns[f"reward_{name}"] = pa.array(rewards, pa.float32())
        tables[cell["folder"]] = pa.table(columns)
    return tables


def score_texts(
    models: Any,
    block: pa.Table,
    block_id: int,
    *,
    bertscore: Mapping[str, Any] | None,
    cells: Sequence[Mapping[str, str]],
) -> Tables:
    """ROUGE-1, ROUGE-L and BERTScore of every written text against the pair's reference.

    Texts of all cells are scored together, equal (text, reference) pairs once. `cells`: mappings with `folder` and
    `texts`. Pairs without a reference have no score, with the reason in `note`.
    """
    pairs = pairs_from_table(block)
    spec = BertScoreSpec(**bertscore) if bertscore is not None else None
    texts = {cell["folder"]: _read_texts(cell["texts"], block_id, pairs) for cell in cells}
    candidates = [text for cell in cells for text in texts[cell["folder"]]]
    references = [pair.reference for _ in cells for pair in pairs]
    scores = text_scores(candidates, references, bertscore=spec)
    tables = {}
    for position, cell in enumerate(cells):
        own = scores[position * len(pairs) : (position + 1) * len(pairs)]
        columns: dict[str, Any] = _keys(pairs)
        for name in ("rouge1", "rougeL", "bertscore"):
            columns[name] = pa.array([getattr(score, name) for score in own], pa.float64())
        columns["note"] = pa.array([score.note for score in own], pa.string())
        tables[cell["folder"]] = pa.table(columns)
    return tables


def _keys(pairs: Sequence[Pair]) -> dict[str, Any]:
    return {
        name: pa.array([getattr(p, name) for p in pairs], pa.string()) for name in ("example_id", "user_id", "split")
    }


def _texts(pairs: Sequence[Pair], decoded: Sequence[Any]) -> pa.Table:
    columns = _keys(pairs)
    columns["text"] = pa.array([item.text for item in decoded], pa.string())
    columns["tokens"] = pa.array([len(item.ids) for item in decoded], pa.int32())
    columns["finished"] = pa.array([item.finished for item in decoded], pa.bool_())
    return pa.table(columns)


def _read_texts(folder: str, block_id: int, pairs: Sequence[Pair]) -> list[str]:
    """The texts that an earlier stage wrote for the same pairs: blocks are cut alike, so the part number is too."""
    table = pq.read_table(part_path(Path(folder), block_id), columns=["example_id", "text"])
    by_id = dict(zip(table["example_id"].to_pylist(), table["text"].to_pylist(), strict=True))
    return [by_id[pair.example_id] for pair in pairs]


def _list(values: torch.Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()
