"""Splits by user: seen users have train and seen_test rows, unseen users have support (few shots) and unseen_test rows.

Rows of one group (the same prompt or dialogue) never straddle the fit side (train, support) and the test side, whoever
their users are. Everything follows from the seed and the rows' content: neither the order of the rows nor the hash
seed matters.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from prefsel_ray.data.schema import FIT_SPLITS, Pair
from prefsel_ray.errors import PrefselError


@dataclass(frozen=True)
class SplitSpec:
    """How to split, and how much of it to keep. None = no limit.

    Fields:
        seed: decides which users are unseen and which rows are test rows.
        seen_users, unseen_users: numbers of users; where there are fewer than both together, in the same proportion.
            Where `unseen_users` is None, `unseen_fraction` of all users are unseen, and at least one of two.
        train_per_user, seen_test_per_user, support_per_user, unseen_test_per_user: most rows kept of one user.
        test_fraction: share of a user's rows that are test rows. Rows which the fit side's limit leaves over are test
            rows too.
        min_pairs_per_user: users with fewer pairs are left out.
    """

    seed: int = 0
    seen_users: int | None = None
    unseen_users: int | None = None
    unseen_fraction: float = 0.25
    train_per_user: int | None = None
    seen_test_per_user: int | None = None
    support_per_user: int | None = None
    unseen_test_per_user: int | None = None
    test_fraction: float = 0.25
    min_pairs_per_user: int = 1

    def __post_init__(self) -> None:
        """Raises PrefselError for a number that is out of range."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("fraction"):
                if not 0 <= value < 1:
                    raise PrefselError(f"splits: {field.name} is {value}; give a number from 0 to below 1")
            elif field.name != "seed" and value is not None and value < 0:
                raise PrefselError(f"splits: {field.name} is {value}; give a whole number of at least 0, or None")


class Assignment(NamedTuple):
    """`pairs`: those kept, each with its `split`, in the order given; `left_out`: example_id -> reason; `notes`."""

    pairs: list[Pair]
    left_out: dict[str, str]
    notes: list[str]


@dataclass(frozen=True)
class _Kind:
    """One kind of user: the names of its two splits and the most rows of each."""

    fit: str
    test: str
    fit_cap: int | None
    test_cap: int | None


def assign_splits(
    pairs: Sequence[Pair], spec: SplitSpec, *, name: Callable[[Pair], str] = lambda pair: f"pair {pair.example_id}"
) -> Assignment:
    """Give each pair a split, within the spec's limits. Pairs may still lack their `rejected`.

    Splits that the pairs bring along are kept, and checked; of the spec, only the limits apply to them. `name` names a
    pair in error messages. Raises PrefselError where some pairs have a split and some have none, where a group has
    rows on both sides, and where a user has rows of seen and of unseen users.
    """
    given = [pair for pair in pairs if pair.split is not None]
    if given and len(given) < len(pairs):
        bare = next(pair for pair in pairs if pair.split is None)
        raise PrefselError(f"{name(bare)}: has no split while {len(given)} others have one; give one to all or to none")
    by_user: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_user[pair.user_id].append(pair)
    if given:
        _check_given(pairs, name)

    left_out: dict[str, str] = {}
    chosen, notes = {}, []
    for user, rows in by_user.items():
        if len(rows) >= spec.min_pairs_per_user:
            chosen[user] = rows
        else:
            _leave_out(left_out, rows, f"left out: user with fewer than {spec.min_pairs_per_user} pairs")
    seen, unseen = _given_users(chosen, spec) if given else _draw_users(chosen, spec, notes)
    for user in sorted(chosen.keys() - set(seen) - set(unseen)):
        _leave_out(left_out, chosen[user], "left out: more users than asked for")

    kinds = (
        (seen, _Kind("train", "seen_test", spec.train_per_user, spec.seen_test_per_user)),
        (unseen, _Kind("support", "unseen_test", spec.support_per_user, spec.unseen_test_per_user)),
    )
    splits: dict[str, str] = {}
    side_of_group: dict[str, bool] = {}  # group_id -> is it on the test side
    for users, kind in kinds:  # seen users first: test rows of unseen users must not take groups away from training
        for user in users:
            groups = _shuffled_groups(chosen[user], spec.seed)
            if given:
                on_test = {group: rows[0].split == kind.test for group, rows in groups.items()}
            else:
                on_test = _divide(groups, kind, spec, side_of_group)
            for is_test, split, cap in ((False, kind.fit, kind.fit_cap), (True, kind.test, kind.test_cap)):
                rows = [pair for group, of_group in groups.items() if on_test[group] == is_test for pair in of_group]
                kept = rows if cap is None else rows[:cap]
                splits.update((pair.example_id, split) for pair in kept)
                side_of_group.update((pair.group_id, is_test) for pair in kept)
                _leave_out(left_out, rows[len(kept) :], f"left out: more {split} pairs of a user than asked for")
    kept = [replace(pair, split=splits[pair.example_id]) for pair in pairs if pair.example_id in splits]
    return Assignment(kept, left_out, notes)


