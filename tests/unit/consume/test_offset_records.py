"""Consumer offsets as a service whose tables are in the log: one record for the calls of one step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.engine import NOW_MS, SMALL_SYNC, flush, read_queue, send
from trovemq_broker.fetch.offsets import OffsetKeeper, ResetTarget
from trovemq_broker.maintenance.background import persist_offsets
from trovemq_broker.maintenance.table_files import TableFiles
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.members import Members
from trovemq_broker.server.remoting.offsets import Offsets
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.fault_points import armed
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.offsets import OFFSETS_PATH, ConsumerOffsets
from trovemq_store.topics.table_records import (
    META_QUEUE_ID,
    META_TOPIC,
    OFFSETS_KIND,
    decode_table_record,
)

pytestmark = pytest.mark.asyncio
SETTINGS = replace(SMALL_SYNC, tables_in_log=True)
QUEUES = 4


class Bench:
    """A store whose log is synced by sync(); until then the waits for it last, or end with `failure`."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.store = MessageStore.open(self.files, SETTINGS, NOW_MS)
        self.store.topics.create("orders", QUEUES)
        for queue_id in range(QUEUES):
            for _ in range(5):
                send(self.store, b"x", queue_id=queue_id)
        flush(self.store)
        self.waiting = asyncio.Event()
        self.synced = asyncio.Event()
        self.failure: TroveError | None = None
        self.table_files = TableFiles(self.store, self._durable)
        self.keeper = OffsetKeeper(
            self.store, self._durable, lambda *_: QueueOffset(0), write_file=self.table_files.write
        )

    async def _durable(self, end: PhysicalOffset) -> None:
        if self.failure is not None:
            raise self.failure
        self.waiting.set()
        await self.synced.wait()
        flush(self.store)
        assert self.store.flushed_offset >= end

    def records(self) -> list[dict[str, object]]:
        flush(self.store)
        messages = read_queue(self.store, META_TOPIC, META_QUEUE_ID)
        found = [decode_table_record(message.body) for message in messages]
        return [dict(one.entries) for one in found if one.kind == OFFSETS_KIND]

    def after_power_cut(self) -> int | None:
        store = MessageStore.open(self.files.after_power_cut(), SETTINGS, NOW_MS)
        return store.offsets.get("g", "orders", QueueId(0))


async def ended(awaitable: Awaitable[object]) -> str:
    """The name of its error; empty if it has none."""
    try:
        await awaitable
    except TroveError as error:
        return error.spec.symbol
    return ""


async def test_the_reply_waits_for_the_record_on_disk() -> None:
    bench = Bench()
    committing = asyncio.ensure_future(bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(3)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not committing.done()
    assert bench.waiting.is_set()
    assert bench.after_power_cut() is None
    bench.synced.set()
    await committing
    assert bench.after_power_cut() == 3
    assert not bench.files.exists(OFFSETS_PATH)


async def test_the_calls_of_one_iteration_share_a_record() -> None:
    bench = Bench()
    bench.synced.set()
    calls = [bench.keeper.commit("g", "orders", QueueId(number), QueueOffset(1)) for number in range(QUEUES)]
    others = [bench.keeper.commit(f"g{number}", "orders", QueueId(0), QueueOffset(2)) for number in range(9)]
    await asyncio.gather(*calls, *others)
    every = {str(number): 1 for number in range(QUEUES)}
    assert bench.records() == [{"orders@g": every, **{f"orders@g{number}": {"0": 2} for number in range(9)}}]
    await bench.keeper.reset("g", "orders", None, ResetTarget(to_max=True))
    assert len(bench.records()) == 2


async def test_an_offset_that_is_recorded_is_not_recorded_again() -> None:
    bench = Bench()
    bench.synced.set()
    for _ in range(3):
        await bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(3))
    assert len(bench.records()) == 1
    bench.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(2))  # by a delivery
    await bench.keeper.commit("workers", "orders", QueueId(0), QueueOffset(2))
    assert bench.records()[1:] == [{"orders@workers": {"0": 2}}], "only events had it"


async def test_callers_of_a_refused_record_hear_of_it_and_the_next_one_has_all() -> None:
    bench = Bench()
    bench.synced.set()

    def full(name: str) -> None:
        if name == "tables.before_append":
            raise TroveError(errors.DISK_FULL)

    with armed(full):
        calls = [bench.keeper.commit(group, "orders", QueueId(0), QueueOffset(3)) for group in ("g", "h")]
        found = await asyncio.gather(*map(ended, calls))
    assert found == ["DISK_FULL", "DISK_FULL"]
    assert bench.records() == []
    await bench.keeper.persist()
    assert bench.records() == [{"orders@g": {"0": 3}, "orders@h": {"0": 3}}]
    assert ConsumerOffsets.load(bench.files).get("h", "orders", QueueId(0)) == 3


