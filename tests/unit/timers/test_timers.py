"""Delayed messages by example: which are stored, delivered and when, and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, SMALL, flush, own_properties, read_queue
from tests.unit.timers.engine import ROOMY, SETTINGS, Broker, message
from trovemq_broker.timers.timers import SCHEDULE_TOPIC, WHEEL_TOPIC, delayed_record
from trovemq_broker.timers.wheel_records import wheel_out_ms
from trovemq_broker.track import delayed
from trovemq_broker.track.delayed import DelayedMessages, delayed_messages
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import decode_message
from trovemq_proto.records.layout import CRC_PROPERTY_SIZE
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.engine.steps import finished
from trovemq_store.files.memory import MemoryFileSystem


def test_a_waiting_record_is_one_that_rocketmq_understands() -> None:
    broker = Broker()
    broker.schedule(b"later", NOW_MS + 5_300, queue_id=2, properties={"TAGS": "a"})
    (waiting,) = read_queue(broker.store, WHEEL_TOPIC)
    assert own_properties(waiting) == {
        "UNIQ_KEY": f"01{b'later'.hex():0>30}",
        "TAGS": "a",
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
        "TIMER_DELIVER_MS": str(NOW_MS + 5_300),
        "TIMER_OUT_MS": str(NOW_MS + 5_000),
    }
    assert broker.bodies() == []


@pytest.mark.parametrize(
    ("deliver_ms", "out_ms"), [(5_000, 4_000), (5_001, 5_000), (5_999, 5_000), (6_000, 5_000)]
)
def test_rocketmq_empties_a_slot_after_its_second_and_never_before(deliver_ms: EpochMs, out_ms: int) -> None:
    assert wheel_out_ms(deliver_ms) == out_ms
    assert out_ms + 1_000 >= deliver_ms


def test_the_copy_keeps_the_messages_fields_and_names_its_wait() -> None:
    broker = Broker()
    properties = {"KEYS": "k1 k2", "TAGS": "a", "color": "red"}
    broker.schedule(b"later", NOW_MS + 300, queue_id=2, properties=properties, flag=7, reconsume_times=3)
    assert broker.deliver(NOW_MS + 299) == 0
    assert broker.deliver(NOW_MS + 300) == 1
    (copy,) = broker.delivered()
    assert (copy.body, copy.queue_id, copy.flag, copy.reconsume_times) == (b"later", 2, 7, 3)
    assert (copy.born_timestamp, copy.born_host) == (NOW_MS - 5, "10.0.0.2:50123")
    assert copy.properties.items() >= properties.items()
    assert copy.properties["TIMER_ENQUEUE_MS"] == str(NOW_MS)
    assert copy.properties["TIMER_DEQUEUE_MS"] == str(NOW_MS + 300)
    assert copy.properties["REAL_TOPIC"] == "orders"
    assert broker.timers.pending_count == 0
    assert broker.timers.next_due_ms() is None


def test_a_time_that_has_come_goes_straight_to_the_topic() -> None:
    broker = Broker()
    broker.schedule(b"now", NOW_MS)
    assert broker.bodies() == [b"now"]
    assert read_queue(broker.store, WHEEL_TOPIC) == []


def test_messages_of_a_queue_are_ordered_by_time_and_then_by_the_log() -> None:
    broker = Broker()
    for body, delay_ms in ((b"c", 900), (b"a", 100), (b"d", 900), (b"e", 7_200_000), (b"b", 101)):
        broker.schedule(body, NOW_MS + delay_ms)
    assert broker.timers.next_due_ms() == NOW_MS + 100
    broker.deliver(NOW_MS + 8_000_000)
    assert broker.bodies() == [b"a", b"b", b"c", b"d", b"e"]


def test_a_turn_has_a_limit_and_the_rest_comes_in_the_next() -> None:
    broker = Broker()
    for number in range(20):
        broker.schedule(b"%d" % number, NOW_MS + 100)
    counts = [broker.timers.deliver_due(NOW_MS + 100) for _ in range(4)]
    assert counts == [8, 8, 4, 0]
    broker.dispatch()
    assert broker.bodies() == [b"%d" % number for number in range(20)]


def test_delayed_records_of_others_are_delivered_too() -> None:
    broker = Broker()
    retry = delayed_record(message(b"again", topic="%RETRY%g_orders"), NOW_MS + 70, NOW_MS)
    broker.store.topics.ensure_internal("%RETRY%g_orders", 1)
    broker.writer.append([retry], NOW_MS)
    broker.dispatch()
    broker.deliver(NOW_MS + 70)
    assert broker.bodies("%RETRY%g_orders") == [b"again"]


def test_messages_of_a_deleted_topic_are_dropped_also_after_a_restart() -> None:
    broker = Broker(topics=("orders", "gone"))
    broker.schedule(b"a", NOW_MS + 100, topic="gone")
    broker.schedule(b"b", NOW_MS + 100)
    broker.store.delete_topic("gone", NOW_MS)
    broker.deliver(NOW_MS + 100)
    assert broker.bodies() == [b"b"]
    assert broker.timers.dropped_count == 1
    broker.stop()
    again = Broker(broker.files, topics=("orders", "gone"))
    assert again.timers.pending_count == 0


def test_forgetting_a_topic_ends_what_waits_for_it() -> None:
    broker = Broker(topics=("orders", "gone"))
    broker.schedule(b"a", NOW_MS + 100, topic="gone")
    broker.schedule(b"b", NOW_MS + 9_000_000, topic="gone")
    broker.schedule(b"c", NOW_MS + 100)
    assert broker.timers.forget_topic("gone", NOW_MS) == 2
    broker.stop()
    again = Broker(broker.files)
    again.deliver(NOW_MS + 10_000_000)
    assert (again.bodies(), again.bodies("gone")) == ([b"c"], [])


def test_sync_mode_a_message_that_is_not_on_disk_is_not_delivered() -> None:
    broker = Broker(store_settings=replace(ROOMY, flush_mode="sync"))
    broker.schedule(b"later", NOW_MS + 100)
    assert broker.deliver(NOW_MS + 100) == 0
    flush(broker.store)
    broker.dispatch()
    assert broker.deliver(NOW_MS + 100) == 1


# --- limits ---------------------------------------------------------------------------------------------
def test_a_time_too_far_ahead_is_refused() -> None:
    broker = Broker(settings=replace(SETTINGS, delivery_delay_max_ms=1_000))
    broker.schedule(b"fine", NOW_MS + 1_000)
    with pytest.raises(TroveError, match="1001 ms ahead") as caught:
        broker.schedule(b"far", NOW_MS + 1_001)
    assert caught.value.spec.symbol == "DELIVERY_TIME_ILLEGAL"


def test_too_many_are_refused_also_before_they_are_visible() -> None:
    broker = Broker(settings=replace(SETTINGS, timers_max=2))
    for number in range(2):
        broker.timers.schedule(message(b"%d" % number), NOW_MS + 100, NOW_MS)
    with pytest.raises(TroveError, match="2 delayed messages wait") as caught:
        broker.timers.schedule(message(b"x"), NOW_MS + 100, NOW_MS)
    assert caught.value.spec.symbol == "LIMIT_EXCEEDED"


def test_a_full_disk_delays_messages_and_loses_none() -> None:
    files = MemoryFileSystem()
    broker = Broker(files, store_settings=SMALL)
    for number in range(10):
        broker.schedule(b"%d" % number + bytes(400), NOW_MS + 100, queue_id=number % 2)
    files.capacity = 0
    with pytest.raises(TroveError) as caught:
        broker.deliver(NOW_MS + 100)
    assert caught.value.spec.symbol in {"DISK_FULL", "CREATE_MAPPED_FILE_FAILED"}
    assert 0 < broker.timers.pending_count == 10 - broker.timers.delivered_count
    assert broker.timers.next_due_ms() == NOW_MS + 100
    files.capacity = None
    broker.deliver(NOW_MS + 100)
    assert sorted(body[:1] for body in broker.bodies()) == [b"%d" % number for number in range(10)]


def test_properties_that_fill_a_record_leave_out_what_only_informs() -> None:
    broker = Broker(store_settings=replace(ROOMY, commit_log_file_size=1 << 18, batch_size_max=1 << 17))
    space = 32_767 - CRC_PROPERTY_SIZE - len("UNIQ_KEY") - 34 - len("big") - 2
    waiting = len("REAL_TOPICorders") + len("REAL_QID0") + len("TIMER_DELIVER_MSTIMER_OUT_MS") + 26 + 8
    broker.schedule(b"big", NOW_MS + 100, properties={"big": "x" * (space - waiting)})
    broker.deliver(NOW_MS + 100)
    (copy,) = broker.delivered()
    assert "TIMER_DEQUEUE_MS" not in copy.properties
    assert len(copy.properties["big"]) == space - waiting


# --- recall -----------------------------------------------------------------------------------------------
def test_a_recalled_message_is_not_delivered_also_after_a_restart() -> None:
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 2_300, unique_key="A")
    broker.schedule(b"b", NOW_MS + 2_300, unique_key="B")
    assert broker.timers.recall("orders", NOW_MS + 2_300, "A", NOW_MS) is not None
    assert broker.timers.recall("orders", NOW_MS + 2_300, "A", NOW_MS) is None, "again is fine"
    broker.dispatch()
    assert broker.timers.pending_count == 1
    broker = Broker(broker.kill())
    assert broker.timers.recall("orders", NOW_MS + 2_300, "A", NOW_MS) is None
    broker.deliver(NOW_MS + 4_000)
    assert broker.bodies() == [b"b"]


def test_a_recall_names_topic_time_and_key() -> None:
    broker = Broker(topics=("orders", "other"))
    broker.schedule(b"a", NOW_MS + 2_300, unique_key="A")
    for topic, deliver_ms, key in (
        ("other", NOW_MS + 2_300, "A"),
        ("unknown", NOW_MS + 2_300, "A"),
        ("orders", NOW_MS + 3_300, "A"),
        ("orders", NOW_MS + 2_300, "B"),
        ("orders", NOW_MS + 2_300, ""),
    ):
        with pytest.raises(TroveError) as caught:
            broker.timers.recall(topic, deliver_ms, key, NOW_MS)
        assert caught.value.spec.symbol == "RECALL_HANDLE_ILLEGAL"
    assert broker.timers.pending_count == 1


def test_a_message_whose_time_has_passed_cannot_be_recalled() -> None:
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 300, unique_key="A")
    with pytest.raises(TroveError, match="time has passed"):
        broker.timers.recall("orders", NOW_MS + 300, "A", NOW_MS + 300)
    broker.deliver(NOW_MS + 300)
    with pytest.raises(TroveError, match="no such message waits"):
        broker.timers.recall("orders", NOW_MS + 300, "A", NOW_MS)  # the clock was set back


def test_a_second_copy_of_a_recalled_message_does_not_come_either() -> None:
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 2_300, unique_key="A")
    broker.timers.recall("orders", NOW_MS + 2_300, "A", NOW_MS)
    with pytest.raises(TroveError) as caught:
        broker.schedule(b"a", NOW_MS + 2_300, unique_key="A")
    assert caught.value.spec is errors.DELIVERY_TIME_ILLEGAL
    copy = NewRecord("orders", QueueId(0), b"a", {"UNIQ_KEY": "A"}, born_timestamp=NOW_MS)
    broker.writer.append([delayed_record(copy, NOW_MS + 2_300, NOW_MS)], NOW_MS)  # as RocketMQ rolls one
    broker.dispatch()
    broker.deliver(NOW_MS + 5_000)
    assert broker.bodies() == []


@pytest.mark.parametrize("key", ["A", "orders+A"])
def test_delete_markers_of_rocketmq_are_obeyed(key: str) -> None:
    """They name the slot's second, one millisecond on."""
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 2_300, unique_key="A")
    properties = {"UNIQ_KEY": "A", "TIMER_DEL_UNIQKEY": key, "TIMER_DELIVER_MS": str(NOW_MS + 2_001)}
    marker = {**properties, "TIMER_OUT_MS": str(NOW_MS + 2_000), "REAL_TOPIC": "orders", "REAL_QID": "0"}
    broker.writer.append([NewRecord(WHEEL_TOPIC, QueueId(0), b"0", marker)], NOW_MS)
    broker.dispatch()
    broker.deliver(NOW_MS + 5_000)
    assert broker.bodies() == []


