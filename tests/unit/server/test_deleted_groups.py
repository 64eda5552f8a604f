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
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.table_log import TableLog
from trovemq_store.files.fault_points import armed
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.names import retry_topics
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = pytest.mark.asyncio

SETTINGS = replace(ROOMY, tables_in_log=True)
GROUP = "workers"
RETRIES = [*retry_topics(GROUP, "orders")]
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
            TopicChanges(self.store, lambda: NOW_MS, self._persist, durable=self._durable),
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


async def used_with_retries(files: MemoryFileSystem) -> Broker:
    """Used, and its three kinds of retry topics have a message each."""
    broker = await used(files)
    for topic in RETRIES:
        broker.store.topics.ensure_internal(topic, 1)
        send(broker.store, b"again", topic=topic)
    flush(broker.store)
    return broker


def retries_of(broker: Broker) -> list[str]:
    return [topic for topic in broker.store.topics.names(include_system=True) if topic in RETRIES]


async def check_retries(broker: Broker) -> int:
    """After its start, all retry topics are there beside the group, or none. Returns how many there were
    before it."""
    before = retries_of(broker)
    await broker.changes.finish_deletions()
    kept = before if GROUP in broker.model.groups else []
    assert retries_of(broker) == kept
    assert broker.store.consume_queues.get(RETRIES[0], QueueId(0)) is None or kept
    return len(before)


@pytest.mark.parametrize("files_before", [False, True])
@pytest.mark.parametrize("crash", [MemoryFileSystem.after_process_kill, MemoryFileSystem.after_power_cut])
async def test_a_crash_kept_retry_topics_of_a_deleted_group(
    crash: Callable[[MemoryFileSystem], MemoryFileSystem], files_before: bool
) -> None:
    broker = await used_with_retries(files := MemoryFileSystem())
    if files_before:
        broker.tables.write_now()
    found: list[MemoryFileSystem] = []
    with armed(lambda name: found.append(crash(files))):
        await broker.changes.delete(GROUP)
    assert retries_of(broker) == []
    counts = [await check_retries(Broker(survivor)) for survivor in found]
    assert {0, 1, 2, 3} == set(counts), "it crashed between all of them"


async def interrupted(files: MemoryFileSystem) -> list[MemoryFileSystem]:
    """Stores in which the group's deletion is recorded, and 3, 2 or 1 of its retry topics are there."""
    broker = await used_with_retries(files)
    found: list[MemoryFileSystem] = []
    with armed(lambda name: found.append(files.after_process_kill())):
        await broker.changes.delete(GROUP)
    by_count: dict[int, MemoryFileSystem] = {}
    for survivor in found:
        opened = Broker(survivor)
        if GROUP not in opened.model.groups:
            by_count.setdefault(len(retries_of(opened)), survivor.after_process_kill())
    return [by_count[count] for count in (3, 2, 1)]


async def test_a_crash_of_the_start_that_ends_a_deletion_kept_retry_topics() -> None:
    found: list[MemoryFileSystem] = []
    for survivor in await interrupted(MemoryFileSystem()):
        second = Broker(survivor)

        def kill(_name: str, files: MemoryFileSystem = survivor) -> None:
            found.append(files.after_process_kill())

        with armed(kill):
            await second.changes.finish_deletions()
    assert found
    for survivor in found:
        await check_retries(Broker(survivor))


async def test_a_promoted_node_kept_retry_topics_of_a_deleted_group() -> None:
    leader = await used_with_retries(MemoryFileSystem())
    ends: set[PhysicalOffset] = set()
    with armed(lambda name: ends.add(leader.store.end_offset)):
        await leader.changes.delete(GROUP)
    counts = []
    for end in sorted(ends):
        store = follower(files := MemoryFileSystem(), settings=SETTINGS)
        copy(leader.store, store, end)
        commit(store, end)
        store.limit_commits(None)
        assert store.tables is not None
        store.tables.follows = False
        counts.append(await check_retries(Broker(files, store)))
    assert {0, 1, 2, 3} == set(counts)


async def test_a_start_keeps_retry_topics_of_other_groups_and_newer_ones() -> None:
    """Of a group that was created again, of one that another program removed, of one that shares the name,
    and one that is newer than the deletion: the group of its first use was lost with a crash."""
    broker = await used(files := MemoryFileSystem())
    await broker.changes.create(SubscriptionGroup("workers_a"))
    await broker.changes.create(SubscriptionGroup("removed"))
    kept = ["%RETRY%workers_a", "%RETRY%workers_a_orders", "%RETRY%removed", "%RETRY%workers"]
    for topic in kept[:3]:
        broker.store.topics.ensure_internal(topic, 1)
    await broker.changes.delete(GROUP)
    broker.model.groups.delete("removed")
    broker.store.topics.ensure_internal(kept[3], 1)
    flush(broker.store)
    again = Broker(files.after_process_kill())
    await again.changes.finish_deletions()
    assert [one for one in kept if one not in again.store.topics] == []


async def test_a_retry_topic_that_cannot_be_deleted_stays_until_the_next_start() -> None:
    survivor, *_ = await interrupted(MemoryFileSystem())
    refused = Broker(survivor)

    async def fails(name: str) -> int:
        raise TroveError(errors.NOT_ENOUGH_REPLICAS)

    refused.changes._topic_changes.delete = fails  # type: ignore[method-assign]
    await refused.changes.finish_deletions()
    assert retries_of(refused) == sorted(RETRIES)
    assert await check_retries(Broker(survivor.after_process_kill())) == 3
