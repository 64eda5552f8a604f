"""Epoch lists: their rules, and the common point of two logs against logs of single bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.replica.epochs import ENTRIES_MAX, Epochs, common_point, cut_point


class Node:
    """A log of bytes, each known by the epoch in which its leader wrote it there."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.epochs = Epochs()

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(len(self.log))

    def lead(self, epoch: int, count: int) -> None:
        self.epochs = self.epochs.begun(epoch, self.end)
        self.log += [epoch] * count

    def follow(self, leader: Node, count: int) -> None:
        point = common_point(self.epochs, self.end, leader.epochs, leader.end)
        assert point is not None
        del self.log[point:]
        self.log += leader.log[point : point + count]
        # Frames name their epoch, so the follower knows of each one that it has a byte of.
        self.epochs = leader.epochs.truncated(self.end)


def alike(one: Node, other: Node) -> int:
    """How many of the first bytes are the same."""
    pairs = zip(one.log, other.log, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one.log), len(other.log)))


STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3), st.integers(1, 6)), max_size=40
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_the_common_point_is_where_the_logs_part(steps: list[tuple[bool, int, int, int]]) -> None:
    nodes = [Node() for _ in range(4)]
    for node in nodes:
        node.follow(_first_leader(), 3)
    for epoch, (leads, one, other, count) in enumerate(steps, 2):
        if leads:
            nodes[one].lead(epoch, count)
        elif one != other:
            nodes[one].follow(nodes[other], count)
        for a in nodes:
            for b in nodes:
                assert common_point(a.epochs, a.end, b.epochs, b.end) == alike(a, b)


def _first_leader() -> Node:
    leader = Node()
    leader.lead(1, 5)
    return leader


OWN = Epochs.of([(1, 0), (3, 100)])
LEADER = Epochs.of([(1, 0), (2, 80), (4, 120)])


def test_a_follower_cuts_at_the_common_point_and_not_at_its_commit_offset() -> None:
    point = cut_point(OWN, PhysicalOffset(150), LEADER, PhysicalOffset(130), PhysicalOffset(60))
    assert point == 80


def test_a_log_that_lacks_only_the_newest_records_is_not_cut() -> None:
    point = cut_point(LEADER, PhysicalOffset(125), LEADER, PhysicalOffset(130), PhysicalOffset(60))
    assert point == 125


def test_a_common_point_below_the_commit_offset_is_an_error() -> None:
    with pytest.raises(TroveError) as refused:
        cut_point(OWN, PhysicalOffset(150), LEADER, PhysicalOffset(130), PhysicalOffset(81))
    assert refused.value.spec is errors.STORE_DIVERGED


def test_logs_without_a_common_epoch_have_no_known_common_point() -> None:
    other = Epochs.of([(2, 0)])
    assert common_point(OWN, PhysicalOffset(150), other, PhysicalOffset(9)) is None
    assert common_point(OWN, PhysicalOffset(150), Epochs(), PhysicalOffset(9)) is None
    assert common_point(Epochs(), PhysicalOffset(0), other, PhysicalOffset(9)) == 0


def test_an_epoch_that_began_elsewhere_does_not_count() -> None:
    other = Epochs.of([(1, 0), (3, 90)])
    assert common_point(OWN, PhysicalOffset(150), other, PhysicalOffset(150)) == 90


@pytest.mark.parametrize(
    "pairs",
    [
        [(0, 0)],
        [(1, -1)],
        [(2, 0), (2, 5)],
        [(2, 0), (1, 5)],
        [(1, 5), (2, 5)],
        [(1, 5), (2, 4)],
        [(1 << 31, 0)],
        [(n + 1, n) for n in range(ENTRIES_MAX + 1)],
    ],
)
def test_lists_that_do_not_rise_or_are_too_long_are_refused(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="epoch"):
        Epochs.of(pairs)


def test_the_oldest_epochs_are_forgotten() -> None:
    epochs = Epochs.of([(n + 1, n) for n in range(ENTRIES_MAX)])
    longer = epochs.begun(9_000, PhysicalOffset(9_000))
    assert (len(longer), longer.entries[0], longer.last) == (ENTRIES_MAX, (2, 1), 9_000)


def test_epochs_of_a_shorter_log() -> None:
    assert OWN.truncated(PhysicalOffset(101)) == OWN
    assert OWN.truncated(PhysicalOffset(100)) == Epochs.of([(1, 0)])
    assert OWN.truncated(PhysicalOffset(0)) == Epochs()
    assert OWN.trimmed(PhysicalOffset(99)) == OWN
    assert OWN.trimmed(PhysicalOffset(100)) == Epochs.of([(3, 100)])
    assert [OWN.at(PhysicalOffset(at)) for at in (0, 99, 100)] == [1, 1, 3]
    assert LEADER.trimmed(PhysicalOffset(10)).at(PhysicalOffset(5)) == 1
    assert Epochs.of([(3, 100)]).at(PhysicalOffset(99)) == 0
