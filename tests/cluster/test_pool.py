"""Protects the actor pool: the same numbers from one or two actors and from one process, errors with their own words,
and a killed actor's block done again.
"""

import os
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prefsel_ray.cluster import jobs
from prefsel_ray.cluster.pool import ModelPool, Models
from prefsel_ray.cluster.preflight import shares
from prefsel_ray.cluster.streams import stream_blocks
from prefsel_ray.data.schema import Pair, table_from_pairs
from prefsel_ray.errors import PrefselError

TOY = "toy:2x32"


def pairs(count):
    return [
        Pair(
            example_id=f"e{i:02d}",
            dataset="test",
            user_id=f"u{i % 3}",
            prompt=({"role": "user", "content": "why? " * (1 + i % 5)},),
            chosen="because " + "x" * (i % 7),
            rejected="no " + "y" * (i % 4),
            split="seen_test",
        )
        for i in range(count)
    ]


def traced_by_actors(folder, table_path, cluster, actors, tmp_path):
    settings = {"folder": str(folder), "model": TOY, "logprobs": True, "states": "all"}
    blocks = ((i, block, settings) for i, block in stream_blocks([table_path], 4))
    with ModelPool(shares(cluster, actors), tmp_path) as pool:
        done = sorted(block_id for block_id, _ in pool.run(jobs.trace, blocks))
    assert done == [0, 1, 2, 3, 4]
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))


def test_traces_of_one_actor_two_actors_and_one_process_agree(ray_session, tmp_path):
    path = tmp_path / "test.parquet"
    pq.write_table(table_from_pairs(pairs(18)), path)
    one = traced_by_actors(tmp_path / "one", path, ray_session, 1, tmp_path)
    two = traced_by_actors(tmp_path / "two", path, ray_session, 2, tmp_path)
    here = jobs.trace(Models(tmp_path), pq.read_table(path), 0, folder="here", model=TOY, logprobs=True, states="all")[
        "here"
    ]
    assert one["example_id"].to_pylist() == [f"e{i:02d}" for i in range(18)] == two["example_id"].to_pylist()
    for column in ("logprobs_chosen", "logprobs_rejected", "states_chosen", "final_rejected", "state_prompt"):
        for left, right, whole in zip(*(table[column].to_pylist() for table in (one, two, here)), strict=True):
            np.testing.assert_allclose(left, right, atol=1e-5)
            np.testing.assert_allclose(left, whole, atol=1e-5)


def failing_job(models, block, block_id, **settings):
    raise PrefselError(f"block {block_id}: no such column")


def test_a_failing_job_raises_its_own_error(ray_session, tmp_path):
    with (
        ModelPool(shares(ray_session, 1), tmp_path) as pool,
        pytest.raises(PrefselError, match="block 0: no such column"),
    ):
        list(pool.run(failing_job, [(0, None, {})]))


def job_that_dies_once(models, block, block_id, *, folder, mark):
    if block_id == 1 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return {folder: pa.table({"block": [block_id]})}


def test_a_killed_actor_is_replaced_and_its_block_done_again(ray_session, tmp_path):
    folder, mark = tmp_path / "out", tmp_path / "died"
    blocks = [(i, None, {"folder": str(folder), "mark": str(mark)}) for i in range(4)]
    with ModelPool(shares(ray_session, 1), tmp_path) as pool:
        done = sorted(block_id for block_id, _ in pool.run(job_that_dies_once, blocks))
    assert mark.exists()
    assert done == [0, 1, 2, 3]
    assert [pq.read_table(path)["block"].to_pylist() for path in sorted(folder.iterdir())] == [[0], [1], [2], [3]]
