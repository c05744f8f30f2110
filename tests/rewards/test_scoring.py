"""Protects the way from text to reward: `score` reads the state after the end of the turn, and agrees with training."""

import pytest
import torch

from prefsel_ray.data.schema import Pair
from prefsel_ray.errors import PrefselError
from prefsel_ray.lm.chat import prompt_ids, response_ids
from prefsel_ray.lm.reference import load
from prefsel_ray.rewards.global_rm import GlobalRM, GlobalSettings
from prefsel_ray.rewards.scoring import final_states, pair_features, score

PAIRS = [
    Pair(
        f"id{i}", "d", f"u{i % 2}", ({"role": "user", "content": f"Name the colour {i}"},), f"red {i}", "not " * i + "x"
    )
    for i in range(6)
]


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return load("toy:2x32", cache=tmp_path_factory.mktemp("models"), device="cpu")


def test_the_state_is_the_one_after_the_last_token_of_the_finished_response(lm):
    messages = PAIRS[3].prompt
    (states,) = final_states(lm, [(messages, (PAIRS[3].chosen, PAIRS[3].rejected))])
    for state, response in zip(states, (PAIRS[3].chosen, PAIRS[3].rejected), strict=True):
        ids = torch.tensor([prompt_ids(lm.tokenizer, messages) + response_ids(lm.tokenizer, messages, response)])
        with torch.no_grad():
            alone = lm.model.model(input_ids=ids).last_hidden_state[0, -1]
        torch.testing.assert_close(state, alone, rtol=1e-5, atol=1e-5)


def test_scores_of_a_pairs_two_sides_differ_by_the_margin_of_training(lm):
    features = pair_features(lm, PAIRS)
    assert features.users == ("u0", "u1", "u0", "u1", "u0", "u1")
    head = GlobalRM(GlobalSettings(l2=0.1))
    head.fit(features, seed=0)
    state = head.user_state("u0")
    losses = []
    for pair in PAIRS:
        margin = score(head, lm, pair.prompt, pair.chosen, state) - score(head, lm, pair.prompt, pair.rejected, state)
        losses.append(torch.nn.functional.softplus(torch.tensor(-margin)).item())
    assert head.fitted["train_loss"] == pytest.approx(sum(losses) / 6, abs=1e-5)


def test_a_text_longer_than_the_window_is_refused(lm):
    with pytest.raises(PrefselError, match="window"):
        final_states(lm, [(PAIRS[0].prompt, ("long " * lm.window,))])
