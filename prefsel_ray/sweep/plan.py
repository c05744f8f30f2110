"""From a sweep to its cells: which steps there are and what each depends on. Nothing is run here."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prefsel_ray.data.source import Source
from prefsel_ray.lm.reference import identity
from prefsel_ray.rewards import load_method, method_settings
from prefsel_ray.sweep.cell import Cell, safe_name
from prefsel_ray.sweep.spec import Sweep, source_fields
from prefsel_ray.sweep.store import Store


@dataclass(frozen=True)
class Plan:
    """All cells of a sweep, by stage, in the order in which stages run."""

    sweep: Sweep
    source: Source
    pairs: Cell
    traces: dict[str, Cell]  # by model reference; the backbone's holds hidden states
    rewards: tuple[Cell, ...]
    reward_traces: tuple[Cell, ...]
    in_context: tuple[Cell, ...]
    generations: tuple[Cell, ...]  # zero-shot first, then guided
    own_rewards: tuple[Cell, ...]
    text_scores: tuple[Cell, ...]

    @property
    def stages(self) -> list[tuple[str, tuple[Cell, ...]]]:
        return [
            ("pairs", (self.pairs,)),
            ("trace", tuple(self.traces.values())),
            ("reward", self.rewards),
            ("reward_trace", self.reward_traces),
            ("in_context", self.in_context),
            ("generate", self.generations),
            ("own_reward", self.own_rewards),
            ("text_scores", self.text_scores),
        ]

    @property
    def cells(self) -> list[Cell]:
        return [cell for _, cells in self.stages for cell in cells]


def build(sweep: Sweep, source: Source, cache: Path) -> Plan:
    """The cells of `sweep` on `source` (its data, or its fallback).

    Raises PrefselError where a model, a method or a file is missing, before anything is written.
    """
    models = {reference: identity(reference, cache) for reference in dict.fromkeys((sweep.backbone, *sweep.policies))}
    pairs = Cell(
        "pairs",
        type(source).__name__,
        {
            **source_fields(source),
            "splits": asdict(sweep.splits),
            "block_rows": sweep.block_rows,
            "window_of": sorted(models.values()),
            "max_new_tokens": sweep.max_new_tokens,
        },
        label={"dataset": type(source).__name__},
    )
    traces = {reference: _trace(sweep, reference, models[reference], pairs) for reference in models}
    backbone = traces[sweep.backbone]
    rewards = tuple(
        Cell(
            "reward",
            f"{method}-seed{seed}",
            {"method": method, "settings": _settings(sweep, method), "seed": seed},
            (backbone,),
            {"method": method, "seed": seed},
        )
        for seed in sweep.seeds
        for method in sweep.of_kind("head")
    )
    reward_traces = tuple(Cell("reward_trace", c.name, {}, (c, backbone), c.label) for c in rewards)
    in_context, generations, own_rewards = [], [], []
    for policy in sweep.policies:
        in_context += _in_context(sweep, policy, models[policy], pairs)
        writes = _generations(sweep, policy, models, pairs, rewards)
        generations += writes
        zero_shot, guided = writes[0], writes[1:]
        own_rewards += [
            Cell("own_reward", cell.name, {"backbone": models[sweep.backbone]}, (cell, zero_shot), cell.label)
            for cell in guided
        ]
    written = [*generations, *in_context]
    bertscore = asdict(sweep.bertscore) if sweep.bertscore else None
    text_scores = tuple(
        Cell("text_scores", c.name, {"bertscore": bertscore, "written": sweep.written}, (c, pairs), c.label)
        for c in written
    )
    return Plan(
        sweep,
        source,
        pairs,
        traces,
        rewards,
        reward_traces,
        tuple(in_context),
        tuple(generations),
        tuple(own_rewards),
        text_scores,
    )


def _trace(sweep: Sweep, reference: str, model: str, pairs: Cell) -> Cell:
    fields = {"model": model, "states": reference == sweep.backbone, "logprobs": reference in sweep.policies}
    return Cell("trace", reference, fields, (pairs,), {"policy": reference})


def _settings(sweep: Sweep, method: str) -> dict[str, Any]:
    return asdict(method_settings(method, sweep.settings.get(method, {})))


def _in_context(sweep: Sweep, policy: str, model: str, pairs: Cell) -> list[Cell]:
    cells = []
    for method in sweep.of_kind("in_context"):
        chosen = load_method(method)
        settings = _settings(sweep, method)
        # Retrieval draws nothing, so more seeds would repeat the same text.
        seeds = sweep.in_context_seeds if chosen.is_random else sweep.in_context_seeds[:1]
        for k in sweep.shots:
            for seed in seeds:
                fields = {
                    "model": model,
                    "method": method,
                    "settings": settings,
                    "k": k,
                    "seed": seed,
                    "ranked": sweep.in_context_ranked,
                    "written": sweep.written,
                    "max_new_tokens": sweep.max_new_tokens,
                }
                label = {"method": method, "seed": seed, "policy": policy, "k": k, "variant": f"k={k}"}
                name = f"{method}-k{k}-seed{seed}-{safe_name(policy, 30)}"
                cells.append(Cell("in_context", name, fields, (pairs,), label))
    return cells


def _generations(sweep: Sweep, policy: str, models: dict[str, str], pairs: Cell, rewards: Sequence[Cell]) -> list[Cell]:
    common = {"model": models[policy], "written": sweep.written, "max_new_tokens": sweep.max_new_tokens}
    label = {"method": "zero_shot", "seed": None, "policy": policy, "w": None}
    cells = [Cell("generate", f"zero_shot-{safe_name(policy, 30)}", common, (pairs,), label)]
    for reward in rewards:
        for w in sweep.decode_weights:
            fields = {**common, "backbone": models[sweep.backbone], "k": sweep.top_k, "w": w}
            name = f"{reward.name}-w{w:g}-{safe_name(policy, 30)}"
            cells.append(Cell("generate", name, fields, (pairs, reward), {**reward.label, "policy": policy, "w": w}))
    return cells


def remaining(plan: Plan, store: Store) -> dict[str, tuple[int, int]]:
    """(cells still to do, cells in all) by stage."""
    return {stage: (sum(not store.is_done(c) for c in cells), len(cells)) for stage, cells in plan.stages}
