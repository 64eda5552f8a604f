"""Transactions in stores that others wrote or that lost something, and transactions beyond every limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, SMALL, read_queue
from tests.unit.transactions.test_transactions import NO_INDEX, Broker, message
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.transactions.open_halves import ENDED_KEPT_MAX, OpenHalves
from trovemq_broker.transactions.records import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_BODY_SIZE_MAX,
    OP_TOPIC,
    TRANSACTION_QUEUE_ID,
    HalfMessage,
    given_up_record,
    op_records,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.layout import SYS_FLAG_TRANSACTION_COMMIT
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.settings import StoreSettings

BOTH = pytest.mark.parametrize("settings", [SMALL, NO_INDEX], ids=["index", "no index"])


def half_of(broker: Broker, number: int = 0) -> HalfMessage:
    return broker.transactions.snapshot().open[number]


def append(broker: Broker, record: NewRecord) -> None:
    RecordWriter(broker.store, lambda: None).append([record], NOW_MS)
    broker.store.dispatch()


def reopened(broker: Broker) -> Broker:
    broker.events.flush(NOW_MS)
    broker.kill()
    broker.open()
    return broker


# --- false ends --------------------------------------------------------------------------------------
@BOTH
def test_a_message_with_the_transactions_id_that_is_no_commit_ends_nothing(settings: StoreSettings) -> None:
    broker = Broker(settings)
    broker.transactions.prepare(message("A1"), NOW_MS)
    append(broker, message("A1", body=b"sent plainly"))
    append(broker, replace(message("B1"), sys_flag=SYS_FLAG_TRANSACTION_COMMIT))
    assert reopened(broker).transactions.open_count == 1
    broker.transactions.end("A1", "orders", True, NOW_MS)
    assert sorted(broker.bodies()) == [b"paid", b"paid", b"sent plainly"]


@BOTH
def test_a_half_whose_topic_was_deleted_stays_open_over_a_crash(settings: StoreSettings) -> None:
    broker = Broker(settings)
    broker.transactions.prepare(message("A1", topic="gone"), NOW_MS)
    assert reopened(broker).transactions.open_count == 1
    broker.transactions.end("A1", "gone", False, NOW_MS)
    assert reopened(broker).transactions.open_count == 0


@BOTH
def test_only_its_own_give_up_record_ends_a_half(settings: StoreSettings) -> None:
    broker = Broker(settings)
    for name in ("A1", "A2"):
        broker.transactions.prepare(message(name), NOW_MS)
    broker.store.dispatch()
    for turn in range(3):
        assert len(broker.transactions.due_checks(NOW_MS + 6_000 + 30_000 * turn)) == 2
    first, second = read_queue(broker.store, HALF_TOPIC)
    strangers = NewRecord.copy_of(first, GIVEN_UP_TOPIC, TRANSACTION_QUEUE_ID)
    broker.store.topics.ensure_internal(GIVEN_UP_TOPIC, 1, now_ms=NOW_MS)
    append(broker, strangers.with_properties({"REAL_TOPIC": None, "REAL_QID": None}))
    append(broker, given_up_record(second, 3))
    reopened(broker)
    assert [half.transaction_id for half in broker.transactions.snapshot().open] == ["A1"]


def test_the_half_topic_may_hold_what_is_not_a_half_message() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    append(broker, NewRecord(HALF_TOPIC, TRANSACTION_QUEUE_ID, b"?", {"UNIQ_KEY": "x"}))
    broker.transactions.prepare(message("A2"), NOW_MS)
    append(broker, NewRecord(OP_TOPIC, TRANSACTION_QUEUE_ID, b"0,2,", {"TAGS": "other"}))
    append(
        broker,
        NewRecord(OP_TOPIC, TRANSACTION_QUEUE_ID, b"zero,\xff,-1,,99999999999999999999,0", {"TAGS": "d"}),
    )
    reopened(broker)
    assert [half.transaction_id for half in broker.transactions.snapshot().open] == ["A2"]


# --- damage -------------------------------------------------------------------------------------------
def test_a_half_that_went_bad_is_not_asked_about_and_given_up_in_the_end() -> None:
    broker = Broker()
    for name in ("A1", "A2"):
        broker.transactions.prepare(message(name), NOW_MS)
    broker.store.dispatch()
    at = half_of(broker).physical_offset
    broker.files._files[f"commitlog/{0:020d}"].data[at + 88] ^= 0xFF
    for turn in range(3):
        asked = broker.transactions.due_checks(NOW_MS + 6_000 + 30_000 * turn)
        assert [one.transaction_id for one in asked] == ["A2"]
    assert broker.transactions.due_checks(NOW_MS + 96_000) == []
    assert (broker.transactions.open_count, broker.transactions.given_up_count) == (0, 2)
    assert broker.bodies(GIVEN_UP_TOPIC) == [b"paid"]
    assert broker.transactions.reappend_live_records_before(broker.store.end_offset, NOW_MS) == 0


# --- checks before a crash ----------------------------------------------------------------------------
def test_checks_after_the_snapshot_count_and_earlier_ones_not_twice() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    broker.store.dispatch()
    broker.transactions.due_checks(NOW_MS + 6_000)
    state = broker.transactions.snapshot()
    kept = replace_halves(state.open)
    broker.transactions.due_checks(NOW_MS + 36_000)
    broker.events.flush(NOW_MS)
    broker.kill()
    broker.open(state=type(state)(state.half_next, state.op_next, kept, []))
    assert half_of(broker).checks == 2
    assert broker.transactions.next_check_ms() == NOW_MS + 66_000


def replace_halves(halves: list[HalfMessage]) -> list[HalfMessage]:
    """Copies: a snapshot shares its halves with the live state."""
    return [HalfMessage(*(getattr(half, name) for name in half.__struct_fields__)) for half in halves]


# --- op records ---------------------------------------------------------------------------------------
def test_many_ends_that_could_not_be_written_go_into_several_op_records() -> None:
    halves = [
        HalfMessage(
            QueueOffset(10**17 + number), LOG_ORIGIN, 0, "orders", QueueId(0), f"t{number}", QueueOffset(0), 0
        )
        for number in range(500)
    ]
    withdrawn = {halves[at].offset for at in (0, 7, 8, 499)}
    for records in (list(op_records(halves, NOW_MS)), list(op_records(halves, NOW_MS, withdrawn))):
        assert len(records) > 1
        assert [half for _, named in records for half in named] == halves
        assert all(len(record.body) <= OP_BODY_SIZE_MAX for record, _ in records)
        assert b"".join(record.body for record, _ in records) == b"".join(b"%d," % h.offset for h in halves)
    said = [(named, record.properties) for record, named in records if len(record.properties) > 2]
    assert [[half.offset for half in named] for named, _ in said] == [
        [offset] for offset in sorted(withdrawn)
    ]
    assert said[1][1]["TROVEMQ_WITHDRAWN"] == "t7"
    assert said[1][1]["TROVEMQ_WITHDRAWN_TOPIC"] == "orders"
    assert list(op_records([], NOW_MS)) == []


def test_what_could_not_be_written_at_its_end_is_written_by_the_clean_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    append_ = RecordWriter.append

    def refuse_ops(self: RecordWriter, records: list[NewRecord], now_ms: EpochMs, **how: bool) -> object:
        if records[0].topic == OP_TOPIC:
            raise TroveError(errors.DISK_FULL)
        return append_(self, records, now_ms, **how)

    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, "append", refuse_ops)
        broker.transactions.end("A1", "orders", False, NOW_MS)
    assert broker.op_bodies() == []
    broker.stop()
    broker.open(events=False)
    assert broker.op_bodies() == [b"0,"]
    assert broker.transactions.open_count == 0


# --- many ---------------------------------------------------------------------------------------------
def test_halves_that_ended_behind_one_that_is_open_do_not_fill_the_memory() -> None:
    halves = OpenHalves(ConsumerSettings())

    def half(offset: int) -> HalfMessage:
        return HalfMessage(
            QueueOffset(offset),
            PhysicalOffset(offset * 100),
            100,
            "orders",
            QueueId(0),
            f"id {offset}",
            QueueOffset(0),
            NOW_MS,
        )

    halves.add(half(0))
    for offset in range(1, 20 * ENDED_KEPT_MAX):
        added = half(offset)
        halves.add(added)
        for check in range(3):
            halves.count_check(added, check, NOW_MS + offset + check)
        halves.remove(added)
    assert len(halves._in_order) <= ENDED_KEPT_MAX + 4
    assert len(halves._due) <= ENDED_KEPT_MAX + 8
    assert halves.lowest() == half(0)
    assert halves.next_due_ms() == NOW_MS + ConsumerSettings().transaction_timeout_ms
    assert len(halves) == halves.by_topic["orders"] == 1
