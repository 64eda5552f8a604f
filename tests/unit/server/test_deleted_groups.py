"""A group is deleted as a whole, wherever a kill or a power cut ends that, on each node that has the log: a
group made again of that name starts over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, ROOMY, bodies
from tests.support.engine import NOW_MS, flush, send
from tests.support.followers import commit, copy, follower
from tests.support.settling import acknowledge
from trovemq_broker.admin.group_changes import GroupChanges
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.table_log import TableLog
from trovemq_store.files.fault_points import armed
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = pytest.mark.asyncio

SETTINGS = replace(ROOMY, tables_in_log=True)
GROUP = "workers"
ALL = ["m0", "m1", "m2", "m3", "m4"]


class Broker:
    """One open store with its consumers and the changes of its groups."""

    def __init__(self, files: MemoryFileSystem, store: MessageStore | None = None) -> None:
        self.files = files
        self.store = MessageStore.open(files, SETTINGS, NOW_MS) if store is None else store
        settings = ConsumerSettings(new_group_start="begin")
        self.model = ConsumerState.open(self.store, files, settings, NOW_MS)
        self.changes = GroupChanges(
            self.model.groups,
            self.store,
            self.model.delivery,
            TopicChanges(self.store, lambda: NOW_MS, self._persist),
            lambda: NOW_MS,
            self._persist,
            durable=self._durable,
        )

    @property
    def tables(self) -> TableLog:
        assert self.store.tables is not None
        return self.store.tables

    async def _persist(self) -> None:
        self.tables.record_offsets()
        flush(self.store)

    async def _durable(self, end: PhysicalOffset) -> None:
        flush(self.store)
        assert self.store.log.flushed_offset >= end

    def receive(self, count: int = 32) -> list[Delivered]:
        group = self.model.groups.require(GROUP)
        request = ReceiveRequest(
            group=group,
            topic="orders",
            count_max=count,
            invisible_ms=LEASE_MS,
            now_ms=NOW_MS,
            client_id="client",
        )
        return self.model.delivery.receive(request)

    def append_again(self) -> None:
        """As before the whole log is removed."""
        end = self.store.end_offset
        while self.tables.reappend_before(end):
            flush(self.store)

    def stored(self) -> int | None:
        return self.store.offsets.get(GROUP, "orders", QueueId(0))


async def used(files: MemoryFileSystem, *, recorded: bool = True) -> Broker:
    """Five messages: the group has consumed two, and has one more in flight. `recorded`: a call has set its
    offset, too, before the second."""
    broker = Broker(files)
    broker.store.topics.create("orders", 1)
    await broker.changes.create(SubscriptionGroup(GROUP))
    for name in ALL:
        send(broker.store, name.encode())
    flush(broker.store)
    (first,) = broker.receive(1)
    acknowledge(broker.model.delivery, GROUP, "orders", first.receipt_handle, NOW_MS)
    if recorded:
        broker.store.offsets.record_next(GROUP, "orders")
        broker.tables.record_offsets()
    second, _ = broker.receive(2)
    acknowledge(broker.model.delivery, GROUP, "orders", second.receipt_handle, NOW_MS)
    broker.model.events.flush(NOW_MS)
    flush(broker.store)
    return broker


async def check(broker: Broker) -> bool:
    """The group is as it was, or starts over. Returns whether it was deleted."""
    if GROUP in broker.model.groups:
        assert broker.stored() == 2
        assert bodies(broker.receive()) == ALL[3:]
        return False
    assert broker.stored() is None
    await broker.changes.create(SubscriptionGroup(GROUP))
    assert bodies(broker.receive()) == ALL
    return True


@pytest.mark.parametrize("files_before", [False, True])
@pytest.mark.parametrize("crash", [MemoryFileSystem.after_process_kill, MemoryFileSystem.after_power_cut])
async def test_a_group_made_again_after_a_crash_began_at_the_old_offsets(
    crash: Callable[[MemoryFileSystem], MemoryFileSystem], files_before: bool
) -> None:
    broker = await used(files := MemoryFileSystem())
    if files_before:
        broker.tables.write_now()
    found: list[tuple[str, MemoryFileSystem]] = []
    with armed(lambda name: found.append((name, crash(files)))):
        await broker.changes.delete(GROUP)
    assert {"tables.before_append", "tables.after_append", "events.before_append"} <= {
        one for one, _ in found
    }
    deleted = [await check(Broker(survivor)) for _, survivor in found]
    assert deleted == sorted(deleted), "once it is deleted it stays so"
    assert {True, False} == set(deleted)


async def test_a_second_crash_after_the_start_changes_nothing() -> None:
    """Nor does the file that the first start wrote, without the deletion's record in the log."""
    broker = await used(files := MemoryFileSystem())
    broker.tables.write_now()
    found: list[MemoryFileSystem] = []
    with armed(lambda name: found.append(files.after_process_kill())):
        await broker.changes.delete(GROUP)
    for survivor in found:
        again = Broker(survivor)
        flush(again.store)
        again.tables.write_now()
        assert again.tables.begin_write() is None
        assert not again.tables.lack_below(again.store.end_offset)
        await check(Broker(survivor.after_process_kill()))


