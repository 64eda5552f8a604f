"""The one seam of all channels: which transport, and that the SDK raises the same on both."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import trovemq
from tests.unit.sdk.conftest import QUICK
from tests.unit.sdk.fake_server import FakeServer
from trovemq import ClientOptions, TroveError, errors
from trovemq._wire.connection import Connection
from trovemq.testing import free_port
from trovemq_proto.channels import TRANSPORTS, CallFailure, ChannelSettings, GrpcTransport, chosen_transport
from trovemq_proto.v1 import admin_pb2, message_pb2

pytestmark = pytest.mark.asyncio

LARGE = bytes(range(256)) * 8_000  # above the windows of a new stream


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> GrpcTransport:
    name: GrpcTransport = request.param
    return name


def options(transport: GrpcTransport, **changes: Any) -> ClientOptions:
    return ClientOptions(**{**QUICK, "grpc_transport": transport, **changes})


async def failure_of(call: Any) -> TroveError:
    with pytest.raises(TroveError) as failed:
        await call
    return failed.value


async def reaches(connection: Connection) -> bool:
    """Whether the server answers."""
    try:
        return len((await connection.cluster()).brokers) == 1
    except TroveError:
        return False


async def test_an_option_goes_before_the_environment_and_that_before_the_default() -> None:
    variable = {"TROVEMQ_GRPC_TRANSPORT": "grpcio"}
    assert chosen_transport(None, {}) == "trovemq"
    assert chosen_transport(None, {"TROVEMQ_GRPC_TRANSPORT": ""}) == "trovemq"
    assert chosen_transport(None, variable) == "grpcio"
    assert chosen_transport("trovemq", variable) == "trovemq"
    with pytest.raises(TroveError, match="grpc_transport is grpcio or trovemq, not 'http'") as refused:
        trovemq.connect("127.0.0.1:1", options=ClientOptions(grpc_transport="http"))  # type: ignore[arg-type]
    assert refused.value.spec is errors.REQUEST_ILLEGAL
    with pytest.raises(TroveError, match="TROVEMQ_GRPC_TRANSPORT is grpcio or trovemq"):
        chosen_transport(None, {"TROVEMQ_GRPC_TRANSPORT": "x"})


async def test_the_arguments_of_a_channel() -> None:
    plain = dict(ChannelSettings().arguments())
    assert plain["grpc.enable_http_proxy"] == 0
    assert int(plain["grpc.keepalive_time_ms"]) + int(plain["grpc.keepalive_timeout_ms"]) < 20_000
    by_grpcio = dict(ChannelSettings(transport="grpcio").arguments())
    assert by_grpcio["grpc.http2.ping_timeout_ms"] == by_grpcio["grpc.keepalive_timeout_ms"]
    assert by_grpcio["grpc.http2.max_pings_without_data"] == 0
    assert "grpc.http2.max_frame_size" not in dict(ChannelSettings(transport="trovemq").arguments())
    settings = ChannelSettings(keepalive_time_ms=7, message_size_max=9, more=(("grpc.keepalive_time_ms", 8),))
    assert ("grpc.keepalive_time_ms", 7) in settings.arguments()
    assert settings.arguments()[-1] == ("grpc.keepalive_time_ms", 8)
    assert dict(settings.arguments())["grpc.max_receive_message_length"] == 9


async def test_by_default_nothing_loads_grpcio(broker: FakeServer) -> None:
    script = (
        "import asyncio, sys, trovemq\n"
        "async def main():\n"
        f"    async with trovemq.connect({broker.address!r}) as client:\n"
        "        await client.send('orders', b'1')\n"
        "asyncio.run(main())\n"
        "print('grpc' in sys.modules)\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        stdout=subprocess.PIPE,
        env={},
    )
    printed, _ = await process.communicate()
    assert (process.returncode, printed) == (0, b"False\n")
    assert len(broker.messages()) == 1


async def test_a_server_s_error_comes_with_its_row_and_fields(
    broker: FakeServer, transport: GrpcTransport
) -> None:
    broker.next_sequence = TroveError(errors.DISK_FULL, "no space", free=0)
    connection = Connection(broker.address, options(transport))
    error = await failure_of(connection.next_sequence("orders", "p"))
    assert (error.spec, error.message, error.fields) == (errors.DISK_FULL, "no space", {"free": "0"})
    cause: object = error.__cause__
    assert isinstance(cause, CallFailure)
    await connection.close()


async def test_statuses_without_an_error_of_ours(broker: FakeServer, transport: GrpcTransport) -> None:
    patient = Connection(broker.address, options(transport))
    request = admin_pb2.ListTopicsRequest()
    unknown = patient.ask("NoService/NoMethod", request, admin_pb2.ListTopicsReply.FromString)
    error = await failure_of(unknown)
    assert (error.spec, error.fields["grpc_status"]) == (errors.REQUEST_ILLEGAL, "UNIMPLEMENTED")
    await patient.close()
    connection = Connection(broker.address, options(transport, call_timeout_ms=50))
    never = asyncio.Event()

    async def wait(_frame: message_pb2.AppendFrame) -> None:
        await never.wait()

    broker.on_frame = wait
    stream = connection.open_append()
    await stream.send(message_pb2.AppendFrame(frame_id=1).SerializeToString())
    late = connection.call(
        "/trovemq.v1.RouteService/WatchRoutes", request, admin_pb2.ListTopicsReply.FromString
    )
    assert (await failure_of(late)).spec is errors.REQUEST_TIMEOUT
    never.set()
    await connection.close()


async def test_a_server_that_is_away_and_comes_back(transport: GrpcTransport) -> None:
    server = FakeServer("b1", address=f"127.0.0.1:{free_port()}").serve_topics(orders=1)
    connection = Connection(server.address, options(transport))
    error = await failure_of(connection.cluster())
    assert (error.spec, error.fields["grpc_status"]) == (errors.BROKER_UNREACHABLE, "UNAVAILABLE")
    async with server:
        async with asyncio.timeout(240):
            while not await reaches(connection):
                await asyncio.sleep(0.01)
        stream = connection.open_append()
        await stream.send(message_pb2.AppendFrame(frame_id=1).SerializeToString())
        await stream.read()
    assert (await failure_of(stream.read())).spec is errors.BROKER_UNREACHABLE
    assert (await failure_of(stream.send(b""))).spec is errors.BROKER_UNREACHABLE
    await stream.end()
    await connection.close()


async def test_a_reader_that_is_cancelled_ends_its_call(broker: FakeServer, transport: GrpcTransport) -> None:
    connection = Connection(broker.address, options(transport))
    watch = connection.watch_routes()
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(240):
        while broker._changed:
            await asyncio.sleep(0.01)
    await connection.close()


async def test_a_call_under_way_ends_when_the_channel_is_closed(
    broker: FakeServer, transport: GrpcTransport
) -> None:
    connection = Connection(broker.address, options(transport))
    stream = connection.open_append()
    await stream.send(message_pb2.AppendFrame(frame_id=1, records=b"").SerializeToString())
    await stream.read()
    reading = asyncio.ensure_future(failure_of(stream.read()))
    await asyncio.sleep(0)
    await connection.close()
    assert (await reading).spec is errors.BROKER_UNREACHABLE


async def test_an_answer_above_the_limit_is_refused(broker: FakeServer, transport: GrpcTransport) -> None:
    broker.serve_topics(**{f"t{number}": 1 for number in range(1_000)})
    connection = Connection(broker.address, options(transport, message_size_max=4_096))
    assert (await failure_of(connection.cluster())).spec is errors.LIMIT_EXCEEDED
    await connection.close()


async def test_a_body_larger_than_the_windows_arrives(broker: FakeServer, transport: GrpcTransport) -> None:
    async with trovemq.connect(broker.address, options=options(transport)) as client:
        await client.send("orders", LARGE)
    assert broker.messages()[-1].body == LARGE
