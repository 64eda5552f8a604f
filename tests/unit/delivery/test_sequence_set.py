"""SequenceSet against a plain set."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.groups.delivery.sequence_set import SequenceSet

OFFSETS = st.integers(0, 60)
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "discard", "add_range", "discard_range", "clear"]), OFFSETS, OFFSETS),
    max_size=60,
)


@given(STEPS)
def test_it_holds_what_a_plain_set_holds(steps: list[tuple[str, int, int]]) -> None:
    found, model = SequenceSet(), set[int]()
    for what, one, other in steps:
        if what == "add":
            found.add(one)
            model.add(one)
        elif what == "discard":
            found.discard(one)
            model.discard(one)
        elif what == "add_range":
            found.add_range(one, other)
            model.update(range(one, other))
        elif what == "discard_range":
            found.discard_range(one, other)
            model.difference_update(range(one, other))
        else:
            found.clear()
            model.clear()
        assert list(found) == sorted(model)
        assert len(found) == len(model)
        assert found.first() == min(model, default=None)
        assert [offset in found for offset in range(-1, 62)] == [offset in model for offset in range(-1, 62)]
        ranges = found.ranges()
        assert all(first < end for first, end in ranges)
        assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert SequenceSet(found.ranges()) == found


def test_what_lies_side_by_side_costs_one_range() -> None:
    found = SequenceSet()
    for offset in range(100_000):
        found.add(offset)
    assert found.ranges() == [(0, 100_000)]
    assert found.byte_count == 16
    found.discard(50_000)
    assert found.ranges() == [(0, 50_000), (50_001, 100_000)]
    assert found.byte_count == 32
    assert found != [(0, 50_000)]
