"""Protects pair features (checks, selection, order), the held-out slice and the choice of the L2 penalty."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from prefsel_ray.errors import PrefselError
from prefsel_ray.rewards.protocol import PairFeatures
from prefsel_ray.rewards.solve import best_l2, bt_direction, held_out_rows, inverse_spread, pair_weights


def features(ids, users, chosen, rejected):
    return PairFeatures(tuple(ids), tuple(users), torch.tensor(chosen), torch.tensor(rejected))


THREE = features("cab", "vuv", [[1.0], [2.0], [3.0]], [[0.0], [0.5], [7.0]])


def test_rows_of_a_user_and_rows_in_order_keep_their_columns_together():
    assert THREE.of_user("v").example_ids == ("c", "b")
    assert THREE.of_user("v").rejected.tolist() == [[0.0], [7.0]]
    assert len(THREE.of_user("w")) == 0
    ordered = THREE.in_order()
    assert (ordered.example_ids, ordered.users) == (("a", "b", "c"), ("u", "v", "v"))
    assert ordered.chosen.tolist() == [[2.0], [3.0], [1.0]]


def test_states_of_another_precision_become_float32():
    half = PairFeatures(("a",), ("u",), torch.ones(1, 2, dtype=torch.bfloat16), torch.ones(1, 2, dtype=torch.float64))
    assert (half.chosen.dtype, half.rejected.dtype) == (torch.float32, torch.float32)


def test_columns_that_disagree_and_ids_that_stand_twice_are_refused():
    with pytest.raises(PrefselError, match="2 example ids, 1 users, 2 rows"):
        features("ab", "u", [[1.0], [1.0]], [[1.0], [1.0]])
    with pytest.raises(PrefselError, match=r"must both be \[N, D\]"):
        features("a", "u", [[1.0]], [[1.0, 2.0]])
    with pytest.raises(PrefselError, match="example_id a stands twice"):
        features("aa", "uu", [[1.0], [1.0]], [[1.0], [1.0]]).in_order()


def test_the_held_out_slice_takes_a_tenth_of_each_users_rows_and_never_the_last_one():
    users = ["big"] * 200 + ["one"] + ["two"] * 2 + [f"small{i}" for i in range(300) for _ in range(3)]
    mask = held_out_rows(users, 0.1, seed=0)
    by_user = {user: mask[[i for i, name in enumerate(users) if name == user]] for user in set(users)}
    assert by_user["big"].sum() == 20
    assert by_user["one"].sum() == 0
    assert all(own.sum() < len(own) for own in by_user.values())
    small = sum(by_user[f"small{i}"].sum() for i in range(300))
    assert 65 <= small <= 115  # 90 expected, one at most from each of 300 users


def test_the_held_out_slice_depends_on_seed_and_user_but_on_no_other_user():
    alone = held_out_rows(["u"] * 40, 0.1, seed=3)
    together = held_out_rows(["t"] * 7 + ["u"] * 40, 0.1, seed=3)
    assert (together[7:] == alone).all()
    assert (held_out_rows(["u"] * 40, 0.1, seed=4) != alone).any()


def test_the_held_out_slice_does_not_depend_on_the_hash_seed():
    program = "from prefsel_ray.rewards.solve import held_out_rows as h; print(h(['u']*40+['v']*9, .1, 3).nonzero()[0])"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONHASHSEED": s}
        ).stdout
        for s in ("0", "1")
    }
    assert len(seen) == 1
    assert seen != {""}


def test_pair_weights_count_pairs_or_users_the_same():
    assert pair_weights(["a", "b", "b", "b"], "pairs").tolist() == [0.25] * 4
    np.testing.assert_allclose(pair_weights(["a", "b", "b", "b"], "users"), [1 / 2, 1 / 6, 1 / 6, 1 / 6])


def test_inverse_spread_is_one_over_the_deviation_of_both_sides_and_zero_where_nothing_varies():
    pairs = features("ab", "uu", [[1.0, 5.0], [3.0, 5.0]], [[5.0, 5.0], [7.0, 5.0]])
    torch.testing.assert_close(inverse_spread(pairs), torch.tensor([1 / 5**0.5, 0.0]))


def test_the_l2_with_the_lowest_mean_loss_wins_and_the_stronger_of_equals():
    losses = {1.0: np.array([0.3, 0.5]), 0.1: np.array([0.2, 0.4]), 0.01: np.array([0.4, 0.2]), 0.001: np.ones(2)}
    assert best_l2(losses) == 0.1


@pytest.mark.parametrize(("pairs", "width"), [(3, 40), (40, 3)])
def test_the_direction_is_where_the_gradient_of_the_penalised_loss_is_zero(pairs, width):
    x = np.random.default_rng(0).normal(size=(pairs, width))
    weights = np.full(pairs, 1 / pairs)
    for start in (None, np.ones(width)):
        b = bt_direction(x, weights, 0.02, start)
        gradient = 0.02 * b - sum(w * row / (1 + np.exp(row @ b)) for w, row in zip(weights, x, strict=True))
        np.testing.assert_allclose(gradient, np.zeros(width), atol=1e-6)
        assert np.linalg.norm(b) > 0.5
