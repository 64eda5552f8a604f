"""The gRPC server of both daemons: errors in their wire form, limits, metrics."""

from __future__ import annotations

import asyncio
import re
import string
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.logs import logged
from tests.support.stubs import ROUTES, add_fake, stub_of
from trovemq_daemon.addresses import Address
from trovemq_daemon.calls import Call, CallHandler
from trovemq_daemon.errors import AddressInUseError
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.grpc_transport import GrpcTransport
from trovemq_daemon.handler_guard import ERROR_METADATA_KEY
from trovemq_daemon.metrics import RpcMetrics
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, route_pb2

pytestmark = pytest.mark.asyncio
METADATA_SIZE_SAFE = 8_192  # beyond that, grpcio loses some answers, and all from 16 KiB on


class Behaviour:
    """Fails as the topic's name says."""

    async def get_route(self, request: Any, context: Any) -> route_pb2.RouteReply:
        match request.topic:
            case "trove":
                raise TroveError(errors.OFFSET_OUT_OF_RANGE, "5 is not in 0..4", min_offset=0, max_offset=4)
            case "huge":
                raise TroveError(
                    errors.REQUEST_ILLEGAL, "x" * 100_000, **{f"f{i}": "y" * 9_999 for i in range(99)}
                )
            case "foreign":
                raise TroveError(
                    errors.REQUEST_ILLEGAL, "\N{CJK UNIFIED IDEOGRAPH-9053}" * 1_024, topic="\N{SNOWMAN}" * 99
                )
            case "bug":
                raise KeyError("a secret detail")
            case "abort":
                await context.abort(grpc.StatusCode.DATA_LOSS, "own words")
        return route_pb2.RouteReply()

    async def watch_routes(self, request: Any, context: Any) -> AsyncIterator[route_pb2.ClusterReply]:
        yield route_pb2.ClusterReply(version=1)
        if request.topics:
            raise TroveError(errors.TOPIC_NOT_FOUND, "gone")


@asynccontextmanager
async def served(
    transport: GrpcTransport, *, calls: CallHandler | None = None, access: Any = None, **limits: Any
) -> AsyncIterator[tuple[Any, CollectorRegistry, Address]]:
    registry = CollectorRegistry()
    server = GrpcServer(
        GrpcLimits(transport=transport, **limits),
        RpcMetrics(registry, cluster="c", node_type="broker", node_id="a"),
        access,
    )
    add_fake(server.server, ROUTES, Behaviour())
    if calls is not None:
        services: Any = server.server
        services.add_registered_method_handlers("test.Test", {"Call": calls})
    address = server.bind(Address("127.0.0.1", 0))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield channel, registry, address
    finally:
        await server.stop(0)


async def failure(channel: Any, topic: str) -> tuple[grpc.aio.AioRpcError, common_pb2.Error]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub_of(ROUTES, channel).GetRoute(route_pb2.GetRouteRequest(topic=topic))
    metadata = dict(failed.value.trailing_metadata() or ())
    return failed.value, common_pb2.Error.FromString(metadata.get(ERROR_METADATA_KEY, b""))


async def test_an_error_of_the_table_arrives_whole(transport: GrpcTransport) -> None:
    async with served(transport) as (channel, registry, _):
        status, wire = await failure(channel, "trove")
        assert (status.code(), status.details()) == (grpc.StatusCode.OUT_OF_RANGE, "5 is not in 0..4")
        assert (wire.symbol, wire.code) == ("OFFSET_OUT_OF_RANGE", 112)
        assert dict(wire.fields) == {"min_offset": "0", "max_offset": "4"}
        text = generate_latest(registry).decode()
        assert 'request_code="GetRoute",response_code="OFFSET_OUT_OF_RANGE",result="failed"} 1.0' in _count(
            text
        )


def _count(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("rocketmq_rpc_latency_count")]
    return "\n".join(
        line.replace('is_long_polling="false",', "").replace('protocol_type="grpc",', "") for line in lines
    )


