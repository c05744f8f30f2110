"""Protects the plants: users and the best possible accuracy are as stated, and all follows from the seed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prefsel_ray.data.planted import ATTRIBUTES, PlantedText, _all_styles, planted_features, write
from prefsel_ray.data.prepare import fingerprint, prepare
from prefsel_ray.data.splits import SplitSpec
from prefsel_ray.errors import PrefselError


def rows_of(source):
    return [row for _, row in source.read(Path("unused"), False).rows]


def differences(rows):
    """[N, attributes]: chosen minus rejected."""
    return np.array([np.subtract(r["meta"]["chosen_attributes"], r["meta"]["rejected_attributes"]) for r in rows])


def test_every_user_has_the_pairs_asked_for_and_all_texts_differ():
    rows = rows_of(PlantedText(users=20, pairs_per_user=16))

    assert len(rows) == 320
    assert len({row["user_id"] for row in rows}) == 20
    assert all(row["chosen"] != row["rejected"] for row in rows)
    assert len({row["prompt"] for row in rows}) == 320


def test_each_style_is_a_text_of_its_own():
    steps = ["one", "two", "three", "four", "five"]
    texts = {write("paint a chair", "in winter", steps, style) for style in _all_styles()}
    assert len(_all_styles()) == 48
    assert len(texts) == 48


def test_a_style_is_what_its_levels_say():
    steps = ["stir", "wait", "taste", "serve"]
    style = dict.fromkeys(ATTRIBUTES, -1)

    def text(**levels):
        return write("cook", "at noon", steps, np.array(list({**style, **levels}.values())))

    assert text() == "To cook at noon, you just stir. That does it."
    assert text(length=1) == "To cook at noon, you just stir, then wait, then taste, then serve. That does it."
    assert text(formality=1) == "In order to cook at noon, one should stir. This ought to suffice."
    assert text(emphasis=1) == "To cook at noon, you just really stir! That does it!"
    assert text(list=1, length=0) == "To cook at noon, you just:\n- stir\n- wait\nThat does it."
    assert text(hedging=1) == "To cook at noon, maybe you could stir. I guess that does it."


def test_labels_follow_the_logistic_model():
    source = PlantedText(users=40, pairs_per_user=100, noise=0.5)
    margins = np.einsum("nd,nd->n", differences(rows_of(source)), np.repeat(source.weights(), 100, axis=0))

    # Of the pairs whose rewards are about m apart, the better one is chosen in sigmoid(m / 0.5) of all.
    for low, high, expected in ((0.2, 0.4, 0.646), (0.6, 0.8, 0.802), (1.3, 1.7, 0.953)):
        near = (abs(margins) > low) & (abs(margins) < high)
        assert near.sum() > 150
        assert abs((margins[near] > 0).mean() - expected) < 0.08


def test_the_note_states_the_accuracy_of_the_true_weights():
    source = PlantedText(users=60, pairs_per_user=50)
    stated = float(source.read(Path("unused"), False).note.split()[-2])

    true = np.einsum("nd,nd->n", differences(rows_of(source)), np.repeat(source.weights(), 50, axis=0)) > 0

    assert abs(100 * true.mean() - stated) < 2
    assert 80 < stated < 95


def test_users_differ_so_that_their_own_weights_beat_everybody_s():
    source = PlantedText(users=60, pairs_per_user=32)
    x = differences(rows_of(source))
    own = (np.einsum("nd,nd->n", x, np.repeat(source.weights(), 32, axis=0)) > 0).mean()
    shared = (x @ source.weights().mean(axis=0) > 0).mean()
    assert 0.6 < shared < own - 0.08


def test_the_reference_is_liked_at_least_as_well_as_both_responses():
    source = PlantedText(users=10, pairs_per_user=20)
    weights = source.weights()
    better = 0
    for number, row in enumerate(rows_of(source)):
        likes = weights[number // 20]
        chosen = np.dot(likes, row["meta"]["chosen_attributes"])
        rejected = np.dot(likes, row["meta"]["rejected_attributes"])
        if row["reference"] == row["rejected"]:
            assert rejected > chosen
        elif row["reference"] != row["chosen"]:
            better += 1
    assert better > 100


def test_more_users_leave_the_first_ones_as_they_are():
    assert rows_of(PlantedText(3, 5)) == rows_of(PlantedText(7, 5))[:15]
    assert rows_of(PlantedText(3, 5, seed=1)) != rows_of(PlantedText(3, 5, seed=2))


def test_the_text_pairs_are_the_same_on_every_hash_seed(tmp_path):
    code = (
        "from pathlib import Path; from prefsel_ray.data.planted import PlantedText;"
        "from prefsel_ray.data.prepare import prepare, fingerprint; from prefsel_ray.data.splits import SplitSpec;"
        "print(fingerprint(prepare(PlantedText(6, 12), SplitSpec(), cache=Path('unused')).pairs))"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("0", "4711")
    }
    assert len(prints) == 1
    assert prints == {fingerprint(prepare(PlantedText(6, 12), SplitSpec(), cache=tmp_path).pairs)}


def test_the_validator_keeps_every_planted_row(tmp_path):
    prepared = prepare(PlantedText(users=12, pairs_per_user=16), SplitSpec(), cache=tmp_path)
    assert prepared.dataset == "planted"
    assert prepared.ledger.rows_read == prepared.ledger.rows_kept == 192


def test_true_user_vectors_reach_the_stated_accuracy_on_features():
    plant = planted_features(users=60, pairs_per_user=100, dim=24, rank=4, noise=0.5, seed=3)

    margins = np.einsum("nd,nd->n", plant.chosen - plant.rejected, plant.user_vectors[plant.users])

    assert plant.chosen.shape == plant.rejected.shape == (6000, 24)
    assert plant.chosen.dtype == np.float32
    assert abs((margins > 0).mean() - plant.bayes_accuracy) < 0.015
    assert 0.75 < plant.bayes_accuracy < 0.95


def test_user_vectors_are_unit_vectors_in_the_span_of_the_basis():
    plant = planted_features(users=9, pairs_per_user=2, dim=16, rank=3)

    assert np.allclose(np.linalg.norm(plant.user_vectors, axis=1), 1)
    assert np.allclose(plant.basis @ plant.basis.T, np.eye(3), atol=1e-12)
    assert np.allclose(plant.user_vectors @ plant.basis.T @ plant.basis, plant.user_vectors)
    assert np.allclose(plant.user_weights.sum(axis=1), 1)
    assert np.linalg.matrix_rank(plant.user_vectors) == 3


def test_without_noise_the_true_vectors_are_always_right():
    plant = planted_features(users=5, pairs_per_user=50, dim=8, rank=2, noise=0)
    margins = np.einsum("nd,nd->n", plant.chosen - plant.rejected, plant.user_vectors[plant.users])
    assert plant.bayes_accuracy == 1.0
    assert (margins > 0).all()


def test_clustered_users_share_their_vectors():
    plant = planted_features(users=7, pairs_per_user=1, dim=8, rank=3, clustered=True)
    assert plant.user_weights.argmax(axis=1).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert np.array_equal(plant.user_vectors[0], plant.user_vectors[3])


def test_planted_features_follow_from_the_seed():
    one, two, other = (planted_features(4, 6, 8, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.chosen, two.chosen)
    assert not np.array_equal(one.chosen, other.chosen)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: PlantedText(0, 4), "users"),
        (lambda: PlantedText(4, 0), "pairs_per_user"),
        (lambda: PlantedText(4, 4, noise=-1), "noise"),
        (lambda: PlantedText(4, 4, seed=-1), "seed"),
        (lambda: planted_features(4, 4, 2, rank=3), "rank"),
    ],
)
def test_sizes_out_of_range_are_refused_by_name(make, names):
    with pytest.raises(PrefselError, match=names):
        make()
