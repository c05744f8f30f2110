"""Connecting to Ray: a session of our own on this machine, or a cluster that is already running."""

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

# Ray 2.60 writes a token file at any ray.init() with this unset, and later refuses its own clients; say it outright.
os.environ.setdefault("RAY_AUTH_MODE", "disabled" if not os.environ.get("RAY_ADDRESS") else "token")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output prints its tables at verbose=0 too

import ray

from prefsel_ray.errors import PrefselError

DRIVER_RESOURCE = "driver"
DRIVER_SLOTS = 16  # trial drivers wait on their Train job and need no CPU, only a slot


@dataclass(frozen=True)
class ClusterResources:
    """What the cluster has in all. `drivers` is 0 where its nodes were started without the custom resource."""

    cpus: float
    gpus: float
    drivers: float
    nodes: int
    address: str


@contextlib.contextmanager
def session(cpus: int | None = None) -> Iterator[ClusterResources]:
    """Connect, yield what there is, and disconnect.

    RAY_ADDRESS, or running inside a Ray job, means that cluster; else a session of `cpus` (all cores) starts here.
    A machine of one core gets two logical CPUs, because a Train worker and its data readers must run side by side.

    Raises PrefselError where the cluster does not answer.
    """
    logging.getLogger("ray").setLevel(logging.WARNING)
    if not ray.is_initialized():
        _connect(cpus)
        ours = True
    else:
        ours = False
    ray.data.DataContext.get_current().enable_progress_bars = False
    for name in ("ray.data", "ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        total = ray.cluster_resources()
        yield ClusterResources(
            cpus=total.get("CPU", 0.0),
            gpus=total.get("GPU", 0.0),
            drivers=total.get(DRIVER_RESOURCE, 0.0),
            nodes=len([node for node in ray.nodes() if node["Alive"]]),
            address=ray.get_runtime_context().gcs_address,
        )
    finally:
        if ours:
            ray.shutdown()


def _connect(cpus: int | None) -> None:
    address = os.environ.get("RAY_ADDRESS")
    options = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    if address:
        try:
            ray.init(address=address, **options)
        except Exception as error:
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise PrefselError(
                f"RAY_ADDRESS={address}: no connection ({first_line}); start the cluster, unset RAY_ADDRESS for a "
                "session on this machine, or set RAY_AUTH_MODE to what the cluster uses"
            ) from None
        return
    # Early-stopped trials are only cleaned up through the dashboard's State API (ray 2.60), so it stays on.
    ray.init(
        num_cpus=max(2, cpus or os.cpu_count() or 2),
        resources={DRIVER_RESOURCE: DRIVER_SLOTS},
        include_dashboard=True,
        **options,
    )
