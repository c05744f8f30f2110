"""Protects head fitting through Tune and Train: it equals fitting in this process, and one bad head fails alone."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from prefsel_ray.cluster.fitting import FittedHead, HeadFit, fit_and_save, fit_heads
from prefsel_ray.cluster.preflight import shares
from prefsel_ray.rewards.protocol import PairFeatures


def write_features(folder, rng, users=4, pairs=20, width=8):
    """Trace parts with the columns that fitting reads; the last user is unseen."""
    direction = rng.normal(size=width)
    rows = []
    for user in range(users):
        for i in range(pairs):
            difference = rng.normal(size=width)
            difference *= np.sign(difference @ direction)
            chosen = rng.normal(size=width)
            rows.append(
                {
                    "example_id": f"u{user}-{i:02d}",
                    "user_id": f"u{user}",
                    "split": "support" if user == users - 1 else "train",
                    "final_chosen": chosen.astype(np.float32),
                    "final_rejected": (chosen - difference).astype(np.float32),
                }
            )
    folder.mkdir(parents=True)
    half = len(rows) // 2
    for part, chunk in enumerate((rows[:half], rows[half:])):
        pq.write_table(pa.Table.from_pylist(chunk), folder / f"part-{part:05d}.parquet")
    return rows


def features_of(rows, split):
    rows = [row for row in rows if row["split"] == split]
    return PairFeatures(
        tuple(row["example_id"] for row in rows),
        tuple(row["user_id"] for row in rows),
        *(torch.from_numpy(np.stack([row[f"final_{side}"] for row in rows])) for side in ("chosen", "rejected")),
    )


def test_tune_trials_save_what_a_fit_in_this_process_saves(ray_session, tmp_path):
    rows = write_features(tmp_path / "features", np.random.default_rng(0))
    fits = [
        HeadFit(method, {}, seed, str(tmp_path / f"{method}-{seed}"))
        for seed in (0, 1)
        for method in ("global_rm", "mpu")
    ]
    outcomes = fit_heads(fits, tmp_path / "features", tmp_path / "ray", shares(ray_session))
    assert outcomes == {fit.folder: None for fit in fits}
    train, support = features_of(rows, "train"), features_of(rows, "support")
    hidden = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    for fit in fits:
        here = HeadFit(fit.method, {}, fit.seed, fit.folder + "-here")
        assert fit_and_save(vars(here), train, support) is None
        one, two = (
            FittedHead(tmp_path / f"{fit.method}-{fit.seed}"),
            FittedHead(tmp_path / f"{fit.method}-{fit.seed}-here"),
        )
        for user in ("u0", "u3", "nobody"):
            torch.testing.assert_close(
                one.head.token_rewards(hidden, one.state(user)),
                two.head.token_rewards(hidden, two.state(user)),
                atol=1e-5,
                rtol=1e-5,
            )


def test_a_planted_nan_fails_every_head_with_the_row_named(tmp_path):
    rows = write_features(tmp_path / "features", np.random.default_rng(1))
    train, support = features_of(rows, "train"), features_of(rows, "support")
    train.chosen[3, 2] = float("nan")
    reason = fit_and_save(vars(HeadFit("global_rm", {}, 0, str(tmp_path / "head"))), train, support)
    assert reason.startswith("NonFiniteError")
    assert train.example_ids[3] in reason
    assert not (tmp_path / "head" / "model").exists()


def test_an_unknown_setting_fails_that_head_alone(tmp_path):
    rows = write_features(tmp_path / "features", np.random.default_rng(2))
    train, support = features_of(rows, "train"), features_of(rows, "support")
    assert "stepps" in fit_and_save(vars(HeadFit("lore", {"stepps": 1}, 0, str(tmp_path / "bad"))), train, support)
    assert fit_and_save(vars(HeadFit("global_rm", {}, 0, str(tmp_path / "good"))), train, support) is None
