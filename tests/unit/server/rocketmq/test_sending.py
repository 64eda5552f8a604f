"""SendMessage: each refusal with its status, each kind in its place, one entry a message."""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, flush, own_properties, read_queue
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import BROKER, ROOMY, TestBroker, message
from tests.support.rpc_context import RpcContext
from tests.support.sent_calls import begin, outcomes, send_call
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.wire import send_checks, send_replies, send_requests
from trovemq_broker.server.wire.routes import AWAY_FIRST
from trovemq_broker.server.wire.statuses import OK_STATUS, code_of
from trovemq_broker.timers.recall_handle import decode_recall_handle
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import Message
from trovemq_proto.records.hashes import group_queue
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.files.files import StorageError

DAY_MS = 86_400_000


async def refusal(parts: TestBroker, *messages: v2.Message) -> v2.Code:
    """The code of a refused send, in a task and by callback."""
    end = parts.store.end_offset
    with pytest.raises(TroveError) as caught:
        await parts.send(*messages)
    code = code_of(caught.value)
    answers = begin(parts, *messages)
    assert not answers or [code_of(error) for error in answers] == [code], "to a task, or refused alike"
    assert parts.store.end_offset == end, "nothing was stored"
    return code


def stored(parts: TestBroker, topic: str) -> list[Message]:
    return [one for queue_id in range(4) for one in read_queue(parts.store, topic, QueueId(queue_id))]


