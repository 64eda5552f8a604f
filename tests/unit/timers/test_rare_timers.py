"""Delayed messages in rare states: damaged, in odd queues, of a clock before 1970, in odd timer logs."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from tests.unit.timers.engine import ROOMY, SETTINGS, Broker, message
from tests.unit.timers.test_copies import PLACE, copied, target, waiting
from tests.unit.timers.test_timers import rocketmq_record
from trovemq_broker.timers import due_deliveries, rocketmq_files, timers
from trovemq_broker.timers.calendar import ROW_DTYPE, WAITS, Calendar
from trovemq_broker.timers.copies import delivered_copy
from trovemq_broker.timers.ended import EndedOffsets
from trovemq_broker.timers.rocketmq_files import UNIT_DTYPE, UNIT_SIZE, load_units, save_units, units_per_file
from trovemq_broker.timers.sources import SCHEDULE_QUEUES_MAX
from trovemq_broker.timers.timers import SCHEDULE_TOPIC, WHEEL_TOPIC, Timers
from trovemq_broker.timers.waiting_table import WaitingTable
from trovemq_broker.timers.wheel_records import PROPERTIES_SPACE_MAX, read_record, read_waiting
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import decode_message
from trovemq_proto.records.layout import PROPERTIES_SIZE_MAX
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import ScarceError
from trovemq_store.files.memory import MemoryFileSystem

LOG = f"commitlog/{0:020d}"


# --- times and limits ---------------------------------------------------------------------------------
def test_a_delivery_before_1970_by_a_clock_before_1970_is_refused() -> None:
    broker = Broker(now_ms=EpochMs(-10_000))
    with pytest.raises(TroveError) as caught:
        broker.timers.schedule(message(b"a"), EpochMs(-5_000), EpochMs(-10_000))
    assert caught.value.spec is errors.DELIVERY_TIME_ILLEGAL


def test_recalls_before_their_time_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "RECALLED_MAX", 1)
    broker = Broker()
    for key in ("A", "B"):
        broker.schedule(key.encode(), NOW_MS + 5_000, unique_key=key)
    broker.timers.recall("orders", NOW_MS + 5_000, "A", NOW_MS)
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        broker.timers.recall("orders", NOW_MS + 5_000, "B", NOW_MS)
    broker.deliver(NOW_MS + 5_000)
    assert broker.bodies() == [b"B"]
    broker.schedule(b"C", NOW_MS + 9_000, unique_key="C")
    assert broker.deliver(NOW_MS + 7_000) == 0, "A's time is over: its recall is forgotten"
    broker.timers.recall("orders", NOW_MS + 9_000, "C", NOW_MS + 7_000)


def test_a_step_reads_a_bounded_number_of_bytes_and_the_next_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(due_deliveries, "STEP_BYTES_MAX", 600)
    broker = Broker()
    for number in range(6):
        broker.schedule(b"%d" % number, NOW_MS + 100)
    assert 0 < broker.timers.deliver_due(NOW_MS + 100) < 6
    broker.deliver(NOW_MS + 100)
    assert broker.bodies() == [b"%d" % number for number in range(6)]


# --- records ------------------------------------------------------------------------------------------
def test_full_properties_without_the_last_separator_are_copied_unchanged() -> None:
    """Once such a message was lost when its time came: there was no space for the separator."""
    block = b"REAL_QID\x010\x02a\x01".ljust(PROPERTIES_SIZE_MAX, b"x")
    for annotated in (True, False):
        _, data = copied(waiting(block), target(crc=True), annotated=annotated)
        assert decode_message(memoryview(data)).properties["a"] == "x" * (PROPERTIES_SIZE_MAX - 13)
    assert delivered_copy(waiting(block), PhysicalOffset(PLACE + 1), target(), NOW_MS, annotated=True) is None


@pytest.mark.parametrize("at", [84, 88, 150])
def test_a_waiting_record_that_goes_bad_takes_no_other_with_it(at: int) -> None:
    """Its body's size, its body, its properties: when it is carried, looked up or delivered."""
    broker = Broker(store_settings=replace(ROOMY, append_property_crc=True))
    places = [broker.schedule(b"%d" % number, NOW_MS + 5_000).physical_offset for number in range(3)]
    broker.files._files[LOG].data[places[1] + at] ^= 0x40
    assert len(list(broker.timers.pending("orders"))) in (2, 3)
    assert broker.timers.reappend_live_records_before(broker.store.end_offset, NOW_MS) == 3
    broker.dispatch()
    assert broker.timers.lost_count == 1
    broker.deliver(NOW_MS + 5_000)
    assert sorted(broker.bodies()) == [b"0", b"2"]
    assert broker.timers.pending_count == 0