async def test_what_was_written_during_a_deletion_kept_the_group() -> None:
    broker = await used(files := MemoryFileSystem())
    broker.model.request_snapshot()
    broker.store.offsets.record_next(GROUP, "orders")
    change = broker.model.groups.begin_delete(GROUP, deleted_below=broker.store.end_offset)
    change.run()
    assert broker.model.begin_snapshot(NOW_MS) is None
    assert broker.tables.record_offsets() is None
    flush(broker.store)
    with pytest.raises(TroveError, match="a topic or a group is being deleted"):
        broker.append_again()
    broker.tables.write_now()
    assert await check(Broker(files.after_process_kill()))
    broker.model.groups.finish(change)
    assert broker.model.begin_snapshot(NOW_MS) is not None


async def test_the_log_lost_the_deletion_before_the_file_lost_the_offsets() -> None:
    """Offsets that events alone have, and the file."""
    broker = await used(MemoryFileSystem(), recorded=False)
    broker.tables.write_now()
    await broker.changes.delete(GROUP)
    work = broker.tables.begin_write(offsets=False)
    assert work is not None
    work.run()
    broker.tables.finish_write(work)
    end = broker.store.end_offset
    assert broker.tables.lack_below(end), "the file of the offsets has to be written first"
    broker.tables.write_now()
    assert not broker.tables.lack_below(end)


async def test_a_promoted_node_kept_the_offsets_of_a_deleted_group() -> None:
    """The leader was killed at each record of the deletion, and the node leads from there."""
    leader = await used(MemoryFileSystem())
    before = leader.store.end_offset
    ends: set[PhysicalOffset] = set()
    with armed(lambda name: ends.add(leader.store.end_offset)):
        await leader.changes.delete(GROUP)
    leader.model.events.flush(NOW_MS)
    flush(leader.store)
    deleted = []
    for end in sorted(ends | {leader.store.end_offset}):
        for steps in ([before, end], [end]):
            store = follower(files := MemoryFileSystem(), settings=SETTINGS)
            for step in steps:
                copy(leader.store, store, step)
                commit(store, step)
            store.limit_commits(None)
            assert store.tables is not None
            store.tables.follows = False  # it leads
            deleted.append(await check(Broker(files, store)))
    assert deleted == sorted(deleted)
    assert {True, False} == set(deleted)


async def test_a_group_that_another_program_removed_keeps_its_offsets() -> None:
    """RocketMQ deletes them where it is asked to."""
    broker = await used(files := MemoryFileSystem())
    broker.model.groups.delete(GROUP)
    flush(broker.store)
    assert Broker(files.after_process_kill()).stored() == 2


async def test_offsets_of_the_new_group_count() -> None:
    broker = await used(files := MemoryFileSystem())
    await broker.changes.delete(GROUP)
    await broker.changes.create(SubscriptionGroup(GROUP))
    broker.store.offsets.commit(GROUP, "orders", QueueId(0), QueueOffset(1))
    broker.store.offsets.record_next(GROUP, "orders")
    broker.tables.record_offsets()
    flush(broker.store)
    assert Broker(files.after_process_kill()).stored() == 1
