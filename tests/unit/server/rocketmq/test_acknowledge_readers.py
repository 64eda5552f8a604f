"""AckMessage: both readers make the same command, and the reply by hand is protobuf's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.trials import SOAK
from trovemq_broker.server.wire import acknowledgements
from trovemq_broker.server.wire.acknowledgements import (
    NAMES_KEPT,
    Acknowledge,
    acknowledge_of,
    acknowledge_reply,
    consumed_reply,
    read_acknowledge,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

TEXTS = st.one_of(st.sampled_from(["", "g", "%RETRY%g", "é", "x" * 130]), st.text(max_size=70))
HANDLE = "0.0.1.18b.0.1.0123abcd"


def request(handle: str, message_id: str = "M1", group: str = "g", topic: str = "orders") -> Any:
    return service.AckMessageRequest(
        group=v2.Resource(name=group),
        topic=v2.Resource(name=topic),
        entries=[service.AckMessageEntry(message_id=message_id, receipt_handle=handle)],
    )


def check_as_protobuf(data: bytes) -> None:
    """The fast reader makes the command that protobuf makes, or none."""
    read = read_acknowledge(data)
    if read is not None:
        assert read == acknowledge_of(service.AckMessageRequest.FromString(data))


@given(
    handle=TEXTS,
    message_id=TEXTS,
    group=TEXTS,
    topic=TEXTS,
    namespace=TEXTS,
    lite=st.none() | TEXTS,
)
def test_both_readers_make_the_same_command(
    handle: str, message_id: str, group: str, topic: str, namespace: str, lite: str | None
) -> None:
    whole = request(handle, message_id, group, topic)
    whole.group.resource_namespace = namespace
    if lite is not None:
        whole.entries[0].lite_topic = lite
    check_as_protobuf(whole.SerializeToString())


@given(at=st.integers(0, 60), byte=st.integers(0, 255), cut=st.integers(0, 3), more=st.binary(max_size=3))
@settings(max_examples=300 if SOAK else 100)
def test_both_readers_make_the_same_of_damaged_bytes(at: int, byte: int, cut: int, more: bytes) -> None:
    data = bytearray(request(HANDLE).SerializeToString())
    data[at % len(data)] = byte
    check_as_protobuf(bytes(data[: len(data) - cut]) + more)


def test_requests_of_official_clients_are_read_without_protobuf() -> None:
    data = request(HANDLE, "01A2B3").SerializeToString()
    assert read_acknowledge(data) == acknowledge_of(request(HANDLE, "01A2B3"))


def test_a_request_with_an_illegal_name_is_left_to_protobuf() -> None:
    data = request(HANDLE, group="a b").SerializeToString()
    assert read_acknowledge(data) is None
    with pytest.raises(TroveError, match="a b"):
        acknowledge_of(service.AckMessageRequest.FromString(data))


@given(handle=TEXTS, message_id=TEXTS)
def test_the_reply_by_hand_is_that_of_protobuf(handle: str, message_id: str) -> None:
    command = acknowledge_of(request(handle, message_id))
    reply = consumed_reply(command)
    data = reply if isinstance(reply, bytes) else reply.SerializeToString()
    assert data == acknowledge_reply(command, {}).SerializeToString()


def test_a_refused_entry_has_its_own_status() -> None:
    command = Acknowledge(("g", "orders"), [b"M0", b"M1"], [HANDLE.encode()] * 2)
    refused = {1: TroveError(errors.RECEIPT_HANDLE_ILLEGAL)}
    reply = acknowledge_reply(command, refused)
    assert reply.status.code == v2.MULTIPLE_RESULTS
    assert [one.status.code for one in reply.entries] == [v2.OK, v2.INVALID_RECEIPT_HANDLE]
    assert acknowledge_reply(command, {**refused, 0: refused[1]}).status.code == v2.INVALID_RECEIPT_HANDLE


def test_the_names_of_requests_are_forgotten_in_time() -> None:
    for number in range(NAMES_KEPT + 10):
        assert read_acknowledge(request(HANDLE, group=f"g{number}").SerializeToString()) is not None
    assert acknowledgements._names.cache_info().currsize <= NAMES_KEPT