def _leave_out(left_out: dict[str, str], rows: Iterable[Pair], reason: str) -> None:
    left_out.update((pair.example_id, reason) for pair in rows)


def _draw_users(users: Iterable[str], spec: SplitSpec, notes: list[str]) -> tuple[list[str], list[str]]:
    """(seen, unseen) users, drawn from the sorted ones by the seed."""
    order = sorted(users)
    random.Random(f"users/{spec.seed}").shuffle(order)
    total = len(order)
    n_unseen = spec.unseen_users
    if n_unseen is None:
        n_unseen = round(total * spec.unseen_fraction)
        if spec.unseen_fraction > 0 and total > 1:
            n_unseen = max(n_unseen, 1)
    n_seen = spec.seen_users if spec.seen_users is not None else max(total - n_unseen, min(1, total))
    wanted = n_unseen + n_seen
    if wanted > total:
        n_unseen = total * n_unseen // wanted or min(n_unseen, total // 2)
        notes.append(f"{total} users where {wanted} were asked for: {total - n_unseen} seen, {n_unseen} unseen")
    unseen, seen = order[:n_unseen], order[n_unseen:]
    return seen if spec.seen_users is None else seen[: spec.seen_users], unseen


def _given_users(by_user: dict[str, list[Pair]], spec: SplitSpec) -> tuple[list[str], list[str]]:
    """(seen, unseen) users of pairs that bring their splits along, cut to the spec's numbers of users."""
    order = sorted(by_user)
    random.Random(f"users/{spec.seed}").shuffle(order)
    seen = [user for user in order if by_user[user][0].split in ("train", "seen_test")]
    unseen = [user for user in order if by_user[user][0].split not in ("train", "seen_test")]
    return seen[: spec.seen_users], unseen[: spec.unseen_users]


def _check_given(pairs: Sequence[Pair], name: Callable[[Pair], str]) -> None:
    """Raises PrefselError where a group is on both sides or a user is both seen and unseen."""
    first_of_group: dict[str, Pair] = {}
    first_of_user: dict[str, Pair] = {}
    for pair in pairs:
        other = first_of_group.setdefault(pair.group_id, pair)
        if (pair.split in FIT_SPLITS) != (other.split in FIT_SPLITS):
            raise PrefselError(
                f"{name(pair)}: group {pair.group_id} is in {pair.split} and, at {name(other)}, in {other.split}; "
                "keep a group (by default: one prompt) on one side, or give the rows a group_id of their own"
            )
        other = first_of_user.setdefault(pair.user_id, pair)
        if (pair.split in ("train", "seen_test")) != (other.split in ("train", "seen_test")):
            raise PrefselError(
                f"{name(pair)}: user {pair.user_id} is in {pair.split} and, at {name(other)}, in {other.split}; "
                "a user is either seen (train, seen_test) or unseen (support, unseen_test)"
            )


def _shuffled_groups(rows: Sequence[Pair], seed: int) -> dict[str, list[Pair]]:
    """One user's rows by group, groups in a seeded order that depends on this user alone."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in sorted(rows, key=lambda pair: pair.example_id):
        groups[pair.group_id].append(pair)
    order = sorted(groups)
    random.Random(f"groups/{seed}/{rows[0].user_id}").shuffle(order)
    return {group: groups[group] for group in order}


def _divide(
    groups: dict[str, list[Pair]], kind: _Kind, spec: SplitSpec, side_of_group: dict[str, bool]
) -> dict[str, bool]:
    """group_id -> is it on the test side, for one user; groups that other users have settled stay where they are.

    The aim is `test_fraction` of the rows, or more where the fit side's limit would leave rows unused, at most the test
    side's limit. With two groups or more neither side stays empty, unless its limit is 0 or others settled it so. A
    single group goes to train for a seen user and to unseen_test for an unseen one, who then has no support.
    """
    total = sum(map(len, groups.values()))
    on_test = {group: side_of_group[group] for group in groups if group in side_of_group}
    free = [group for group in groups if group not in on_test]
    if kind.fit_cap == 0 or kind.test_cap == 0:
        only_test = kind.test_cap != 0
        return on_test | dict.fromkeys(free, only_test)
    if len(groups) == 1:
        return on_test | dict.fromkeys(free, kind.test == "unseen_test")

    fit_cap = total if kind.fit_cap is None else kind.fit_cap
    target = max(round(total * spec.test_fraction), total - fit_cap, 1 if spec.test_fraction > 0 else 0)
    target = min(target, total - 1, total if kind.test_cap is None else kind.test_cap)
    in_test = sum(len(groups[group]) for group, is_test in on_test.items() if is_test)
    for group in free:
        on_test[group] = in_test + len(groups[group]) <= target
        in_test += len(groups[group]) if on_test[group] else 0
    if free and target > 0 and in_test == 0:  # every group is larger than the aim
        on_test[min(free, key=lambda group: len(groups[group]))] = True
    return on_test
