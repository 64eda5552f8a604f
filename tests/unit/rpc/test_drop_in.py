"""Generated code and grpcio's own services on our server and channel, without a change."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from grpc_tools import protoc

import trovemq_rpc as rpc
from tests.unit.rpc.rpc_ends import ends, until

pytestmark = pytest.mark.asyncio

UNEXPECTED = "Unexpected <class 'ValueError'>: planted"
GREETER = """
syntax = "proto3";
package drop_in;
message Name { string text = 1; }
message Greeting { string text = 1; }
service Greeter {
  rpc Greet(Name) returns (Greeting);
  rpc Repeat(Name) returns (stream Greeting);
  rpc Join(stream Name) returns (Greeting);
  rpc Answer(stream Name) returns (stream Greeting);
}
"""


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The two modules that grpcio-tools generates for GREETER: messages, then stubs and servicers."""
    (tmp_path / "drop_in.proto").write_text(GREETER)
    folder = str(tmp_path)
    arguments = [f"-I{folder}", f"--python_out={folder}", f"--grpc_python_out={folder}", "drop_in.proto"]
    assert protoc.main(["protoc", *arguments]) == 0
    monkeypatch.syspath_prepend(folder)
    names = ("drop_in_pb2", "drop_in_pb2_grpc")
    yield importlib.import_module(names[0]), importlib.import_module(names[1])
    for name in names:
        del sys.modules[name]


@pytest.mark.parametrize("channel_of", ["trovemq", "grpcio"])
async def test_generated_code_makes_all_four_kinds_of_calls(
    generated: tuple[Any, Any], channel_of: str
) -> None:
    messages, services = generated

    class Greeter(services.GreeterServicer):  # type: ignore[misc,name-defined]
        async def Greet(self, request: Any, context: Any) -> Any:
            return messages.Greeting(text=f"hello {request.text}")

        async def Repeat(self, request: Any, context: Any) -> AsyncIterator[Any]:
            for _ in range(2):
                yield messages.Greeting(text=request.text)

        async def Join(self, requests: Any, context: Any) -> Any:
            return messages.Greeting(text=",".join([request.text async for request in requests]))

        async def Answer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                yield messages.Greeting(text=request.text.upper())

    def prepare(server: rpc.Server) -> None:
        services.add_GreeterServicer_to_server(Greeter(), server)

    def names() -> Iterator[Any]:
        return (messages.Name(text=text) for text in "ab")

    module: Any = rpc if channel_of == "trovemq" else grpc.aio
    async with ends(prepare=prepare) as both, module.insecure_channel(f"127.0.0.1:{both.port}") as channel:
        stub = services.GreeterStub(channel)
        assert (await stub.Greet(messages.Name(text="a"))).text == "hello a"
        assert [reply.text async for reply in stub.Repeat(messages.Name(text="a"))] == ["a", "a"]
        assert (await stub.Join(names())).text == "a,b"
        assert [reply.text async for reply in stub.Answer(names())] == ["A", "B"]


