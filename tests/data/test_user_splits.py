"""Protects the splits: no group on both sides, no user both seen and unseen, limits kept, order of rows irrelevant."""

import random
from collections import Counter, defaultdict

import pytest

from prefsel_ray.data.schema import FIT_SPLITS, Pair
from prefsel_ray.data.splits import SplitSpec, assign_splits
from prefsel_ray.errors import PrefselError


def pair(user, number, group=None, split=None):
    return Pair(
        example_id=f"{user}-{number:03d}",
        dataset="d",
        user_id=user,
        prompt=({"role": "user", "content": f"p{number}"},),
        chosen="a",
        rejected="",
        split=split,
        group_id=group or f"{user}-g{number}",
    )


def people(users, pairs_each):
    return [pair(f"u{u:02d}", n) for u in range(users) for n in range(pairs_each)]


def count(assigned):
    """user -> split -> number of kept pairs."""
    table = defaultdict(Counter)
    for one in assigned.pairs:
        table[one.user_id][one.split] += 1
    return table


def sides(assigned):
    table = defaultdict(set)
    for one in assigned.pairs:
        table[one.group_id].add(one.split in FIT_SPLITS)
    return table


def test_users_and_pairs_are_kept_up_to_the_limits_and_the_rest_is_left_out_with_a_reason():
    spec = SplitSpec(
        seed=3,
        seen_users=5,
        unseen_users=2,
        train_per_user=6,
        seen_test_per_user=3,
        support_per_user=4,
        unseen_test_per_user=5,
    )
    assigned = assign_splits(people(10, 20), spec)
    per_user = count(assigned)
    assert Counter(tuple(sorted(table.items())) for table in per_user.values()) == {
        (("seen_test", 3), ("train", 6)): 5,
        (("support", 4), ("unseen_test", 5)): 2,
    }
    assert Counter(assigned.left_out.values()) == {
        "left out: more users than asked for": 60,
        "left out: more train pairs of a user than asked for": 55,
        "left out: more support pairs of a user than asked for": 22,
    }
    assert len(assigned.pairs) + len(assigned.left_out) == 200
    assert not {one.example_id for one in assigned.pairs} & assigned.left_out.keys()


def test_without_limits_every_pair_is_kept_and_a_quarter_is_test():
    assigned = assign_splits(people(8, 12), SplitSpec(unseen_fraction=0.25, test_fraction=0.25))
    assert not assigned.left_out
    assert Counter(tuple(sorted(table.items())) for table in count(assigned).values()) == {
        (("seen_test", 3), ("train", 9)): 6,
        (("support", 9), ("unseen_test", 3)): 2,
    }


def test_rows_beyond_the_train_limit_become_test_rows():
    assigned = assign_splits(people(1, 26), SplitSpec(unseen_users=0, train_per_user=10, seen_test_per_user=12))
    assert count(assigned)["u00"] == {"train": 10, "seen_test": 12}
    assert len(assigned.left_out) == 4


def test_users_with_few_pairs_keep_what_they_have():
    rows = [*people(1, 3), pair("two", 0), pair("two", 1), pair("one", 0)]
    spec = SplitSpec(unseen_users=0, train_per_user=20, seen_test_per_user=6)
    assert count(assign_splits(rows, spec)) == {
        "u00": {"train": 2, "seen_test": 1},
        "two": {"train": 1, "seen_test": 1},
        "one": {"train": 1},
    }


def test_a_single_pair_of_an_unseen_user_is_tested_without_support():
    spec = SplitSpec(seen_users=0, unseen_users=1, support_per_user=5)
    assert count(assign_splits([pair("one", 0)], spec)) == {"one": {"unseen_test": 1}}


def test_no_support_asked_for_leaves_unseen_users_with_test_rows_only():
    spec = SplitSpec(seen_users=0, unseen_users=3, support_per_user=0)
    assert all(set(table) == {"unseen_test"} for table in count(assign_splits(people(3, 4), spec)).values())


