"""A heap of offsets gives them lowest first, in 8 bytes each."""

from __future__ import annotations

import heapq
import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.groups.delivery import offset_heap
from trovemq_broker.groups.delivery.offset_heap import OffsetHeap


@given(st.lists(st.one_of(st.none(), st.integers(0, 1 << 40)), max_size=120), st.integers(0, 9))
def test_it_gives_what_heapq_gives(steps: list[int | None], new_min: int) -> None:
    """A number is pushed, None takes the lowest."""
    with patch.object(offset_heap, "NEW_MIN", new_min):
        heap, model = OffsetHeap(), list[int]()
        for step in steps:
            if step is not None:
                heap.push(step)
                heapq.heappush(model, step)
            elif model:
                assert heap.first() == model[0]
                assert heap.pop() == heapq.heappop(model)
            assert len(heap) == len(model)
            assert sorted(heap) == sorted(model)


@pytest.mark.untraced
def test_many_offsets_take_little_and_those_that_were_taken_nothing() -> None:
    many = 200_000
    tracemalloc.start(1)
    try:
        heap = OffsetHeap()
        for number in range(many):
            heap.push((1 << 40) + number * 7_919 % many)
        assert tracemalloc.get_traced_memory()[0] < 14 * many
        assert [heap.pop() for _ in range(many - 10)][-1] == (1 << 40) + many - 11
        assert tracemalloc.get_traced_memory()[0] < 8 * many
    finally:
        tracemalloc.stop()
