"""Consumer offsets as a service: ranges, which offsets are on disk when, and failed writes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping

import pytest

from tests.support.engine import NOW_MS, flush, open_store, send
from trovemq_broker.fetch.offsets import OffsetKeeper, ResetEntry, ResetTarget
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.offsets import ConsumerOffsets


class Bench:
    def __init__(self, files: FileSystem | None = None) -> None:
        self.files = files or MemoryFileSystem()
        self.store: MessageStore = open_store(self.files)
        self.syncs: list[int] = []
        self.keeper = OffsetKeeper(
            self.store,
            self.sync_log,
            lambda topic, queue_id, timestamp: search_offset(self.store, topic, queue_id, timestamp),
        )

    async def sync_log(self, end: int) -> None:
        assert ConsumerOffsets.load(self.files).get("g", "orders", QueueId(0)) != 3, "the log is synced first"
        self.syncs.append(end)
        flush(self.store)

    def on_disk(self, queue_id: QueueId = QueueId(0)) -> int | None:
        return ConsumerOffsets.load(self.files).get("g", "orders", queue_id)


@pytest.mark.asyncio
async def test_a_commit_is_on_disk_and_after_the_log() -> None:
    bench = Bench()
    for number in range(3):
        send(bench.store, b"x", now_ms=NOW_MS + number)
    await bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(3))
    assert bench.syncs == [bench.store.end_offset]
    assert bench.store.flushed_offset == bench.store.end_offset
    assert (bench.keeper.get("g", "orders", QueueId(0)), bench.on_disk()) == (3, 3)
    await bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(1))
    assert len(bench.syncs) == 1, "no sync for offsets that are on disk already"
    assert bench.on_disk() == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("group", "topic", "queue_id", "offset", "symbol"),
    [
        ("g", "orders", 0, 2, "OFFSET_OUT_OF_RANGE"),
        ("g", "orders", 0, -1, "OFFSET_OUT_OF_RANGE"),
        ("g", "orders", 3, 1, "OFFSET_OUT_OF_RANGE"),
        ("g", "orders", 4, 0, "QUEUE_NOT_FOUND"),
        ("g", "none", 0, 0, "TOPIC_NOT_FOUND"),
        ("", "orders", 0, 0, "GROUP_ILLEGAL"),
        ("a b", "orders", 0, 0, "GROUP_ILLEGAL"),
    ],
)
async def test_refusals(group: str, topic: str, queue_id: QueueId, offset: int, symbol: str) -> None:
    bench = Bench()
    send(bench.store, b"x")
    with pytest.raises(TroveError) as caught:
        await bench.keeper.commit(group, topic, queue_id, QueueOffset(offset))
    assert caught.value.symbol == symbol
    assert len(bench.store.offsets) == 0


@pytest.mark.asyncio
async def test_resets() -> None:
    bench = Bench()
    for number in range(5):
        send(bench.store, b"x", now_ms=NOW_MS + number * 1_000)
    send(bench.store, b"x", queue_id=2)
    flush(bench.store)
    await bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(2))
    entries = await bench.keeper.reset("g", "orders", None, ResetTarget(to_max=True))
    assert [(e.queue_id, e.offset_before, e.offset) for e in entries] == [
        (0, 2, 5),
        (1, None, 0),
        (2, None, 1),
        (3, None, 0),
    ]
    for target, expected in (
        (ResetTarget(timestamp=NOW_MS + 2_500), 3),
        (ResetTarget(timestamp=NOW_MS + 99_000), 5),
        (ResetTarget(timestamp=EpochMs(0)), 0),
        (ResetTarget(offset=QueueOffset(4)), 4),
        (ResetTarget(to_min=True), 0),
    ):
        (entry,) = await bench.keeper.reset("g", "orders", QueueId(0), target)
        assert entry.offset == expected == bench.on_disk()
    with pytest.raises(TroveError, match="OFFSET_OUT_OF_RANGE"):
        await bench.keeper.reset("g", "orders", None, ResetTarget(offset=QueueOffset(4)))
    assert bench.on_disk(QueueId(2)) == 1, "where one queue refuses, none is set"
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        await bench.keeper.reset("g", "orders", QueueId(0), ResetTarget())


@pytest.mark.asyncio
async def test_commits_at_once_are_all_on_disk_when_they_return() -> None:
    bench = Bench()
    for queue_id in range(4):
        send(bench.store, b"x", queue_id=queue_id)
    flush(bench.store)

    async def commit(queue_id: QueueId) -> None:
        await bench.keeper.commit("g", "orders", queue_id, QueueOffset(1))
        assert bench.on_disk(queue_id) == 1

    await asyncio.gather(*(commit(QueueId(queue_id)) for queue_id in range(4)))


@pytest.mark.asyncio
async def test_a_full_disk_is_said_and_the_next_write_completes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    send(bench.store, b"x")
    flush(bench.store)

    def full(_files: FileSystem, path: str, _data: bytes) -> None:
        raise StorageError("write_atomic", path, errno.ENOSPC)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "write_atomic", full)
        with pytest.raises(TroveError, match="DISK_FULL"):
            await bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(1))
    assert bench.on_disk() is None
    await bench.keeper.persist()
    assert bench.on_disk() == 1


@pytest.mark.asyncio
async def test_a_preview_shows_the_effect_of_a_reset_and_sets_nothing() -> None:
    bench = Bench()
    for number in range(3):
        send(bench.store, b"x", now_ms=NOW_MS + number)
    bench.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(1))
    target = ResetTarget(timestamp=NOW_MS + 2)
    planned = bench.keeper.preview("g", "orders", None, target)
    assert planned[0] == ResetEntry(QueueId(0), QueueOffset(1), QueueOffset(2))
    assert (bench.keeper.get("g", "orders", QueueId(0)), bench.keeper.get("g", "orders", QueueId(1))) == (
        1,
        None,
    )
    assert bench.on_disk() is None
    assert await bench.keeper.reset("g", "orders", None, target) == planned
    with pytest.raises(TroveError, match="OFFSET_OUT_OF_RANGE"):
        bench.keeper.preview("g", "orders", QueueId(0), ResetTarget(offset=QueueOffset(4)))


@pytest.mark.asyncio
async def test_only_new_leaves_queues_with_an_offset_alone() -> None:
    bench = Bench()
    for queue_id in (0, 1):
        send(bench.store, b"x", queue_id=queue_id)
    bench.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(0))
    one = ResetTarget(to_max=True)
    (entry,) = await bench.keeper.reset("g", "orders", QueueId(1), one, only_new=True)
    assert (entry.queue_id, entry.offset) == (1, 1)  # a queue that the caller names is set as it says
    assert await bench.keeper.reset("g", "orders", QueueId(0), one, only_new=True) == []
    assert [bench.keeper.get("g", "orders", QueueId(queue_id)) for queue_id in range(3)] == [0, 1, None]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "target", [ResetTarget(to_max=True), ResetTarget(to_min=True), ResetTarget(timestamp=EpochMs(NOW_MS))]
)
async def test_a_first_contact_sets_every_queue_and_later_ones_begin_at_zero(
    target: ResetTarget,
) -> None:
    bench = Bench()
    first = await bench.keeper.reset("g", "orders", None, ResetTarget(to_max=True), only_new=True)
    assert [(entry.queue_id, entry.offset) for entry in first] == [(number, 0) for number in range(4)]
    bench.store.topics.alter("orders", queue_count=6)
    for queue_id in (0, 4, 4, 5):
        send(bench.store, b"x", queue_id=queue_id)
    planned = bench.keeper.preview("g", "orders", None, target, only_new=True)
    assert [(entry.queue_id, entry.offset) for entry in planned] == [(4, 0), (5, 0)]
    assert await bench.keeper.reset("g", "orders", None, target, only_new=True) == planned
    assert await bench.keeper.reset("g", "orders", None, target, only_new=True) == []
    assert ConsumerOffsets.load(bench.files).of("g", "orders") == [(number, 0) for number in range(6)]


@pytest.mark.asyncio
async def test_a_member_that_reads_while_another_asks_only_new_keeps_its_offset() -> None:
    bench = Bench()
    send(bench.store, b"x")

    async def read_meanwhile(end: int) -> None:
        bench.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(0))
        flush(bench.store)

    keeper = OffsetKeeper(bench.store, read_meanwhile, lambda *_: QueueOffset(0))
    assert await keeper.reset("g", "orders", QueueId(0), ResetTarget(to_max=True), only_new=True) == []
    assert keeper.get("g", "orders", QueueId(0)) == 0


@pytest.mark.asyncio
async def test_delivery_hears_of_every_offset_set_and_says_what_it_forgets() -> None:
    bench = Bench()
    calls: list[tuple[str, str, dict[QueueId, QueueOffset], int | None]] = []

    def moved(group: str, topic: str, offsets: Mapping[QueueId, QueueOffset]) -> Mapping[QueueId, int]:
        calls.append((group, topic, dict(offsets), bench.store.offsets.get(group, topic, QueueId(0))))
        return {QueueId(0): 5}

    bench.keeper = OffsetKeeper(bench.store, bench.sync_log, lambda *_: QueueOffset(0), moved)
    send(bench.store, b"x")
    await bench.keeper.commit("g", "orders", QueueId(0), QueueOffset(1))
    entries = await bench.keeper.reset("g", "orders", None, ResetTarget(to_min=True))
    assert calls == [
        ("g", "orders", {0: 1}, None),
        ("g", "orders", {0: 0, 1: 0, 2: 0, 3: 0}, 1),
    ], "before the offset is stored: nothing that delivery does may come after it"
    assert [entry.in_flight for entry in entries] == [5, 0, 0, 0]
    with pytest.raises(TroveError):
        await bench.keeper.reset("g", "orders", QueueId(0), ResetTarget(offset=QueueOffset(9)))
    assert len(calls) == 2, "a refused reset calls nobody"


@pytest.mark.asyncio
async def test_a_power_cut_lost_dead_letters_whose_originals_counted_as_consumed() -> None:
    """The copy was not on disk yet, the offset after the original was."""
    bench = Bench()
    send(bench.store, b"x")
    flush(bench.store)
    copy = send(bench.store, b"dead letter", queue_id=1)
    bench.store.offsets.needs_log(copy.end)
    bench.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(1))
    await bench.keeper.persist()
    assert bench.syncs == [copy.end]
    assert bench.store.flushed_offset >= copy.end
    assert bench.on_disk() == 1
    bench.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(0))
    await bench.keeper.persist()
    assert len(bench.syncs) == 1
