"""Ray Data at the edges: pairs stream from Parquet in blocks, features stream into training."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import ray


def _ordered() -> None:
    # Without it the order of blocks differs from run to run, and part files would not mean the same rows.
    ray.data.DataContext.get_current().execution_options.preserve_order = True


def stream_blocks(paths: Sequence[Path], rows_per_block: int) -> Iterator[tuple[int, pa.Table]]:
    """(block id, table of at most `rows_per_block` rows) in file order, the same every time."""
    _ordered()
    dataset = ray.data.read_parquet([str(path) for path in paths])
    batches = dataset.iter_batches(batch_size=rows_per_block, batch_format="pyarrow", prefetch_batches=2)
    yield from enumerate(batches)


def feature_dataset(folder: Path) -> ray.data.Dataset:
    """The final states of both sides of the pairs in a folder of trace parts, one row a pair, in file order."""
    _ordered()
    parts = [str(path) for path in sorted(folder.glob("part-*.parquet"))]
    return ray.data.read_parquet(parts, columns=["example_id", "user_id", "split", "final_chosen", "final_rejected"])
