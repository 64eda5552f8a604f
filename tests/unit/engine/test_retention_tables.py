"""Retention keeps the records of topics and groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.retention import CONSUMERS, FREE, PRESSED, SETTINGS, Broker
from tests.unit.engine.test_table_log import CONFIG_FILES, edit_topics, remove
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.table_log import TableFilesWork
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.retention import DiskUse

IN_LOG = replace(SETTINGS, tables_in_log=True)
HOUR_MS = 3_600_000


def filled() -> Broker:
    broker = Broker(MemoryFileSystem(), settings=IN_LOG)
    broker.store.topics.alter("orders", queue_count=3)
    broker.fill(3)
    broker.save_snapshot()
    broker.now_ms = broker.now_ms + 2 * HOUR_MS
    return broker


def without_files(broker: Broker) -> Broker:
    """The next start, from the log alone."""
    assert isinstance(broker.files, MemoryFileSystem)
    files = broker.files.after_power_cut()
    remove(files, CONFIG_FILES)
    return Broker(files, now_ms=broker.now_ms, settings=IN_LOG)


def test_the_log_alone_has_the_tables_after_a_removal() -> None:
    broker = filled()
    before = broker.store.min_offset
    assert broker.clean() > 0
    assert broker.store.min_offset > before
    again = without_files(broker)
    assert again.store.topics.require("orders").queue_count == 3
    assert again.model.groups.require("workers").retry_max == 2


def test_an_edited_file_made_the_state_that_of_a_store_of_rocketmqs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of its import followed the snapshot of the clean stop."""
    broker = filled()
    assert isinstance(broker.files, MemoryFileSystem)
    broker.model.export_to_rocketmq(broker.now_ms)
    broker.store.close(broker.now_ms)
    edit_topics(broker.files, lambda table: table["orders"].update(readQueueNums=7))

    def refuse(*_arguments: object) -> None:
        raise AssertionError("RocketMQ has not used the store")

    monkeypatch.setattr(ConsumerState, "_import_from_rocketmq", refuse)
    store = MessageStore.open(broker.files, IN_LOG, broker.now_ms)
    ConsumerState.open(store, broker.files, CONSUMERS, broker.now_ms)
    assert store.topics.require("orders").queue_count == 7


def test_a_removal_without_space_for_the_records_leaves_them_in_files() -> None:
    broker = filled()
    assert broker.store.tables is not None
    broker.store.tables.write_now()

    async def refuse(_end: PhysicalOffset) -> None:
        raise TroveError(errors.DISK_FULL)

    broker.task._copies._carry_tables = refuse
    assert broker.clean(PRESSED) > 0
    assert isinstance(broker.files, MemoryFileSystem)
    again = Broker(broker.files.after_power_cut(), now_ms=broker.now_ms, settings=IN_LOG)
    assert again.store.topics.require("orders").queue_count == 3
    third = without_files(again)
    assert third.store.topics.require("orders").queue_count == 3, "the start appended them again"


@pytest.mark.parametrize("disk", [FREE, PRESSED])
def test_a_deleted_topic_was_back_where_its_file_was_not_written(
    monkeypatch: pytest.MonkeyPatch, disk: DiskUse
) -> None:
    """The segment with the record of its deletion was removed."""
    broker = Broker(MemoryFileSystem(), settings=IN_LOG)
    broker.sync()
    assert broker.store.tables is not None
    broker.store.tables.write_now()
    broker.store.topics.delete("lines")
    broker.fill(3)
    broker.save_snapshot()
    broker.now_ms = broker.now_ms + 2 * HOUR_MS

    def refuse(_work: TableFilesWork) -> None:
        raise TroveError(errors.DISK_FULL)

    monkeypatch.setattr(TableFilesWork, "run", refuse)
    with pytest.raises(TroveError):
        broker.clean(disk)
    monkeypatch.undo()
    assert isinstance(broker.files, MemoryFileSystem)
    files = broker.files.after_power_cut()
    store = MessageStore.open(files, IN_LOG, broker.now_ms)
    assert "lines" not in store.topics
    store.close(broker.now_ms)
    assert broker.clean(disk) > 0


def test_a_removal_stays_away_while_records_cannot_be_copied() -> None:
    broker = filled()

    async def refuse(_end: PhysicalOffset) -> None:
        raise TroveError(errors.DISK_FULL)

    broker.task._copies._carry_tables = refuse
    before = broker.store.min_offset
    with pytest.raises(TroveError, match="DISK_FULL"):
        broker.clean(FREE)
    assert broker.store.min_offset == before