# --- RocketMQ's records -----------------------------------------------------------------------------------
def rocketmq_record(body: bytes, out_ms: int, **properties: str) -> NewRecord:
    fixed = {"REAL_TOPIC": "orders", "REAL_QID": "1", "TIMER_OUT_MS": str(out_ms), "UNIQ_KEY": body.decode()}
    return NewRecord(WHEEL_TOPIC, QueueId(0), body, fixed | properties, NOW_MS)


def test_a_delay_in_seconds_is_due_at_the_end_of_its_rounded_second() -> None:
    broker = Broker()
    broker.writer.append([rocketmq_record(b"a", NOW_MS + 2_000, TIMER_DELAY_SEC="2")], NOW_MS)
    broker.dispatch()
    assert broker.timers.next_due_ms() == NOW_MS + 3_000


def test_a_delivery_time_that_is_not_the_records_own_is_not_believed() -> None:
    broker = Broker()
    broker.writer.append([rocketmq_record(b"a", NOW_MS + 2_000, TIMER_DELIVER_MS=str(NOW_MS - 9))], NOW_MS)
    broker.dispatch()
    assert broker.timers.next_due_ms() == NOW_MS + 3_000


def test_a_rolled_record_replaces_the_one_before() -> None:
    broker = Broker()
    first = rocketmq_record(b"a", NOW_MS + 2_000, TIMER_DELIVER_MS=str(NOW_MS + 2_345))
    broker.writer.append([first, first.with_properties({"TIMER_ROLL_TIMES": "1"})], NOW_MS)
    broker.dispatch()
    assert broker.timers.pending_count == 1
    broker.deliver(NOW_MS + 9_000)
    assert broker.bodies() == [b"a"]


