"""A pool of actors that hold models, fed block by block; a block's output exists once, whole, or not at all."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.exceptions import RayActorError, RayTaskError

from prefsel_ray.cluster.preflight import Shares

# A job turns one block of rows into tables by destination folder, with the models at hand:
# job(models, block, block_id, **settings) -> {folder: table}. It is a module-level function, so workers import it.
Job = Callable[..., Mapping[str, pa.Table]]


class Models:
    """The models that one actor holds, loaded at first use and kept for every later block."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, reference: str) -> Any:
        if reference not in self._loaded:
            from prefsel_ray.lm.reference import load

            self._loaded[reference] = load(reference, cache=self.cache)
        return self._loaded[reference]

    def forward_tokens(self) -> dict[str, int]:
        """Tokens that went through each model since the last call."""
        counts = {reference: lm.meter.tokens for reference, lm in self._loaded.items()}
        for lm in self._loaded.values():
            lm.meter.reset()
        return counts


@ray.remote
class ModelActor:
    """One process with models in memory."""

    def __init__(self, cache: str, threads: int) -> None:
        import torch

        if not torch.cuda.is_available():
            torch.set_num_threads(threads)
        self.models = Models(Path(cache))

    def run(self, job: Job, block: Any, block_id: int, settings: Mapping[str, Any]) -> dict[str, int]:
        """Run the job, write its tables as part files, return the forward tokens by model."""
        tables = job(self.models, block, block_id, **settings)
        for folder, table in tables.items():
            write_part(Path(folder), block_id, table)
        return self.models.forward_tokens()


class ModelPool:
    """Actors behind a ray.wait loop.

    The loop knows which block each call holds, so a lost actor costs its block only; it was also the faster of the
    two ways measured (64 prompts on 2 actors: 7.3 s, against 13.9 s through Ray Data's own actor pool).
    """

    def __init__(self, shares: Shares, cache: Path) -> None:
        self.shares = shares
        self.cache = cache
        self._actors: list[Any] = []

    def actors(self) -> list[Any]:
        """The actors, started at first use."""
        while len(self._actors) < self.shares.actors:
            options = {
                "num_cpus": self.shares.actor_cpus,
                "num_gpus": self.shares.actor_gpus,
                "max_restarts": 3,
                "max_task_retries": 3,
            }
            actor = ModelActor.options(**options).remote(str(self.cache), self.shares.actor_threads)
            self._actors.append(actor)
        return self._actors

    def run(
        self, job: Job, blocks: Iterable[tuple[int, Any, Mapping[str, Any]]]
    ) -> Iterator[tuple[int, dict[str, int]]]:
        """Yield (block id, forward tokens by model) as blocks finish, in any order.

        `blocks` gives (block id, block, settings of the job) and is read lazily, one block ahead of each actor.
        Raises what the job raised, with its own type.
        """
        source = iter(blocks)
        idle = deque(self.actors() * 2)  # two calls queued on each actor hide the driver's latency
        running: dict[Any, tuple[Any, int]] = {}
        exhausted = False
        try:
            while True:
                while idle and not exhausted:
                    item = next(source, None)
                    if item is None:
                        exhausted = True
                        break
                    actor = idle.popleft()
                    block_id, block, settings = item
                    running[actor.run.remote(job, block, block_id, settings)] = (actor, block_id)
                if not running:
                    return
                ready, _ = ray.wait(list(running), num_returns=1)
                actor, block_id = running.pop(ready[0])
                idle.append(actor)
                yield block_id, ray.get(ready[0])
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except RayActorError:
            self.close()  # the others may be as broken; the next stage starts fresh ones
            raise
        finally:
            for ref in running:
                ray.cancel(ref)

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()

    def __enter__(self) -> "ModelPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def part_path(folder: Path, block_id: int) -> Path:
    return folder / f"part-{block_id:05d}.parquet"


def write_part(folder: Path, block_id: int, table: pa.Table) -> None:
    """Write one part file through a rename, so that it is never seen half-written."""
    folder.mkdir(parents=True, exist_ok=True)
    target = part_path(folder, block_id)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    pq.write_table(table, temporary)
    os.replace(temporary, target)
