"""A preallocated key/value cache for rows that share one column cursor. Nothing is concatenated while decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class Place:
    """Where the next forward pass writes: rows `rows`, columns from `at` on. It sees columns from `first` on."""

    rows: slice
    first: int
    at: int


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: `slots` [2, rows, heads, columns, head_dim], made at the first write."""

    is_sliding = False

    def __init__(self, rows: int, columns: int, place: Place) -> None:
        super().__init__()
        self.rows, self.columns, self.place = rows, columns, place
        self.slots: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        heads, width = key_states.shape[1], key_states.shape[3]
        # Zeros: a masked slot has weight 0, and 0 times an uninitialised NaN would still be NaN.
        self.slots = key_states.new_zeros(2, self.rows, heads, self.columns, width)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """key_states, value_states: [rows, heads, q, head_dim], written at the place; returns views up to there."""
        if self.slots is None:
            self.lazy_initialization(key_states, value_states)
        place, end = self.place, self.place.at + key_states.shape[2]
        if end > self.columns:
            raise IndexError(f"the cache has {self.columns} columns, the write ends at {end}")
        seen = self.slots[:, place.rows]
        seen[0, :, :, place.at : end] = key_states
        seen[1, :, :, place.at : end] = value_states
        return seen[0, :, :, place.first : end], seen[1, :, :, place.first : end]

    def get_seq_length(self) -> int:
        return self.place.at - self.place.first

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return self.columns


class SlotCache(Cache):
    """One `SlotLayer` a model layer, all with the same place. `rows` and `columns` are capacities.

    Set `place` before each forward pass; the pass neither moves it nor grows anything.
    """

    def __init__(self, layers: int, rows: int, columns: int) -> None:
        self.place = Place(slice(0, rows), 0, 0)
        self.rows, self.columns = rows, columns
        super().__init__(layers=[SlotLayer(rows, columns, self.place) for _ in range(layers)])

    def put(self, rows: slice, first: int, at: int) -> "SlotCache":
        """Set the place of the next forward pass."""
        self.place.rows, self.place.first, self.place.at = rows, first, at
        return self

    def select(self, rows: Sequence[int], first: int, end: int) -> None:
        """Row i becomes a copy of the old row rows[i], in columns first..end-1. Rows that stay are not touched.

        A row that is named twice forks, one that is not named is dropped.
        """
        if len(rows) > self.rows:
            raise IndexError(f"the cache has {self.rows} rows, {len(rows)} were asked for")
        moved = [(new, old) for new, old in enumerate(rows) if new != old]
        if not moved:
            return
        for layer in self.layers:
            device = layer.slots.device
            to, source = (torch.tensor(column, device=device) for column in zip(*moved, strict=True))
            seen = layer.slots[:, :, :, first:end]
            seen[:, to] = seen[:, source]  # the right side is a copy: moves may overlap

    def copy_columns(self, sources: Sequence[int], to: int) -> None:
        """In row i, column `to` becomes a copy of column sources[i]; rows from len(sources) on are left alone."""
        if all(source == to for source in sources):
            return
        for layer in self.layers:
            device = layer.slots.device
            rows, columns = torch.arange(len(sources), device=device), torch.tensor(sources, device=device)
            layer.slots[:, rows, :, to] = layer.slots[:, rows, :, columns].transpose(0, 1)
