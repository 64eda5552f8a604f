"""Refusals of every door: the same at each of them, whatever way a message takes into the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, SMALL, open_store, record
from trovemq_broker.produce.append import Appender, AppendSettings
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.produce.outgoing import OutgoingMessage, check_outgoing
from trovemq_broker.server.wire.send_checks import check_message
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records import RecordBatch, encode_record
from trovemq_proto.records.internal_properties import INTERNAL_PROPERTIES, Writer, is_reserved
from trovemq_proto.records.message import decode_received
from trovemq_proto.records.properties import message_properties
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_store.files.memory import MemoryFileSystem

NO_CRC = replace(SMALL, append_property_crc=False)


def appender() -> Appender:
    """Of the stream Append, of unary Send, and of atomic transactions (checked_batch)."""
    store = open_store(MemoryFileSystem(), NO_CRC)
    commit = GroupCommit(store, FlushSettings(flush_mode="async"), lambda _grown: None)
    return Appender(store, commit, AppendSettings(), lambda: NOW_MS, lambda _grown: None)


def append(name: str) -> None:
    appender().checked_batch("orders", QueueId(0), record(b"x", properties={name: "1"}))


def append_many(name: str) -> None:
    plain = record(b"x", properties={"plain": "1"})
    records = plain * 9 + record(b"x", properties={"plain": "1", name: "1"}) + plain
    appender().checked_batch("orders", QueueId(0), records)


def append_alike(name: str) -> None:
    appender().checked_batch("orders", QueueId(0), record(b"x", properties={name: "1"}) * 9)


def send(name: str) -> None:
    check_outgoing(OutgoingMessage(b"x", properties={name: "1"}), 100)


def send_message(name: str) -> None:
    message = v2.Message(body=b"x", user_properties={name: "1"})
    message.system_properties.message_id = "id"
    check_message(message, 100, NOW_MS)


def sdk(name: str) -> None:
    """Of the SDK's producers and transactions, and of the sink of Spark."""
    message_properties(None, None, None, {name: "1"})


DOORS: list[tuple[Callable[[str], None], Writer]] = [
    (append, Writer.SDK),
    (append_many, Writer.SDK),
    (append_alike, Writer.SDK),
    (send, Writer.SDK),
    (send_message, Writer.USER),
    (sdk, Writer.USER),
]


@pytest.mark.parametrize("name", [*INTERNAL_PROPERTIES, "TROVEMQ_", "TROVEMQ_NEW"])
@pytest.mark.parametrize(("door", "writer"), DOORS, ids=[door.__name__ for door, _ in DOORS])
def test_clients_wrote_properties_that_only_the_broker_may(
    name: str, door: Callable[[str], None], writer: Writer
) -> None:
    if INTERNAL_PROPERTIES.get(name) is Writer.SDK is writer:
        door(name)
        return
    with pytest.raises(TroveError) as refused:
        door(name)
    assert refused.value.spec is errors.PROPERTY_ILLEGAL


@pytest.mark.parametrize("door", [door for door, _ in DOORS])
def test_names_and_values_that_only_look_like_internal_ones_are_taken(door: Callable[[str], None]) -> None:
    for name in ("TROVEMQ", "trovemq_tx_id", "XTROVEMQ_TX_ID", "TROVE_MQ"):
        door(name)
    record_of_value = record(b"x", properties={"setting": "TROVEMQ_TX_ID=7"})
    appender().checked_batch("orders", QueueId(0), record_of_value * 9)


@pytest.mark.parametrize(
    "fields",
    [
        {"born_host": bytes(16) + b"\xff\xff\xff\xff"},
        {"born_host": bytes(4) + b"\x7f\xff\xff\xff"},
        {"reconsume_times": 3},
        {"prepared_transaction_offset": -1},
        {"prepared_transaction_offset": 4_096},
        {"born_timestamp": -1},
        {"born_timestamp": 1 << 62},
        {"sys_flag": 0x1},
        {"sys_flag": 0x301},
        {"sys_flag": 0x201},
        {"sys_flag": 0x101},
    ],
)
@pytest.mark.parametrize("count", [1, 9])
def test_records_that_no_client_writes_were_taken(fields: dict[str, int | bytes], count: int) -> None:
    record_of = encode_record("orders", b"plain", **{"born_timestamp": 5, **fields})  # type: ignore[arg-type]
    with pytest.raises(TroveError) as refused:
        appender().checked_batch("orders", QueueId(0), record_of * count)
    assert refused.value.spec is errors.BATCH_ILLEGAL


def test_properties_of_a_received_message_could_not_be_sent_again() -> None:
    """A number of the first producer, or marks of a transaction, came with them."""
    internal = dict.fromkeys(INTERNAL_PROPERTIES, "1")
    stored = record(b"x", keys="k", unique_key="u", properties={"mine": "2", **internal})
    for message in (decode_received(stored), *RecordBatch.split(stored * 9).received()):
        assert message.properties == {"UNIQ_KEY": "u", "KEYS": "k", "mine": "2"}
        assert not any(map(is_reserved, message.user_properties))
        assert message_properties(None, None, None, message.user_properties) == {"mine": "2"}


GROUP = {"__SHARDINGKEY": "customer-7"}
PRIORITY = {"_SYS_MSG_PRIORITY_": "7"}
DUE = {"TIMER_DELIVER_MS": "5"}


@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize(
    ("message_type", "taken", "refused"),
    [
        ("NORMAL", [{}, PRIORITY, GROUP], [DUE]),
        ("FIFO", [GROUP], [{}, {"__SHARDINGKEY": ""}, PRIORITY, DUE, {**GROUP, **DUE}]),
        ("DELAY", [DUE, {**GROUP, **DUE}], [{}, GROUP]),
        ("TRANSACTION", [], [{}, GROUP, DUE, {"TRAN_MSG": "true"}]),
        ("MIXED", [{}, GROUP, DUE, PRIORITY], []),
        ("UNSPECIFIED", [{}, GROUP, DUE], []),
        ("PRIORITY", [PRIORITY, {}], [GROUP, DUE]),
    ],
)
def test_the_native_protocol_stored_messages_not_of_their_topics_kind(
    message_type: str, taken: list[dict[str, str]], refused: list[dict[str, str]], count: int
) -> None:
    door = appender()
    door._store.topics.create("kinds", 1, message_type=message_type)
    ordinary = next(iter(taken), {})
    for properties in taken:
        door.checked_batch("kinds", QueueId(0), record(b"x", topic="kinds", properties=properties) * count)
    for properties in refused:
        records = record(b"x", topic="kinds", properties={"a": "b", **ordinary}) * (count - 1)
        records += record(b"x", topic="kinds", properties=properties)
        with pytest.raises(TroveError) as refusal:
            door.checked_batch("kinds", QueueId(0), records)
        assert refusal.value.spec is errors.MESSAGE_TYPE_CONFLICT


def test_a_topic_with_a_priority_order_takes_messages_with_and_without_one() -> None:
    door = appender()
    door._store.topics.create("ranks", 1, options={"order": "priority"})
    for properties in ({}, PRIORITY):
        door.checked_batch("ranks", QueueId(0), record(b"x", topic="ranks", properties=properties) * 9)
