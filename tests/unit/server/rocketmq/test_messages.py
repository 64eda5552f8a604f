"""Stored records as v2 messages: every field that a client depends on, and nothing internal."""

from __future__ import annotations

import gzip
import zlib
from hashlib import md5, sha1
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory_broker import message
from trovemq_broker.groups.delivery.request import Delivered
from trovemq_broker.server.wire.rocketmq_messages import message_of, peer_host, received
from trovemq_broker.server.wire.send_requests import SendLimits, SentMessage, read_request, stored_body
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import RESERVED_PROPERTIES, encode_offset_msg_id, encode_record, parse_properties
from trovemq_proto.records.internal_properties import INTERNAL_PROPERTIES
from trovemq_proto.records.layout import COMPRESSION_LZ4, COMPRESSION_ZLIB, SYS_FLAG_COMPRESSED
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.engine.steps import finished

BORN_HOST = bytes([10, 0, 0, 2, 0, 0, 0xC3, 0xCB])
STORE_HOST = bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x91])
BORN_MS = 1_700_000_000_123
STORED_MS = 1_700_000_000_999


def stored(
    body: bytes = b"hello", properties: dict[str, str] | None = None, *, topic: str = "orders", **fields: Any
) -> bytes:
    return encode_record(
        topic,
        body,
        queue_id=1,
        properties=properties or {},
        queue_offset=7,
        physical_offset=4_096,
        born_timestamp=BORN_MS,
        born_host=BORN_HOST,
        store_timestamp=STORED_MS,
        store_host=STORE_HOST,
        **fields,
    )


def delivered(record: bytes, topic: str = "orders", attempt: int = 1) -> v2.Message:
    one = Delivered(memoryview(record), topic, QueueId(3), QueueOffset(12), attempt, "HANDLE", EpochMs(0))
    response = service_pb2.ReceiveMessageResponse.FromString(received(one))
    assert response.WhichOneof("content") == "message"
    return response.message


def milliseconds(timestamp: Timestamp) -> int:
    return timestamp.ToMilliseconds()


@pytest.mark.parametrize("topic", ["t", "t" * 127, "%RETRY%" + "g" * 120 + "_" + "t" * 127])
def test_a_record_is_read_whatever_the_length_of_its_topic(topic: str) -> None:
    message = delivered(stored(b"body", {"UNIQ_KEY": "01AA", "TAGS": "x", "own": "1"}, topic=topic))
    assert (message.body, message.system_properties.message_id) == (b"body", "01AA")
    assert (message.system_properties.tag, dict(message.user_properties)) == ("x", {"own": "1"})


def test_every_system_property_of_a_message() -> None:
    properties = {
        "UNIQ_KEY": "01AA",
        "TAGS": "urgent",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "customer-7",
        "TRACE_CONTEXT": "trace",
        "color": "red",
        "größe": "zwölf",
    }
    found = delivered(stored(properties=properties), attempt=4)
    system = found.system_properties
    assert found.topic == v2.Resource(name="orders")
    assert found.body == b"hello"
    assert dict(found.user_properties) == {"color": "red", "größe": "zwölf"}
    assert system.tag == "urgent"
    assert list(system.keys) == ["k1", "k2"]
    assert system.message_id == "01AA"
    assert system.body_digest == v2.Digest(type=v2.MD5, checksum=md5(b"hello").hexdigest().upper())
    assert system.body_encoding == v2.IDENTITY
    assert system.message_type == v2.FIFO
    assert milliseconds(system.born_timestamp) == BORN_MS
    assert system.born_host == "10.0.0.2:50123"
    assert milliseconds(system.store_timestamp) == STORED_MS
    assert system.store_host == "10.0.0.1:8081"
    assert system.receipt_handle == "HANDLE"
    assert (system.queue_id, system.queue_offset) == (3, 12)
    assert system.delivery_attempt == 4
    assert system.message_group == "customer-7"
    assert system.trace_context == "trace"


def test_a_w3c_context_is_given_as_rocketmqs_trace_context() -> None:
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = delivered(stored(properties={"traceparent": context}))
    assert found.system_properties.trace_context == context
    assert dict(found.user_properties) == {"traceparent": context}
    both = delivered(stored(properties={"traceparent": context, "TRACE_CONTEXT": "trace"}))
    assert both.system_properties.trace_context == "trace"


def test_what_a_message_does_not_have_is_absent() -> None:
    system = delivered(stored(properties={"UNIQ_KEY": "01AA"})).system_properties
    for name in (
        "tag",
        "message_group",
        "delivery_timestamp",
        "trace_context",
        "dead_letter_queue",
        "invisible_duration",
        "orphaned_transaction_recovery_duration",
    ):
        assert not system.HasField(name), name
    assert list(system.keys) == []
    assert system.message_type == v2.NORMAL


