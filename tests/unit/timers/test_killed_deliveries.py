"""A broker that dies between a delivery and the event of it: the log has the copy, so it is not delivered
again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.engine import NOW_MS
from tests.unit.timers.engine import SETTINGS, Broker, message
from trovemq_broker.timers import unrecorded
from trovemq_broker.timers.timers import SCHEDULE_TOPIC
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records.fields import store_timestamp
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.events import event_log
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.files.fault_points import armed

LATER_MS = EpochMs(NOW_MS + 10_000)


class KilledError(Exception):
    """The process ends here."""


def killed_at(point: str) -> Callable[[str], None]:
    def act(name: str) -> None:
        if name == point:
            raise KilledError

    return act


def again(broker: Broker) -> Broker:
    """The next process delivers all that it takes for due."""
    broker = Broker(broker.kill())
    broker.deliver(LATER_MS)
    return broker


def test_a_message_whose_broker_died_after_delivery_came_twice() -> None:
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 1_000, properties={"KEYS": "k", "mine": "yes"}, queue_id=QueueId(2))
    broker.schedule(b"b", NOW_MS + 9_000)
    broker.deliver(NOW_MS + 1_000)
    broker = Broker(broker.kill())
    assert broker.timers.pending_count == 1
    broker.events.flush(NOW_MS)
    broker = again(broker)
    assert broker.bodies() == [b"a", b"b"]


def test_a_message_of_a_delay_level_came_twice() -> None:
    broker = Broker()
    properties = {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "1", "UNIQ_KEY": "A", "TAGS": "a"}
    broker.writer.append([NewRecord(SCHEDULE_TOPIC, QueueId(2), b"level", properties, NOW_MS)], NOW_MS)
    broker.dispatch()
    broker.deliver(LATER_MS)
    assert again(broker).bodies() == [b"level"]


def test_a_message_that_waited_longer_in_a_newer_segment_came_twice() -> None:
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 1_000)
    broker.timers.reappend_live_records_before(broker.store.end_offset, NOW_MS)
    broker.dispatch()
    broker.deliver(NOW_MS + 1_000)
    assert again(broker).bodies() == [b"a"]


def test_equal_messages_without_a_key_come_as_often_as_they_were_sent() -> None:
    broker = Broker()
    record = message(b"same")
    record = replace(record, properties={})
    for _ in range(3):
        broker.timers.schedule(record, EpochMs(NOW_MS + 1_000), NOW_MS)
    broker.dispatch()
    broker.schedule(b"other", NOW_MS + 1_000, queue_id=QueueId(3))
    with armed(killed_at("timers.after_append")), pytest.raises(KilledError):
        broker.deliver(NOW_MS + 1_000)
    assert sorted(again(broker).bodies()) == [b"other", *[b"same"] * 3]


def test_a_message_that_only_looks_delivered_is_delivered() -> None:
    broker = Broker()
    broker.schedule(b"a", NOW_MS + 1_000, unique_key="A")
    sent = message(b"b", unique_key="A", properties={"REAL_QID": "0", "REAL_TOPIC": "orders"})
    broker.writer.append([sent, replace(sent, body=b"a", properties={})], EpochMs(NOW_MS + 2_000))
    broker.dispatch()
    assert sorted(again(broker).bodies()) == [b"a", b"a", b"b"]


def test_after_a_kill_within_a_flush_of_events_messages_came_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_log, "EVENTS_MAX", 2)
    broker = Broker()
    for number in range(5):
        broker.schedule(b"%d" % number, NOW_MS + 1_000)
        broker.schedule(b"later %d" % number, NOW_MS + 9_000)  # so each of the first five has its event
    broker.deliver(NOW_MS + 1_000)
    with armed(killed_at("events.after_append")), pytest.raises(KilledError):
        broker.events.flush(NOW_MS)
    assert sorted(again(broker).bodies()) == sorted(
        [b"%d" % number for number in range(5)] + [b"later %d" % number for number in range(5)]
    )


def test_of_equal_messages_whose_events_were_cut_one_was_never_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_log, "EVENTS_MAX", 1)
    broker = Broker(settings=replace(SETTINGS, timer_batch_max=1))
    for _ in range(3):
        broker.schedule(b"same", NOW_MS + 1_000, unique_key="A")
        broker.schedule(b"later", NOW_MS + 9_000)
    assert [broker.timers.deliver_due(EpochMs(NOW_MS + 1_000)) for _ in range(2)] == [1, 1]
    broker.dispatch()
    with armed(killed_at("events.after_append")), pytest.raises(KilledError):
        broker.events.flush(NOW_MS)
    assert again(broker).bodies().count(b"same") == 3


@pytest.mark.parametrize("with_events", [True, False])
def test_a_start_reads_only_late_messages_of_the_topics_of_due_ones(
    monkeypatch: pytest.MonkeyPatch, with_events: bool
) -> None:
    broker = Broker(topics=("orders", "other"))
    broker.schedule(b"due", NOW_MS + 1_000)
    broker.schedule(b"not due", NOW_MS + 9_000)
    ms = EpochMs(NOW_MS + 1_000 if with_events else NOW_MS + 999)
    broker.writer.append([message(b"%d" % number) for number in range(300)], ms)
    if with_events:
        broker.events.add(Event(EventKind.ADVANCED, ms))
        broker.events.flush(ms)
    broker.writer.append([message(b"%d" % number, topic="other") for number in range(300)], ms)
    broker.writer.append([message(b"of the last step")], EpochMs(NOW_MS + 1_000))
    broker.dispatch()
    broker.deliver(NOW_MS + 1_000)
    read: list[str] = []
    monkeypatch.setattr(unrecorded, "UNITS_STEP", 8)
    monkeypatch.setattr(unrecorded, "store_timestamp", noted(read, store_timestamp))
    assert again(broker).bodies().count(b"due") == 1
    assert len(read) <= (2 if with_events else 8)


def test_a_start_read_all_due_messages_without_keys_for_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    for number in range(50):
        record = replace(message(b"%d" % number), properties={})
        broker.timers.schedule(record, EpochMs(NOW_MS + 1_000), NOW_MS)
    broker.dispatch()
    count = broker.timers.deliver_due(EpochMs(NOW_MS + 1_000))
    broker.dispatch()
    read: list[object] = []
    of_row = unrecorded._contents_of_row

    def noted_row(*given: Any) -> Any:
        read.append(given)
        return of_row(*given)

    monkeypatch.setattr(unrecorded, "_contents_of_row", noted_row)
    broker = Broker(broker.kill())
    assert (broker.timers.pending_count, len(read)) == (50 - count, count)
    assert 0 < count < 50


def noted(calls: list[str], function: Callable[..., EpochMs]) -> Callable[..., EpochMs]:
    def call(*arguments: object) -> EpochMs:
        calls.append("")
        return function(*arguments)

    return call