def test_a_record_with_full_properties_is_carried_without_the_note() -> None:
    broker = Broker(store_settings=replace(ROOMY, commit_log_file_size=1 << 18, batch_size_max=1 << 17))
    names = {"REAL_TOPIC": "orders", "REAL_QID": "0", "TIMER_OUT_MS": str(NOW_MS + 2_000), "UNIQ_KEY": "A"}
    names |= {"TIMER_DELIVER_MS": str(NOW_MS + 2_345)}
    used = sum(len(name) + len(value) + 2 for name, value in names.items()) + len("big") + 2
    names["big"] = "x" * (PROPERTIES_SPACE_MAX - used)
    broker.writer.append([NewRecord(WHEEL_TOPIC, QueueId(0), b"a", names, NOW_MS)], NOW_MS)
    broker.dispatch()
    end = broker.store.end_offset
    assert list(broker.timers.live_records_before(end)) == [0]
    assert broker.timers.reappend_live_records_before(end, NOW_MS) == 1
    broker.dispatch()
    assert broker.timers.lowest_live_record() == end
    broker.deliver(NOW_MS + 2_345)
    assert broker.bodies() == [b"a"]


def test_a_waiting_record_that_was_cut_says_nothing() -> None:
    record = bytes(waiting(b"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02TIMER_OUT_MS\x015000\x02"))
    assert read_waiting(memoryview(record)) is not None
    assert [size for size in range(len(record)) if read_waiting(memoryview(record[:size])) is not None] == []
    assert [size for size in range(len(record)) if read_record(memoryview(record[:size])) is not None] == []


def test_blanks_and_strangers_of_the_wheels_queue_wait_for_nothing() -> None:
    broker = Broker()
    broker.store.topics.ensure_internal(WHEEL_TOPIC, 1)
    records = [rocketmq_record(b"a", NOW_MS + 2_000), rocketmq_record(b"b", NOW_MS + 2_000)]
    strange = NewRecord(WHEEL_TOPIC, QueueId(0), b"?", {"p": "v"})
    broker.writer.append([*records, strange], NOW_MS)
    broker.store.dispatch()
    path = f"consumequeue/{WHEEL_TOPIC}/0/{0:020d}"
    broker.files._files[path].data[8:12] = b"\x7f\xff\xff\xff"
    broker.timers.catch_up()
    assert broker.timers.pending_count == 1
    broker.deliver(NOW_MS + 5_000)
    assert broker.bodies() == [b"b"]
    assert broker.timers._table.sources.record(0, 0) is None, "a blank"
    assert broker.timers._table.sources.record(0, 2) is None, "a stranger"
    assert broker.timers._table.sources.record(0, 99) is None, "not there"


def test_a_waiting_message_that_cannot_be_read_is_not_recalled() -> None:
    broker = Broker()
    place = broker.schedule(b"a", NOW_MS + 5_000, unique_key="A").physical_offset
    broker.files._files[LOG].data[place + 84 : place + 88] = b"\x7f\xff\xff\xff"
    with pytest.raises(TroveError, match="RECALL_HANDLE_ILLEGAL"):
        broker.timers.recall("orders", NOW_MS + 5_000, "A", NOW_MS)
    assert broker.timers.deliver_due(NOW_MS + 5_000) == 1
    assert broker.timers.lost_count == 1


def test_messages_before_a_recall_that_could_not_be_read_came_twice() -> None:
    """Each read of the log in turn finds nothing free to read with; then all is read again."""
    files = FaultyFileSystem(MemoryFileSystem())
    broker = Broker(files)  # type: ignore[arg-type]
    for name in ("A", "B"):
        broker.schedule(name.encode(), NOW_MS + 5_000, unique_key=name)
    broker.timers.recall("orders", NOW_MS + 5_000, "A", NOW_MS)
    broker.dispatch()
    broker.schedule(b"C", NOW_MS + 5_000, unique_key="C")
    reads, failed = 0, 0

    def decide(operation: str, path: str) -> int | None:
        nonlocal reads
        reads += (operation, path) == ("read", LOG)
        return errno.EMFILE if (operation, path, reads) == ("read", LOG, failed) else None

    files.decide = decide
    while reads >= failed:
        reads, failed, table = 0, failed + 1, WaitingTable(broker.store)
        with suppress(ScarceError):
            table.catch_up()
        table.catch_up()
        rows = table.calendar.rows()
        assert sorted(rows["offset"][rows["state"] == WAITS].tolist()) == [1, 3], "B and C"
    assert failed > 4, "also the read of the message that is recalled"


def test_the_messages_of_a_lost_waiting_queue_count_as_lost_for_all_groups() -> None:
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 100)
    state, _ = broker.stop()
    other = Broker(MemoryFileSystem(), state=state)
    assert list(other.timers.live_records_before(other.store.end_offset)) == []
    assert other.timers.lowest_live_record() is None
    assert other.deliver(NOW_MS + 100) == 1
    assert (other.timers.pending_count, other.timers.lost_count) == (0, 1)


def test_a_waiting_message_whose_unit_is_gone_is_pending_to_nobody() -> None:
    broker = Broker()
    places = [broker.schedule(b"%d" % number, NOW_MS + 100).physical_offset for number in range(2)]
    broker.files._files[f"consumequeue/{WHEEL_TOPIC}/0/{0:020d}"].data[8:12] = b"\x7f\xff\xff\xff"
    assert list(broker.timers.live_records_before(broker.store.end_offset)) == places[1:]
    assert broker.timers.reappend_live_records_before(broker.store.end_offset, NOW_MS) == 2
    assert broker.timers.lost_count == 1