def test_outside_of_a_delivery_there_is_not_a_handle() -> None:
    found = message_of(stored(properties={"UNIQ_KEY": "01AA"}), "orders", QueueId(1), QueueOffset(7))
    assert not found.system_properties.HasField("receipt_handle")
    assert found.system_properties.delivery_attempt == 1


def test_a_message_without_a_unique_key_has_its_offset_id() -> None:
    assert delivered(stored()).system_properties.message_id == encode_offset_msg_id(
        STORE_HOST, PhysicalOffset(4_096)
    )
    origin = stored(properties={"ORIGIN_MESSAGE_ID": "FIRST"})
    assert delivered(origin).system_properties.message_id == "FIRST"


@pytest.mark.parametrize(
    ("properties", "fields", "kind"),
    [
        ({"TRAN_MSG": "true", "__SHARDINGKEY": "g"}, {}, v2.TRANSACTION),
        ({}, {"sys_flag": 0x8}, v2.TRANSACTION),
        ({"TIMER_DELIVER_MS": "1700000000000"}, {}, v2.DELAY),
        ({"DELAY": "3"}, {}, v2.DELAY),
        ({"__SHARDINGKEY": "g"}, {}, v2.FIFO),
        ({}, {}, v2.NORMAL),
    ],
)
def test_the_kind(properties: dict[str, str], fields: dict[str, Any], kind: v2.MessageType) -> None:
    assert delivered(stored(properties=properties, **fields)).system_properties.message_type == kind


@pytest.mark.parametrize(
    ("properties", "reconsume_times", "expected"),
    [
        ({"TIMER_DELIVER_MS": "1700000000321", "TIMER_OUT_MS": "1700000000000"}, 0, 1_700_000_000_321),
        ({"TIMER_OUT_MS": "1700000000000"}, 0, 1_700_000_000_000),
        ({"TIMER_OUT_MS": "1700000000000"}, 2, None),
        ({"TIMER_DELIVER_MS": "soon"}, 0, None),
        ({"TIMER_DELIVER_MS": "9" * 30}, 0, None),
    ],
)
def test_the_delivery_timestamp(
    properties: dict[str, str], reconsume_times: int, expected: int | None
) -> None:
    system = delivered(stored(properties=properties, reconsume_times=reconsume_times)).system_properties
    found = milliseconds(system.delivery_timestamp) if system.HasField("delivery_timestamp") else None
    assert found == expected


