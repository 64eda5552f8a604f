"""The life of connections: TLS, drain, reconnection, several addresses, peers of other protocols."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.rpc_ends import SERVICE, Ends, Handlers, authority, ends, until
from trovemq_rpc.http2.limits import Limits
from trovemq_rpc.options import options_of
from trovemq_rpc.server.endpoint import ServerEndpoint

pytestmark = pytest.mark.asyncio

FAST = [
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),
]
NAMED = [*FAST, ("grpc.ssl_target_name_override", "service")]


def server_credentials(**more: Any) -> rpc.ServerCredentials:
    return rpc.ssl_server_credentials([authority().issue("service")], **more)


async def test_tls_with_alpn_carries_calls_of_all_sizes() -> None:
    trust = rpc.ssl_channel_credentials(authority().root)
    async with ends(
        server_credentials=server_credentials(), credentials=trust, channel_options=NAMED
    ) as both:
        for size in (0, 10, 20_000, 3_000_000):
            assert await both.unary("Echo")(bytes(size)) == bytes(size)


async def test_mutual_tls_names_the_client() -> None:
    identity: list[Any] = []

    def prepare(server: rpc.Server) -> None:
        async def who(_request: bytes, context: Any) -> bytes:
            identity.append(dict(context.auth_context()))
            return b""

        server.add_registered_method_handlers("test.Who", {"Who": rpc.unary_unary_rpc_method_handler(who)})

    key, chain = authority().issue("someone")
    trusting = server_credentials(root_certificates=authority().root, require_client_auth=True)
    known = rpc.ssl_channel_credentials(authority().root, key, chain)
    async with ends(
        server_credentials=trusting, credentials=known, channel_options=NAMED, prepare=prepare
    ) as both:
        await both.channel.unary_unary("/test.Who/Who")(b"")
        assert identity[0]["x509_common_name"] == [b"someone"]
        unknown = rpc.ssl_channel_credentials(authority().root)
        async with rpc.secure_channel(f"127.0.0.1:{both.port}", unknown, options=NAMED) as channel:
            with pytest.raises(rpc.AioRpcError) as failed:
                await channel.unary_unary("/test.Who/Who")(b"", timeout=5)
            assert failed.value.code() == rpc.StatusCode.UNAVAILABLE


async def test_a_certificate_that_is_not_trusted_ends_the_call_as_unavailable() -> None:
    other = rpc.ssl_channel_credentials()
    async with ends(
        server_credentials=server_credentials(), credentials=other, channel_options=NAMED
    ) as both:
        with pytest.raises(rpc.AioRpcError) as failed:
            await both.unary("Echo")(b"", timeout=5)
        assert failed.value.code() == rpc.StatusCode.UNAVAILABLE
        assert "certificate" in (failed.value.details() or "").lower()


async def _exchange(port: int, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(data)
        async with asyncio.timeout(5):
            return await reader.read()
    except (ConnectionError, ssl.SSLError):
        return b""
    finally:
        writer.close()


async def test_peers_of_other_protocols_get_a_clear_end_and_hurt_nobody() -> None:
    async with ends() as both:
        answer = await _exchange(both.port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 505 ")
        assert b"gRPC" in answer
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)
        assert await _exchange(both.port, hello) == b""
        goaway = await _exchange(both.port, b"garbage " * 10)
        assert b"preface" in goaway
        assert await both.unary("Echo")(b"well") == b"well"
        assert both.server.metrics.refused_connections == 2


async def test_plain_to_a_tls_port_and_tls_without_h2_end() -> None:
    async with ends(server_credentials=server_credentials(), credentials=None) as both:
        with pytest.raises(rpc.AioRpcError) as failed:
            await both.unary("Echo")(b"", timeout=5)
        assert failed.value.code() == rpc.StatusCode.UNAVAILABLE
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        assert await _exchange(both.port, b"PRI * HTTP/2.0\r\n", context) == b""
        await until(lambda: both.server.metrics.refused_connections >= 2)


async def test_a_stop_drains_open_calls_and_refuses_new_ones() -> None:
    async with ends() as both:
        stream = both.stream("Both")()
        await stream.write(b"before")
        assert await stream.read() == b"before"
        stopping = asyncio.create_task(both.server.stop(5))
        await until(lambda: all(endpoint.draining for endpoint in both.channel.endpoints))
        await stream.write(b"during")
        assert await stream.read() == b"during"
        with pytest.raises(rpc.AioRpcError) as failed:
            await both.unary("Echo")(b"", timeout=5)
        assert failed.value.code() == rpc.StatusCode.UNAVAILABLE
        await stream.done_writing()
        assert await stream.read() is rpc.EOF
        await stopping


async def test_a_drained_connection_is_replaced_without_a_lost_call() -> None:
    async with ends() as both:
        echo = both.unary("Echo")
        await echo(b"")

        async def steadily() -> list[bytes]:
            return [await echo(b"%d" % number) for number in range(300)]

        running = asyncio.gather(*(steadily() for _ in range(5)))
        for _ in range(3):
            await asyncio.sleep(0.005)
            for endpoint in tuple(both.server.endpoints):
                endpoint.drain()
        assert await running == [[b"%d" % number for number in range(300)]] * 5
        assert both.server.metrics.connections_opened > 1
        await until(lambda: both.server.metrics.connections == 1)


async def test_used_up_stream_ids_lead_to_a_new_connection() -> None:
    async with ends() as both:
        echo = both.unary("Echo")
        await echo(b"")
        for endpoint in both.channel.endpoints:
            endpoint.connection.next_stream_id = (1 << 31) - 3
        assert [await echo(b"%d" % n) for n in range(4)] == [b"%d" % n for n in range(4)]
        assert both.server.metrics.connections_opened == 2


async def test_a_channel_connects_again_when_its_server_is_back() -> None:
    async with ends() as both:
        assert await both.unary("Echo")(b"one") == b"one"
        await both.server.stop(None)
        await until(lambda: both.channel.get_state() != rpc.ChannelConnectivity.READY)
        async with rpc.insecure_channel(f"127.0.0.1:{both.port}", options=FAST) as channel:
            echo = channel.unary_unary(f"/{SERVICE}/Echo")
            with pytest.raises(rpc.AioRpcError) as failed:
                await echo(b"")
            assert failed.value.code() == rpc.StatusCode.UNAVAILABLE
            waiting = echo(b"two", wait_for_ready=True, timeout=10)
            again = rpc.server()
            again.add_registered_method_handlers(SERVICE, Handlers().registered())
            again.add_insecure_port(f"127.0.0.1:{both.port}")
            await again.start()
            assert await waiting == b"two"
            await again.stop(None)


async def test_round_robin_uses_all_addresses_and_survives_the_loss_of_one() -> None:
    async with ends() as first, ends() as second:
        target = f"ipv4:127.0.0.1:{first.port},127.0.0.1:{second.port}"
        options = [*FAST, ("grpc.lb_policy_name", "round_robin")]
        async with rpc.insecure_channel(target, options=options) as channel:
            echo = channel.unary_unary(f"/{SERVICE}/Echo")
            await channel.channel_ready()
            await until(lambda: len(channel.endpoints) == 2)
            for _ in range(10):
                await echo(b"")
            assert [both.server.metrics.calls_started for both in (first, second)] == [5, 5]
            await first.server.stop(None)
            await until(lambda: len(channel.endpoints) == 1)
            for _ in range(10):
                await echo(b"")
            assert second.server.metrics.calls_started == 15


async def test_an_old_connection_is_drained_by_age() -> None:
    async with ends(options=[("grpc.max_connection_age_ms", 1)]) as both:
        await both.unary("Echo")(b"")
        for endpoint in tuple(both.server.endpoints):
            endpoint.tick(both.channel.loop.time() + 1)
        await until(lambda: both.server.metrics.connections == 0)
        assert await both.unary("Echo")(b"on a new one") == b"on a new one"


async def test_a_silent_peer_is_found_by_keepalive() -> None:
    options = [("grpc.keepalive_time_ms", 1_000), ("grpc.keepalive_timeout_ms", 1_000)]
    async with ends(options=options) as both:
        await both.unary("Echo")(b"")
        (endpoint,) = both.server.endpoints
        (theirs,) = both.channel.endpoints
        assert theirs.transport is not None
        theirs.transport.pause_reading()
        now = both.channel.loop.time()
        for seconds in (0, 2, 4):
            endpoint.tick(now + seconds)
        await until(lambda: both.server.metrics.connections == 0)
        assert both.server.metrics.keepalive_timeouts == 1


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
async def test_the_kernel_gives_up_unacknowledged_bytes_when_keepalive_would() -> None:
    options = [("grpc.keepalive_time_ms", 6_000), ("grpc.keepalive_timeout_ms", 10_000)]
    for channel_options, expected in ((options, 16_000), ([], 0)):
        async with ends(channel_options=channel_options) as both:
            await both.unary("Echo")(b"")
            (endpoint,) = both.channel.endpoints
            assert endpoint.transport is not None
            kernel = endpoint.transport.get_extra_info("socket")
            assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == expected


async def test_a_quiet_connection_needs_no_look_until_something_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = [("grpc.keepalive_time_ms", 10_000), ("grpc.max_connection_idle_ms", 60_000)]
    async with ends(options=options) as both:
        await both.unary("Echo")(b"")
        (endpoint,) = both.server.endpoints
        now = both.channel.loop.time()
        endpoint.tick(now)
        assert now + 9 < endpoint.quiet_until <= now + 10, "until its keepalive"
        looks: list[float] = []
        monkeypatch.setattr(endpoint, "on_tick", looks.append)
        for seconds in range(1, 10):
            endpoint.tick(now + seconds)
        assert not looks
        await both.unary("Echo")(b"")
        endpoint.tick(now + 9.5)
        assert looks == [now + 9.5], "bytes came"
        endpoint.tick(now + 20)
        endpoint.tick(now + 20.1)
        assert looks == [now + 9.5, now + 20, now + 20.1], "its PING is not answered yet"


async def test_a_quiet_connection_that_is_idle_or_old_is_drained() -> None:
    for name in ("grpc.max_connection_idle_ms", "grpc.max_connection_age_ms"):
        async with ends(options=[("grpc.keepalive_time_ms", 3_600_000), (name, 60_000)]) as both:
            await both.unary("Echo")(b"")
            (endpoint,) = both.server.endpoints
            now = both.channel.loop.time()
            endpoint.tick(now)
            endpoint.tick(now + 50)
            assert not endpoint._draining
            endpoint.tick(now + 70)
            assert endpoint._draining


async def test_a_quiet_connection_is_drained_within_its_grace() -> None:
    options = [("grpc.keepalive_time_ms", 3_600_000), ("grpc.max_connection_age_grace_ms", 1_000)]
    async with ends(options=options) as both:
        stream = both.stream("Both")()
        await stream.wait_for_connection()
        (endpoint,) = both.server.endpoints
        now = both.channel.loop.time()
        endpoint.tick(now)
        endpoint.tick(now + 1)
        assert endpoint.quiet_until > now + 1
        endpoint.drain()
        endpoint.tick(now + 60)
        await until(lambda: both.server.metrics.connections == 0)


async def ping_four_times(both: Ends) -> None:
    (endpoint,) = both.channel.endpoints
    for _ in range(4):
        endpoint.connection.ping(b"whatever")
        endpoint.flush()
        await asyncio.sleep(0.001)


async def test_a_client_that_reads_an_answer_slowly_was_sent_away_for_its_pings() -> None:
    """gRPC's clients measure the network by PINGs while bytes arrive, also those that were sent long ago."""
    async with ends() as both:
        await both.unary("Echo")(b"")
        await ping_four_times(both)
        assert await both.unary("Echo")(b"again") == b"again"
        assert both.server.metrics.too_many_pings == 0


