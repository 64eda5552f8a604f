"""Connecting, and the mapping of gRPC's own errors."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

import trovemq
from tests.unit.sdk.conftest import QUICK, Connect
from tests.unit.sdk.fake_server import FakeServer, wire_error
from trovemq import ClientOptions, TroveError
from trovemq._wire.failures import error_from_grpc
from trovemq.testing import free_port
from trovemq_proto import errors
from trovemq_proto.channels import TRANSPORTS, GrpcTransport
from trovemq_proto.unanswered import why_unanswered

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("server", ["", "nowhere", "host:", "host:x", "host:99999", "unix:/tmp/x:1", [" "]])
async def test_what_is_not_an_address(server: str | list[str]) -> None:
    with pytest.raises(TroveError) as refused:
        trovemq.connect(server)
    assert refused.value.spec is errors.REQUEST_ILLEGAL


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nobody_there(transport: GrpcTransport) -> None:
    """It showed the words of the transport: UNAVAILABLE, failed to connect to all addresses."""
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(TroveError) as failure:
        await trovemq.connect(address, options=ClientOptions(grpc_transport=transport))
    error = failure.value
    assert (error.spec, error.fields["server"]) == (errors.BROKER_UNREACHABLE, address)
    assert error.message == f"{address}: it cannot be reached: no process listens there"


async def test_waiting_for_a_server_that_starts() -> None:
    server = FakeServer("late", address=f"127.0.0.1:{free_port()}")
    connecting = asyncio.ensure_future(_connected(server.address))
    for _ in range(20):
        await asyncio.sleep(0)
    async with server:
        client = await connecting
        await client.close()


async def test_a_broker_whose_first_word_took_a_moment_was_unreachable(broker: FakeServer) -> None:
    """A tenth of a second of other work looked like an unreachable server."""
    host, _, port = broker.address.rpartition(":")
    attempts = 0

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def carry(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        server, requests = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(client, requests, 0), pump(server, answers, 0.3), return_exceptions=True)

    between = await asyncio.start_server(carry, "127.0.0.1", 0)
    address = f"127.0.0.1:{between.sockets[0].getsockname()[1]}"
    async with trovemq.connect(address):
        assert attempts == 1
    between.close()


async def _connected(address: str) -> trovemq.Client:
    return await trovemq.connect(address, wait_ms=10_000, options=ClientOptions(**QUICK))  # type: ignore[arg-type]


async def test_awaited_and_entered(broker: FakeServer) -> None:
    client = await trovemq.connect(broker.address)
    async with client:
        await client.send("orders", b"1")
    async with trovemq.connect([broker.address]) as entered:
        await entered.send("orders", b"2")
    with pytest.raises(TroveError) as refused:
        await entered.send("orders", b"3")
    assert refused.value.spec is errors.CLIENT_CLOSED


async def test_many_topics_do_not_keep_many_producers(broker: FakeServer, connect: Connect) -> None:
    broker.serve_topics(**{f"t{i}": 1 for i in range(10)})
    client = await connect(broker, producers_max=3)
    for i in range(10):
        await client.send(f"t{i}", b"x")
    assert len(client._producers) == 3


def failure(code: grpc.StatusCode, trailer: Any = ()) -> Any:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailer), details="d")


@pytest.mark.parametrize(
    ("code", "spec"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.BROKER_UNREACHABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.REQUEST_TIMEOUT),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.LIMIT_EXCEEDED),
        (grpc.StatusCode.UNIMPLEMENTED, errors.REQUEST_ILLEGAL),
        (grpc.StatusCode.INTERNAL, errors.BROKER_UNREACHABLE),
        (grpc.StatusCode.UNKNOWN, errors.UNKNOWN_ERROR),
    ],
)
async def test_grpc_errors_are_rows_of_the_table(code: grpc.StatusCode, spec: errors.ErrorSpec) -> None:
    error = error_from_grpc(failure(code), "h:1")
    assert (error.spec, error.fields["server"]) == (spec, "h:1")


LAST = "failed to connect to all addresses; last error: "


@pytest.mark.parametrize(
    ("status", "details", "words"),
    [
        ("UNAVAILABLE", f"{LAST}127.0.0.1:1: [Errno 111] Connect call failed ('127.0.0.1', 1)", "no process"),
        (
            "UNAVAILABLE",
            f"{LAST}UNKNOWN: ipv4:127.0.0.1:1: Failed to connect: Connection refused",
            "no process",
        ),
        ("UNAVAILABLE", f"{LAST}[Errno -2] Name or service not known", "name has no address"),
        (
            "UNAVAILABLE",
            "errors resolving h:1: [address lookup failed: Domain name not found]",
            "name has no",
        ),
        ("UNAVAILABLE", f"{LAST}10.0.0.1:1: [Errno 113] Connect call failed ('10.0.0.1', 1)", "no route"),
        ("UNAVAILABLE", f"{LAST}the time to connect was not enough", "no connection in time"),
        ("UNAVAILABLE", f"{LAST}certificate verify failed", "reached: certificate verify failed"),
        ("UNAVAILABLE", "Socket closed", "no answer: Socket closed"),
        ("UNAVAILABLE", None, "no answer"),
        ("INTERNAL", "Received RST_STREAM", "no answer: Received RST_STREAM"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "it did not answer in time"),
        ("UNIMPLEMENTED", "Method not found!", "UNIMPLEMENTED: Method not found!"),
    ],
)
async def test_why_there_is_no_answer_is_said_in_plain_words(status: str, details: str, words: str) -> None:
    said = why_unanswered(status, details)
    assert words in said
    assert "all addresses" not in said
    assert ("UNAVAILABLE" in said, "Errno" in said) == (False, False)


async def test_the_server_s_own_error_counts_more() -> None:
    sent = TroveError(errors.DISK_FULL, "no space", free=0)
    trailer = (("trovemq-error-bin", wire_error(sent).SerializeToString()),)
    error = error_from_grpc(failure(grpc.StatusCode.UNAVAILABLE, trailer), "h:1")
    assert (error.spec, error.message, error.fields) == (errors.DISK_FULL, "no space", {"free": "0"})
