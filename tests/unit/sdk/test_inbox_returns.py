"""Messages that an inbox returns while others stay, and the count of those that the program took."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sdk.test_inbox import Batch, message
from trovemq import ReceivedMessage
from trovemq._consume.inbox import Inbox


def test_the_first_ready_messages_are_kept_when_others_are_returned() -> None:
    for as_batch in (False, True):
        inbox = Inbox(100, 1_000)
        some = [message(offset) for offset in range(10)]
        if as_batch:
            inbox.put_batch(Batch(some, None))
        else:
            inbox.put_all(some)
        assert inbox.take(0.0) is some[0]
        assert inbox.drain("another", 0) == []
        assert inbox.drain("b", 9) == []
        assert inbox.drain("b", 3) == some[4:]
        assert (inbox.count, inbox.size) == (3, 15)
        assert [inbox.take(0.0) for _ in range(4)] == [*some[1:4], None]


@pytest.mark.parametrize("done", [True, False])
def test_a_returned_message_does_not_overtake_its_lane(done: bool) -> None:
    """The lane's first message is with the program; the others were returned, and are delivered again."""
    inbox = Inbox(100, 1_000)
    inbox.ordered = True
    inbox.put_all([message(offset, "a") for offset in range(3)])
    head = inbox.take(0.0)
    assert head is not None
    inbox.put_all([message(10, "b"), message(11, "b"), message(20, "c"), message(21, "c")])
    left = inbox.drain("b", 1)
    assert sorted(one.queue_offset for one in left) == [1, 2, 11, 20, 21]
    assert inbox.count == 1
    kept = inbox.take(0.0)
    assert kept is not None
    assert (kept.queue_offset, inbox.take(0.0)) == (10, None)
    inbox.put_all([message(offset, "a") for offset in (1, 2)])
    inbox.put_all([message(11, "b"), message(20, "c")])
    other = inbox.take(0.0)
    assert other is not None
    assert other.queue_offset == 20, "the head of a lane of which nothing is here"
    assert inbox.take(0.0) is None
    returned = inbox.settled(head, done=done)
    following = inbox.take(0.0)
    if done:
        assert following is not None
        assert (following.queue_offset, returned) == (1, [])
    else:
        assert (following, [one.queue_offset for one in returned]) == (None, [1, 2])


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "batch", "take", "all", "drain", "settle"]), st.integers(0, 9)),
        max_size=40,
    ),
    st.booleans(),
)
def test_messages_that_the_program_took_are_counted(steps: list[tuple[str, int]], ordered: bool) -> None:
    async def scene() -> None:
        inbox, taken, offsets = Inbox(100, 10_000), 0, iter(range(1_000))
        inbox.ordered = ordered
        heads: list[ReceivedMessage] = []
        for step, count in steps:
            if step == "put":
                inbox.put_all([message(next(offsets), f"lane {number % 3}") for number in range(count)])
            elif step == "batch":
                some = [message(next(offsets), f"lane {number % 3}") for number in range(count)]
                inbox.put_batch(Batch(some, None))
            elif step == "take":
                one = inbox.take(0.0)
                heads += [one] if one is not None else []
                taken += one is not None
            elif step == "all":
                got = inbox.take_all(count)
                heads += got
                taken += len(got)
            elif step == "settle" and heads:
                inbox.settled(heads.pop(0), done=count > 4)
            elif step == "drain":
                inbox.drain("b", count)
            assert inbox._put_count - inbox.count == taken
            assert inbox.count >= inbox.ready_count

    asyncio.run(scene())


def test_a_message_ran_beside_its_second_delivery_when_a_member_joined() -> None:
    """The group was reset while the program had the message; the second delivery waits for the first one."""
    inbox = Inbox(100, 1_000)
    inbox.ordered = True
    inbox.put_all([message(0, "a", poll=1), message(1, "a", poll=1)])
    first = inbox.take(0.0)
    assert first is not None
    inbox.drain_before("b", None)
    inbox.put_all([message(0, "a", poll=2), message(1, "a", poll=2), message(10, "b", poll=2)])
    assert sorted(one.queue_offset for one in inbox.drain("b", 1)) == [0, 1]
    other = inbox.take(0.0)
    assert other is not None
    assert other.queue_offset == 10
    inbox.put_all([message(0, "a", poll=3), message(1, "a", poll=3)])
    assert inbox.take(0.0) is None, "the program still has the first delivery"
    assert inbox.settled(first, done=True) == []
    second = inbox.take(0.0)
    assert second is not None
    assert (second.queue_offset, second.poll) == (0, 3)


def test_a_message_ran_beside_its_second_delivery_after_a_break() -> None:
    """The program has it, and the broker delivers it again after a reset, or because its lease was lost."""
    inbox = Inbox(100, 1_000)
    inbox.ordered = True
    inbox.put_all([message(0, "a", poll=1), message(1, "a", poll=1), message(10, "b", poll=1)])
    first = inbox.take(0.0)
    assert first is not None
    assert sorted(one.queue_offset for one in inbox.drain("b")) == [1, 10]
    inbox.put_all([message(offset, "a", poll=2) for offset in (0, 1)])
    inbox.put(message(10, "b", poll=2))
    other = inbox.take(0.0)
    assert other is not None
    assert (other.queue_offset, inbox.take(0.0)) == (10, None)
    assert [one.queue_offset for one in inbox.settled(first, done=False)] == [0, 1]
    inbox.put(message(0, "a", poll=3))
    second = inbox.take(0.0)
    assert second is not None
    assert (second.queue_offset, second.poll) == (0, 3)
