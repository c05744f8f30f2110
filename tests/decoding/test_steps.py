"""Protects the bookkeeping of the decoding loop: who parts from whom, and where each row goes."""

import torch

from prefsel_ray.decoding.guides import HeadGuide
from prefsel_ray.decoding.steps import Lane, arrange, choose, grow


def _lane(weight=1.0, reward=None):
    return Lane(HeadGuide(f"w{weight}", reward, weight))


def test_lanes_that_choose_alike_stay_one_row_and_an_end_token_takes_a_lane_out():
    a, b, c, d = (_lane() for _ in range(4))
    children = grow([[a, b, c], [d]], tokens=[[5, 6, 7], [8, 9, 7]], picks=[[1, 2, 1], [0]], eos_ids=[7])
    assert [(child.parent, child.leaf, child.lanes) for child in children] == [(0, 1, [a, c]), (1, 0, [d])]
    assert (a.ids, b.ids, c.ids, d.ids) == ([6], [], [6], [8])
    assert [lane.finished for lane in (a, b, c, d)] == [False, True, False, False]


def test_rows_without_picks_take_the_likeliest_token():
    lane = _lane()
    assert grow([[lane]], tokens=[[5]], picks=[], eos_ids=[])[0].leaf == 0
    assert lane.ids == [5]


def test_each_lane_weighs_the_reward_itself():
    leaves = torch.tensor([[[0.0], [1.0], [3.0]]])  # one row, three leaves, states of width one
    logprobs = torch.tensor([[-1.0, -1.5, -4.0]])

    def reward(hidden):
        return hidden[..., 0]

    row = [_lane(0.0, reward), _lane(0.4, reward), _lane(1.0, reward), _lane(2.0, reward), _lane(-9.0, reward)]
    # At weight 1 the scores are -1, -0.5, -1; at 2 they are -1, 0.5, 2; at 0.4 they are -1, -1.1, -2.8.
    assert choose([row], logprobs, leaves) == [[0, 0, 1, 2, 0]]


def test_children_stay_in_their_parents_place_where_zones_allow():
    assert arrange(parents=[0, 1, 2], zones=[0, 0, 0]) == [0, 1, 2]
    assert arrange(parents=[0, 0, 2], zones=[0, 0, 0]) == [0, 1, 2]  # the fork fills the place of the row that left
    assert arrange(parents=[0, 0, 1, 2], zones=[0, 0, 0, 0]) == [0, 2, 3, 1]
    assert arrange(parents=[1, 2], zones=[0, 0]) == [1, 0]
    assert arrange(parents=[0, 1, 2, 3], zones=[2, 0, 1, 2]) == [1, 2, 0, 3]
    assert arrange(parents=[], zones=[]) == []