async def test_an_error_with_too_much_to_say_is_cut_and_not_lost(transport: GrpcTransport) -> None:
    async with served(transport) as (channel, _, _):
        status, wire = await failure(channel, "huge")
        assert status.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert wire.symbol == "REQUEST_ILLEGAL"
        assert len(wire.message) == 1_024
        assert status.details() == wire.message
        assert metadata_size(status) < METADATA_SIZE_SAFE
        status, wire = await failure(channel, "foreign")
        assert len(wire.message) == 1_024 // 3
        assert dict(wire.fields) == {"topic": "\N{SNOWMAN}" * (256 // 3)}
        assert metadata_size(status) < METADATA_SIZE_SAFE


def metadata_size(status: grpc.aio.AioRpcError) -> int:
    """Of the trailing metadata, as gRPC counts: 32 more for each entry."""
    entries = [("grpc-message", quote(status.details() or "", safe=string.printable)), ("grpc-status", "3")]
    size = sum(32 + len(name) + len(value) for name, value in entries)
    coded = [(name, b64encode(value)) for name, value in status.trailing_metadata() or ()]
    return size + sum(32 + len(name) + len(value) for name, value in coded)


async def test_an_unexpected_error_is_logged_and_hidden_from_the_caller(transport: GrpcTransport) -> None:
    with logged() as stream:
        async with served(transport) as (channel, _, _):
            status, wire = await failure(channel, "bug")
    assert status.code() == grpc.StatusCode.INTERNAL
    assert wire.symbol == "UNKNOWN_ERROR"
    assert "secret" not in str(status.details())
    (line,) = stream.getvalue().splitlines()
    assert "rpc.unexpected_error" in line
    assert "a secret detail" in line


async def test_a_handlers_own_abort_passes(transport: GrpcTransport) -> None:
    async with served(transport) as (channel, _, _):
        status, _wire = await failure(channel, "abort")
        assert (status.code(), status.details()) == (grpc.StatusCode.DATA_LOSS, "own words")


async def test_a_stream_may_fail_after_its_first_reply(transport: GrpcTransport) -> None:
    async with served(transport) as (channel, registry, _):
        stub = stub_of(ROUTES, channel)
        assert [reply.version async for reply in stub.WatchRoutes(route_pb2.WatchRoutesRequest())] == [1]
        call = stub.WatchRoutes(route_pb2.WatchRoutesRequest(topics=["x"]))
        assert (await call.read()).version == 1
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND
        sample = {"cluster": "c", "node_type": "broker", "node_id": "a", "request_code": "WatchRoutes"}
        assert registry.get_sample_value("trovemq_open_streams", sample) == 0


async def test_a_request_over_the_limit_is_refused_and_the_server_continues(transport: GrpcTransport) -> None:
    async with served(transport, receive_size_max=10_000) as (channel, _, _):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub_of(ROUTES, channel).GetRoute(route_pb2.GetRouteRequest(topic="x" * 20_000))
        assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await stub_of(ROUTES, channel).GetRoute(route_pb2.GetRouteRequest(topic="fine"))


async def test_a_second_server_cannot_share_the_port(transport: GrpcTransport) -> None:
    async with served(transport) as (_, _, address):
        metrics = RpcMetrics(CollectorRegistry(), cluster="c", node_type="broker", node_id="b")
        other = GrpcServer(GrpcLimits(transport=transport), metrics)
        with pytest.raises(AddressInUseError, match="in use"):
            other.bind(address)
        await other.stop(0)


async def test_a_port_of_a_server_that_is_not_started_was_shared(transport: GrpcTransport) -> None:
    first, second = (
        GrpcServer(
            GrpcLimits(transport=transport),
            RpcMetrics(CollectorRegistry(), cluster="c", node_type="broker", node_id="b"),
        )
        for _ in range(2)
    )
    address = first.bind(Address("127.0.0.1", 0))
    with pytest.raises(AddressInUseError, match=r"in use .* choose another address"):
        second.bind(address)
    await first.stop(0)
    await second.stop(0)


async def first_byte(address: Address) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        return await reader.readexactly(1)
    finally:
        writer.close()


async def test_a_client_waited_for_a_daemon_that_recovers() -> None:
    """The port listened, and was not served before the store was recovered."""
    server = GrpcServer(
        GrpcLimits(transport="trovemq"),
        RpcMetrics(CollectorRegistry(), cluster="c", node_type="broker", node_id="b"),
    )
    address = server.bind(Address("127.0.0.1", 0))
    with pytest.raises(ConnectionError):
        await first_byte(address)
    await server.start()
    async with grpc.aio.insecure_channel(str(address)) as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    await server.stop(0)


async def test_a_silent_connection_is_closed(transport: GrpcTransport) -> None:
    async with served(transport, handshake_timeout_ms=200) as (_, _, address):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        async with asyncio.timeout(240):
            while await reader.read(1_024):
                pass
        writer.close()


async def test_the_messages_of_a_stream_were_not_bounded(transport: GrpcTransport) -> None:
    """The messages of reflection, which no code of ours reads."""
    bomb = b"\xc8\x3e\x00" * 100_000  # unknown fields
    async with served(transport) as (channel, _, _):
        call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")()
        await call.write(bomb)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_reflection_lists_the_services(transport: GrpcTransport) -> None:
    async with served(transport) as (channel, _, _):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await call.read()).list_services_response.service}
        assert {"trovemq.v1.RouteService", "grpc.health.v1.Health"} <= names
        await call.done_writing()


async def test_an_address_of_another_machine_is_refused(transport: GrpcTransport) -> None:
    metrics = RpcMetrics(CollectorRegistry(), cluster="c", node_type="broker", node_id="b")
    server = GrpcServer(GrpcLimits(transport=transport), metrics)
    with pytest.raises(AddressInUseError):
        server.bind(Address("192.0.2.1", 0))
    await server.stop(0)


async def test_bytes_that_are_no_request_are_refused_and_not_logged(transport: GrpcTransport) -> None:
    with logged() as stream:
        async with served(transport) as (channel, _, _):
            call = channel.unary_unary("/trovemq.v1.RouteService/GetRoute")
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call(b"\xff\xff")
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert stream.getvalue() == ""


