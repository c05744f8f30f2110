"""Protects the fairness of hard negatives: another user's, from the right side, no copy, not used too often."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from prefsel_ray.data.encoder import load_encoder
from prefsel_ray.data.mining import MiningSpec, Text, mine_negatives, near_duplicate, on_fit_side
from prefsel_ray.errors import PrefselError

ANGLES = {"east": 0, "north east": 40, "nearly north": 80, "north": 90, "west": 180}


def on_a_circle(texts):
    """Unit vectors at known angles, so that the nearest text is known."""
    angles = np.radians([ANGLES[text] for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_the_negative_is_the_nearest_text_of_another_user():
    rows = [Text("a", "east", "train"), Text("b", "west", "train"), Text("c", "north", "train")]

    # west and east are both 90 degrees from north: the first in sorted order is taken
    assert mine_negatives(rows, [], on_a_circle) == ["north", "north", "east"]


def test_a_text_above_the_similarity_ceiling_is_passed_over():
    rows = [Text("a", "east", "train"), Text("b", "north east", "train"), Text("c", "north", "train")]

    # cos 40 = 0.77, cos 90 = 0
    assert mine_negatives(rows, [], on_a_circle, MiningSpec(max_similarity=0.8, max_overlap=1))[0] == "north"
    far = MiningSpec(max_similarity=0.7, max_overlap=1)
    assert mine_negatives(rows[:2], [], on_a_circle, far) == [None, None]


def test_a_user_is_never_given_a_text_that_the_user_has_too():
    rows = [Text("a", "east", "train"), Text("a", "north", "train"), Text("b", "North!", "train")]
    rows.append(Text("b", "west", "train"))

    def encode(texts):
        return on_a_circle([text.lower().strip("!") for text in texts])

    assert mine_negatives(rows, [], encode)[0] == "west"


def test_negatives_come_from_the_row_s_own_split():
    rows = [Text(user, text, split) for split in ("train", "support") for user, text in (("a", "east"), ("b", "west"))]
    rows += [Text("c", "north", "seen_test"), Text("d", "nearly north", "unseen_test")]

    negatives = mine_negatives(rows, [], on_a_circle)

    assert negatives == ["west", "east", "west", "east", None, None]


def test_a_text_that_stands_on_both_sides_serves_neither():
    rows = [Text("a", "east", "train"), Text("b", "north", "train"), Text("c", "west", "train")]
    rows += [Text("d", "north", "seen_test"), Text("e", "nearly north", "seen_test")]

    negatives = mine_negatives(rows, [], on_a_circle, MiningSpec(max_overlap=1))

    assert "north" not in negatives


def test_a_text_is_used_no_more_often_than_allowed():
    rows = [Text(f"u{n}", f"item number {n} of many kinds", "train") for n in range(10)]
    pool = [Text("other", f"thing {n}", None) for n in range(40)]
    encoder = load_encoder("hash:256")

    for most in (1, 2):
        negatives = mine_negatives(rows, pool, encoder.encode, MiningSpec(max_uses=most))
        assert None not in negatives
        assert max(Counter(negatives).values()) <= most


@pytest.fixture(scope="module")
def mined():
    """300 rows of 15 users over all splits and a pool of 400 texts, with their negatives."""
    rng = random.Random(5)
    words = ["red", "green", "fast", "small", "editor", "viewer", "library", "game", "tool", "server", "python", "perl"]
    splits = ["train", "seen_test", "support", "unseen_test"]
    texts = sorted({" ".join(rng.sample(words, 4)) for _ in range(900)})
    rng.shuffle(texts)
    rows = [Text(f"u{n % 15}", text, splits[n % 4]) for n, text in enumerate(texts[:300])]
    pool = [Text(f"v{n % 40}", text) for n, text in enumerate(texts[250:700])]
    encode = load_encoder("hash:256").encode
    spec = MiningSpec(max_similarity=0.95)
    return rows, pool, encode, spec, mine_negatives(rows, pool, encode, spec)


def test_no_text_is_a_negative_on_both_sides(mined):
    rows, _, _, _, negatives = mined
    fit = {text for row, text in zip(rows, negatives, strict=True) if row.split in ("train", "support")}
    test = {text for row, text in zip(rows, negatives, strict=True) if row.split not in ("train", "support")}
    assert len(fit) > 50
    assert len(test) > 50
    assert not fit & test - {None}


def test_every_rule_holds_on_many_rows(mined):
    rows, pool, encode, spec, negatives = mined
    owners = {}
    split_of = {}
    for item in (*rows, *pool):
        owners.setdefault(item.text, set()).add(item.user_id)
        if item.split:
            split_of[item.text] = item.split
    for row, text in zip(rows, negatives, strict=True):
        assert text is not None
        assert row.user_id not in owners[text]
        assert text != row.text
        one, other = encode([row.text, text])
        assert one @ other <= spec.max_similarity + 1e-3
        if text in split_of:
            assert split_of[text] == row.split
        else:
            assert on_fit_side(text) == (row.split in ("train", "support"))
    sides = [(row.split in ("train", "support"), text) for row, text in zip(rows, negatives, strict=True)]
    assert max(Counter(sides).values()) <= 2


def test_the_order_of_rows_and_pool_does_not_matter(mined):
    rows, pool, encode, spec, negatives = mined
    expected = dict(zip(rows, negatives, strict=True))
    shuffled, other_pool = rows[:], pool[:]
    random.Random(1).shuffle(shuffled)
    random.Random(2).shuffle(other_pool)

    again = mine_negatives(shuffled, other_pool, encode, spec)

    assert dict(zip(shuffled, again, strict=True)) == expected


def test_noise_in_the_last_digits_of_the_vectors_changes_nothing(mined):
    rows, pool, encode, spec, _ = mined
    rng = np.random.default_rng(0)
    # Vectors of two decimals, away from the edges of rounding.
    exact = mine_negatives(rows, pool, lambda texts: np.round(encode(texts), 1), spec)
    noisy = mine_negatives(
        rows,
        pool,
        lambda texts: np.round(encode(texts), 1) + rng.normal(0, 1e-8, (len(texts), 256)).astype(np.float32),
        spec,
    )
    assert exact == noisy


def test_the_pool_s_halves_are_of_about_the_same_size():
    sides = [on_fit_side(f"text {n}") for n in range(1000)]
    assert 440 < sum(sides) < 560
    assert on_fit_side("Some Text!") == on_fit_side("some text")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Fast editor", "fast  EDITOR!", True),
        ("editor", "fast editor for text", True),
        ("fast editor for text", "editor", True),
        ("ｆａｓｔ editor", "fast editor", True),
        ("a b c d e f g h", "h g f e d c b x", True),  # 7 of 9 words
        ("Perl module for dates", "Perl module for files", False),  # 3 of 5
        ("edit", "editor", False),
        ("", "anything", True),
        ("???", "anything", True),
        ("программа", "другая программа", True),
    ],
)
def test_near_duplicates_are_equal_contained_or_overlapping_in_words(one, other, same):
    assert near_duplicate(one, other, max_overlap=0.7) is same


def test_a_row_without_a_split_is_an_error():
    with pytest.raises(PrefselError, match="split the rows first"):
        mine_negatives([Text("a", "x")], [], on_a_circle)


def test_no_rows_have_no_negatives():
    assert mine_negatives([], [Text("a", "east")], on_a_circle) == []


@pytest.mark.parametrize(
    "wrong", [{"max_similarity": 0}, {"max_similarity": 1.1}, {"max_overlap": -1}, {"max_uses": 0}]
)
def test_settings_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(PrefselError, match=next(iter(wrong))):
        MiningSpec(**wrong)


def test_mined_negatives_are_nearer_than_random_ones(mined):
    rows, _, encode, _, negatives = mined
    chosen = encode([row.text for row in rows])
    near = np.einsum("nd,nd->n", chosen, encode(negatives)).mean()
    random_ones = np.mean([chosen[i] @ chosen[j] for i, j in itertools.pairwise(range(len(rows)))])
    assert near > random_ones + 0.2