@pytest.mark.parametrize(
    "changes",
    [{"TIMER_OUT_MS": "soon"}, {"TIMER_OUT_MS": "9" * 19}, {"REAL_TOPIC": None}, {"REAL_QID": "-1"}],
)
def test_a_record_that_says_nothing_of_its_delivery_is_skipped(changes: dict[str, str | None]) -> None:
    broker = Broker()
    bad = rocketmq_record(b"bad", NOW_MS + 2_000).with_properties(changes)
    broker.writer.append([bad, rocketmq_record(b"good", NOW_MS + 2_000)], NOW_MS)
    broker.dispatch()
    assert broker.timers.pending_count == 1


def test_a_queue_that_the_topic_does_not_have_becomes_one_that_it_has() -> None:
    broker = Broker()
    bad = rocketmq_record(b"a", NOW_MS + 1_000, REAL_QID="7")
    broker.writer.append([bad], NOW_MS)
    broker.dispatch()
    broker.deliver(NOW_MS + 5_000)
    (copy,) = broker.delivered()
    assert copy.queue_id == 3


def test_records_of_delay_levels_are_due_at_their_units_time() -> None:
    broker = Broker()
    properties = {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "1", "UNIQ_KEY": "A", "TAGS": "a"}
    broker.writer.append([NewRecord(SCHEDULE_TOPIC, QueueId(2), b"level", properties, NOW_MS)], NOW_MS)
    broker.dispatch()
    assert broker.timers.next_due_ms() == NOW_MS + 10_000
    broker.deliver(NOW_MS + 10_000)
    (copy,) = broker.delivered()
    assert own_properties(copy) == properties, "as RocketMQ leaves them"
    assert Broker(broker.kill()).timers.pending_count == 0, "its event was lost, and its copy found"