async def test_a_client_that_pings_too_often_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ServerEndpoint.on_pings.__globals__, "IN_BUFFERS_S", 0.0)
    async with ends() as both:
        await both.unary("Echo")(b"")
        await ping_four_times(both)
        await until(lambda: both.server.metrics.too_many_pings == 1)
        assert await both.unary("Echo")(b"again") == b"again"
        assert both.channel.metrics.goaways_received == {"ENHANCE_YOUR_CALM": 1}


async def test_a_request_that_makes_no_progress_is_reset() -> None:
    options = [("trovemq.stall_timeout_ms", 2_000), ("grpc.max_receive_message_length", 140 << 20)]
    async with ends(options=options) as both:
        stream = both.stream("Both")()
        await stream.wait_for_connection()
        prefix = b"\0" + (130 << 20).to_bytes(4, "big")
        stream.endpoint.connection.send_data(stream.stream, (prefix + bytes(1_000),), 1_005)
        stream.endpoint.flush()
        await until(lambda: any(endpoint.assembling for endpoint in both.server.endpoints))
        budget = both.server.endpoint_options.budget
        assert budget is not None
        assert budget.held >= 130 << 20
        (endpoint,) = both.server.endpoints
        now = both.channel.loop.time()
        endpoint.tick(now)
        endpoint.tick(now + 3)
        assert await stream.code() == rpc.StatusCode.RESOURCE_EXHAUSTED
        assert budget.held == 0
        assert both.server.metrics.calls_stalled == 1


