"""Protects what every registered head promises: determinism, row order, priors, saving, settings, clear failures.

A new head method is tested here as soon as its registry line exists.
"""

import numpy as np
import pytest
import torch

from prefsel_ray.errors import PrefselError
from prefsel_ray.rewards import METHODS, load_method, load_saved, method_settings
from prefsel_ray.rewards.protocol import HeadReward, NonFiniteError, PairFeatures
from tests.rewards.planted import accuracy, planted_pairs, user_directions

HEADS = [name for name, info in METHODS.items() if info.kind == "head"]
DIRECTIONS = user_directions(users=6, width=12, clusters=2, seed=1)
TRAIN = planted_pairs(DIRECTIONS, per_user=30, seed=2)


def fitted(name: str, train: PairFeatures = TRAIN, seed: int = 0, **settings):
    head = load_method(name)(method_settings(name, settings))
    head.fit(train, seed=seed)
    return head


@pytest.fixture(scope="module")
def heads():
    return {name: fitted(name) for name in HEADS}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_has_every_part_of_the_protocol(name, heads):
    assert isinstance(heads[name], HeadReward)
    assert heads[name].method == name
    assert heads[name].settings.trained_at == "final"
    assert heads[name].settings.scale > 0
    assert heads[name].settings.normalise is None


@pytest.mark.parametrize("name", HEADS)
def test_a_head_ranks_its_training_pairs_well_above_chance(name, heads):
    assert accuracy(heads[name], TRAIN) > 0.65