@pytest.mark.parametrize("spec", [errors.FLUSH_DISK_TIMEOUT, errors.REPLICA_TIMEOUT])
async def test_a_record_whose_wait_timed_out_is_in_the_log(spec: errors.ErrorSpec) -> None:
    bench = Bench()
    bench.failure = TroveError(spec)
    commit = bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(3))
    assert await ended(commit) == spec.symbol
    assert bench.records() == [{"orders@g": {"0": 3}}]


async def test_a_caller_that_goes_away_takes_no_others_record_with_it() -> None:
    bench = Bench()
    first = asyncio.ensure_future(bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(3)))
    second = asyncio.ensure_future(bench.keeper.commit("h", "orders", QueueId(0), QueueOffset(4)))
    await asyncio.sleep(0)
    first.cancel()
    await bench.waiting.wait()
    bench.synced.set()
    await second
    assert bench.records() == [{"orders@g": {"0": 3}, "orders@h": {"0": 4}}]


async def test_the_file_is_written_when_the_log_is_on_disk_up_to_its_content() -> None:
    bench = Bench()
    bench.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(3))
    send(bench.store, b"later")
    writing = asyncio.ensure_future(bench.keeper.persist())
    await bench.waiting.wait()
    assert not bench.files.exists(OFFSETS_PATH)
    bench.synced.set()
    await writing
    assert ConsumerOffsets.load(bench.files).get("g", "orders", QueueId(0)) == 3
    assert bench.after_power_cut() == 3
    bench.waiting.clear()
    await bench.keeper.persist()
    assert not bench.waiting.is_set(), "nothing has changed"


async def test_the_tables_task_leaves_the_file_of_offsets_alone() -> None:
    bench = Bench()
    bench.synced.set()
    bench.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(3))
    await bench.table_files.write(offsets=False)
    assert not bench.files.exists(OFFSETS_PATH)
    await bench.table_files.write()
    assert bench.files.exists(OFFSETS_PATH)


async def test_the_task_of_the_file_ends_by_a_failed_store_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    failures = [TroveError(errors.NOT_LEADER), TroveError(errors.DISK_FULL), TroveError(errors.STORE_FAILED)]

    async def fail() -> None:
        raise failures.pop(0)

    async def at_once(_seconds: float) -> None:
        """No wait."""

    monkeypatch.setattr("trovemq_broker.maintenance.background.sleep_to_tick", at_once)
    bench.keeper.persist = fail  # type: ignore[method-assign]
    with pytest.raises(TroveError, match="STORE_FAILED"):
        await persist_offsets(bench.keeper, 1)
    assert failures == []


async def test_a_deletion_is_recorded_before_its_reply() -> None:
    bench = Bench()
    bench.synced.set()
    for group in ("g", "h"):
        await bench.keeper.commit(group, "orders", QueueId(0), QueueOffset(3))
    save: Callable[[], Awaitable[None]] = bench.keeper.save
    bench.store.offsets.delete_group("g")
    await save()
    assert bench.records()[-1] == {"orders@g": None}
    assert bench.after_power_cut() is None


async def test_a_trim_during_a_topics_deletion_brought_back_offsets() -> None:
    """The file of offsets is not written then, and the record of the group's deletion was removed."""
    bench = Bench()
    bench.synced.set()
    bench.store.topics.create("other", 1)
    await bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(3))
    await bench.keeper.persist()
    bench.store.offsets.delete_group("g")
    await bench.keeper.save()
    end = bench.store.end_offset
    deletion = bench.store.begin_delete_topic("other", NOW_MS)
    assert await ended(bench.table_files.carry(end)) == "SERVICE_NOT_AVAILABLE"
    bench.store.finish_delete_topic(deletion)
    await bench.table_files.carry(end)
    assert ConsumerOffsets.load(bench.files).get("g", "orders", QueueId(0)) is None


async def test_one_way_offsets_of_many_queues_were_a_record_and_a_sync_each() -> None:
    bench = Bench()
    bench.synced.set()
    core = cast(BrokerCore, SimpleNamespace(offsets=bench.keeper, kinds=SimpleNamespace()))
    offsets = Offsets(core, Members(core))
    for queue_id in range(QUEUES):
        offsets.store_soon("g", "orders", QueueId(queue_id), QueueOffset(queue_id + 1))
    offsets.store_soon("g", "missing", QueueId(0), QueueOffset(1))
    storing = offsets._storing
    assert storing is not None
    await storing
    assert bench.records() == [{"orders@g": {"0": 1, "1": 2, "2": 3, "3": 4}}]
    offsets.store_soon("g", "orders", QueueId(0), QueueOffset(5))
    assert offsets._storing is not None, "the next one is stored, too"
    await offsets._storing
    assert bench.records()[1:] == [{"orders@g": {"0": 5, "1": 2, "2": 3, "3": 4}}]