async def test_frames_larger_than_the_receive_buffer_were_let_in() -> None:
    """grpc.http2.max_frame_size may lower the limit: no buffer takes up a frame above it."""
    largest = Limits().frame_size_max
    for asked, allowed in (((1 << 24) - 1, largest), (1 << 14, 1 << 14)):
        for server in (False, True):
            options = options_of([("grpc.http2.max_frame_size", asked)], server)
            assert options.limits.frame_size_max == allowed


class TwoConnections:
    """A server's count that lets two connections in."""

    def __init__(self) -> None:
        self.open: list[str] = []

    def opened(self, peer: str) -> bool:
        if len(self.open) == 2:
            return False
        self.open.append(peer)
        return True

    def closed(self, peer: str) -> None:
        self.open.remove(peer)


async def test_a_connection_that_may_not_be_is_closed_and_the_next_one_may() -> None:
    count = TwoConnections()
    async with ends(options=[("trovemq.connections", count)], channel_options=FAST) as both:
        assert await both.unary("Echo")(b"first") == b"first"
        reader, writer = await asyncio.open_connection("127.0.0.1", both.port)
        await until(lambda: len(count.open) == 2)
        refused, closing = await asyncio.open_connection("127.0.0.1", both.port)
        assert await refused.read() == b"", "it is closed"
        assert both.server.metrics.refused_connections == 1
        assert await both.unary("Echo")(b"open ones stay") == b"open ones stay"
        writer.close()
        await until(lambda: len(count.open) == 1)
        assert count.open[0].startswith("ipv4:127.0.0.1:")
        closing.close()
        del reader
    await until(lambda: not count.open)


async def test_a_fault_at_a_lost_connection_failed_the_servers_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stayed with the server, which ended its side of a transport that was closed."""
    faults: list[Any] = []

    def broken(_self: ServerEndpoint, _exc: Exception | None) -> None:
        raise RecursionError

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    try:
        async with ends() as both:
            await both.unary("Echo")(b"")
            monkeypatch.setattr(ServerEndpoint, "on_lost", broken)
            await both.channel.close()
            await until(lambda: bool(faults))
            (left,) = both.server.endpoints
            left.flush()
            left.linger()
            both.server.endpoints.clear()  # the stop would wait for it
    finally:
        loop.set_exception_handler(None)
