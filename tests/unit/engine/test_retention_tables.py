"""Retention keeps the records of topics and groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.retention import FREE, PRESSED, SETTINGS, Broker
from tests.unit.engine.test_table_log import CONFIG_FILES, remove
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem

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


def test_a_removal_stays_away_while_records_cannot_be_copied() -> None:
    broker = filled()

    async def refuse(_end: PhysicalOffset) -> None:
        raise TroveError(errors.DISK_FULL)

    broker.task._copies._carry_tables = refuse
    before = broker.store.min_offset
    with pytest.raises(TroveError, match="DISK_FULL"):
        broker.clean(FREE)
    assert broker.store.min_offset == before