async def test_generated_code_of_grpcio_serves_and_calls() -> None:
    servicer = health.aio.HealthServicer()

    def prepare(server: rpc.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)

    serving = health_pb2.HealthCheckResponse.SERVING
    async with ends(prepare=prepare) as both:
        await servicer.set("ours", serving)
        stub = health_pb2_grpc.HealthStub(both.channel)
        request = health_pb2.HealthCheckRequest(service="ours")
        assert (await stub.Check(request)).status == serving
        watch = stub.Watch(request)
        assert (await watch.read()).status == serving
        await servicer.set("ours", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.Check(health_pb2.HealthCheckRequest(service="other"))
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("by", ["servicer", "enable_server_reflection"])
async def test_reflection_of_grpcio_is_served(by: str) -> None:
    names = (reflection.SERVICE_NAME, "grpc.health.v1.Health")

    def prepare(server: rpc.Server) -> None:
        if by == "servicer":
            servicer = reflection.aio.ReflectionServicer(names)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
        else:
            reflection.enable_server_reflection(names, server)

    async with ends(prepare=prepare) as both:
        stub = reflection_pb2_grpc.ServerReflectionStub(both.channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = [reply async for reply in stub.ServerReflectionInfo(iter([asked]))]
        listed = [service.name for service in answer.list_services_response.service]
        assert sorted(listed) == sorted(names)


class _Counting(grpc.aio.ServerInterceptor, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any: ...
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any: ...


async def test_interceptors_are_refused_and_not_left_out_silently() -> None:
    trust = rpc.ssl_channel_credentials()
    for refused in (
        lambda: rpc.server(interceptors=[_Counting()]),
        lambda: rpc.insecure_channel("127.0.0.1:1", interceptors=[_Counting()]),
        lambda: rpc.secure_channel("127.0.0.1:1", trust, interceptors=[_Counting()]),
    ):
        with pytest.raises(NotImplementedError, match="wrap the handlers"):
            refused()
    async with ends(interceptors=()) as both:
        assert await both.unary("Echo")(b"x") == b"x"


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
async def test_credentials_of_a_call_are_refused_for_each_kind(kind: str) -> None:
    credentials = grpc.access_token_call_credentials("t")
    async with ends() as both:
        method = getattr(both.channel, kind)("/test.Test/Echo")
        with pytest.raises(NotImplementedError, match="send the token as metadata"):
            method(iter([b"x"]), credentials=credentials)
        assert both.server.metrics.calls_started == 0


async def _returns_with_a_code(_request: bytes, context: Any) -> bytes:
    context.set_code(grpc.StatusCode.DATA_LOSS)
    context.set_details("set")
    return b"not sent"


async def _raises_after_a_code(_request: bytes, context: Any) -> bytes:
    context.set_code(grpc.StatusCode.OUT_OF_RANGE)
    raise ValueError("planted")


async def _aborts_with_a_status(_request: bytes, context: Any) -> bytes:
    status = SimpleNamespace(code=grpc.StatusCode.ABORTED, details="whole", trailing_metadata=(("k", "v"),))
    await context.abort_with_status(status)
    return b""


def _returns_from_a_thread(_request: bytes, context: Any) -> bytes:
    context.set_code(grpc.StatusCode.NOT_FOUND)
    return b"not sent"


@pytest.mark.parametrize(
    ("handler", "ending"),
    [
        (_returns_with_a_code, (grpc.StatusCode.DATA_LOSS, "set", ())),
        (
            _raises_after_a_code,
            (grpc.StatusCode.OUT_OF_RANGE, UNEXPECTED, ()),
        ),
        (_aborts_with_a_status, (grpc.StatusCode.ABORTED, "whole", (("k", "v"),))),
        (_returns_from_a_thread, (grpc.StatusCode.NOT_FOUND, "", ())),
    ],
)
@pytest.mark.parametrize("make_server", [rpc.server, grpc.aio.server])
async def test_a_handlers_status_is_the_same_on_grpcios_server(
    make_server: Any, handler: Any, ending: tuple[Any, ...]
) -> None:
    server = make_server()
    handlers = {"Call": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.A", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(rpc.AioRpcError) as failed:
            await channel.unary_unary("/a.A/Call")(b"x")
        error = failed.value
        assert (error.code(), error.details(), tuple(error.trailing_metadata())) == ending
    await server.stop(None)


async def test_generated_methods_that_nobody_wrote_are_unimplemented() -> None:
    """Generated base classes have plain functions for them, which raise."""

    def prepare(server: rpc.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(health_pb2_grpc.HealthServicer(), server)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            reflection_pb2_grpc.ServerReflectionServicer(), server
        )

    request = health_pb2.HealthCheckRequest(service="ours")
    async with ends(prepare=prepare) as both:
        health_stub = health_pb2_grpc.HealthStub(both.channel)
        reflection_stub = reflection_pb2_grpc.ServerReflectionStub(both.channel)
        for call in (
            health_stub.Check(request),
            health_stub.Watch(request),
            reflection_stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest()])),
        ):
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
            assert await call.details() == "Method not implemented!"


async def test_a_channels_states_follow_each_other_as_grpcs() -> None:
    async with ends() as both:
        channel = rpc.insecure_channel(f"127.0.0.1:{both.port}")
        seen = [channel.get_state()]
        assert channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.IDLE
        while seen[-1] != grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(seen[-1])
            seen.append(channel.get_state())
        await channel.close()
        assert [state.name for state in seen] == ["IDLE", "CONNECTING", "READY"]
        assert channel.get_state() == grpc.ChannelConnectivity.SHUTDOWN


async def test_grpcios_channel_calls_our_server() -> None:
    async with ends() as both, grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel:
        for size in (0, 1_000, 3_000_000):
            assert await channel.unary_unary("/test.Test/Echo")(bytes(size)) == bytes(size)
        stream = channel.stream_stream("/test.Test/Both")(iter([b"a", b"b"]))
        assert [message async for message in stream] == [b"a", b"b"]
        call = channel.unary_unary("/test.Test/Hang")(b"")
        await until(lambda: both.server.metrics.calls_active == 1)
        call.cancel()
        await until(lambda: both.server.metrics.calls_active == 0)


async def test_our_channel_calls_grpcios_server() -> None:
    async def echo(request: bytes, _context: object) -> bytes:
        return request

    async def both(requests: object, context: grpc.aio.ServicerContext) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request)

    server = grpc.aio.server()
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Both": grpc.stream_stream_rpc_method_handler(both),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for size in (0, 1_000, 3_000_000):
            assert await channel.unary_unary("/test.Test/Echo")(bytes(size)) == bytes(size)
        stream = channel.stream_stream("/test.Test/Both")(iter([b"a", bytes(500_000), b"b"]))
        assert [len(message) async for message in stream] == [1, 500_000, 1]
        with pytest.raises(rpc.AioRpcError) as failed:
            await channel.unary_unary("/test.Test/None")(b"")
        assert failed.value.code() == rpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)


