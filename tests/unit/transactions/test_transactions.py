"""Transactions step by step, at one store in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engine import NOW_MS, SMALL, SMALL_SYNC, flush, open_store, own_properties, read_queue
from tests.support.golden import load_manifest, settings_of, unpack
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.transactions.records import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from trovemq_broker.transactions.transaction_log import TRANSACTION_GROUP, TransactionsState
from trovemq_broker.transactions.transactions import (
    CHECKS_PER_STEP_MAX,
    UNASKED_TIME_MAX_MS,
    GivenUp,
    Transactions,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records.layout import COMPRESSION_ZLIB, SYS_FLAG_COMPRESSED
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.events.event_log import EventLog
from trovemq_store.events.snapshot import SnapshotFile
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.settings import StoreSettings

SETTINGS = ConsumerSettings(
    transaction_timeout_ms=6_000,
    transaction_check_interval_ms=30_000,
    transaction_check_max=3,
    transactions_max=300,
)
NO_INDEX = replace(SMALL, message_index_enable=False)


def message(
    unique_key: str, queue_id: QueueId = QueueId(1), *, body: bytes = b"paid", topic: str = "orders"
) -> NewRecord:
    properties = {"UNIQ_KEY": unique_key, "TAGS": "t", "KEYS": f"key-{unique_key}", "colour": "red"}
    return NewRecord(topic, queue_id, body, properties, born_timestamp=EpochMs(NOW_MS - 7), flag=5)


class Broker:
    """A store and its transactions, which can be stopped and started again."""

    def __init__(self, settings: StoreSettings = SMALL, files: MemoryFileSystem | None = None) -> None:
        self.settings = settings
        self.files = MemoryFileSystem() if files is None else files
        self.open()

    def open(self, *, state: TransactionsState | None = None, events: bool = True) -> None:
        self.store: MessageStore = open_store(self.files, self.settings)
        writer = RecordWriter(self.store, lambda: None)
        self.events = EventLog(self.store, writer)
        self.transactions = Transactions(self.store, writer, self.events, SETTINGS)
        if state is not None:
            self.transactions.restore(state)
        for event in self.events.replay(QueueOffset(0)) if events else ():
            self.transactions.apply(event)
        self.transactions.settle()
        self.store.dispatch()

    def stop(self) -> None:
        self.transactions.export_to_rocketmq(NOW_MS)
        self.events.flush(NOW_MS)
        self.store.close(NOW_MS)

    def kill(self) -> None:
        self.files = self.files.after_process_kill()

    def bodies(self, topic: str = "orders") -> list[bytes]:
        self.store.dispatch()
        return [found.body for queue in range(4) for found in read_queue(self.store, topic, QueueId(queue))]

    def op_bodies(self) -> list[bytes]:
        return self.bodies(OP_TOPIC)


def refused(action: object, *arguments: object, **named: object) -> TroveError:
    with pytest.raises(TroveError) as caught:
        action(*arguments, **named)  # type: ignore[operator]
    return caught.value


def test_a_half_message_lies_in_the_half_topic_only() -> None:
    broker = Broker()
    result = broker.transactions.prepare(message("A1"), NOW_MS, immunity_ms=1_500)
    assert broker.bodies() == []
    (half,) = read_queue(broker.store, HALF_TOPIC)
    assert half.physical_offset == result.physical_offset
    assert half.sys_flag == 0
    assert own_properties(half) == {
        "UNIQ_KEY": "A1",
        "TAGS": "t",
        "KEYS": "key-A1",
        "colour": "red",
        "TRAN_MSG": "true",
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
        "__transactionId__": "A1",
        "PGROUP": "orders",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "2",
    }


def test_commit_brings_the_message_into_its_queue() -> None:
    broker = Broker()
    half = broker.transactions.prepare(message("A1"), NOW_MS)
    broker.store.dispatch()
    result = broker.transactions.end("A1", "orders", True, NOW_MS + 1)
    assert result is not None
    broker.store.dispatch()
    (found,) = read_queue(broker.store, "orders", QueueId(1))
    assert (found.physical_offset, found.queue_offset) == (result.physical_offset, 0)
    assert (found.sys_flag, found.flag, found.born_timestamp) == (8, 5, NOW_MS - 7)
    assert found.prepared_transaction_offset == half.physical_offset
    assert found.properties["TRAN_MSG"] == "true"
    assert not found.properties.keys() & {"REAL_TOPIC", "REAL_QID"}
    (op,) = read_queue(broker.store, OP_TOPIC)
    assert (op.body, own_properties(op)) == (b"0,", {"TAGS": "d", "WAIT": "true"})
    assert broker.transactions.open_count == 0


def test_rollback_leaves_only_an_op_record() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    assert broker.transactions.end("A1", "orders", False, NOW_MS) is None
    assert broker.bodies() == []
    assert broker.op_bodies() == [b"0,"]


def test_a_transaction_ends_once_and_only_with_its_own_id_and_topic() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    end = broker.transactions.end
    assert refused(end, "A2", "orders", True, NOW_MS).spec is errors.TRANSACTION_ILLEGAL
    assert refused(end, "A1", "bills", True, NOW_MS).spec is errors.TRANSACTION_ILLEGAL
    end("A1", "orders", True, NOW_MS)
    assert refused(end, "A1", "orders", True, NOW_MS).spec is errors.TRANSACTION_ILLEGAL
    assert refused(end, "A1", "orders", False, NOW_MS).spec is errors.TRANSACTION_ILLEGAL
    assert broker.bodies() == [b"paid"]


def test_a_half_message_without_an_id_is_refused() -> None:
    broker = Broker()
    found = refused(broker.transactions.prepare, NewRecord("orders", QueueId(0), b"x"), NOW_MS)
    assert found.spec is errors.TRANSACTION_ILLEGAL


def test_too_many_open_transactions_are_refused() -> None:
    broker = Broker()
    for number in range(SETTINGS.transactions_max):
        broker.transactions.prepare(message(f"A{number}", body=b""), NOW_MS)
    found = refused(broker.transactions.prepare, message("B"), NOW_MS)
    assert found.spec is errors.LIMIT_EXCEEDED
    broker.transactions.end("A7", "orders", False, NOW_MS)
    broker.transactions.prepare(message("B"), NOW_MS)


def test_sync_mode_a_transaction_may_end_before_its_half_is_synced() -> None:
    broker = Broker(SMALL_SYNC)
    broker.transactions.prepare(message("A1"), NOW_MS)
    broker.transactions.end("A1", "orders", True, NOW_MS)
    assert broker.bodies() == []
    flush(broker.store)
    assert broker.bodies() == [b"paid"]


def test_a_second_attempt_of_the_producer_takes_the_first_ones_place() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    broker.transactions.prepare(message("A1"), NOW_MS + 1)
    assert broker.transactions.open_count == 1
    broker.transactions.end("A1", "orders", True, NOW_MS + 2)
    assert broker.bodies() == [b"paid"]
    assert broker.op_bodies() == [b"0,", b"1,"]


def test_a_deleted_topic_takes_no_commit() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    broker.store.dispatch()
    broker.store.delete_topic("orders", NOW_MS)
    found = refused(broker.transactions.end, "A1", "orders", True, NOW_MS)
    assert found.spec is errors.TOPIC_NOT_FOUND
    assert broker.transactions.open_count == 1


# --- checks -----------------------------------------------------------------------------------------
def test_checks_come_after_the_timeout_and_each_interval_until_abandoned() -> None:
    broker = Broker()
    transactions = broker.transactions
    transactions.prepare(message("A1"), NOW_MS, client_id="client-1")
    assert transactions.next_check_ms() == NOW_MS + 6_000
    assert transactions.due_checks(NOW_MS + 5_999) == []
    now = NOW_MS + 6_000
    for _ in range(3):
        (asked,) = transactions.due_checks(now)
        assert (asked.topic, asked.transaction_id, asked.client_id) == ("orders", "A1", "client-1")
        assert (asked.message.topic, asked.message.queue_id, asked.message.body) == ("orders", 1, b"paid")
        assert "REAL_TOPIC" not in asked.message.properties
        now += 30_000
        assert transactions.next_check_ms() == now
    assert transactions.due_checks(now) == []
    assert transactions.open_count == 0
    assert transactions.next_check_ms() is None
    assert broker.bodies() == []
    (moved,) = read_queue(broker.store, GIVEN_UP_TOPIC)
    assert moved.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert moved.properties["REAL_TOPIC"] == "orders"
    assert broker.op_bodies() == [b"0,"]
    assert refused(transactions.end, "A1", "orders", True, now).spec is errors.TRANSACTION_ILLEGAL


def test_checks_were_counted_while_no_producer_could_be_asked() -> None:
    broker = Broker()
    transactions = broker.transactions
    transactions.prepare(message("A1"), NOW_MS, client_id="client-1")
    now = NOW_MS + 6_000
    for _ in range(10):
        assert transactions.due_checks(now, lambda _client_id, _topic: False) == []
        now += 30_000
        assert transactions.next_check_ms() == now
    for _ in range(3):
        (asked,) = transactions.due_checks(now, lambda *who: who == ("client-1", "orders"))
        assert asked.transaction_id == "A1"
        now += 30_000
    assert transactions.due_checks(now) == []
    assert transactions.given_up_count == 1


def test_a_transaction_without_a_producer_is_given_up_after_72_hours() -> None:
    broker = Broker()
    transactions = broker.transactions
    transactions.prepare(message("A1"), NOW_MS, client_id="client-1")
    last = NOW_MS + UNASKED_TIME_MAX_MS - 1
    for turn in range(5):
        asked = transactions.due_checks(EpochMs(last + turn * 30_000), lambda _client_id, _topic: False)
        assert len(asked) == (0 if turn in (0, 4) else 1)
    assert transactions.open_count == 0
    assert transactions.take_given_up() == [GivenUp("orders", "A1", "client-1", 3)]
    assert transactions.take_given_up() == []


def test_where_many_are_open_those_without_a_producer_count_as_checked() -> None:
    broker = Broker()
    broker.transactions._settings = replace(broker.transactions._settings, transactions_max=2)
    broker.transactions.prepare(message("A1"), NOW_MS, client_id="client-1")
    (asked,) = broker.transactions.due_checks(NOW_MS + 6_000, lambda _client_id, _topic: False)
    assert asked.transaction_id == "A1"


def test_the_producers_own_time_before_the_first_check() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS, immunity_ms=100_000)
    assert broker.transactions.next_check_ms() == NOW_MS + 100_000
    broker.stop()
    broker.open()
    assert broker.transactions.next_check_ms() == NOW_MS + 100_000


def test_a_turn_asks_about_a_bounded_number() -> None:
    broker = Broker()
    for number in range(CHECKS_PER_STEP_MAX + 3):
        broker.transactions.prepare(message(f"A{number}", body=b""), NOW_MS)
    broker.store.dispatch()
    now = NOW_MS + 6_000
    assert len(broker.transactions.due_checks(now)) == CHECKS_PER_STEP_MAX
    assert broker.transactions.next_check_ms() == now
    assert len(broker.transactions.due_checks(now)) == 3


def test_checks_made_before_a_crash_count() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS, client_id="client-1")
    broker.store.dispatch()
    broker.transactions.due_checks(NOW_MS + 6_000)
    broker.transactions.due_checks(NOW_MS + 36_000)
    broker.events.flush(NOW_MS + 36_000)
    broker.kill()
    broker.open()
    assert broker.transactions.next_check_ms() == NOW_MS + 66_000
    assert len(broker.transactions.due_checks(NOW_MS + 66_000)) == 1
    assert broker.transactions.due_checks(NOW_MS + 96_000) == []
    assert broker.transactions.open_count == 0


# --- restarts ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("settings", [SMALL, NO_INDEX], ids=["index", "no index"])
def test_killed_between_commit_record_and_op_record(settings: StoreSettings) -> None:
    broker = Broker(settings)
    for number in range(3):
        broker.transactions.prepare(message(f"A{number}"), NOW_MS)
    broker.transactions._write_ops = lambda *_: None  # type: ignore[method-assign]  # the process dies before
    broker.transactions.end("A1", "orders", True, NOW_MS)
    broker.kill()
    broker.open()
    assert broker.transactions.open_count == 2
    assert refused(broker.transactions.end, "A1", "orders", True, NOW_MS).spec is errors.TRANSACTION_ILLEGAL
    assert broker.bodies() == [b"paid"]
    assert broker.op_bodies() == [b"1,"]


def test_a_commit_whose_body_cannot_be_inflated_stopped_the_start() -> None:
    """Killed before its op record, with a body that only claims to be compressed."""
    broker = Broker()
    half = replace(message("A1"), sys_flag=SYS_FLAG_COMPRESSED | COMPRESSION_ZLIB)
    broker.transactions.prepare(half, NOW_MS)
    broker.transactions._write_ops = lambda *_: None  # type: ignore[method-assign]  # the process dies before
    broker.transactions.end("A1", "orders", True, NOW_MS)
    broker.kill()
    broker.open()
    assert broker.transactions.open_count == 0
    assert broker.op_bodies() == [b"0,"]


@pytest.mark.parametrize("settings", [SMALL, NO_INDEX], ids=["index", "no index"])
def test_killed_between_give_up_record_and_op_record(settings: StoreSettings) -> None:
    broker = Broker(settings)
    broker.transactions.prepare(message("A1"), NOW_MS)
    broker.store.dispatch()
    for check in range(3):
        broker.transactions.due_checks(NOW_MS + 6_000 + check * 30_000)
    broker.events.flush(NOW_MS)
    broker.transactions._write_ops = lambda *_: None  # type: ignore[method-assign]  # the process dies before
    broker.transactions.due_checks(NOW_MS + 96_000)
    broker.kill()
    broker.open()
    assert broker.transactions.open_count == 0
    assert broker.bodies(GIVEN_UP_TOPIC) == [b"paid"]


def test_an_earlier_committed_message_of_the_same_id_settles_nothing() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    broker.transactions.end("A1", "orders", True, NOW_MS)
    broker.transactions.prepare(message("A1", body=b"again"), NOW_MS)
    broker.kill()
    broker.open()
    assert broker.transactions.open_count == 1
    broker.transactions.end("A1", "orders", True, NOW_MS)
    assert broker.bodies() == [b"paid", b"again"]


def test_a_snapshot_keeps_the_client_and_what_was_replayed_since() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS, client_id="client-1")
    broker.transactions.prepare(message("A2"), NOW_MS, client_id="client-2")
    file = SnapshotFile(broker.files, "trovemq/test.snapshot", TransactionsState)
    file.save(file.encode(broker.transactions.snapshot()))
    broker.transactions.end("A1", "orders", False, NOW_MS)
    broker.transactions.prepare(message("A3"), NOW_MS, client_id="client-3")
    broker.kill()
    broker.open(state=SnapshotFile(broker.files, file.path, TransactionsState).load())
    asked = broker.transactions.due_checks(NOW_MS + 6_000)
    assert [(one.transaction_id, one.client_id) for one in asked] == [("A2", "client-2"), ("A3", "")]


def test_the_positions_wait_for_the_sync_of_what_ended() -> None:
    broker = Broker(SMALL_SYNC)
    transactions, offsets = broker.transactions, broker.store.offsets
    for number in range(3):
        transactions.prepare(message(f"A{number}"), NOW_MS)
    flush(broker.store)
    transactions.end("A0", "orders", True, NOW_MS)
    transactions.save_positions()
    assert offsets.get(TRANSACTION_GROUP, HALF_TOPIC, QueueId(0)) is None
    flush(broker.store)
    transactions.save_positions()
    assert offsets.get(TRANSACTION_GROUP, HALF_TOPIC, QueueId(0)) == 1
    assert offsets.get(TRANSACTION_GROUP, OP_TOPIC, QueueId(0)) is None, "the op record was written after A1"
    transactions.end("A1", "orders", True, NOW_MS)
    transactions.end("A2", "orders", True, NOW_MS)
    flush(broker.store)
    transactions.save_positions()
    assert offsets.get(TRANSACTION_GROUP, HALF_TOPIC, QueueId(0)) == 3
    assert offsets.get(TRANSACTION_GROUP, OP_TOPIC, QueueId(0)) == 3


def test_catch_up_from_inside_an_append_leaves_the_half_to_its_caller() -> None:
    broker = Broker()
    store = broker.store
    known: list[Transactions] = []

    def appended() -> None:
        store.dispatch()
        known[0].catch_up()

    writer = RecordWriter(store, appended)
    known.append(Transactions(store, writer, EventLog(store, writer), SETTINGS))
    known[0].prepare(message("A1"), NOW_MS, client_id="client-1")
    assert [one.client_id for one in known[0].due_checks(NOW_MS + 6_000)] == ["client-1"]
    known[0].end("A1", "orders", True, NOW_MS)
    flush(store)
    known[0].catch_up()
    assert store.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, QueueId(0)) == 1


def test_a_power_cut_after_an_unsynced_end_loses_the_end_not_the_message() -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    flush(broker.store)
    broker.transactions.end("A1", "orders", True, NOW_MS)
    broker.transactions.save_positions()
    broker.store.offsets.persist()
    broker.files = broker.files.after_power_cut()
    broker.open()
    assert broker.bodies() == []
    broker.transactions.end("A1", "orders", True, NOW_MS)
    assert broker.bodies() == [b"paid"]


def test_a_full_disk_between_commit_and_op_record_does_not_commit_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    broker.transactions.prepare(message("A1"), NOW_MS)
    append = RecordWriter.append

    def refuse_ops(self: RecordWriter, records: list[NewRecord], now_ms: EpochMs, **how: bool) -> object:
        if records[0].topic == OP_TOPIC:
            raise TroveError(errors.DISK_FULL)
        return append(self, records, now_ms, **how)

    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, "append", refuse_ops)
        broker.transactions.end("A1", "orders", True, NOW_MS)
    found = refused(broker.transactions.end, "A1", "orders", True, NOW_MS)
    assert found.spec is errors.TRANSACTION_ILLEGAL
    broker.transactions.prepare(message("A2"), NOW_MS)
    broker.transactions.end("A2", "orders", False, NOW_MS)
    assert broker.op_bodies() == [b"0,", b"1,"]


# --- retention --------------------------------------------------------------------------------------
def test_open_halves_are_carried_to_the_end_before_their_segment_goes() -> None:
    broker = Broker()
    transactions = broker.transactions
    for number in range(4):
        transactions.prepare(message(f"A{number}", body=b"%d" % number), NOW_MS, client_id="c")
    broker.store.dispatch()
    transactions.end("A2", "orders", False, NOW_MS)
    transactions.due_checks(NOW_MS + 6_000)
    lowest = transactions.lowest_live_record()
    (last,) = [half.physical_offset for half in read_queue(broker.store, HALF_TOPIC) if half.body == b"3"]
    assert lowest == 0
    assert transactions.reappend_live_records_before(last, NOW_MS + 7_000) == 2
    assert transactions.lowest_live_record() == last
    assert transactions.open_count == 3
    broker.store.dispatch()
    halves = read_queue(broker.store, HALF_TOPIC)
    assert [(half.body, half.properties.get("TRANSACTION_CHECK_TIMES")) for half in halves[4:]] == [
        (b"0", "1"),
        (b"1", "1"),
    ]
    broker.kill()
    broker.open()
    assert broker.transactions.open_count == 3
    for number in (0, 1, 3):
        broker.transactions.end(f"A{number}", "orders", True, NOW_MS)
    assert broker.bodies() == [b"0", b"1", b"3"]


# --- RocketMQ's stores ------------------------------------------------------------------------------
def test_golden_small_has_one_open_transaction(tmp_path: Path) -> None:
    manifest = load_manifest("small")
    files = RealFileSystem(unpack("small", tmp_path))
    store = MessageStore.open(files, settings_of(manifest), NOW_MS)
    try:
        writer = RecordWriter(store, lambda: None)
        transactions = Transactions(store, writer, EventLog(store, writer), SETTINGS)
        transactions.import_from_rocketmq()
        (expected,) = [
            found
            for found in manifest["messages"]
            if (found["topic"], found["queueOffset"]) == (HALF_TOPIC, 4)
        ]
        assert transactions.open_count == 1
        assert transactions.lowest_live_record() == expected["commitLogOffset"]
        (asked,) = transactions.due_checks(expected["storeTimestamp"] + 30_000)
        assert (asked.transaction_id, asked.topic) == (expected["uniqKey"], "AlfaTrans")
        transactions.end(asked.transaction_id, "AlfaTrans", True, NOW_MS)
        assert transactions.open_count == 0
    finally:
        store.close(NOW_MS)


def test_golden_small_without_positions_settles_what_was_committed(tmp_path: Path) -> None:
    """As after a crash of RocketMQ before it stored the group's positions."""
    manifest = load_manifest("small")
    root = unpack("small", tmp_path)
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (root / "config" / name).unlink(missing_ok=True)
    store = MessageStore.open(RealFileSystem(root), settings_of(manifest), NOW_MS)
    try:
        writer = RecordWriter(store, lambda: None)
        transactions = Transactions(store, writer, EventLog(store, writer), SETTINGS)
        transactions.import_from_rocketmq()
        assert transactions.open_count == 1, "the moved one takes the place of its first record"
    finally:
        store.close(NOW_MS)


def test_a_broker_with_all_its_groups_fell_over_the_first_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its positions had no space in the offsets; the listener of transactions then ended the daemon."""
    broker = Broker()
    monkeypatch.setattr(broker.store.offsets, "_group_count_max", 0)
    broker.transactions.prepare(message("A"), NOW_MS)
    broker.transactions.end("A", "orders", True, NOW_MS)
    flush(broker.store)
    broker.store.dispatch()
    broker.transactions.catch_up()
    broker.transactions.save_positions()
    assert broker.store.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, QueueId(0)) is None
    assert [one.body for one in read_queue(broker.store, "orders", QueueId(1))] == [b"paid"]
