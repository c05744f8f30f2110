"""Protects that each head learns what its definition says, on users whose directions are known."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from prefsel_ray.rewards.global_rm import GlobalRM, GlobalSettings
from prefsel_ray.rewards.lore import LoRE, LoreSettings
from prefsel_ray.rewards.mpu import MPU, MpuSettings
from prefsel_ray.rewards.protocol import PairFeatures, bt_loss
from tests.rewards.planted import accuracy, bayes_accuracy, planted_pairs, user_directions

USERS = user_directions(users=20, width=16, clusters=2, seed=3, strength=4.0)
MANY, FEW, TEST = (planted_pairs(USERS, n, seed=s) for n, s in ((120, 4), (8, 5), (100, 6)))


@pytest.fixture(scope="module")
def lore_many():
    head = LoRE(LoreSettings(rank=2))
    head.fit(MANY, seed=0)
    return head


def naive_margins(head, pairs: PairFeatures) -> torch.Tensor:
    sides = [
        torch.stack([head.token_rewards(h, head.user_state(u)) for h, u in zip(side, pairs.users, strict=True)])
        for side in (pairs.chosen, pairs.rejected)
    ]
    return sides[0] - sides[1]


def test_lore_of_rank_one_is_the_global_head_on_the_same_loss():
    common = {"l2": 0.03, "scale": 100.0}
    one = LoRE(LoreSettings(rank=1, **common, held_out_fraction=1e-9, steps=3000, lr=0.2))
    shared = GlobalRM(GlobalSettings(weighting="users", **common))
    for head in (one, shared):
        head.fit(FEW, seed=0)
    assert one.fitted["held_out_pairs"] == 0
    assert torch.equal(one.tensors["weights"], torch.ones(20, 1))
    expected = shared.tensors["direction"]
    torch.testing.assert_close(one.tensors["basis"][:, 0], expected, rtol=0, atol=1e-3 * float(expected.norm()))


def test_the_global_head_is_the_minimum_of_the_penalised_bradley_terry_loss():
    head = GlobalRM(GlobalSettings(l2=0.05, scale=7.0))
    head.fit(FEW, seed=0)
    states = torch.cat([FEW.chosen, FEW.rejected]).double()
    x = (FEW.chosen - FEW.rejected).double() / states.std(dim=0, unbiased=False)
    b = torch.zeros(16, dtype=torch.float64)
    for _ in range(20):  # Newton's method on the same loss, written out
        p = torch.sigmoid(-(x @ b))
        gradient = 0.05 * b - x.T @ p / len(x)
        hessian = 0.05 * torch.eye(16) + (x.T * (p * (1 - p))) @ x / len(x)
        b = b - torch.linalg.solve(hessian, gradient)
    margin = naive_margins(head, FEW).double()
    torch.testing.assert_close(margin, x @ b, rtol=0, atol=1e-4)


def test_lore_comes_within_two_and_a_half_points_of_bayes(lore_many):
    assert bayes_accuracy(USERS, TEST) == pytest.approx(0.83, abs=0.05)
    assert accuracy(lore_many, TEST) > bayes_accuracy(USERS, TEST) - 0.025


def test_mpu_with_many_pairs_beats_one_head_for_all_and_lore_beats_mpu_with_few():
    shared, own, few_own, few_lore = GlobalRM(), MPU(), MPU(), LoRE(LoreSettings(rank=2))
    for head, train in ((shared, MANY), (own, MANY), (few_own, FEW), (few_lore, FEW)):
        head.fit(train, seed=0)
    assert accuracy(own, TEST) > accuracy(shared, TEST) + 0.01
    assert accuracy(few_lore, TEST) > accuracy(few_own, TEST) + 0.01


def test_unseen_users_with_thirty_pairs_come_within_six_points_of_bayes(lore_many):
    support, test = (planted_pairs(USERS[:10], n, seed=s) for n, s in ((30, 11), (100, 12)))
    states = {user: lore_many.adapt(user, support.of_user(user)) for user in set(support.users)}
    assert accuracy(lore_many, test, states) > bayes_accuracy(USERS, test) - 0.06


def test_adapting_with_many_pairs_of_a_seen_user_recovers_its_direction(lore_many):
    own = MPU()
    own.fit(MANY, seed=0)
    for head in (lore_many, own):
        for user in ("u00", "u07", "u19"):
            fresh = head.direction(head.adapt("new", MANY.of_user(user)))
            learned = head.direction(head.user_state(user))
            spread = MANY.chosen.std(dim=0)
            assert cosine_similarity(fresh * spread, learned * spread, dim=0) > 0.95


def test_lore_weights_lie_on_the_simplex_and_the_prior_is_their_mean(lore_many):
    states = torch.stack([lore_many.user_state(f"u{u:02d}") for u in range(20)])
    assert (states >= 0).all()
    torch.testing.assert_close(states.sum(dim=1), torch.ones(20))
    torch.testing.assert_close(lore_many.user_state("unknown"), states.mean(dim=0))
    adapted = lore_many.adapt("new", FEW.of_user("u03"))
    torch.testing.assert_close(adapted.sum(), torch.tensor(1.0))


def test_lore_drops_directions_that_nobody_weighs():
    head = LoRE(LoreSettings(rank=5, drop_below=0.19, steps=30))
    head.fit(planted_pairs(USERS[:1], 60, seed=4), seed=0)
    weights = head.tensors["weights"]
    assert 1 <= weights.shape[1] == head.tensors["basis"].shape[1] < 5
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(1))


def test_lore_moves_every_parameter():
    short, long = (LoRE(LoreSettings(rank=2, steps=n, held_out_fraction=1e-9)) for n in (1, 5))
    for head in (short, long):
        head.fit(FEW, seed=0)
    assert (short.tensors["basis"] != long.tensors["basis"]).all()
    assert (short.tensors["weights"] != long.tensors["weights"]).all()


def test_another_seed_starts_lore_elsewhere_and_the_same_seed_does_not():
    first, same, other = (LoRE(LoreSettings(rank=2, steps=20)) for _ in range(3))
    for head, seed in ((first, 0), (same, 0), (other, 1)):
        head.fit(FEW, seed=seed)
    assert torch.equal(first.tensors["basis"], same.tensors["basis"])
    assert not torch.equal(first.tensors["basis"], other.tensors["basis"])


def test_lore_runs_of_several_l2_equal_the_run_of_the_chosen_one_alone():
    together = LoRE(LoreSettings(rank=2, steps=60))
    together.fit(FEW, seed=0)
    alone = LoRE(LoreSettings(rank=2, steps=60, l2=together.fitted["l2"]))
    alone.fit(FEW, seed=0)
    assert alone.fitted["steps"] == together.fitted["steps"]
    assert alone.fitted["held_out_loss"] == pytest.approx(together.fitted["held_out_loss"], abs=1e-5)
    difference = (alone.tensors["basis"] - together.tensors["basis"]).norm()
    assert difference < 1e-3 * together.tensors["basis"].norm()


def test_an_mpu_head_sees_its_own_users_pairs_only():
    head = MPU(MpuSettings(l2=0.1))
    head.fit(FEW, seed=0)
    swapped = PairFeatures(
        FEW.example_ids,
        FEW.users,
        torch.where(torch.tensor([u == "u05" for u in FEW.users])[:, None], FEW.rejected, FEW.chosen),
        torch.where(torch.tensor([u == "u05" for u in FEW.users])[:, None], FEW.chosen, FEW.rejected),
    )
    other = MPU(MpuSettings(l2=0.1))
    other.fit(swapped, seed=0)
    torch.testing.assert_close(other.user_state("u06"), head.user_state("u06"))
    torch.testing.assert_close(other.user_state("u05"), -head.user_state("u05"))


def test_scale_divides_rewards_and_a_converged_direction_makes_up_for_it():
    small, large = GlobalRM(GlobalSettings(l2=0.1, scale=1.0)), GlobalRM(GlobalSettings(l2=0.1, scale=100.0))
    for head in (small, large):
        head.fit(FEW, seed=0)
    torch.testing.assert_close(large.tensors["direction"], 100.0 * small.tensors["direction"])
    torch.testing.assert_close(naive_margins(large, FEW), naive_margins(small, FEW), rtol=1e-4, atol=1e-4)


def test_heads_stay_usable_where_features_have_more_dimensions_than_pairs():
    wide = user_directions(users=5, width=200, clusters=1, seed=7, strength=6.0)
    train, test = planted_pairs(wide, 40, seed=8), planted_pairs(wide, 100, seed=9)
    for head in (GlobalRM(), LoRE(), MPU()):
        head.fit(train, seed=0)
        assert np.isfinite(head.fitted["margin_std"])
        assert accuracy(head, test) > 0.55


def test_bradley_terry_loss_neither_overflows_nor_vanishes():
    margins = torch.tensor([0.0, 2.0, -120.0, 120.0])
    expected = torch.tensor([0.693147, 0.126928, 120.0, 0.0])
    torch.testing.assert_close(bt_loss(margins), expected, rtol=1e-5, atol=1e-6)