async def test_what_is_raised_is_caught_by_grpcios_names() -> None:
    async with ends() as both:
        with pytest.raises(grpc.RpcError):
            await both.unary("Fail")(b"x")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await both.unary("Fail")(b"x")
        assert isinstance(failed.value, rpc.AioRpcError)
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
        assert isinstance(both.server, grpc.aio.Server)


async def test_our_objects_are_instances_of_grpcios_abstract_classes() -> None:
    async with ends() as both:
        call = both.unary("Echo")(b"x")
        assert isinstance(both.channel, grpc.aio.Channel)
        assert isinstance(both.unary("Echo"), grpc.aio.UnaryUnaryMultiCallable)
        assert isinstance(call, grpc.aio.UnaryUnaryCall)
        assert isinstance(both.stream("Both")(), grpc.aio.StreamStreamCall)
        assert await call == b"x"


async def test_the_debug_string_of_a_call_could_not_be_awaited() -> None:
    async with ends() as both:
        call = both.unary("Fail")(b"because")
        assert "NOT_FOUND" in await call.debug_error_string()
        assert "because" in await call.debug_error_string()


async def test_an_abort_was_not_caught_by_grpcios_name() -> None:
    caught: list[BaseException] = []

    async def abort(_request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            await context.abort(grpc.StatusCode.DATA_LOSS, "gone")
        except grpc.aio.AbortError as error:
            caught.append(error)
            raise
        return b""

    def prepare(server: rpc.Server) -> None:
        server.add_registered_method_handlers("a.A", {"Abort": grpc.unary_unary_rpc_method_handler(abort)})

    async with ends(prepare=prepare) as both:
        with pytest.raises(rpc.AioRpcError) as failed:
            await both.channel.unary_unary("/a.A/Abort")(b"x")
        assert failed.value.code() is grpc.StatusCode.DATA_LOSS
        assert isinstance(caught[0], rpc.AbortError)