async def test_requests_that_grpc_would_inflate_are_refused(transport: GrpcTransport) -> None:
    async with served(transport) as (channel, _, _):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub_of(ROUTES, channel).GetRoute(
                route_pb2.GetRouteRequest(topic="x" * 10_000), compression=grpc.Compression.Gzip
            )
        assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_calls_above_the_limit_are_refused(transport: GrpcTransport) -> None:
    async with served(transport, concurrent_calls_max=1) as (channel, _, _):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub_of(ROUTES, channel).GetRoute(route_pb2.GetRouteRequest())
        assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        watch.cancel()


async def test_an_unknown_method_is_unimplemented(transport: GrpcTransport) -> None:
    async with served(transport) as (channel, _, _):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary("/trovemq.v1.RouteService/Nothing")(b"")
        assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED


class Turns:
    """A method that takes calls that arrived together, and answers each as its request says."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def on_calls(self, calls: Sequence[Call]) -> None:
        self.sizes.append(len(calls))
        for call in calls:
            try:
                self.begin(call)
            except TroveError as error:
                call.answer(error)

    def begin(self, call: Call) -> None:
        match call.request:
            case b"raise":
                raise TroveError(errors.TOPIC_NOT_FOUND, "gone")
            case b"answer an error":
                call.answer(TroveError(errors.TOPIC_NOT_FOUND, "gone"))
            case b"bug":
                call.answer(KeyError("a secret detail"))
            case b"later":
                asyncio.get_running_loop().call_soon(call.answer, b"later")
            case b"wait":
                call.run(self.wait(call))
            case _:
                call.answer(call.request)

    async def wait(self, call: Call) -> None:
        await asyncio.sleep(0)
        call.answer(b"waited")

    def handler(self) -> CallHandler:
        return CallHandler(on_calls=self.on_calls)


async def test_a_method_that_takes_the_calls_of_a_turn_is_the_same_on_both(transport: GrpcTransport) -> None:
    turns = Turns()
    async with served(transport, calls=turns.handler()) as (channel, registry, _):
        call = channel.unary_unary("/test.Test/Call")
        asked = (b"at once", b"later", b"wait")
        assert await asyncio.gather(*(call(one) for one in asked)) == [b"at once", b"later", b"waited"]
        with logged():
            for request, code in (
                (b"raise", "NOT_FOUND"),
                (b"answer an error", "NOT_FOUND"),
                (b"bug", "INTERNAL"),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call(request)
                assert failed.value.code().name == code
                metadata = dict(failed.value.trailing_metadata() or ())
                wire = common_pb2.Error.FromString(metadata[ERROR_METADATA_KEY])
                assert wire.symbol == ("UNKNOWN_ERROR" if request == b"bug" else "TOPIC_NOT_FOUND")
        text = _count(generate_latest(registry).decode())
        for response, count in (("OK", 3), ("TOPIC_NOT_FOUND", 2), ("UNKNOWN_ERROR", 1)):
            assert re.search(rf'request_code="Call",response_code="{response}".*}} {count}.0', text), text
    assert sum(turns.sizes) == 6


async def test_a_stream_of_a_turns_calls_is_the_same_on_both(transport: GrpcTransport) -> None:
    async def large(count: int) -> AsyncGenerator[bytes, None]:
        for number in range(count):
            yield b"%d" % number * 9_000

    def on_calls(calls: Sequence[Call]) -> None:
        for call in calls:
            kind, _, count = call.request.partition(b" ")
            if kind == b"raise":
                call.answer(TroveError(errors.TOPIC_NOT_FOUND, "gone"))
            elif kind == b"wait":
                call.run(answer_in_task(call))
            elif kind == b"made":
                call.answer(large(int(count)))
            else:
                call.answer([b"%d" % number * 9_000 for number in range(int(count))])

    async def answer_in_task(call: Call) -> None:
        call.answer([b"waited"])

    handler = CallHandler(on_calls=on_calls, streams=True)
    async with served(transport, calls=handler) as (channel, registry, _):
        call = channel.unary_stream("/test.Test/Call")
        for count in (0, 1, 3, 10):
            for kind in (b"made", b"list"):
                found = [one async for one in call(b"%b %d" % (kind, count))]
                assert found == [b"%d" % n * 9_000 for n in range(count)]
        assert [one async for one in call(b"wait")] == [b"waited"]
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            assert [one async for one in call(b"raise")] == []
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND
        text = generate_latest(registry).decode()
        assert re.search(r'trovemq_open_streams{.*request_code="Call"} 0.0', text)
        assert 'request_code="Call"' not in _count(text), "streams are not timed as a whole"


async def test_no_call_gets_past_the_check_of_access(transport: GrpcTransport) -> None:
    turns = Turns()

    def refuse_all(_path: str, _handler: Any) -> Any:
        async def refuse(_request: bytes, _context: Any) -> bytes:
            raise TroveError(errors.PERMISSION_MISSING, "not you")

        return grpc.unary_unary_rpc_method_handler(refuse)

    async with served(transport, calls=turns.handler(), access=refuse_all) as (channel, _, _):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary("/test.Test/Call")(b"at once")
    assert failed.value.details() == "not you"
    assert turns.sizes == []