@pytest.mark.parametrize("name", HEADS)
def test_rewards_keep_the_leading_shape_and_come_in_float32(name, heads):
    hidden = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(0))
    state = heads[name].user_state("u03")
    rewards = heads[name].token_rewards(hidden, state)
    assert rewards.shape == (2, 3)
    assert rewards.dtype == torch.float32
    assert heads[name].token_rewards(hidden.bfloat16(), state).dtype == torch.float32
    torch.testing.assert_close(rewards[1, 2], heads[name].token_rewards(hidden[1, 2], state), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_the_order_of_rows_does_not_matter(name, heads):
    shuffled = TRAIN.select(np.random.default_rng(5).permutation(len(TRAIN)))
    again = fitted(name, shuffled)
    for user in ("u00", "u05"):
        torch.testing.assert_close(again.user_state(user), heads[name].user_state(user), rtol=0, atol=0)
        expected = heads[name].token_rewards(TRAIN.chosen, heads[name].user_state(user))
        torch.testing.assert_close(again.token_rewards(TRAIN.chosen, again.user_state(user)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", HEADS)
def test_the_order_of_support_rows_does_not_matter(name, heads):
    support = planted_pairs(DIRECTIONS[:1], per_user=9, seed=8, prefix="new")
    backwards = support.select(list(range(9))[::-1])
    first, second = heads[name].adapt("new00", support), heads[name].adapt("new00", backwards)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("name", HEADS)
def test_a_user_without_support_gets_the_prior_of_an_unknown_user(name, heads):
    prior = heads[name].user_state("nobody has this name")
    assert torch.isfinite(prior).all()
    for support in (None, TRAIN.select([])):
        torch.testing.assert_close(heads[name].adapt("new", support), prior, rtol=0, atol=0)


@pytest.mark.parametrize("name", HEADS)
def test_states_of_different_users_share_no_memory(name, heads):
    first, second = heads[name].adapt("a", None), heads[name].adapt("b", None)
    first.fill_(7.0)
    assert not (second == 7.0).any()
    heads[name].user_state("u00").fill_(7.0)
    assert not (heads[name].user_state("u00") == 7.0).any()


@pytest.mark.parametrize("name", HEADS)
def test_a_saved_head_gives_the_same_rewards_bit_for_bit(name, heads, tmp_path):
    heads[name].save(tmp_path / "model")
    for loaded in (load_method(name).load(tmp_path / "model"), load_saved(tmp_path / "model")):
        assert loaded.settings == heads[name].settings
        support = planted_pairs(DIRECTIONS[:1], per_user=9, seed=8, prefix="new")
        for state, other in (
            (heads[name].user_state("u02"), loaded.user_state("u02")),
            (heads[name].user_state("unknown"), loaded.user_state("unknown")),
            (heads[name].adapt("new00", support), loaded.adapt("new00", support)),
        ):
            assert torch.equal(state, other)
            assert torch.equal(
                heads[name].token_rewards(TRAIN.chosen, state), loaded.token_rewards(TRAIN.chosen, other)
            )


@pytest.mark.parametrize("name", HEADS)
def test_loading_another_method_or_an_empty_folder_is_one_clear_line(name, heads, tmp_path):
    with pytest.raises(PrefselError, match=r"reward\.json: no such file"):
        load_saved(tmp_path)
    heads[name].save(tmp_path)
    other = next(head for head in HEADS if head != name)
    with pytest.raises(PrefselError, match=f"holds method {name}"):
        load_method(other).load(tmp_path)


@pytest.mark.parametrize("side", ["chosen", "rejected"])
@pytest.mark.parametrize("name", HEADS)
def test_nan_in_a_feature_stops_the_fit_and_names_the_row(name, side):
    states = {"chosen": TRAIN.chosen.clone(), "rejected": TRAIN.rejected.clone()}
    states[side][17, 3] = float("nan")
    broken = PairFeatures(TRAIN.example_ids, TRAIN.users, **states)
    with pytest.raises(NonFiniteError, match=f"{side} state of 1 row.*{TRAIN.example_ids[17]}"):
        fitted(name, broken)


@pytest.mark.parametrize("name", HEADS)
def test_nan_in_support_stops_the_adaptation(name, heads):
    support = TRAIN.of_user("u01")
    support.chosen[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match="chosen state"):
        heads[name].adapt("new", support)


@pytest.mark.parametrize("name", HEADS)
def test_a_fit_without_pairs_and_use_before_the_fit_are_refused(name):
    with pytest.raises(PrefselError, match="no training pairs"):
        fitted(name, TRAIN.select([]))
    with pytest.raises(PrefselError, match="not fitted yet"):
        load_method(name)().token_rewards(torch.zeros(12), torch.zeros(0))


@pytest.mark.parametrize("name", HEADS)
def test_one_pair_of_one_user_is_enough_to_fit(name):
    head = fitted(name, TRAIN.select([4]))
    assert accuracy(head, TRAIN.select([4])) == 1.0


@pytest.mark.parametrize("name", HEADS)
def test_a_constant_dimension_is_ignored_rather_than_blown_up(name):
    chosen, rejected = TRAIN.chosen.clone(), TRAIN.rejected.clone()
    chosen[:, 5] = rejected[:, 5] = 40.0
    head = fitted(name, PairFeatures(TRAIN.example_ids, TRAIN.users, chosen, rejected))
    probe = torch.zeros(2, 12)
    probe[1, 5] = 1000.0
    rewards = head.token_rewards(probe, head.user_state("u00"))
    assert rewards[0] == rewards[1]


@pytest.mark.parametrize("name", HEADS)
def test_centring_moves_every_reward_by_one_constant_to_mean_zero(name, heads):
    centred = fitted(name, centring="train_mean")
    state = centred.user_state("u04")
    plain = heads[name].token_rewards(TRAIN.chosen, heads[name].user_state("u04"))
    shift = plain - centred.token_rewards(TRAIN.chosen, state)
    torch.testing.assert_close(shift, shift[:1].expand_as(shift), rtol=1e-4, atol=1e-3)
    everything = torch.cat([TRAIN.chosen, TRAIN.rejected])
    assert abs(float(centred.token_rewards(everything, state).mean())) < 1e-3


@pytest.mark.parametrize("name", HEADS)
def test_candidate_std_divides_rewards_and_is_required_once_asked_for(name, heads, tmp_path):
    head = fitted(name, normalise="candidate_std")
    state = head.user_state("u00")
    with pytest.raises(PrefselError, match="normalise='candidate_std'"):
        head.token_rewards(TRAIN.chosen, state)
    head.set_candidate_std(4.0)
    head.save(tmp_path)
    plain = heads[name].token_rewards(TRAIN.chosen, state)
    torch.testing.assert_close(load_saved(tmp_path).token_rewards(TRAIN.chosen, state), plain / 4.0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("trained_at", "prefix"), ("normalise", "std"), ("scale", 0.0), ("l2", -1.0), ("held_out_fraction", 1.0)],
)
@pytest.mark.parametrize("name", HEADS)
def test_an_impossible_setting_is_named(name, setting, value):
    with pytest.raises(PrefselError, match=f"head setting {setting} is"):
        method_settings(name, {setting: value})
