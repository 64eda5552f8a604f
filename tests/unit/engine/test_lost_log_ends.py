"""Messages in flight after an operator has given up the last files of the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import send
from tests.support.retention import AT_ONCE, HOUR_MS, LEASE_MS, SETTINGS, Broker, bodies
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import state

pytestmark = pytest.mark.usefixtures("small_timer_wheel")

SEGMENT = SETTINGS.commit_log_file_size


def with_one_in_flight() -> Broker:
    """The message `a` is in flight; its segment may be removed, and the log continues in the third one."""
    broker = Broker(MemoryFileSystem(), policy=replace(AT_ONCE, unacknowledged_max_ms=1_000))
    broker.send("a")
    broker.receive()
    broker.fill(2)
    broker.now_ms = EpochMs(broker.now_ms + 3 * HOUR_MS)
    return broker


def without_files_from(broker: Broker, begin: PhysicalOffset) -> Broker:
    """The next start after a kill. The operator has given up the files of the log from `begin` on, as the
    refused start advises."""
    assert isinstance(broker.files, MemoryFileSystem)
    files = broker.files.after_process_kill()
    for path in list(files._files):
        of_log = path.startswith("commitlog/") and int(path.rpartition("/")[2]) >= begin
        if of_log or path.startswith(("consumequeue/", "index/")) or path == state.PATH:
            files.remove(path)
    return Broker(files, now_ms=EpochMs(broker.now_ms + 2 * LEASE_MS))


def test_a_message_in_flight_was_lost_with_the_end_of_the_log() -> None:
    """Retention had removed the events of its delivery, and the snapshot that has it did not count."""
    broker = with_one_in_flight()
    assert broker.clean() == 2
    broker.send("b")
    found = broker.receive()
    assert bodies(found) == ["a", "b"]
    broker.ack(found[1:])
    kept = PhysicalOffset((broker.store.end_offset // SEGMENT + 1) * SEGMENT)
    broker.fill(2)
    again = without_files_from(broker, kept)
    assert (again.store.min_offset, again.store.end_offset) == (2 * SEGMENT, kept)
    assert bodies(again.receive()) == ["a"]
    again.send("c")
    assert bodies(again.receive()) == ["c"]


def fill_up_to(broker: Broker, end: PhysicalOffset) -> None:
    """Messages of no group, so that the next record begins at `end`."""
    size = 1_000
    overhead = send(broker.store, bytes(size), broker.now_ms, topic="filler").bytes_written - size
    while (space := end - broker.store.end_offset) >= 2 * (size + overhead):
        send(broker.store, bytes(size), broker.now_ms, topic="filler")
    send(broker.store, bytes(space - overhead), broker.now_ms, topic="filler")
    broker.sync()
    assert broker.store.end_offset == end


def test_where_a_lost_copy_lay_another_message_was_delivered_for_it() -> None:
    """Retention had appended the message in flight again, in a file that was given up."""
    broker = with_one_in_flight()
    broker.send("b")
    found = broker.receive()
    broker.ack(found[1:])
    broker.fill(1)
    kept = broker.store.end_offset // SEGMENT * SEGMENT
    assert broker.clean() > 0
    (copy,) = broker.model.delivery.live_records_before(broker.store.end_offset)
    broker.save_snapshot()
    again = without_files_from(broker, PhysicalOffset(kept))
    fill_up_to(again, copy)
    again.send("of no group", "filler")
    assert bodies(again.receive()) == []
    again.send("c")
    assert bodies(again.receive()) == ["c"]