def test_a_level_that_nobody_has_is_not_a_source() -> None:
    broker = Broker()
    broker.store.topics.ensure_internal(SCHEDULE_TOPIC, 18)
    properties = {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "1", "UNIQ_KEY": "A"}
    broker.writer.append(
        [NewRecord(SCHEDULE_TOPIC, QueueId(SCHEDULE_QUEUES_MAX), b"x", properties, NOW_MS)], NOW_MS
    )
    broker.dispatch()
    event = Event(
        EventKind.TIMER_ENDED, NOW_MS, topic=SCHEDULE_TOPIC, queue_id=QueueId(SCHEDULE_QUEUES_MAX), offset=0
    )
    broker.events.add(event)
    broker.events.flush(NOW_MS)
    assert broker.timers.pending_count == 0
    again = Broker(broker.kill(), import_from_rocketmq=True)
    assert again.timers.pending_count == 0
    assert Broker(broker.kill()).timers.pending_count == 0


# --- RocketMQ's timer log -----------------------------------------------------------------------------
@pytest.mark.parametrize("count", [0, 1, 5, 6, 12])
def test_a_timer_log_of_several_files_is_read_as_it_was_written(count: int) -> None:
    files, size = MemoryFileSystem(), 5 * UNIT_SIZE + 30
    assert units_per_file(size) == 5
    units = np.zeros(count, UNIT_DTYPE)
    units["size"], units["magic"], units["physical_offset"] = UNIT_SIZE, 1, np.arange(count) * 100
    save_units(files, units, size)
    assert load_units(files)["physical_offset"].tolist() == units["physical_offset"].tolist()
    assert len(rocketmq_files.log_files(files)) == -(-count // 5)


def test_a_timer_log_pointing_after_the_wheels_queue_says_nothing_of_it() -> None:
    files, size = MemoryFileSystem(), 5 * UNIT_SIZE + 30
    broker = Broker(files)
    broker.schedule(b"a", NOW_MS + 5_000)
    unit = np.zeros(1, UNIT_DTYPE)
    unit["size"], unit["magic"], unit["physical_offset"] = UNIT_SIZE, 1, 1 << 40
    killed = broker.kill()
    save_units(killed, unit, size)
    again = Broker(killed, import_from_rocketmq=True)
    assert again.timers.pending_count == 1


# --- the parts ----------------------------------------------------------------------------------------
@given(
    ranges=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 9)), max_size=12),
    offsets=st.lists(st.integers(0, 80), max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_an_offset_has_ended_where_a_range_of_its_source_has_it(
    ranges: list[tuple[int, int, int]], offsets: list[int]
) -> None:
    ended = EndedOffsets()
    for source, begin, count in ranges:
        ended.add(source, begin, begin + count)
    for source in range(4):
        expected = [
            any(one == source and begin <= offset < begin + count for one, begin, count in ranges)
            for offset in offsets
        ]
        assert ended.covers(source, np.array(offsets, np.int64)).tolist() == expected


def test_rows_of_times_far_apart_come_in_their_order() -> None:
    """Years in one call, and an hour of which all has ended."""
    calendar = Calendar()
    hour = 3_600_000
    times = [NOW_MS + number * 70_000 * hour for number in (3, 0, 2, 1)]
    rows = [(time, offset, 0, 0, 0, WAITS) for offset, time in enumerate(times)]
    calendar.add(np.array(rows, ROW_DTYPE))
    for block in calendar.blocks():
        calendar.end(block, block["offset"] == 1)
    assert len(calendar.take_due(NOW_MS + hour, 8)) == 0
    taken = [calendar.take_due(NOW_MS + 400_000 * hour, 8)["offset"].tolist() for _ in range(2)]
    assert taken == [[3, 2, 0], []]


def test_an_unreadable_page_of_the_delayed_queue_stopped_the_broker() -> None:
    """The timers of the page are skipped, and counted; the others come."""
    count, page = 500, (4_096, 8_192)
    roomy = replace(ROOMY, consume_queue_file_size=20_000)
    broker = Broker(MemoryFileSystem(), store_settings=roomy)
    for number in range(count):
        broker.schedule(b"%d" % number, NOW_MS + 5_000)
    files = FaultyFileSystem(broker.files.after_process_kill())
    again = Broker(files, store_settings=roomy)  # type: ignore[arg-type]
    files.unreadable[f"consumequeue/{WHEEL_TOPIC}/0/{0:020d}"] = page
    again.timers = Timers(again.store, again.writer, again.events, SETTINGS)
    again.timers.settle(again.store.end_offset)
    lost = range(page[0] // 20, -(-page[1] // 20))
    while again.deliver(NOW_MS + 5_000):
        pass
    assert again.bodies() == [b"%d" % number for number in range(count) if number not in lost]
    assert again.store.damage.ranges == {"unit-unreadable": len(lost)}
