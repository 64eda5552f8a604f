"""Batches that come together are one append, and each gets its own place, its own error, and one answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.support.engine import NOW_MS, SMALL, open_store, read_queue, record, with_crc_property
from tests.support.submitting import Outcome, send, submit
from trovemq_broker.produce.accumulator import Accumulator
from trovemq_broker.produce.append import Appender, AppendSettings, batch_size_limit
from trovemq_broker.produce.batches import Batch
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.produce.outgoing import OutgoingEncoder, OutgoingMessage
from trovemq_broker.produce.queue_chooser import TOPICS_MAX, QueueChooser
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, EpochMs, QueueId
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.layout import PROPERTY_PRODUCER, PROPERTY_SEQUENCE
from trovemq_store.engine.message_store import AppendResult, FlushWork, MessageStore
from trovemq_store.files.files import Buffer
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees.producers import Gap
from trovemq_store.settings import FlushMode


class SlowStore:
    """The store, with syncs that wait for leave."""

    def __init__(self, store: MessageStore, begun: threading.Event, leave: threading.Event) -> None:
        self._store, self._begun, self._leave = store, begun, leave

    end_offset = property(lambda self: self._store.end_offset)
    flushed_offset = property(lambda self: self._store.flushed_offset)

    def begin_flush(self) -> FlushWork | None:
        work = self._store.begin_flush()
        if work is not None:
            plain = work.run

            def run() -> None:
                self._begun.set()
                self._leave.wait(10)
                plain()

            work.run = run  # type: ignore[method-assign]
        return work

    def finish_flush(self, work: FlushWork) -> list[tuple[str, QueueId]]:
        return self._store.finish_flush(work)

    def mark_failed(self) -> None:
        self._store.mark_failed()


class Bench:
    def __init__(self, mode: FlushMode = "async", gather_max_ms: int = 60_000) -> None:
        settings = replace(SMALL, flush_mode=mode, tree_index_enable=True)
        self.store = open_store(MemoryFileSystem(), settings, topics=("orders", "others"))
        self.may_sync = threading.Event()
        self._sync_begun = threading.Event()
        self.commit = commit = GroupCommit(
            SlowStore(self.store, self._sync_begun, self.may_sync),
            FlushSettings(flush_mode=mode, gather_max_ms=gather_max_ms),
            lambda _grown: None,
        )
        self.appender = Appender(self.store, commit, AppendSettings(), lambda: NOW_MS, lambda _grown: None)
        keys: Iterator[int] = count()
        encoder = OutgoingEncoder(SMALL, False, lambda: f"U{next(keys)}")
        self.accumulator = Accumulator(self.appender, encoder, batch_size_limit(SMALL), commit)
        self.appends: list[tuple[str, int]] = []
        """(topic, queue id) of each append, and of each part of a joined one."""
        self.joined_count = 0
        plain, plain_joined = self.appender.append, self.appender.append_joined

        def counted(
            topic: str,
            queue_id: QueueId,
            records: Buffer,
            born_host: bytes | None,
            *,
            owned: bool = False,
        ) -> AppendResult:
            self.appends.append((topic, queue_id))
            return plain(topic, queue_id, records, born_host, owned=owned)

        def counted_joined(parts: Sequence[QueuePart], data: bytearray) -> list[AppendResult]:
            results = plain_joined(parts, data)
            self.appends += [(part.topic, part.queue_id) for part in parts]
            self.joined_count += 1
            return results

        self.appender.append = counted  # type: ignore[method-assign]
        self.appender.append_joined = counted_joined  # type: ignore[method-assign]

    async def in_turn(self, *sends: Awaitable[Outcome], return_exceptions: bool = False) -> Any:
        """The outcomes of sends in one iteration whose first batch, which is appended at once, has come."""

        async def begin() -> None:
            self.accumulator._schedule()

        outcomes = await asyncio.gather(begin(), *sends, return_exceptions=return_exceptions)
        return outcomes[1:]

    async def syncing(self) -> bool:
        """Returns when the first sync runs."""
        return await asyncio.to_thread(self._sync_begun.wait, 10)

    async def send(self, *bodies: bytes, topic: str = "orders", queue_id: QueueId = QueueId(0)) -> Outcome:
        messages = [OutgoingMessage(body) for body in bodies]
        return await send(self.accumulator, topic, queue_id, messages)

    async def send_numbered(self, *sequences: int, unique_key: str = "") -> Outcome:
        """Of the producer "p" to the topic "numbered"."""
        messages = [
            OutgoingMessage(
                b"x",
                unique_key=unique_key or f"m-{sequence}",
                properties={PROPERTY_PRODUCER: "p", PROPERTY_SEQUENCE: str(sequence)},
            )
            for sequence in sequences
        ]
        return await send(self.accumulator, "numbered", QueueId(0), messages)


@pytest.mark.asyncio
async def test_sends_of_one_turn_are_one_append_per_queue() -> None:
    bench = Bench()
    outcomes = await bench.in_turn(
        bench.send(b"a"), bench.send(b"b", b"c"), bench.send(b"d", queue_id=QueueId(1)), bench.send(b"e")
    )
    assert bench.appends == [("orders", 0), ("orders", 1)]
    assert [outcome.result.first_queue_offset for outcome in outcomes] == [0, 1, 0, 3]
    assert [outcome.result.record_count for outcome in outcomes] == [1, 2, 1, 1]
    messages = read_queue(bench.store)
    assert [message.body for message in messages] == [b"a", b"b", b"c", b"e"]
    ids = [
        text
        for outcome in (outcomes[0], outcomes[1], outcomes[3])
        for text in outcome.result.offset_msg_ids()
    ]
    assert ids == [message.offset_msg_id for message in messages]


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [1, 5])
async def test_sends_of_one_turn_to_many_queues_are_one_append(count: int) -> None:
    bench = Bench()
    queues = [(topic, QueueId(queue)) for topic in ("orders", "others") for queue in range(4)]
    sends = [(queue, b"%d" % number) for number in range(count) for queue in queues]
    outcomes = await bench.in_turn(
        *(bench.send(body, topic=topic, queue_id=queue_id) for (topic, queue_id), body in sends)
    )
    assert (bench.appends, bench.joined_count) == (queues, 1)
    assert [outcome.result.record_count for outcome in outcomes] == [1] * len(sends)
    bench.store.dispatch()
    for topic, queue_id in queues:
        messages = read_queue(bench.store, topic, queue_id)
        own = [one.result for one, (queue, _) in zip(outcomes, sends, strict=True) if queue[0] == topic]
        assert [message.body for message in messages] == [b"%d" % number for number in range(count)]
        assert [message.queue_offset for message in messages] == list(range(count))
        assert {message.offset_msg_id for message in messages} <= {
            text for result in own for text in result.offset_msg_ids()
        }
    assert (await bench.send(b"later", topic="others")).result.first_queue_offset == count


@pytest.mark.asyncio
async def test_a_topic_deleted_meanwhile_refuses_no_other_topics_sends() -> None:
    bench = Bench()
    outcomes: dict[str, Outcome | Exception] = {}
    with bench.accumulator.together():
        for topic in ("others", "orders"):
            message = OutgoingMessage(topic.encode())
            done = partial(outcomes.__setitem__, topic)
            submit(bench.accumulator, topic, QueueId(0), [message], done)
        bench.store.topics.delete("others")
    refused, stored = outcomes["others"], outcomes["orders"]
    assert isinstance(refused, TroveError)
    assert refused.symbol == "TOPIC_NOT_FOUND"
    assert isinstance(stored, Outcome)
    assert stored.result.first_queue_offset == 0
    bench.store.dispatch()
    assert [message.body for message in read_queue(bench.store)] == [b"orders"]


@pytest.mark.asyncio
async def test_sends_to_a_deduplicated_topic_are_deduplicated_beside_others() -> None:
    bench = Bench()
    bench.store.topics.create("numbered", 1, options={"deduplicate": "1d"})
    outcomes = await bench.in_turn(
        bench.send_numbered(0), bench.send(b"a"), bench.send_numbered(0), bench.send(b"b", topic="others")
    )
    assert [outcome.result.record_count for outcome in outcomes] == [1, 1, 0, 1]
    assert bench.joined_count == 1


@pytest.mark.asyncio
async def test_a_store_that_fails_in_a_joined_append_answers_every_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(bench.store, "append", fail)
    results = await bench.in_turn(bench.send(b"a"), bench.send(b"b", topic="others"), return_exceptions=True)
    assert [type(result) for result in results] == [MemoryError] * 2


@pytest.mark.asyncio
async def test_sends_that_begin_together_are_appended_before_the_loops_next_turn() -> None:
    bench = Bench()
    outcomes: list[Outcome | Exception] = []

    def begin(*bodies: bytes, queue_id: QueueId = QueueId(0)) -> None:
        messages = [OutgoingMessage(body) for body in bodies]
        submit(bench.accumulator, "orders", queue_id, messages, outcomes.append)

    with bench.accumulator.together():
        begin(b"a")
        begin(b"b", queue_id=QueueId(1))
        with pytest.raises(TroveError, match="KEY_ILLEGAL"):
            submit(
                bench.accumulator,
                "orders",
                QueueId(0),
                [OutgoingMessage(b"x", keys=["a b"])],
                outcomes.append,
            )
        begin(b"c")
        assert not outcomes
    assert bench.appends == [("orders", 0), ("orders", 1)]
    assert [one.result.first_queue_offset for one in outcomes if isinstance(one, Outcome)] == [0, 1, 0]
    assert (await bench.send(b"later")).result.first_queue_offset == 2


@pytest.mark.asyncio
async def test_a_choice_of_queue_whose_send_was_refused_holds_up_nobody() -> None:
    bench = Bench()
    with bench.accumulator.together():
        bench.accumulator.queue_of("orders", ANY_QUEUE)
    async with asyncio.timeout(240):
        await bench.send(b"next", queue_id=QueueId(-1))


@pytest.mark.asyncio
async def test_each_send_gets_the_numbers_that_are_missing_before_its_own() -> None:
    bench = Bench()
    bench.store.topics.create("numbered", 1, options={"deduplicate": "1h"})
    await bench.send_numbered(0)
    outcomes = await bench.in_turn(*(bench.send_numbered(*own) for own in ((1, 2), (5, 6, 9), (7,), (9, 12))))
    assert bench.appends == [("numbered", 0)] * 2
    assert [outcome.result.gaps for outcome in outcomes] == [
        {},
        {0: Gap(b"p", 3, 4), 2: Gap(b"p", 7, 8)},
        {},
        {1: Gap(b"p", 10, 11)},
    ]
    assert list(outcomes[3].result.duplicates) == [0]


@pytest.mark.asyncio
async def test_a_number_that_is_refused_fails_its_own_send_alone() -> None:
    bench = Bench()
    bench.store.topics.create("numbered", 1, options={"deduplicate": "1h"})
    await bench.send_numbered(3_000)
    sends = (
        bench.send_numbered(3_001),
        bench.send_numbered(3_002, 5),
        bench.send_numbered(3_000, unique_key="another"),
        bench.send_numbered(-1),
        bench.send_numbered(3_000, 3_003),
    )
    outcomes = await bench.in_turn(*sends, return_exceptions=True)
    assert [outcome.spec for outcome in outcomes if isinstance(outcome, TroveError)] == [
        errors.PRODUCER_SEQUENCE_TOO_OLD,
        errors.PRODUCER_SEQUENCE_CONFLICT,
        errors.PRODUCER_SEQUENCE_ILLEGAL,
    ]
    first, last = outcomes[0], outcomes[4]
    assert isinstance(first, Outcome)
    assert isinstance(last, Outcome)
    assert (first.result.first_queue_offset, last.result.queue_offset(0), last.result.queue_offset(1)) == (
        1,
        0,
        2,
    )
    stored = [int(message.properties[PROPERTY_SEQUENCE]) for message in read_queue(bench.store, "numbered")]
    assert stored == [3_000, 3_001, 3_003]


@pytest.mark.asyncio
async def test_sends_without_a_queue_take_turns_turn_by_turn() -> None:
    bench = Bench()
    queues = []
    for _ in range(5):
        outcomes = await asyncio.gather(
            bench.send(b"a", queue_id=QueueId(-1)), bench.send(b"b", queue_id=QueueId(-1))
        )
        assert outcomes[0].queue_id == outcomes[1].queue_id
        queues.append(outcomes[0].queue_id)
    assert queues == [0, 1, 2, 3, 0]


@pytest.mark.asyncio
async def test_one_bad_send_does_not_harm_its_neighbours() -> None:
    bench = Bench()

    async def bad(message: OutgoingMessage) -> Outcome:
        return await send(bench.accumulator, "orders", QueueId(0), [message])

    results = await asyncio.gather(
        bench.send(b"good"),
        bad(OutgoingMessage(b"x" * 8_193)),
        bad(OutgoingMessage(b"x", keys=["two words"])),
        bad(OutgoingMessage(b"x", tag="a|b")),
        bad(OutgoingMessage(b"x", unique_key="a b")),
        bad(OutgoingMessage(b"x", properties={"KEYS": "mine"})),
        bad(OutgoingMessage(b"x", properties={"long": "v" * 32_767})),
        bench.send(b"x", topic="unknown"),
        bench.send(b"x", queue_id=QueueId(99)),
        bench.send(b"also good"),
        return_exceptions=True,
    )
    symbols = [result.symbol if isinstance(result, TroveError) else "" for result in results]
    assert symbols == [
        "",
        "MESSAGE_SIZE_EXCEEDED",
        "KEY_ILLEGAL",
        "TAG_ILLEGAL",
        "UNIQUE_KEY_ILLEGAL",
        "PROPERTY_ILLEGAL",
        "PROPERTIES_SIZE_EXCEEDED",
        "TOPIC_NOT_FOUND",
        "QUEUE_NOT_FOUND",
        "",
    ]
    assert [message.body for message in read_queue(bench.store)] == [b"good", b"also good"]


@pytest.mark.asyncio
async def test_a_group_larger_than_a_batch_is_cut() -> None:
    bench = Bench()
    await asyncio.gather(*(bench.send(b"x" * 4_000) for _ in range(5)))
    assert len(bench.appends) == 3, "two fit into a segment"
    assert len(read_queue(bench.store)) == 5


@pytest.mark.asyncio
async def test_a_failing_append_is_heard_by_every_send() -> None:
    bench = Bench()

    def broken(*_arguments: object, **_named: object) -> AppendResult:
        raise AssertionError("broken")

    bench.appender.append = broken  # type: ignore[method-assign]
    results = await asyncio.gather(bench.send(b"a"), bench.send(b"b"), return_exceptions=True)
    assert [type(result) for result in results] == [AssertionError] * 2


@pytest.mark.asyncio
async def test_fields_of_a_message_arrive_in_the_record() -> None:
    bench = Bench()
    message = OutgoingMessage(
        b"body",
        tag="paid",
        keys=["1", "2"],
        unique_key="mine",
        properties={"origin": "x"},
        flag=-7,
        born_timestamp=EpochMs(5),
    )
    born_host = bytes([192, 168, 0, 9, 0, 0, 1, 2])
    await send(bench.accumulator, "orders", QueueId(0), [message], born_host)
    await asyncio.sleep(0)
    (found,) = read_queue(bench.store)
    assert (found.tags, found.keys, found.unique_key) == ("paid", ("1", "2"), "mine")
    assert (found.flag, found.born_timestamp, found.properties["origin"]) == (-7, 5, "x")
    assert found.born_host == "192.168.0.9:258"


def test_queue_chooser_is_bounded() -> None:
    chooser = QueueChooser()
    for number in range(TOPICS_MAX + 10):
        assert chooser.choose(f"t{number}", 4) == 0
    assert [chooser.choose("t", 3) for _ in range(4)] == [0, 1, 2, 0]


@asynccontextmanager
async def committing(bench: Bench) -> AsyncGenerator[None]:
    """Runs the worker of a bench in sync mode."""
    worker = asyncio.create_task(bench.commit.run())
    try:
        yield
        bench.commit.stop()
        await worker
    finally:
        bench.commit.close()


@pytest.mark.asyncio
async def test_sends_that_come_during_a_sync_share_one_append_before_the_next() -> None:
    bench = Bench(mode="sync")
    async with committing(bench):
        first = asyncio.create_task(bench.send(b"first"))
        assert await bench.syncing()
        others = []
        for number in range(8):  # no two of them in one iteration
            others.append(asyncio.create_task(bench.send(b"%d" % number)))
            await asyncio.sleep(0)
        assert not any(task.done() for task in (first, *others))
        bench.may_sync.set()
        await asyncio.gather(first, *others)
        assert len(bench.appends) == 2
        bodies = [b"first", *(b"%d" % number for number in range(8))]
        assert [message.body for message in read_queue(bench.store)] == bodies


@pytest.mark.asyncio
async def test_the_next_sends_of_those_whom_a_sync_served_join_the_next_sync() -> None:
    bench = Bench(mode="sync")

    async def send_twice() -> None:
        for body in (b"first", b"second"):
            await bench.send(body)

    async with committing(bench):
        first = asyncio.create_task(send_twice())
        assert await bench.syncing()
        others = [asyncio.create_task(bench.send(b"other")) for _ in range(3)]
        await asyncio.sleep(0)
        bench.may_sync.set()
        await asyncio.gather(first, *others)
        assert len(bench.appends) == 2, "the second send lies with the others"


@pytest.mark.asyncio
async def test_sends_that_wait_for_a_sync_which_fails_all_hear_of_it() -> None:
    bench = Bench(mode="sync")
    worker = asyncio.create_task(bench.commit.run())
    first = asyncio.create_task(bench.send(b"first"))
    assert await bench.syncing()
    waiting = [asyncio.create_task(bench.send(b"x")) for _ in range(3)]
    await asyncio.sleep(0)
    bench.commit.fail(OSError("the disk is gone"))
    outcome = await first
    assert outcome.error is not None
    assert outcome.error.symbol == "STORE_FAILED", "it is in the log"
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        error = result.error if isinstance(result, Outcome) else result
        assert isinstance(error, TroveError)
        assert error.symbol == "STORE_FAILED"
    bench.may_sync.set()
    with pytest.raises(TroveError):
        await worker
    bench.commit.close()


@pytest.mark.asyncio
async def test_sends_after_a_sync_that_takes_long_are_appended_all_the_same() -> None:
    """Else their own time-out would begin only when that sync has ended."""
    bench = Bench(mode="sync", gather_max_ms=1)
    async with committing(bench):
        first = asyncio.create_task(bench.send(b"first"))
        assert await bench.syncing()
        second = asyncio.create_task(bench.send(b"second"))
        async with asyncio.timeout(240):
            while len(bench.appends) < 2:
                await asyncio.sleep(0)
        assert bench.commit.flush_count == 0, "that sync is still under way"
        bench.may_sync.set()
        assert (await first, (await second).result.first_queue_offset)[1] == 1


@pytest.mark.asyncio
async def test_the_first_frame_of_a_turn_waits_for_no_other() -> None:
    bench = Bench()
    outcomes: list[object] = []
    for number in range(3):
        records = with_crc_property(record(b"%d" % number))
        batch = Batch("orders", QueueId(0), records, 0, bytes(8), owned=False)
        bench.accumulator.submit(batch, lambda outcome, *_: outcomes.append(outcome))
        assert len(outcomes) == 1
    await asyncio.sleep(0)
    assert len(outcomes) == 3
    assert len(bench.appends) == 2
    assert [message.body for message in read_queue(bench.store)] == [b"0", b"1", b"2"]
