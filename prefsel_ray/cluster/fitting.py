"""Reward heads on frozen features: Ray Tune runs one trial per (backbone, seed), whose one Train job fits every head.

Starting a Train job costs some 15 seconds and fitting a head a fraction of one, so a job fits all heads of its seed.
"""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import ray.tune
import torch
from ray.train.torch import TorchTrainer
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from prefsel_ray.cluster.preflight import TRAIN_WORKER_CPUS, Shares
from prefsel_ray.cluster.streams import feature_dataset
from prefsel_ray.rewards import load_method, load_saved, method_settings
from prefsel_ray.rewards.protocol import HeadReward, PairFeatures


@dataclass(frozen=True)
class HeadFit:
    """One head to fit: the registered method, its settings, the seed, and the folder that takes the model."""

    method: str
    settings: Mapping[str, Any]
    seed: int
    folder: str


def fit_heads(fits: Sequence[HeadFit], features: Path, run_folder: Path, shares: Shares) -> dict[str, str | None]:
    """Fit all `fits` on the trace parts in `features`; returns {folder: reason of failure, None where it is saved}.

    `run_folder` takes Tune's and Train's own files. A trial that dies as a whole fails every head of its seed.
    """
    by_seed: dict[int, list[dict[str, Any]]] = {}
    for fit in fits:
        by_seed.setdefault(fit.seed, []).append(vars(fit))

    def trial(config: dict[str, Any]) -> None:
        trial_id = ray.tune.get_context().get_trial_id()
        trainer = TorchTrainer(
            fit_loop,
            train_loop_config={"fits": by_seed[config["seed"]]},
            datasets={"fit": feature_dataset(features)},
            scaling_config=ray.train.ScalingConfig(
                num_workers=1, resources_per_worker={"CPU": TRAIN_WORKER_CPUS}, use_gpu=False
            ),
            run_config=ray.train.RunConfig(
                name=f"heads-{trial_id}",
                storage_path=str(run_folder),
                failure_config=ray.train.FailureConfig(max_failures=1),
            ),
        )
        ray.tune.report({"outcomes": trainer.fit().return_value})

    tuner = ray.tune.Tuner(
        ray.tune.with_resources(trial, shares.trial_resources),
        param_space={"seed": ray.tune.grid_search(sorted(by_seed))},
        tune_config=ray.tune.TuneConfig(max_concurrent_trials=shares.concurrent_trials),
        run_config=ray.tune.RunConfig(
            name="heads",
            storage_path=str(run_folder),
            verbose=0,
            failure_config=ray.tune.FailureConfig(max_failures=1),
            callbacks=[TrialBar(len(by_seed))],
        ),
    )
    outcomes: dict[str, str | None] = {}
    for result in tuner.fit():
        seed = result.config["seed"]
        if result.error is not None:
            reason = str(result.error).strip().splitlines()[-1]
            outcomes.update({fit["folder"]: f"the trial of seed {seed} failed: {reason}" for fit in by_seed[seed]})
        else:
            outcomes.update(result.metrics["outcomes"])
    return outcomes


class TrialBar(ray.tune.Callback):
    """A progress bar over trials, ended ones counted whatever their outcome."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self.bar: tqdm | None = None  # Tune pickles its callbacks before it starts, and a bar holds an open stream

    def __getstate__(self) -> dict[str, Any]:
        return {"trials": self.trials, "bar": None}

    def setup(self, **info: Any) -> None:
        self.bar = tqdm(total=self.trials, desc="reward models", unit="trial")

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self.bar.update()

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self.bar.update()

    def on_experiment_end(self, trials: list, **info: Any) -> None:
        self.bar.close()


def fit_loop(config: dict[str, Any]) -> dict[str, str | None]:
    """The Train loop: take the shard once, fit and save every head; one head's failure leaves the others standing."""
    table = {"example_id": [], "user_id": [], "split": [], "final_chosen": [], "final_rejected": []}
    for batch in ray.train.get_dataset_shard("fit").iter_batches(batch_size=4096, batch_format="numpy"):
        for column, values in table.items():
            values.extend(batch[column])
    features = PairFeatures(
        example_ids=tuple(table["example_id"]),
        users=tuple(table["user_id"]),
        chosen=torch.from_numpy(np.stack(table["final_chosen"]).astype(np.float32)),
        rejected=torch.from_numpy(np.stack(table["final_rejected"]).astype(np.float32)),
    )
    is_train = torch.tensor([split == "train" for split in table["split"]])
    train, support = (features.select(torch.nonzero(mask).flatten()) for mask in (is_train, ~is_train))
    return {fit["folder"]: fit_and_save(fit, train, support) for fit in config["fits"]}


def fit_and_save(fit: Mapping[str, Any], train: PairFeatures, support: PairFeatures) -> str | None:
    """Fit one head on seen users, adapt it to each unseen user, save both; the reason where that fails."""
    try:
        head = load_method(fit["method"])(method_settings(fit["method"], fit["settings"]))
        head.fit(train, seed=fit["seed"])
        states = {user: head.adapt(user, support.of_user(user)) for user in sorted(set(support.users))}
        folder = Path(fit["folder"])
        head.save(folder / "model")
        save_file(states, folder / "unseen_users.safetensors")
    except Exception as error:  # the boundary of a cell: any failure becomes its recorded reason
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return None


class FittedHead:
    """A saved head with the states of the unseen users it was adapted to."""

    def __init__(self, folder: Path) -> None:
        self.head: HeadReward = load_saved(folder / "model")
        self.unseen = load_file(folder / "unseen_users.safetensors")

    def state(self, user: str) -> torch.Tensor:
        """The user's state: adapted on support, learned in training, or the population prior, in that order."""
        return self.unseen[user] if user in self.unseen else self.head.user_state(user)