# --- looking up -------------------------------------------------------------------------------------------
def find(broker: Broker, topic: str, key: str) -> DelayedMessages:
    return finished(delayed_messages(broker.store, broker.timers, topic, key))


def test_what_waits_is_found_by_topic_unique_key_and_keys() -> None:
    broker = Broker(topics=("orders", "other"))
    broker.schedule(b"a", NOW_MS + 100, unique_key="A", properties={"KEYS": "k1 shared"})
    broker.schedule(b"b", NOW_MS + 9_000_000, unique_key="B", properties={"KEYS": "shared"})
    broker.schedule(b"c", NOW_MS + 100, unique_key="A", topic="other", properties={"KEYS": "shared"})

    def found(topic: str, key: str) -> list[tuple[int, bytes]]:
        answer = find(broker, topic, key)
        assert answer.complete
        return [(one.deliver_ms - NOW_MS, decode_message(one.record).body) for one in answer.messages]

    assert {(one.deliver_ms - NOW_MS, one.queue_offset) for one in broker.timers.pending("orders")} == {
        (100, 0),
        (9_000_000, 1),
    }
    assert found("orders", "A") == [(100, b"a")]
    assert found("orders", "k1") == [(100, b"a")]
    assert found("orders", "shared") == [(100, b"a"), (9_000_000, b"b")]
    assert found("other", "shared") == [(100, b"c")]
    assert found("orders", "k") == []
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        found("nothing", "shared")
    broker.deliver(NOW_MS + 100)
    assert found("orders", "shared") == [(9_000_000, b"b")]
    assert found("orders", "A") == []