def test_a_dead_letter_names_its_origin() -> None:
    properties = {"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "01AA"}
    system = delivered(stored(properties=properties), topic="%DLQ%g").system_properties
    assert system.dead_letter_queue == v2.DeadLetterQueue(topic="orders", message_id="01AA")


def test_the_sender_s_own_words_about_its_birth_win() -> None:
    properties = {"__BORNHOST": "laptop", "BORN_TIMESTAMP": "1700000000777"}
    system = delivered(stored(properties=properties)).system_properties
    assert (system.born_host, milliseconds(system.born_timestamp)) == ("laptop", 1_700_000_000_777)


def test_no_internal_name_is_a_user_property() -> None:
    names = dict.fromkeys([*RESERVED_PROPERTIES, *INTERNAL_PROPERTIES], "1") | {
        "__RMQ.TRANSIENT.x": "1",
        "mine": "2",
    }
    assert dict(delivered(stored(properties=names)).user_properties) == {"mine": "2"}


def test_a_compressed_body_is_inflated_and_its_digest_is_of_what_is_sent() -> None:
    body = b"abc" * 1_000
    record = stored(zlib.compress(body), sys_flag=SYS_FLAG_COMPRESSED | COMPRESSION_ZLIB)
    found = delivered(record)
    assert found.body == body
    assert found.system_properties.body_encoding == v2.IDENTITY
    assert found.system_properties.body_digest.checksum == md5(body).hexdigest().upper()


@pytest.mark.parametrize("method", [COMPRESSION_ZLIB, COMPRESSION_LZ4, 0x700])
def test_a_body_that_does_not_inflate_is_handed_on_as_it_is(method: int) -> None:
    found = delivered(stored(b"\x04\x22\x4d\x18rest", sys_flag=SYS_FLAG_COMPRESSED | method))
    assert found.body == b"\x04\x22\x4d\x18rest"
    assert found.system_properties.body_encoding == v2.GZIP
    assert found.system_properties.body_digest.checksum == md5(found.body).hexdigest().upper()


@given(st.binary(max_size=300))
def test_any_property_block_gives_a_message_that_can_be_parsed(block: bytes) -> None:
    record = encode_record("orders", b"x", properties=block, store_host=STORE_HOST)
    found = delivered(record)
    assert found.system_properties.message_id
    assert RESERVED_PROPERTIES.isdisjoint(found.user_properties)


# --- sent messages --------------------------------------------------------------------------------------
def as_sent(sent: v2.Message) -> SentMessage:
    request = service_pb2.SendMessageRequest(messages=[sent])
    (found,) = finished(read_request(request, SendLimits(1_000, EpochMs(0)))).messages
    return found


def test_what_the_store_gets_of_a_sent_message() -> None:
    sent = message(
        b"body",
        message_id="01BB",
        properties={"a": "1", "empty": "", "": "nameless"},
        keys=["k1", "two words"],
        tag="t",
        message_group="g",
        born_host="laptop",
        trace_context="trace",
        born_timestamp=Timestamp(seconds=1_700_000_000, nanos=5_000_000),
    )
    found = as_sent(sent)
    assert (found.body, found.message_id, found.born_ms) == (b"body", "01BB", 1_700_000_000_005)
    properties = parse_properties(found.properties)
    assert (properties["TAGS"], properties["KEYS"]) == ("t", "k1 two words")
    assert properties["a"] == "1"
    assert b"\x01\x02" not in found.properties, "the stored form has no empty names and values"
    assert (found.group, properties["__SHARDINGKEY"], properties["TROVEMQ_KEY_SIZES"]) == ("g", "g", "2,9")
    assert (properties["__BORNHOST"], properties["TRACE_CONTEXT"]) == ("laptop", "trace")


def test_a_sent_message_comes_back_as_it_was() -> None:
    sent = message(b"body", properties={"a": "ä"}, keys=["k"], tag="t", message_group="g", born_host="laptop")
    ready = as_sent(sent)
    found = delivered(encode_record("orders", ready.body, properties=parse_properties(ready.properties)))
    assert found.body == sent.body
    assert found.user_properties == sent.user_properties
    for name in ("tag", "keys", "message_group", "message_id", "born_host"):
        assert getattr(found.system_properties, name) == getattr(sent.system_properties, name), name


@pytest.mark.parametrize("seconds", [-5, 0, 1 << 50])
def test_an_impossible_time_of_birth_is_none(seconds: int) -> None:
    sent = message(born_timestamp=Timestamp(seconds=seconds))
    assert as_sent(sent).born_ms == 0


def test_texts_that_the_stored_form_cannot_hold_are_left_out() -> None:
    sent = message(born_host="a\x01b", trace_context="x" * 2_000)
    assert set(parse_properties(as_sent(sent).properties)) == {"UNIQ_KEY"}


def test_a_gzip_body_is_stored_inflated_within_the_limit() -> None:
    sent = message(gzip.compress(b"abc" * 10))
    sent.system_properties.body_encoding = v2.GZIP
    assert stored_body(as_sent(sent), 30) == b"abc" * 10
    with pytest.raises(TroveError, match="MESSAGE_SIZE_EXCEEDED"):
        stored_body(as_sent(sent), 29)


@pytest.mark.parametrize("body", [b"no gzip", gzip.compress(b"abc" * 100, mtime=0)[:-12]])
def test_a_gzip_body_that_is_none_is_refused(body: bytes) -> None:
    sent = message(body)
    sent.system_properties.body_encoding = v2.GZIP
    with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
        stored_body(as_sent(sent), 1_000)


@pytest.mark.parametrize(
    ("kind", "checksum", "fits"),
    [
        (v2.MD5, md5(b"hello").hexdigest().upper(), True),
        (v2.MD5, md5(b"hello").hexdigest(), True),
        (v2.SHA1, sha1(b"hello").hexdigest().upper(), True),
        (v2.CRC32, "whatever", True),
        (v2.MD5, md5(b"hallo").hexdigest(), False),
        (v2.SHA1, "", False),
    ],
)
def test_a_digest_that_is_stated_must_be_right(kind: v2.DigestType, checksum: str, fits: bool) -> None:
    sent = message(body_digest=v2.Digest(type=kind, checksum=checksum))
    if fits:
        assert stored_body(as_sent(sent), 1_000) == b"hello"
    else:
        with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
            stored_body(as_sent(sent), 1_000)


def test_the_peer_s_host() -> None:
    assert peer_host("ipv4:10.0.0.2:50123") == BORN_HOST
    assert len(peer_host("ipv6:%5B::1%5D:80")) == 20
    assert peer_host("unix:") == bytes(8)
