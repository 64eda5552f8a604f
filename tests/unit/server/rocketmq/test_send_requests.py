"""SendMessage requests become one command, whichever reader read them, or are refused alike."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracles import send_request
from tests.support.trials import SOAK
from trovemq_broker.server.wire.rocketmq_messages import BORN_MS_MAX
from trovemq_broker.server.wire.send_requests import STEP, SendLimits, SentMessage, fast_send, read_send
from trovemq_broker.server.wire.statuses import reader
from trovemq_daemon.calls import TransportCall
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

SIZES = st.sampled_from([1, 2, 3, 40, 85, 125, 126, 127, 128, 255])
TEXTS = st.one_of(
    st.text(alphabet='k1"(0:Bh ~|{\x01\x12\x1aé', max_size=4),
    st.tuples(st.sampled_from('kA"h0'), SIZES).map(lambda drawn: drawn[0] * drawn[1]),
)
TIMES = st.one_of(st.sampled_from([0, 999, 1_000, 1_700_000_000_123, BORN_MS_MAX]), st.integers(-1, 1 << 40))
BODIES = st.one_of(
    st.sampled_from([b"", b"x", b'"\x01x', bytes(127), bytes(128), bytes(20_000)]), st.binary(max_size=9)
)
SYSTEM = st.fixed_dictionaries(
    {"message_id": st.one_of(st.just("01AA"), TEXTS)},
    optional={
        "tag": TEXTS,
        "keys": st.lists(TEXTS, max_size=2),
        "born_timestamp": TIMES.map(lambda ms: Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)),
        "born_host": TEXTS,
        "body_encoding": st.sampled_from([v2.IDENTITY, v2.GZIP]),
        "message_type": st.sampled_from([v2.NORMAL, v2.FIFO]),
        "queue_id": st.sampled_from([1, 65, 104, 128, 1 << 30, -1]),
        "message_group": TEXTS,
        "trace_context": TEXTS,
        "priority": st.integers(-1, 3),
        "body_digest": st.sampled_from([v2.Digest(), v2.Digest(type=v2.MD5, checksum="0")]),
        "delivery_timestamp": st.sampled_from([0, 1, 1_700_000_000, 1_700_000_001]).map(
            lambda seconds: Timestamp(seconds=seconds)
        ),
        "orphaned_transaction_recovery_duration": st.sampled_from([-1, 0, 5, 3_601]).map(
            lambda seconds: Duration(seconds=seconds)
        ),
    },
)
MESSAGES = st.builds(
    lambda topic, namespace, system, body, properties: v2.Message(
        topic=v2.Resource(name=topic, resource_namespace=namespace),
        system_properties=v2.SystemProperties(**system),
        user_properties=properties,
        body=body,
    ),
    st.one_of(st.just("orders"), TEXTS),
    st.sampled_from(["", "", "", "ns"]),
    SYSTEM,
    BODIES,
    st.dictionaries(st.sampled_from(["p", "q", ""]), TEXTS, max_size=2),
)
CHANGES = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from("iocd"), st.binary(min_size=1, max_size=3)),
    max_size=3,
)


READ = reader(service.SendMessageRequest)
LIMITS = SendLimits(1_000_000, EpochMs(1_700_000_000_000))


def call_of(data: bytes, read: Callable[[bytes], Any] = READ) -> TransportCall:
    return TransportCall(SimpleNamespace(keep=lambda: data), read)


def command(data: bytes) -> Any:
    """The fields of the command, or the symbol of the error."""
    try:
        send = read_send(call_of(data), LIMITS)
    except TroveError as error:
        return error.symbol
    assert send is not None
    return [send.topic, *map(_fields, send.messages)]


def _fields(message: SentMessage) -> tuple[Any, ...]:
    """With the body as it was sent."""
    encoding = message.encoding
    if encoding is None:
        return tuple(message)
    sent = message._replace(body=encoding.read())
    return (*sent[:-1], encoding[:2])


def expected(data: bytes) -> Any:
    try:
        return send_request.read(data, *LIMITS)
    except TroveError as error:
        return error.symbol


def changed(data: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    """With bytes put in, overwritten, copied to the end, or deleted."""
    for where, kind, some in changes:
        at = int(where * len(data))
        if kind == "i":
            data = data[:at] + some + data[at:]
        elif kind == "o":
            data = data[:at] + some + data[at + len(some) :]
        elif kind == "c":
            data += data[at : at + 40]
        else:
            data = data[:at] + data[at + len(some) :]
    return data


@given(st.lists(MESSAGES, min_size=1, max_size=2), CHANGES)
@settings(max_examples=500 if SOAK else 100, deadline=None)
def test_both_readers_give_the_same_command(messages: list[v2.Message], changes: Any) -> None:
    data = changed(service.SendMessageRequest(messages=messages).SerializeToString(), changes)
    assert command(data) == expected(data)
    fast = fast_send(data, LIMITS.body_size_max)
    if fast is not None:
        assert [fast.topic, *map(tuple, fast.messages)] == expected(data)


IDS = st.sampled_from(["1", "01AA" * 9, "M" * 127])


@given(
    IDS,
    st.sampled_from(["", "t", "tag"]),
    st.lists(st.sampled_from(["k", "key-1"]), max_size=1),
    st.sampled_from(["", "host", "a host"]),
    st.sampled_from([0, 5, 300]),
    st.sampled_from([1, 34, 100, 127, 128, 1_024, 300_000]),
    st.sampled_from([b"x", b'"a": 1, ', b'"']),
    st.sampled_from([1, 999, 1_000, 1_700_000_000_123]),
)
def test_the_requests_of_official_clients_are_read(
    message_id: str, tag: str, keys: list[str], host: str, queue_id: int, size: int, text: bytes, born_ms: int
) -> None:
    system = v2.SystemProperties(
        message_id=message_id,
        keys=keys,
        born_host=host,
        queue_id=queue_id,
        body_encoding=v2.IDENTITY,
        message_type=v2.NORMAL,
    )
    if tag:
        system.tag = tag
    system.born_timestamp.FromMilliseconds(born_ms)
    message = v2.Message(
        topic=v2.Resource(name="orders"), system_properties=system, body=(text * size)[:size]
    )
    data = service.SendMessageRequest(messages=[message]).SerializeToString()
    found = fast_send(data, LIMITS.body_size_max)
    assert found is not None
    assert [found.topic, *map(tuple, found.messages)] == expected(data)


def test_a_size_in_a_longer_form_is_left_to_protobuf() -> None:
    system = v2.SystemProperties(message_id="01AA", born_timestamp=Timestamp(seconds=1))
    message = v2.Message(topic=v2.Resource(name="orders"), system_properties=system, body=b"x")
    inner = message.SerializeToString()
    plain = b"\x0a%c%b" % (len(inner), inner)
    assert fast_send(plain, 9) is not None
    longer = b"\x0a%c\x00%b" % (len(inner) | 0x80, inner)
    assert fast_send(longer, 9) is None
    assert command(longer) == command(plain) == expected(longer)


def test_a_send_that_was_parsed_for_access_is_not_parsed_twice() -> None:
    """Regression: protobuf read the bytes again that the fast reader did not take."""

    def read(_data: bytes) -> Any:
        raise AssertionError("it has been read")

    message = v2.Message(
        topic=v2.Resource(name="orders"),
        system_properties=v2.SystemProperties(message_id="01AA", message_group="g"),
        body=b"x",
    )
    request = service.SendMessageRequest(messages=[message])
    call = call_of(request.SerializeToString(), read)
    assert fast_send(call.keep(), LIMITS.body_size_max) is None
    call.parsed = request
    send = read_send(call, LIMITS)
    assert send is not None
    assert [one.group for one in send.messages] == ["g"]


@pytest.mark.parametrize("count", [1, 2, STEP])
def test_a_send_that_waited_for_its_sync_held_its_bodies_twice(count: int) -> None:
    """Regression: the call kept the parsed request beside its bytes until its answer."""
    message = v2.Message(
        topic=v2.Resource(name="orders"),
        system_properties=v2.SystemProperties(message_id="01AA", message_group="g"),
        body=b"x",
    )
    call = call_of(service.SendMessageRequest(messages=[message] * count).SerializeToString())
    assert read_send(call, LIMITS) is not None
    assert call.parsed is None