@pytest.mark.parametrize("seed", range(20))
def test_a_group_shared_by_users_never_straddles_the_sides(seed):
    draw = random.Random(seed)
    rows = [
        pair(f"u{u}", n, group=f"g{draw.randrange(12)}") for u in range(9) for n in range(draw.choice([1, 2, 5, 11]))
    ]
    spec = SplitSpec(seed=seed, train_per_user=4, support_per_user=2, unseen_test_per_user=3)
    assigned = assign_splits(rows, spec)
    assert all(len(on) == 1 for on in sides(assigned).values())
    assert len(assigned.pairs) + len(assigned.left_out) == len(rows)
    for table in count(assigned).values():
        assert not {"train", "seen_test"} & set(table) or not {"support", "unseen_test"} & set(table)
        assert table["train"] <= 4 and table["support"] <= 2 and table["unseen_test"] <= 3


def test_users_who_all_judge_the_same_prompts_share_one_division_with_both_sides():
    rows = [pair(f"u{u}", n, group=f"g{n}") for u in range(4) for n in range(20)]
    assigned = assign_splits(rows, SplitSpec(unseen_users=1))
    assert not assigned.left_out
    assert all(sorted(table.values()) == [5, 15] for table in count(assigned).values())
    assert all(len(on) == 1 for on in sides(assigned).values())


def test_groups_larger_than_the_aim_still_give_a_test_side():
    rows = [pair("u", n, group=f"g{n // 4}") for n in range(8)]
    assert count(assign_splits(rows, SplitSpec(unseen_users=0)))["u"] == {"train": 4, "seen_test": 4}


def test_the_order_of_the_rows_does_not_matter():
    rows = [pair(f"u{u}", n, group=f"g{n % 7}") for u in range(9) for n in range(11)]
    spec = SplitSpec(seed=5, seen_users=4, unseen_users=2, train_per_user=5)
    straight = {one.example_id: one.split for one in assign_splits(rows, spec).pairs}
    shuffled = random.Random(0).sample(rows, len(rows))
    assert {one.example_id: one.split for one in assign_splits(shuffled, spec).pairs} == straight


def test_another_seed_gives_another_split():
    drawn = [{p.example_id: p.split for p in assign_splits(people(8, 8), SplitSpec(seed=s)).pairs} for s in (0, 1)]
    assert drawn[0] != drawn[1]


def test_too_few_users_are_shared_out_in_the_asked_proportion_and_noted():
    assigned = assign_splits(people(12, 4), SplitSpec(seen_users=30, unseen_users=10))
    kinds = Counter("seen" if "train" in table else "unseen" for table in count(assigned).values())
    assert kinds == {"seen": 9, "unseen": 3}
    assert assigned.notes == ["12 users where 40 were asked for: 9 seen, 3 unseen"]


def test_users_under_the_least_number_of_pairs_are_left_out():
    rows = [*people(3, 4), pair("one", 0)]
    assigned = assign_splits(rows, SplitSpec(min_pairs_per_user=2))
    assert assigned.left_out == {"one-000": "left out: user with fewer than 2 pairs"}


def test_given_splits_are_kept_under_the_limits():
    rows = [pair("a", n, split="train" if n < 4 else "seen_test") for n in range(6)]
    rows += [pair("b", n, split="support" if n < 2 else "unseen_test") for n in range(6)]
    assigned = assign_splits(rows, SplitSpec(train_per_user=3))
    assert count(assigned) == {"a": {"train": 3, "seen_test": 2}, "b": {"support": 2, "unseen_test": 4}}
    assert set(assigned.left_out.values()) == {"left out: more train pairs of a user than asked for"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([pair("a", 0, split="train"), pair("a", 1)], r"pair a-001: has no split while 1 others have one"),
        (
            [pair("a", 0, group="g7", split="train"), pair("a", 1, group="g7", split="seen_test")],
            "pair a-001: group g7 is in seen_test and, at pair a-000, in train",
        ),
        (
            [pair("a", 0, split="train"), pair("a", 1, split="unseen_test")],
            "pair a-001: user a is in unseen_test and, at pair a-000, in train",
        ),
    ],
)
def test_given_splits_that_contradict_each_other_are_an_error(rows, message):
    with pytest.raises(PrefselError, match=message):
        assign_splits(rows, SplitSpec())


def test_a_number_out_of_range_is_an_error():
    with pytest.raises(PrefselError, match="test_fraction is 1.5"):
        SplitSpec(test_fraction=1.5)
    with pytest.raises(PrefselError, match="seen_users is -1"):
        SplitSpec(seen_users=-1)