def test_a_level_s_message_is_found_by_its_key() -> None:
    broker = Broker()
    properties = {"REAL_TOPIC": "orders", "REAL_QID": "1", "UNIQ_KEY": "A", "KEYS": "k"}
    for queue_id in (1, 2):
        level = properties | {"DELAY": str(queue_id + 1)}
        broker.writer.append([NewRecord(SCHEDULE_TOPIC, QueueId(queue_id), b"level", level, NOW_MS)], NOW_MS)
    broker.dispatch()
    assert [one.deliver_ms - NOW_MS for one in find(broker, "orders", "k").messages] == [
        5_000,
        10_000,
    ]
    broker.deliver(NOW_MS + 5_000)
    assert [one.deliver_ms - NOW_MS for one in find(broker, "orders", "A").messages] == [10_000]


def test_tools_did_not_see_how_far_a_level_is() -> None:
    broker = Broker()
    broker.schedule(b"in the wheel", NOW_MS + 1_000)
    assert broker.timers.levels() == {}
    for delay_ms in (0, 1_000, 2_000):
        properties = {"REAL_TOPIC": "orders", "REAL_QID": "1", "UNIQ_KEY": f"A{delay_ms}", "DELAY": "3"}
        record = NewRecord(SCHEDULE_TOPIC, QueueId(2), b"level", properties, EpochMs(NOW_MS + delay_ms))
        broker.writer.append([record], EpochMs(NOW_MS + delay_ms))
    broker.dispatch()
    assert broker.timers.levels() == {3: (0, 3)}
    broker.deliver(NOW_MS + 11_000)
    assert broker.timers.levels() == {3: (2, 3)}
    broker.deliver(NOW_MS + 12_000)
    assert broker.timers.levels() == {3: (3, 3)}


def test_an_answer_that_is_not_all_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "FOUND_MAX", 2)
    broker = Broker()
    for number in range(3):
        broker.schedule(b"%d" % number, EpochMs(NOW_MS + 100 - number), properties={"KEYS": "k"})
    answer = find(broker, "orders", "k")
    assert [one.deliver_ms - NOW_MS for one in answer.messages] == [98, 99]
    assert not answer.complete


# --- old segments -----------------------------------------------------------------------------------------
def test_what_waits_in_old_segments_is_appended_again_and_comes_once() -> None:
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 5_300, unique_key="A")
    middle = broker.schedule(b"b", NOW_MS + 100, unique_key="B")
    broker.schedule(b"c", NOW_MS + 9_000_000, unique_key="C")
    properties = {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "L"}
    broker.writer.append([NewRecord(SCHEDULE_TOPIC, QueueId(2), b"level", properties, NOW_MS)], NOW_MS)
    broker.dispatch()
    assert broker.timers.lowest_live_record() == 0
    broker.deliver(NOW_MS + 100)
    end = broker.store.end_offset
    assert broker.timers.reappend_live_records_before(middle.physical_offset, NOW_MS) == 1
    broker.dispatch()
    assert broker.timers.reappend_live_records_before(end, NOW_MS) == 2
    broker.dispatch()
    assert (broker.timers.lowest_live_record() or 0) >= end
    assert broker.timers.pending_count == 3
    for _ in range(2):  # the second time after a restart that lost the events
        assert sorted(timer.deliver_ms for timer in broker.timers.pending("orders")) == [
            NOW_MS + 5_300,
            NOW_MS + 10_000,
            NOW_MS + 9_000_000,
        ]
        broker.events.flush(NOW_MS)
        broker = Broker(broker.kill())
    broker.deliver(NOW_MS + 9_000_000)
    assert broker.bodies() == [b"b", b"a", b"level", b"c"]


def test_nothing_waits_nothing_is_pending() -> None:
    broker = Broker()
    assert broker.timers.lowest_live_record() is None
    assert broker.timers.reappend_live_records_before(PhysicalOffset(1 << 40), NOW_MS) == 0
    assert broker.timers.next_due_ms() is None
    assert broker.timers.deliver_due(NOW_MS) == 0
