"""The inbox against a simple model: nothing is lost, nothing overtakes its message group."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.fake_loop import fake_time, turns
from trovemq import ReceivedMessage
from trovemq._consume.inbox import Inbox


def message(queue_offset: int, group: str | None = None, **values: Any) -> ReceivedMessage:
    fixed: dict[str, Any] = {
        "topic": "t", "body": b"12345", "message_id": str(queue_offset), "keys": (), "tags": None,
        "properties": {}, "queue_id": 0, "attempt": 1, "born_timestamp": 0, "store_timestamp": 0,
        "broker": "b",
    }  # fmt: skip
    return ReceivedMessage(**{**fixed, "queue_offset": queue_offset, "message_group": group, **values})


class Batch:
    """A batch of made messages."""

    def __init__(self, messages: list[ReceivedMessage], lease_end: float | None) -> None:
        self.broker, self.lease_end = "b", lease_end
        self.physical_offsets = [message.queue_offset for message in messages]
        self._queued = deque(messages)
        self.messages = (self._queued.popleft() for _ in messages)

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def nbytes(self) -> int:
        return sum(message.nbytes for message in self._queued)


def test_space_is_counted_in_messages_and_bytes() -> None:
    inbox = Inbox(3, 10)
    inbox.put(message(0))
    assert (inbox.free, inbox.count, inbox.size) == (2, 1, 5)
    inbox.put(message(1))
    assert inbox.free == 0  # of bytes
    assert inbox.take(0.0) is not None
    assert (inbox.free, inbox.count, inbox.size) == (2, 1, 5)


def test_a_lease_that_is_over_is_dropped_with_what_waits_after_it() -> None:
    inbox = Inbox(8, 1_000)
    inbox.ordered = True
    inbox.put(message(0, "a", lease_end=10.0))
    inbox.put(message(1, "a", lease_end=10.0))
    inbox.put(message(2, "b", lease_end=20.0))
    taken = inbox.take(15.0)
    assert taken is not None
    assert taken.queue_offset == 2
    assert (inbox.take(15.0), inbox.count, inbox.size) == (None, 0, 0)


@fake_time
async def test_a_lane_stood_still_after_a_message_never_settled() -> None:
    inbox = Inbox(8, 1_000)
    inbox.ordered = True
    for offset in (0, 1):
        inbox.put(message(offset, "a", lease_end=10.0))
    assert inbox.take() is not None, "the program has it, and never settles it"
    inbox.put(message(0, "a", lease_end=20.0, attempt=2))
    taken = inbox.take()
    assert taken is not None
    assert (taken.queue_offset, taken.attempt) == (0, 2), "the broker's clock was a moment ahead"
    await asyncio.sleep(21)
    inbox.put(message(1, "a", lease_end=40.0, attempt=2))
    taken = inbox.take()
    assert taken is not None
    assert (taken.queue_offset, inbox.count, inbox.size) == (1, 0, 0), "the first is a dead letter"
    inbox.put(message(2, "a", lease_end=40.0))
    assert inbox.take() is None, "it waits for the one that the program has now"
    assert inbox.settled(taken, done=True) == []
    assert (inbox.take() or taken).queue_offset == 2


@fake_time
@pytest.mark.parametrize("lease_end", [None, 60.0])
async def test_a_message_of_a_lane_is_with_the_program_once(lease_end: float | None) -> None:
    inbox = Inbox(8, 1_000)
    inbox.ordered = True
    inbox.put(message(0, "a", lease_end=lease_end))
    assert inbox.take() is not None
    inbox.put(message(0, "a", lease_end=lease_end))
    inbox.put(message(1, "a", lease_end=lease_end))
    assert inbox.take() is None


def test_what_a_poll_brought_late_overtook_what_was_returned() -> None:
    """The rest of the lane is returned as well: the broker delivers it after that one. Others stay."""
    inbox = Inbox(8, 1_000)
    inbox.ordered = True
    inbox.put_all([message(1, "a"), message(2, "a"), message(7, "b")])
    head = inbox.take(0.0)
    assert head is not None
    inbox.put(message(3, "a", poll=2))
    assert [other.queue_offset for other in inbox.settled(head, done=False)] == [2, 3]
    inbox.put_all([message(offset, "a", poll=3) for offset in (1, 2)])
    taken = [inbox.take(0.0), inbox.take(0.0), inbox.take(0.0)]
    assert [found and found.queue_offset for found in taken] == [7, 1, None]


@given(
    groups=st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=12),
    choices=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60),
    ordered=st.booleans(),
)
def test_each_message_comes_once_and_in_the_order_of_its_group(
    groups: list[str | None], choices: list[tuple[int, bool]], ordered: bool
) -> None:
    inbox = Inbox(len(groups), 1_000)
    inbox.ordered = ordered
    for offset, group in enumerate(groups):
        inbox.put(message(offset, group))
    left = set(range(len(groups)))
    held: list[ReceivedMessage] = []
    done: dict[str | None, list[int]] = {}
    for pick, consumed in choices:
        taken = inbox.take(0.0)
        if taken is not None:
            assert taken.queue_offset in left
            left.discard(taken.queue_offset)
            assert not ordered or all(other.message_group != taken.message_group for other in held)
            held.append(taken)
        elif held:
            settled = held.pop(pick % len(held))
            again = [settled] * (not consumed) + inbox.settled(settled, done=consumed)
            if consumed:
                done.setdefault(settled.message_group, []).append(settled.queue_offset)
            for other in again:  # the broker delivers them again, in order
                left.add(other.queue_offset)
                inbox.put(message(other.queue_offset, other.message_group))
        waiting = inbox.count
        assert waiting == len(left)
    if ordered:
        assert all(offsets == sorted(offsets) for offsets in done.values())
    assert {rest.queue_offset for rest in inbox.drain()} == left
    assert (inbox.count, inbox.size) == (0, 0)


@pytest.mark.asyncio
async def test_several_tasks_wait_and_one_that_gives_up_loses_nothing() -> None:
    inbox = Inbox(8, 1_000)
    getters = [asyncio.create_task(inbox.get()) for _ in range(3)]
    await asyncio.wait(getters, timeout=0)
    inbox.put(message(0))
    getters[0].cancel()  # while it is served
    inbox.put(message(1))
    first, second = await asyncio.gather(getters[1], getters[2])
    assert first is not None
    assert second is not None
    assert {first.queue_offset, second.queue_offset} == {0, 1}
    last = asyncio.create_task(inbox.get())
    await asyncio.wait([last], timeout=0)
    inbox.close()
    assert await last is None


@fake_time
async def test_waits_that_were_given_up_took_memory_until_a_message_came() -> None:
    """As of a program that asks for a message once a second, by `asyncio.wait_for`."""
    inbox = Inbox(4, 1_000)
    inbox.put_all([message(offset) for offset in range(4)])
    for _ in range(4):
        inbox.take(0.0)
    for _ in range(50):
        assert await inbox.get_until(asyncio.get_running_loop().time() + 1) is None
    assert inbox._getters.count == len(inbox._getters.waiting) == 0
    inbox.put(message(4))
    waiting = [asyncio.ensure_future(inbox.taken()) for _ in range(50)]
    await turns()
    for task in waiting[:49]:
        task.cancel()
    await turns()
    assert len(inbox.askers) == 1
    inbox.take(0.0)
    await waiting[49]


@pytest.mark.asyncio
async def test_space_is_reported_when_it_is_worth_a_call() -> None:
    inbox = Inbox(4, 1_000)
    for offset in range(4):
        inbox.put(message(offset))
    waiting = asyncio.create_task(inbox.wait_for_capacity())
    inbox.take(0.0)
    await asyncio.wait([waiting], timeout=0)
    assert not waiting.done()
    inbox.take(0.0)
    assert await waiting == 2


@given(
    batches=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6),
    taken=st.lists(st.integers(1, 5), max_size=8),
    ordered=st.booleans(),
    leased=st.booleans(),
)
def test_several_at_once_are_as_one_at_a_time(
    batches: list[list[int]], taken: list[int], ordered: bool, leased: bool
) -> None:
    """An offset that is delivered once more while its message waits renews the lease."""

    async def scene() -> None:
        now = asyncio.get_running_loop().time()
        one, many = Inbox(100, 10_000), Inbox(100, 10_000)
        one.ordered = many.ordered = ordered
        for poll, offsets in enumerate(batches):
            lease_end = now + (60 if poll % 2 else -60) if leased else None
            values = [(offset, {"poll": poll, "lease_end": lease_end}) for offset in offsets]
            groups = "ab" if ordered else "a"
            for offset, fields in values:
                one.put(message(offset, groups[offset % len(groups)], **fields))
            made = [message(offset, groups[offset % len(groups)], **fields) for offset, fields in values]
            many.put_all(made)
        for count in taken:
            singles = [found for _ in range(count) if (found := one.take(now)) is not None]
            together = many.take_all(count)
            assert [(found.queue_offset, found.poll) for found in singles] == [
                (found.queue_offset, found.poll) for found in together
            ]
            assert (one.count, one.size) == (many.count, many.size)
        many.close()
        assert many.take_all(9) == []

    asyncio.run(scene())


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("batch"), st.lists(st.integers(0, 9), max_size=5, unique=True)),
            st.tuples(st.just("single"), st.lists(st.integers(0, 9), min_size=1, max_size=1)),
            st.tuples(st.sampled_from(["take", "take_all", "next"]), st.integers(1, 4)),
        ),
        max_size=25,
    ),
    ordered=st.booleans(),
    leased=st.booleans(),
)
@example(  # message 0 is processed, and delivered again twice, once before its batch is done
    steps=[
        *(("batch", [0, 1]), ("take", 1), ("batch", [2, 0]), ("take", 2)),
        *(("batch", [0]), ("take_all", 4)),
    ],
    ordered=False,
    leased=False,
)
def test_batches_are_as_their_messages_one_by_one(
    steps: list[tuple[str, Any]], ordered: bool, leased: bool
) -> None:
    """Also when a message is delivered again while it waits, or after the program got it."""

    async def scene() -> None:
        now = asyncio.get_running_loop().time()
        one, many = Inbox(100, 10_000), Inbox(100, 10_000)
        one.ordered = many.ordered = ordered
        groups = "ab" if ordered else "a"
        for poll, (kind, values) in enumerate(steps):
            if kind in ("batch", "single"):
                lease_end = now + (60 if poll % 2 else -60) if leased else None
                made, again = (
                    [
                        message(offset, groups[offset % len(groups)], poll=poll, lease_end=lease_end)
                        for offset in values
                    ]
                    for _ in range(2)
                )
                one.put_all(made)
                if kind == "single":
                    many.put(again[0])
                else:
                    many.put_batch(Batch(again, lease_end))
            else:
                expected = [found for _ in range(values) if (found := one.take(now)) is not None]
                taken = await taken_by(many, kind, values, now)
                assert [(found.queue_offset, found.poll) for found in taken] == [
                    (found.queue_offset, found.poll) for found in expected
                ]
            assert (many.count, many.size, many.free) == (one.count, one.size, one.free)
        assert {(left.queue_offset, left.poll) for left in many.drain()} == {
            (left.queue_offset, left.poll) for left in one.drain()
        }
        assert (many.count, many.size) == (0, 0)

    asyncio.run(scene())


def test_a_record_that_was_delivered_twice_more_waited_twice() -> None:
    """It was forgotten that it waits in a later batch when the batch that had it before was used up."""
    inbox = Inbox(100, 10_000)
    inbox.put_batch(Batch([message(0, poll=1), message(1, poll=1)], None))
    taken = [inbox.take(0.0)]  # the program returns it
    inbox.put_batch(Batch([message(2, poll=2), message(0, poll=2)], None))
    taken += [inbox.take(0.0), inbox.take(0.0)]
    inbox.put_batch(Batch([message(0, poll=3)], None))
    assert [found and found.queue_offset for found in taken] == [0, 1, 2]
    assert inbox.count == 1
    last = inbox.take(0.0)
    assert last is not None
    assert (last.queue_offset, last.poll) == (0, 3)
    assert inbox.take(0.0) is None


async def taken_by(inbox: Inbox, kind: str, count: int, now: float) -> list[ReceivedMessage]:
    """The next messages; "next": as the iteration over a subscription takes them."""
    if kind == "take_all":
        return inbox.take_all(count)
    taken: list[ReceivedMessage] = []
    for _ in range(count):
        found = next(inbox.messages, None) if kind == "next" else None
        found = found or inbox.take(now)
        taken += () if found is None else (found,)
    return taken


def test_the_end_leaves_the_messages_of_batches_to_be_drained() -> None:
    inbox = Inbox(8, 1_000)
    inbox.put_batch(Batch([message(0), message(1)], None))
    assert next(inbox.messages).queue_offset == 0
    inbox.close()
    inbox.put_batch(Batch([message(2)], None))
    assert next(inbox.messages, None) is None
    assert [left.queue_offset for left in inbox.drain()] == [1, 2]


def test_messages_of_void_batches_leave_and_those_of_later_ones_stay() -> None:
    inbox = Inbox(8, 1_000)
    inbox.put_batch(Batch([message(offset, poll=1) for offset in range(3)], None))
    inbox.put_batch(Batch([message(offset, poll=2) for offset in (7, 8)], None))
    iterated = inbox.messages
    assert next(iterated).queue_offset == 0
    assert [left.queue_offset for left in inbox.drain_before("other", None)] == []
    assert (inbox.count, inbox.size) == (4, 20)
    assert [left.queue_offset for left in inbox.drain_before("b", 2)] == [1, 2]
    assert (inbox.count, inbox.size, inbox.free) == (2, 10, 6)
    assert next(iterated, None) is None
    taken = [inbox.take(0.0), inbox.take(0.0), inbox.take(0.0)]
    assert [found and found.queue_offset for found in taken] == [7, 8, None]


def test_a_message_that_was_delivered_again_after_a_reset_is_not_void() -> None:
    """Its batch overtook the notice, and renewed the lease of the message that waited."""
    inbox = Inbox(8, 1_000)
    inbox.put_batch(Batch([message(0, poll=1), message(1, poll=1)], None))
    inbox.put_batch(Batch([message(1, poll=2)], None))
    assert [left.queue_offset for left in inbox.drain_before("b", 2)] == [0]
    taken = inbox.take(0.0)
    assert taken is not None
    assert (taken.queue_offset, taken.poll, inbox.take(0.0)) == (1, 2, None)


def test_a_void_lane_lets_nothing_overtake_what_the_program_has() -> None:
    inbox = Inbox(8, 1_000)
    inbox.ordered = True
    inbox.put_all([message(0, "a", poll=1), message(1, "a", poll=1), message(2, "b", poll=1)])
    head = inbox.take(0.0)
    assert head is not None
    assert [left.queue_offset for left in inbox.drain_before("b", None)] == [1, 2]
    inbox.put_all([message(3, "a", poll=2), message(4, "b", poll=2)])
    taken = [inbox.take(0.0), inbox.take(0.0)]
    assert [found and found.queue_offset for found in taken] == [4, None]
    assert inbox.settled(head, done=True) == []
    after = inbox.take(0.0)
    assert after is not None
    assert after.queue_offset == 3


@pytest.mark.asyncio
async def test_who_waits_for_space_has_that_of_void_messages() -> None:
    inbox = Inbox(4, 1_000)
    inbox.put_batch(Batch([message(offset, poll=1) for offset in range(4)], None))
    waiting = asyncio.create_task(inbox.wait_for_capacity())
    await asyncio.wait([waiting], timeout=0)
    assert not waiting.done()
    inbox.drain_before("b", None)
    assert await waiting == 4


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("batch"), st.lists(st.integers(0, 9), max_size=5, unique=True)),
            st.tuples(st.just("single"), st.lists(st.integers(0, 9), min_size=1, max_size=1)),
            st.tuples(st.just("take"), st.integers(1, 4)),
            st.tuples(st.just("settle"), st.booleans()),
            st.tuples(st.just("void"), st.integers(0, 25)),
            st.tuples(st.just("keep"), st.integers(1, 3)),
        ),
        max_size=25,
    ),
    ordered=st.booleans(),
)
def test_the_inbox_without_void_messages_is_as_if_they_never_came(
    steps: list[tuple[str, Any]], ordered: bool
) -> None:
    """The model: the offsets that wait, with the newest poll of each. None of a group is returned while the
    program has another one of it."""
    inbox = Inbox(100, 10_000)
    inbox.ordered = ordered
    waiting: dict[int, int] = {}
    held: list[ReceivedMessage] = []

    def group_of(offset: int) -> str:
        return "ab"[offset % 2]

    for poll, (kind, value) in enumerate(steps, 1):
        if kind in ("batch", "single"):
            made = [message(offset, group_of(offset), poll=poll) for offset in value]
            inbox.put_batch(Batch(made, None)) if kind == "batch" else inbox.put_all(made)
            waiting.update(dict.fromkeys(value, poll))
        elif kind == "take":
            for found in [found for _ in range(value) if (found := inbox.take(0.0)) is not None]:
                assert waiting.pop(found.queue_offset) == found.poll
                assert not ordered or found.message_group not in {other.message_group for other in held}
                held.append(found)
        elif kind == "settle" and held:
            for other in inbox.settled(held.pop(0), done=value):
                del waiting[other.queue_offset]
        elif kind == "void":
            left = {one.queue_offset: one.poll for one in inbox.drain_before("b", value)}
            assert left == {offset: poll for offset, poll in waiting.items() if poll < value}
            waiting = {offset: poll for offset, poll in waiting.items() if poll >= value}
        elif kind == "keep":
            for other in inbox.drain("b", value):
                del waiting[other.queue_offset]
            assert len(waiting) <= value
        assert (inbox.count, inbox.size) == (len(waiting), 5 * len(waiting))
    while held or waiting:  # nothing is stuck
        taken = inbox.take(0.0)
        if taken is not None:
            assert waiting.pop(taken.queue_offset) == taken.poll
            held.append(taken)
        else:
            assert held, waiting
            assert inbox.settled(held.pop(0), done=True) == []