# --- refusals -------------------------------------------------------------------------------------------
REFUSED: list[tuple[str, v2.Message, v2.Code]] = [
    ("blank topic", message(topic=""), v2.ILLEGAL_TOPIC),
    ("topic's characters", message(topic="a b"), v2.ILLEGAL_TOPIC),
    ("long topic", message(topic="t" * 128), v2.ILLEGAL_TOPIC),
    ("system topic", message(topic="rmq_sys_x"), v2.ILLEGAL_TOPIC),
    ("dead letters", message(topic="%DLQ%g"), v2.ILLEGAL_TOPIC),
    ("empty body", message(b""), v2.MESSAGE_BODY_EMPTY),
    ("large body", message(b"x" * 8_193), v2.MESSAGE_BODY_TOO_LARGE),
    (
        "many properties",
        message(properties={f"p{i}": "1" for i in range(129)}),
        v2.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    ("reserved name", message(properties={"KEYS": "1"}), v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("internal name", message(properties={"__SHARDINGKEY": "1"}), v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("transient name", message(properties={"__RMQ.TRANSIENT.a": "1"}), v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("the broker's name", message(properties={"TROVEMQ_TX_ID": "1"}), v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("the SDK's name", message(properties={"TROVEMQ_PRODUCER": "1"}), v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("control in a name", message(properties={"a\x01": "1"}), v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("control in a value", message(properties={"a": "\x85"}), v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("blank tag", message(tag="  "), v2.ILLEGAL_MESSAGE_TAG),
    ("tag with a stroke", message(tag="a|b"), v2.ILLEGAL_MESSAGE_TAG),
    ("tag with a control", message(tag="a\n"), v2.ILLEGAL_MESSAGE_TAG),
    ("blank key", message(keys=["good", " "]), v2.ILLEGAL_MESSAGE_KEY),
    ("key with a control", message(keys=["a\x7f"]), v2.ILLEGAL_MESSAGE_KEY),
    ("properties' bytes", message(properties={"a": "x" * 16_384}), v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("properties' UTF-8", message(properties={"a": "€" * 5_462}), v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("tag and keys count", message(tag="t" * 9_000, keys=["k" * 9_000]), v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("no id", message(message_id=""), v2.ILLEGAL_MESSAGE_ID),
    ("blank id", message(message_id=" \t"), v2.ILLEGAL_MESSAGE_ID),
    ("id with a space", message(message_id="a b"), v2.ILLEGAL_MESSAGE_ID),
    ("long id", message(message_id="é" * 128), v2.ILLEGAL_MESSAGE_ID),
    (
        "long recovery",
        message(
            topic="deals",
            message_type=v2.TRANSACTION,
            orphaned_transaction_recovery_duration=Duration(seconds=3_601),
        ),
        v2.BAD_REQUEST,
    ),
    ("far ahead", message(topic="later", deliver_ms=NOW_MS + DAY_MS + 1), v2.ILLEGAL_DELIVERY_TIME),
    ("blank group", message(topic="steps", message_group=" "), v2.ILLEGAL_MESSAGE_GROUP),
    ("long group", message(topic="steps", message_group="é" * 32), v2.ILLEGAL_MESSAGE_GROUP),
    ("group with a control", message(topic="steps", message_group="a\x00"), v2.ILLEGAL_MESSAGE_GROUP),
    (
        "a broker that is away",
        message(topic="steps", message_group="g", queue_id=AWAY_FIRST + 3),
        v2.TOO_MANY_REQUESTS,
    ),
    ("unknown topic", message(topic="nowhere"), v2.TOPIC_NOT_FOUND),
    ("FIFO in NORMAL", message(message_group="g"), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("NORMAL in FIFO", message(topic="steps"), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("DELAY in NORMAL", message(deliver_ms=NOW_MS), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("half in NORMAL", message(message_type=v2.TRANSACTION), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("PRIORITY", message(topic="mixed", priority=3), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("LITE", message(topic="mixed", lite_topic="l"), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (
        "wrong digest",
        message(body_digest=v2.Digest(type=v2.MD5, checksum="00")),
        v2.MESSAGE_CORRUPTED,
    ),
]


@fake_time
@pytest.mark.parametrize(("sent", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_a_message_that_is_refused(sent: v2.Message, code: v2.Code) -> None:
    parts = TestBroker(consumers=ConsumerSettings(delivery_delay_max_ms=DAY_MS))
    assert await refusal(parts, sent) == code
    good = message()
    if sent.topic.name == "orders":
        assert await refusal(parts, good, sent) == code, "a batch is checked whole"


@fake_time
async def test_no_message_and_mixed_topics_are_corrupted() -> None:
    parts = TestBroker()
    assert await refusal(parts) == v2.MESSAGE_CORRUPTED
    assert await refusal(parts, message(), message(topic="mixed")) == v2.MESSAGE_CORRUPTED
    assert await refusal(parts, *[message()] * 1_025) == v2.BAD_REQUEST


@fake_time
async def test_what_lies_exactly_at_its_limit_is_taken() -> None:
    parts = TestBroker(consumers=ConsumerSettings(delivery_delay_max_ms=DAY_MS))
    for sent in (
        message(b"x" * 8_192),
        message(properties={f"p{i}": "1" for i in range(128)}),
        message(properties={"a": "x" * 16_383}),
        message(message_id="x" * 255),
        message(message_id="x" * 255, tag="t"),
        message(tag="", keys=["a b", ""]),
        message(topic="steps", message_group="g" * 63),
        message(topic="later", deliver_ms=NOW_MS + DAY_MS),
        message(topic="later", deliver_ms=EpochMs(1)),
    ):
        response = await parts.send(sent)
        assert response.status.code == v2.OK, response
        assert response.entries[0].status.code == v2.OK


@fake_time
async def test_as_many_messages_as_a_send_may_have_are_stored() -> None:
    parts = TestBroker()
    response = await parts.send(*[message(message_id=f"M{number}") for number in range(1_024)])
    assert (response.status.code, len(response.entries)) == (v2.OK, 1_024)


@pytest.mark.parametrize("offset", [0, 127, (1 << 63) - 1])
def test_the_reply_to_a_send_with_a_long_id_could_not_be_read(offset: int) -> None:
    """It is written by hand, with sizes of one byte for short ids."""
    for size in range(1, 256):
        text = "x" * size
        reply = send_replies.reply_of_stored(text, QueueOffset(offset))
        entry = service.SendResultEntry(status=OK_STATUS, message_id=text, transaction_id=text, offset=offset)
        expected = service.SendMessageResponse(status=OK_STATUS, entries=[entry])
        assert service.SendMessageResponse.FromString(reply) == expected


@fake_time
async def test_a_topic_that_may_not_be_written_is_forbidden() -> None:
    parts = TestBroker()
    parts.store.topics.alter("orders", perm=4)
    assert await refusal(parts, message()) == v2.FORBIDDEN


@fake_time
async def test_a_stopping_broker_refuses_every_kind() -> None:
    parts = TestBroker()
    parts.appender.refuse(TroveError(errors.SERVICE_NOT_AVAILABLE, "stopping"))
    for sent in (
        message(),
        message(topic="later", deliver_ms=NOW_MS + 1_000),
        message(topic="deals", message_type=v2.TRANSACTION),
    ):
        assert await refusal(parts, sent) == v2.INTERNAL_SERVER_ERROR


# --- stored messages ----------------------------------------------------------------------------------------
@fake_time
async def test_a_normal_message() -> None:
    parts = TestBroker()
    sent = message(
        "größe".encode(), properties={"color": "red"}, keys=["k1", "k 2"], tag="t", born_host="laptop"
    )
    response = await parts.send(sent)
    await turns()
    (found,) = stored(parts, "orders")
    assert found.body == "größe".encode()
    assert own_properties(found) == {
        "UNIQ_KEY": "01AA",
        "KEYS": "k1 k 2",
        "TROVEMQ_KEY_SIZES": "2,3",
        "TAGS": "t",
        "color": "red",
        "__BORNHOST": "laptop",
    }
    assert found.born_host == "127.0.0.1:5000"
    assert found.born_timestamp == NOW_MS
    (entry,) = response.entries
    assert (entry.message_id, entry.transaction_id, entry.offset) == ("01AA", "01AA", 0)
    assert entry.recall_handle == ""
    assert parts.traffic.messages_in == 1


@fake_time
async def test_message_groups_stay_in_their_queues_and_others_take_turns() -> None:
    parts = TestBroker()
    for number in range(12):
        await parts.send(message(str(number).encode(), "steps", message_group=f"g{number % 3}", queue_id=3))
        await parts.send(message(str(number).encode(), queue_id=2))
    await turns()
    for name in ("g0", "g1", "g2"):
        mine = [one for one in stored(parts, "steps") if one.properties["__SHARDINGKEY"] == name]
        assert [int(one.body) for one in mine] == list(range(int(name[1]), 12, 3))
        assert {one.queue_id for one in mine} == {group_queue(name, 4)}
    assert Counter(one.queue_id for one in stored(parts, "orders")) == {0: 3, 1: 3, 2: 3, 3: 3}


def test_the_queue_of_a_group_moves_rarely_when_queues_are_added() -> None:
    names = [f"group-{number}" for number in range(1_000)]
    counts = Counter(group_queue(name, 8) for name in names)
    assert set(counts) == set(range(8))
    assert min(counts.values()) > 60
    moved = [name for name in names if group_queue(name, 8) != group_queue(name, 9)]
    assert 0 < len(moved) < 250
    assert {group_queue(name, 9) for name in moved} == {8}, "they move to the new queue only"


@fake_time
async def test_a_delayed_message_waits_and_can_be_recalled() -> None:
    parts = TestBroker()
    due = NOW_MS + 5_000
    response = await parts.send(message(topic="later", deliver_ms=due, message_group="g"))
    await turns()
    assert stored(parts, "later") == []
    (waiting,) = read_queue(parts.store, "rmq_sys_wheel_timer", QueueId(0))
    assert waiting.properties["REAL_TOPIC"] == "later"
    assert waiting.properties["REAL_QID"] == str(group_queue("g", 4))
    assert waiting.properties["TIMER_DELIVER_MS"] == str(due)
    assert waiting.properties["UNIQ_KEY"] == "01AA"
    (entry,) = response.entries
    handle = decode_recall_handle(entry.recall_handle)
    assert (handle.topic, handle.broker, handle.deliver_ms, handle.message_id) == (
        "later",
        BROKER,
        due,
        "01AA",
    )


@fake_time
async def test_a_delayed_message_whose_time_is_past_is_delivered_at_once() -> None:
    parts = TestBroker()
    response = await parts.send(message(topic="later", deliver_ms=NOW_MS))
    await turns()
    (found,) = stored(parts, "later")
    assert found.properties["TIMER_DELIVER_MS"] == str(NOW_MS)
    assert response.entries[0].recall_handle == ""


@fake_time
async def test_a_half_message_is_invisible_and_its_sender_is_remembered() -> None:
    parts = TestBroker()
    response = await parts.send(
        message(topic="deals", message_type=v2.TRANSACTION, message_id="T1"),
        context=RpcContext("producer-1"),
    )
    await turns()
    assert stored(parts, "deals") == []
    (half,) = read_queue(parts.store, "RMQ_SYS_TRANS_HALF_TOPIC", QueueId(0))
    assert half.properties["REAL_TOPIC"] == "deals"
    assert response.entries[0].transaction_id == "T1"
    assert parts.transactions.open_count == 1
    both = [message(topic="deals", message_type=v2.TRANSACTION, message_id=name) for name in ("T2", "T3")]
    assert await refusal(parts, *both) == v2.BAD_REQUEST


@fake_time
async def test_a_mixed_topic_takes_every_kind_in_one_send() -> None:
    parts = TestBroker()
    sent = [
        message(b"0", "mixed", message_id="M0", message_group="g"),
        message(b"1", "mixed", message_id="M1"),
        message(b"2", "mixed", message_id="M2", deliver_ms=NOW_MS + 1_000),
        message(b"3", "mixed", message_id="M3"),
        message(b"4", "mixed", message_id="M4", message_group="g"),
    ]
    response = await parts.send(*sent)
    await turns()
    assert response.status.code == v2.OK
    assert [entry.message_id for entry in response.entries] == ["M0", "M1", "M2", "M3", "M4"]
    by_id = {one.unique_key: one for one in stored(parts, "mixed")}
    assert set(by_id) == {"M0", "M1", "M3", "M4"}
    for entry in response.entries:
        if entry.message_id in by_id:
            assert entry.offset == by_id[entry.message_id].queue_offset, entry.message_id
    assert by_id["M0"].queue_offset < by_id["M4"].queue_offset
    assert by_id["M1"].queue_id == by_id["M3"].queue_id
    assert bool(response.entries[2].recall_handle)


@fake_time
async def test_results_that_differ_are_reported_one_by_one() -> None:
    parts = TestBroker()

    def full(*_: Any) -> Any:
        raise TroveError(errors.DISK_FULL)

    parts.timers.schedule = full  # type: ignore[assignment, method-assign]
    response = await parts.send(
        message(b"0", "mixed", deliver_ms=NOW_MS + 1_000), message(b"1", "mixed", message_id="M1")
    )
    assert response.status.code == v2.MULTIPLE_RESULTS
    assert [entry.status.code for entry in response.entries] == [v2.INTERNAL_SERVER_ERROR, v2.OK]
    await turns()
    assert [one.body for one in stored(parts, "mixed")] == [b"1"]
    assert await refusal(parts, message(b"0", "mixed", deliver_ms=NOW_MS + 1)) == (v2.INTERNAL_SERVER_ERROR)


@fake_time
async def test_a_write_that_fails_is_refused_and_the_store_continues() -> None:
    parts = TestBroker()

    def broken(*_: Any, **__: Any) -> Any:
        raise StorageError("the disk is gone", "commitlog", 5)

    parts.transactions.prepare = broken  # type: ignore[method-assign]
    sent = message(topic="deals", message_type=v2.TRANSACTION)
    assert await refusal(parts, sent) == v2.INTERNAL_SERVER_ERROR
    assert parts.group_commit.failure is None


# --- without a task -------------------------------------------------------------------------------------
SENT = {
    "plain": message(),
    "everything": message(
        "größe".encode(),
        properties={"color": "red", "": "x"},
        keys=["k1", "k 2"],
        tag="t",
        born_host="laptop",
    ),
    "digest": message(body_digest=v2.Digest(type=v2.CRC32, checksum="00")),
    "odd id": message(message_id="é" * 127, tag="ä b", keys=["", "k|1"]),
    "long": message(b"x" * 8_192, message_id="x" * 255),
}


@fake_time
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT.keys())
async def test_a_send_by_callback_stores_and_answers_what_a_task_does(sent: v2.Message) -> None:
    by_task, by_callback = TestBroker(), TestBroker()
    for _ in range(9):  # the ninth is the third of its queue
        response = await by_task.send(sent)
        answers = begin(by_callback, sent)
        await turns()
        (answer,) = answers
        assert answer == response.SerializeToString()
        await turns()
    assert stored(by_callback, "orders") == stored(by_task, "orders")
    assert by_callback.traffic.messages_in == by_task.traffic.messages_in
    assert by_callback.traffic.bytes_in == by_task.traffic.bytes_in


@fake_time
async def test_a_send_of_each_kind_needs_no_task() -> None:
    parts = TestBroker()
    for sent in (
        message(topic="steps", message_group="g"),
        message(topic="later", deliver_ms=NOW_MS + 1_000),
        message(topic="deals", message_type=v2.TRANSACTION),
    ):
        answers = begin(parts, sent)
        await turns()
        (answer,) = answers
        response = service.SendMessageResponse.FromString(answer)
        assert response.status.code == v2.OK


@given(
    st.text(max_size=300),
    st.text(alphabet="a| \x00-\x7f\x85é", max_size=5),
    st.lists(st.text(alphabet="k1 \t_é", max_size=4), max_size=3),
)
def test_texts_that_pass_at_one_look_pass_every_check(message_id: str, tag: str, keys: list[str]) -> None:
    sent = message(message_id=message_id, tag=tag, keys=keys)
    if send_checks.are_legal(message_id, tag, keys):
        system = sent.system_properties
        send_checks.check_texts(system.message_id, system.tag, system.keys, sent.user_properties)


def test_the_texts_of_official_clients_pass_at_one_look() -> None:
    assert send_checks.are_legal("01" * 17, "tag-1", ["order_1", "a:b/c"])


@given(st.text(min_size=1, max_size=255), st.integers(0, (1 << 63) - 1))
def test_a_reply_written_by_hand_is_the_message_serialised(message_id: str, offset: int) -> None:
    expected = service.SendMessageResponse(status=OK_STATUS)
    expected.entries.add(status=OK_STATUS, message_id=message_id, transaction_id=message_id, offset=offset)
    assert send_replies.reply_of_stored(message_id, QueueOffset(offset)) == expected.SerializeToString()


# --- durability -----------------------------------------------------------------------------------------
@fake_time
async def test_a_sync_that_fails_a_send_by_callback_is_its_answer() -> None:
    parts = TestBroker(replace(ROOMY, flush_mode="sync"))
    call, other = send_call(message()), send_call(message(message_id="M1"))
    parts.sender.on_calls([call])
    await turns(10)
    assert not outcomes(call), "the reply waits for the disk"
    flush(parts.store)
    parts.group_commit._resolve_up_to(parts.store.flushed_offset)
    assert service.SendMessageResponse.FromString(outcomes(call).pop()).status.code == v2.OK
    parts.sender.on_calls([other])
    while not outcomes(other):
        await asyncio.sleep(0.1)
    response = service.SendMessageResponse.FromString(outcomes(other).pop())
    assert response.status.code == v2.MASTER_PERSISTENCE_TIMEOUT
    assert [entry.message_id for entry in response.entries] == ["M1"]
    assert parts.traffic.refusals["FLUSH_DISK_TIMEOUT"] == 1


@fake_time
async def test_in_sync_mode_the_reply_waits_for_the_disk() -> None:
    parts = TestBroker(replace(ROOMY, flush_mode="sync"))
    for sent in (message(), message(topic="later", deliver_ms=NOW_MS + 1_000)):
        task = asyncio.ensure_future(parts.send(sent))
        await turns(10)
        assert not task.done()
        flush(parts.store)
        parts.group_commit._resolve_up_to(parts.store.flushed_offset)
        response = await task
        assert response.status.code == v2.OK


@fake_time
async def test_a_sync_that_takes_too_long_is_a_persistence_timeout() -> None:
    parts = TestBroker(replace(ROOMY, flush_mode="sync"))
    response = await parts.send(message(), message(message_id="M1"))
    assert response.status.code == v2.MASTER_PERSISTENCE_TIMEOUT
    assert [entry.status.code for entry in response.entries] == [v2.MASTER_PERSISTENCE_TIMEOUT] * 2
    assert [entry.message_id for entry in response.entries] == ["01AA", "M1"]
    flush(parts.store)
    assert len(stored(parts, "orders")) == 2, "the messages are in the log"


@fake_time
async def test_a_topic_is_made_where_settings_allow_that() -> None:
    parts = TestBroker(auto_create_topic_enable=True)
    response = await parts.send(message(topic="fresh"))
    assert response.status.code == v2.OK
    assert parts.store.topics.get("fresh") is not None


@fake_time
async def test_a_namespace_is_part_of_the_stored_name() -> None:
    parts = TestBroker()
    parts.store.topics.create("ns%orders", 4)
    sent = message()
    sent.topic.resource_namespace = "ns"
    response: service.SendMessageResponse = await parts.send(sent)
    await turns()
    assert response.status.code == v2.OK
    assert len(stored(parts, "ns%orders")) == 1
    assert stored(parts, "orders") == []


@fake_time
async def test_small_gzip_bodies_of_one_send_took_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of 240 KB took 720 MiB: each body may inflate to the largest size."""
    inflated: list[object] = []
    original = send_requests._gunzip

    def counted(*given: Any) -> bytes:
        inflated.append(given)
        return original(*given)

    monkeypatch.setattr(send_requests, "_gunzip", counted)
    parts = TestBroker(replace(ROOMY, batch_size_max=1 << 17))
    body = gzip.compress(bytes(8_000))
    small = [message(body, message_id=f"M{number}") for number in range(200)]
    for one in small:
        one.system_properties.body_encoding = v2.GZIP
    assert await refusal(parts, *small[:17]) == v2.PAYLOAD_TOO_LARGE
    inflated.clear()
    assert await refusal(parts, *small) == v2.PAYLOAD_TOO_LARGE
    assert len(inflated) == 17
    await parts.send(*small[:16])
    await turns()
    assert [len(one.body) for one in stored(parts, "orders")] == [8_000] * 16
