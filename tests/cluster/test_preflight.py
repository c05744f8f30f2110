"""Protects the shares of a cluster: actors, trials and Ray Data always fit together, or one line says what is short."""

import pytest

from prefsel_ray.cluster.preflight import DATA_CPUS, TRAIN_WORKER_CPUS, shares
from prefsel_ray.cluster.session import ClusterResources
from prefsel_ray.errors import PrefselError


def cluster(cpus, gpus=0.0, drivers=16.0):
    return ClusterResources(cpus=cpus, gpus=gpus, drivers=drivers, nodes=1, address="127.0.0.1:6379")


@pytest.mark.parametrize("cpus", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("actors", [None, 1, 2])
@pytest.mark.parametrize("drivers", [0.0, 1.0, 16.0])
def test_actors_trials_and_a_free_cpu_fit_into_the_cluster(cpus, actors, drivers):
    made = shares(cluster(cpus, drivers=drivers), actors)
    driver_cpus = made.trial_resources.get("CPU", 0.0) * made.concurrent_trials
    claimed = made.actors * made.actor_cpus + made.concurrent_trials * TRAIN_WORKER_CPUS + driver_cpus + DATA_CPUS
    assert claimed <= cpus
    assert made.concurrent_trials >= 1


def test_one_cpu_is_refused_with_the_number_and_the_remedy():
    with pytest.raises(PrefselError, match=r"has 1 CPUs and this sweep needs 1\.75.*--num-cpus=2"):
        shares(cluster(1))


def test_a_cluster_without_the_driver_resource_gets_a_sliver_of_cpu_for_each_trial():
    assert shares(cluster(2, drivers=0.0)).trial_resources == {"CPU": 0.01}
    assert shares(cluster(2)).trial_resources == {"driver": 1.0}


def test_each_gpu_gets_one_actor_and_more_actors_share_it():
    assert shares(cluster(16, gpus=4.0)).actors == 4
    assert shares(cluster(16, gpus=1.0), actors=2).actor_gpus == 0.5
