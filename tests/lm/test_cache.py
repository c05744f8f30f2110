"""Protects the preallocated cache: forks and drops copy the right rows, a kept leaf lands in the right column."""

import pytest
import torch

from prefsel_ray.lm.cache import SlotCache


def _filled(rows, columns=6, capacity=None):
    """Two layers whose slots hold 100 * row + column (values negative), written in one pass."""
    cache = SlotCache(layers=2, rows=capacity or rows, columns=columns)
    numbers = 100.0 * torch.arange(rows)[:, None] + torch.arange(columns)
    keys = numbers[:, None, :, None].expand(rows, 2, columns, 3).clone()
    cache.put(slice(0, rows), 0, 0)
    for layer in range(2):
        cache.update(keys, -keys, layer)
    return cache


def _row(cache, row, layer=1):
    keys, values = cache.layers[layer].slots[:, row, 1, :, 2]
    assert torch.equal(values, -keys)
    return keys.tolist()


def test_a_pass_sees_its_rows_from_the_first_column_to_what_it_wrote():
    cache = _filled(rows=3)
    new = torch.full((2, 2, 1, 3), 7.0)
    keys, values = cache.put(slice(1, 3), first=2, at=4).update(new, new, 0)
    assert keys[0, 0, :, 0].tolist() == [102, 103, 7]
    assert values[1, 1, :, 2].tolist() == [-202, -203, 7]
    assert _row(cache, 0, layer=0) == [0, 1, 2, 3, 4, 5]


def test_select_forks_and_drops_rows_even_where_the_moves_overlap():
    cache = _filled(rows=3, capacity=4)
    cache.select([1, 0, 2, 0], first=0, end=6)
    assert _row(cache, 0) == [100, 101, 102, 103, 104, 105]
    assert _row(cache, 1) == [0, 1, 2, 3, 4, 5]
    assert _row(cache, 2) == [200, 201, 202, 203, 204, 205]
    assert _row(cache, 3) == [0, 1, 2, 3, 4, 5]


def test_select_copies_only_the_columns_asked_for():
    cache = _filled(rows=2)
    cache.select([1], first=2, end=4)
    assert _row(cache, 0) == [0, 1, 102, 103, 4, 5]


def test_select_beyond_the_capacity_is_an_error():
    with pytest.raises(IndexError, match="2 rows, 3 were asked for"):
        _filled(rows=2).select([0, 0, 1], first=0, end=6)


def test_copy_columns_takes_another_column_in_each_row():
    cache = _filled(rows=3)
    cache.copy_columns([5, 4], to=3)
    assert _row(cache, 0) == [0, 1, 2, 5, 4, 5]
    assert _row(cache, 1) == [100, 101, 102, 104, 104, 105]
    assert _row(cache, 2) == [200, 201, 202, 203, 204, 205]


def test_a_write_beyond_the_columns_is_an_error():
    cache = _filled(rows=1)
    with pytest.raises(IndexError, match="6 columns, the write ends at 7"):
        cache.put(slice(0, 1), 0, 5).update(torch.zeros(1, 2, 2, 3), torch.zeros(1, 2, 2, 3), 0)
