"""Resource shares that cannot deadlock, worked out before anything starts."""

from dataclasses import dataclass

from prefsel_ray.cluster.session import DRIVER_RESOURCE, ClusterResources
from prefsel_ray.errors import PrefselError

# Model actors and head fits run one after the other, so their CPU shares are small claims, not limits on threads.
ACTOR_CPUS = 0.5
TRAIN_WORKER_CPUS = 0.25
MAX_CPU_ACTORS = 4  # each holds its own copy of the models; more cores become threads
DATA_CPUS = 1.0  # Ray Data's readers take whole CPUs; without a free one a Train job waits for ever and says nothing


@dataclass(frozen=True)
class Shares:
    """How the cluster is divided: actors of the model pool, threads of each, trials of Tune at a time."""

    actors: int
    actor_threads: int
    actor_cpus: float
    actor_gpus: float
    concurrent_trials: int
    trial_resources: dict[str, float]


def shares(cluster: ClusterResources, actors: int | None = None) -> Shares:
    """Divide the cluster so that actors + concurrent trials + one CPU for Ray Data fit.

    `actors`: size of the model pool; by default one per GPU, else one per CPU up to MAX_CPU_ACTORS a node.
    (SmolLM2-135M in fp32 does 500 tokens a second on one thread and about 700 on two: two processes beat two threads.)

    Raises PrefselError where the cluster is too small, naming what it has and how to start it.
    """
    if cluster.gpus:
        count = actors or int(max(1, cluster.gpus))
        gpus = min(1.0, cluster.gpus / count)
    else:
        per_node = max(1, min(int(cluster.cpus // cluster.nodes), MAX_CPU_ACTORS))
        count, gpus = actors or per_node * cluster.nodes, 0.0
    actor_cpus = min(ACTOR_CPUS, ACTOR_CPUS / count) if cluster.cpus < 4 else ACTOR_CPUS
    needed = count * actor_cpus + TRAIN_WORKER_CPUS + DATA_CPUS
    if cluster.cpus < needed:
        raise PrefselError(
            f"the Ray cluster at {cluster.address} has {cluster.cpus:g} CPUs and this sweep needs {needed:g} "
            f"({count} model actors, a training worker and a free CPU for Ray Data): start it with --num-cpus=2 or more"
        )
    free = cluster.cpus - count * actor_cpus - DATA_CPUS
    # A cluster started without the custom resource still works: its trial drivers claim a sliver of CPU instead.
    if cluster.drivers >= 1:
        driver, slots = {DRIVER_RESOURCE: 1.0}, int(cluster.drivers)
    else:
        driver, slots = {"CPU": 0.01}, 4
        free -= 0.01 * slots
    # Starting a trial's processes is bound by the CPU: two cores did three trials in 65 s two at a time.
    slots = min(slots, max(1, int(cluster.cpus // 2)))
    return Shares(
        actors=count,
        actor_threads=max(1, int(cluster.cpus // count)) if not cluster.gpus else 1,
        actor_cpus=actor_cpus,
        actor_gpus=gpus,
        concurrent_trials=max(1, min(slots, int(free / TRAIN_WORKER_CPUS))),
        trial_resources=driver,
    )
