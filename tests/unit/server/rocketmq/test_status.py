"""Errors as RocketMQ's clients see them: a code for each, always inside of the reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.call_forms import grpc_form
from tests.support.rpc_context import RpcContext
from trovemq_broker.server.wire.statuses import (
    CODES,
    Malformed,
    ProtocolError,
    check_client_id,
    client_id_of,
    reader,
    request_of,
    status_of,
    with_status,
)
from trovemq_daemon.calls import calls_of
from trovemq_daemon.grpc_services import write_reply
from trovemq_proto import errors
from trovemq_proto.errors import ERRORS, TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

# Number of each code that a client may get here, and the name under which RocketMQ has it.
NUMBERS = {
    "BAD_REQUEST": 40000,
    "ILLEGAL_ACCESS_POINT": 40001,
    "ILLEGAL_TOPIC": 40002,
    "ILLEGAL_CONSUMER_GROUP": 40003,
    "ILLEGAL_MESSAGE_TAG": 40004,
    "ILLEGAL_MESSAGE_KEY": 40005,
    "ILLEGAL_MESSAGE_GROUP": 40006,
    "ILLEGAL_MESSAGE_PROPERTY_KEY": 40007,
    "INVALID_TRANSACTION_ID": 40008,
    "ILLEGAL_MESSAGE_ID": 40009,
    "ILLEGAL_FILTER_EXPRESSION": 40010,
    "ILLEGAL_INVISIBLE_TIME": 40011,
    "ILLEGAL_DELIVERY_TIME": 40012,
    "INVALID_RECEIPT_HANDLE": 40013,
    "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE": 40014,
    "UNRECOGNIZED_CLIENT_TYPE": 40015,
    "MESSAGE_CORRUPTED": 40016,
    "CLIENT_ID_REQUIRED": 40017,
    "ILLEGAL_POLLING_TIME": 40018,
    "ILLEGAL_OFFSET": 40019,
    "INVALID_CLIENT_PROPERTIES": 40021,
    "UNAUTHORIZED": 40100,
    "FORBIDDEN": 40300,
    "NOT_FOUND": 40400,
    "MESSAGE_NOT_FOUND": 40401,
    "TOPIC_NOT_FOUND": 40402,
    "CONSUMER_GROUP_NOT_FOUND": 40403,
    "OFFSET_NOT_FOUND": 40404,
    "REQUEST_TIMEOUT": 40800,
    "PAYLOAD_TOO_LARGE": 41300,
    "MESSAGE_BODY_TOO_LARGE": 41301,
    "MESSAGE_BODY_EMPTY": 41302,
    "PRECONDITION_FAILED": 42800,
    "TOO_MANY_REQUESTS": 42900,
    "MESSAGE_PROPERTIES_TOO_LARGE": 43101,
    "INTERNAL_SERVER_ERROR": 50001,
    "NOT_IMPLEMENTED": 50100,
    "PROXY_TIMEOUT": 50400,
    "HA_NOT_AVAILABLE": 50002,
    "MASTER_PERSISTENCE_TIMEOUT": 50401,
    "SLAVE_PERSISTENCE_TIMEOUT": 50402,
    "UNSUPPORTED": 50500,
}
SAME_MEANING = {
    "RECEIPT_HANDLE_ILLEGAL": "INVALID_RECEIPT_HANDLE",
    "FILTER_ILLEGAL": "ILLEGAL_FILTER_EXPRESSION",
    "TOPIC_ILLEGAL": "ILLEGAL_TOPIC",
    "GROUP_ILLEGAL": "ILLEGAL_CONSUMER_GROUP",
    "TAG_ILLEGAL": "ILLEGAL_MESSAGE_TAG",
    "KEY_ILLEGAL": "ILLEGAL_MESSAGE_KEY",
    "MESSAGE_GROUP_ILLEGAL": "ILLEGAL_MESSAGE_GROUP",
    "PROPERTY_ILLEGAL": "ILLEGAL_MESSAGE_PROPERTY_KEY",
    "TRANSACTION_ILLEGAL": "INVALID_TRANSACTION_ID",
    "INVISIBLE_DURATION_ILLEGAL": "ILLEGAL_INVISIBLE_TIME",
    "DELIVERY_TIME_ILLEGAL": "ILLEGAL_DELIVERY_TIME",
    "MESSAGE_TYPE_CONFLICT": "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    "CLIENT_UNKNOWN": "UNRECOGNIZED_CLIENT_TYPE",
    "CLIENT_ID_MISSING": "CLIENT_ID_REQUIRED",
    "POLLING_TIME_ILLEGAL": "ILLEGAL_POLLING_TIME",
    "CLIENT_PROPERTIES_ILLEGAL": "INVALID_CLIENT_PROPERTIES",
    "PERMISSION_MISSING": "FORBIDDEN",
    "AUTHENTICATION_FAILED": "UNAUTHORIZED",
    "ACCESS_DENIED": "FORBIDDEN",
    "TOPIC_NOT_FOUND": "TOPIC_NOT_FOUND",
    "GROUP_NOT_FOUND": "CONSUMER_GROUP_NOT_FOUND",
    "OFFSET_NOT_FOUND": "OFFSET_NOT_FOUND",
    "BODY_EMPTY": "MESSAGE_BODY_EMPTY",
    "LIMIT_EXCEEDED": "TOO_MANY_REQUESTS",
    "UNKNOWN_ERROR": "INTERNAL_SERVER_ERROR",
    "FLUSH_DISK_TIMEOUT": "MASTER_PERSISTENCE_TIMEOUT",
    "NOT_ENOUGH_REPLICAS": "HA_NOT_AVAILABLE",
    "REPLICA_TIMEOUT": "SLAVE_PERSISTENCE_TIMEOUT",
}


def test_every_error_has_a_code_and_no_code_is_for_nothing() -> None:
    assert set(CODES) == {spec.symbol for spec in ERRORS}


@pytest.mark.parametrize("symbol", sorted(CODES))
def test_a_code_has_the_number_that_clients_know(symbol: str) -> None:
    status = status_of(TroveError(errors.by_symbol(symbol), "why"))
    assert status.code == NUMBERS[v2.Code.Name(status.code)]
    assert status.message == "why"
    if symbol in SAME_MEANING:
        assert v2.Code.Name(status.code) == SAME_MEANING[symbol]


def test_a_refusal_of_this_protocol_alone_has_its_own_code() -> None:
    error = ProtocolError(v2.ILLEGAL_ACCESS_POINT, "no port")
    assert status_of(error) == v2.Status(code=v2.ILLEGAL_ACCESS_POINT, message="no port")
    assert error.symbol == "REQUEST_ILLEGAL"


def test_a_long_message_is_cut() -> None:
    assert len(status_of(TroveError(errors.FILTER_ILLEGAL, "x" * 100_000)).message) == 1_024


@pytest.mark.parametrize("client_id", ["", "   "])
def test_a_call_without_a_client_id_is_refused(client_id: str) -> None:
    context: Any = RpcContext("")
    context.metadata["x-mq-client-id"] = client_id
    with pytest.raises(TroveError, match="CLIENT_ID_MISSING"):
        client_id_of(context)


def test_only_calls_with_the_same_headers_have_a_client_id_that_is_checked() -> None:
    """The calls of grpcio have no such headers, and each is checked."""
    first, other, old = (RpcContext() for _ in range(3))
    vars(first)["head"] = vars(other)["head"] = object()
    checked = check_client_id(first, None)
    for unnamed in (other, old):
        unnamed.metadata["x-mq-client-id"] = ""
    assert check_client_id(other, checked) is checked
    for context, before in ((other, None), (other, object()), (old, checked), (old, None)):
        with pytest.raises(TroveError, match="client id"):
            check_client_id(context, before)


def test_a_client_id_is_bounded() -> None:
    longest: Any = RpcContext("c" * 255)
    assert client_id_of(longest) == "c" * 255
    longer: Any = RpcContext("c" * 256)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        client_id_of(longer)


async def _route(request: Any, context: RpcContext, fault: Exception | None = None) -> Any:
    async def handler(_request: Any, _context: Any) -> service_pb2.QueryRouteResponse:
        if fault is not None:
            raise fault
        return service_pb2.QueryRouteResponse(status=v2.Status(code=v2.OK))

    calls = calls_of(grpc.unary_unary_rpc_method_handler(handler), request_of)
    guarded = with_status("QueryRoute", calls, service_pb2.QueryRouteResponse)
    return await grpc_form(guarded).unary_unary(request, context)


REQUEST = service_pb2.QueryRouteRequest()


@pytest.mark.asyncio
async def test_a_unary_reply_has_its_error_inside() -> None:
    assert (await _route(REQUEST, RpcContext())).status.code == v2.OK
    reply = await _route(REQUEST, RpcContext(), TroveError(errors.TOPIC_NOT_FOUND, "gone"))
    assert reply.status == v2.Status(code=v2.TOPIC_NOT_FOUND, message="gone")
    assert (await _route(REQUEST, RpcContext(""))).status.code == v2.CLIENT_ID_REQUIRED
    assert (await _route(Malformed("cut"), RpcContext())).status == v2.Status(
        code=v2.BAD_REQUEST, message="cut"
    )


@pytest.mark.asyncio
async def test_an_unexpected_error_is_logged_and_shown_without_details(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reply = await _route(REQUEST, RpcContext(x_mq_request_id="request-7"), KeyError("secret"))
    assert reply.status.code == v2.INTERNAL_SERVER_ERROR
    assert "request-7" in reply.status.message
    assert "secret" not in reply.status.message
    printed = "".join(capsys.readouterr())
    assert "request-7" in printed
    assert "QueryRoute" in printed


@pytest.mark.asyncio
async def test_a_cancelled_call_stays_cancelled() -> None:
    with pytest.raises(asyncio.CancelledError):
        await _route(REQUEST, RpcContext(), asyncio.CancelledError())  # type: ignore[arg-type]


async def _received(*steps: bytes | Exception) -> list[service_pb2.ReceiveMessageResponse]:
    async def handler(_request: Any, _context: Any) -> AsyncGenerator[bytes, None]:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            yield step

    calls = calls_of(grpc.unary_stream_rpc_method_handler(handler), request_of)
    guarded = grpc_form(with_status("ReceiveMessage", calls, service_pb2.ReceiveMessageResponse))
    replies = guarded.unary_stream(service_pb2.ReceiveMessageRequest(), RpcContext())
    return [service_pb2.ReceiveMessageResponse.FromString(write_reply(reply)) async for reply in replies]


@pytest.mark.asyncio
async def test_an_error_before_the_first_element_is_that_element() -> None:
    (only,) = await _received(TroveError(errors.FILTER_ILLEGAL, "at 3"))
    assert only.status == v2.Status(code=v2.ILLEGAL_FILTER_EXPRESSION, message="at 3")
    (only,) = await _received(ValueError("bug"))
    assert only.status.code == v2.INTERNAL_SERVER_ERROR


@pytest.mark.asyncio
async def test_an_error_after_the_status_ends_the_stream() -> None:
    first = service_pb2.ReceiveMessageResponse(status=v2.Status(code=v2.OK)).SerializeToString()
    assert [reply.status.code for reply in await _received(first, first)] == [v2.OK, v2.OK]
    with pytest.raises(TroveError, match="STORE_FAILED"):
        await _received(first, TroveError(errors.STORE_FAILED))


@given(st.binary(max_size=200))
def test_no_bytes_make_a_reader_raise(data: bytes) -> None:
    for request_type in (service_pb2.SendMessageRequest, service_pb2.TelemetryCommand):
        found = reader(request_type)(data)
        assert isinstance(found, Malformed | request_type)
