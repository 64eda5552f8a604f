"""The sockets of a server: its ports, and a listener while no descriptor is free."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, cast

import grpc
import pytest

import trovemq_rpc as rpc
from trovemq_rpc.metrics import Metrics
from trovemq_rpc.server.accepting import AT_ONCE, RETRY_S, Listener, Refusal


class Socket:
    """`waiting`: an errno, or a connection, for each accept()."""

    def __init__(self) -> None:
        self.waiting: list[int | FakeConnection] = []
        self.listens = True

    def fileno(self) -> int:
        return 7 if self.listens else -1

    def close(self) -> None:
        self.listens = False

    def accept(self) -> tuple[FakeConnection, str]:
        one = self.waiting.pop(0) if self.waiting else errno.EAGAIN
        if isinstance(one, int):
            raise OSError(one, "no")
        return one, "a peer"


class FakeConnection:
    closed = resets = False

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        self.resets = (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER)

    def setblocking(self, blocking: bool) -> None:
        assert not blocking

    def close(self) -> None:
        self.closed = True


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Runs the tasks of a real loop that has no sockets."""

    def __init__(self, real: asyncio.AbstractEventLoop) -> None:
        self.real = real
        self.reader: Callable[[], None] | None = None
        self.later: list[tuple[float, Callable[[], None], Timer]] = []
        self.opened: list[FakeConnection] = []
        self.failure: OSError | None = None
        self.now = 0.0

    def add_reader(self, _socket: Socket, call: Callable[[], None]) -> None:
        assert self.reader is None
        self.reader = call

    def remove_reader(self, _socket: Socket) -> None:
        self.reader = None

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.later.append((delay_s, call, Timer()))
        return self.later[-1][2]

    def time(self) -> float:
        return self.now

    def create_task(self, step: Any) -> asyncio.Task[None]:
        return self.real.create_task(step)

    async def connect_accepted_socket(self, _make: object, connection: FakeConnection) -> None:
        if self.failure is not None:
            raise self.failure
        self.opened.append(connection)

    async def turn(self) -> None:
        """The socket is readable."""
        assert self.reader is not None
        self.reader()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def started() -> tuple[Loop, Socket, Metrics, Listener]:
    loop, bound, metrics = Loop(asyncio.get_running_loop()), Socket(), Metrics()
    listener = Listener(
        cast(asyncio.AbstractEventLoop, loop), cast(socket.socket, bound), asyncio.Protocol, metrics
    )
    listener.start()
    return loop, bound, metrics, listener


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
@in_a_loop
async def test_without_a_free_descriptor_the_listener_ended_or_spun(number: int) -> None:
    loop, bound, metrics, _ = started()
    bound.waiting = [number]
    await loop.turn()
    assert loop.reader is None, "it does not spin"
    assert metrics.accepts_failed == 1
    ((delay_s, resume, _),) = loop.later
    assert delay_s == RETRY_S
    resume()
    bound.waiting = [FakeConnection()]
    await loop.turn()
    assert len(loop.opened) == 1


@in_a_loop
async def test_connections_that_nothing_has_counted_are_few() -> None:
    loop, bound, _, _ = started()
    bound.waiting = [FakeConnection() for _ in range(AT_ONCE + 3)]
    await loop.turn()
    assert (len(loop.opened), len(bound.waiting)) == (AT_ONCE, 3)
    await loop.turn()
    assert len(loop.opened) == AT_ONCE + 3


@in_a_loop
async def test_a_connection_without_a_transport_is_closed() -> None:
    loop, bound, metrics, _ = started()
    loop.failure = OSError(errno.EMFILE, "no")
    bound.waiting = [gone := FakeConnection()]
    await loop.turn()
    assert gone.closed
    assert metrics.accepts_failed == 1


@in_a_loop
async def test_a_closed_listener_does_not_come_back() -> None:
    loop, bound, _, listener = started()
    bound.waiting = [errno.EMFILE]
    await loop.turn()
    listener.close()
    ((_, _, timer),) = loop.later
    assert timer.cancelled
    assert not bound.listens
    listener.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "localhost"])
@in_a_loop
async def test_two_servers_that_were_not_started_shared_a_port(address: str) -> None:
    """The second one's `start` raised OSError, long after its port was added."""
    first, second = rpc.server(), rpc.server()
    try:
        port = first.add_insecure_port(f"{address}:0")
    except RuntimeError:  # a machine without IPv6
        pytest.skip(f"{address} is not an address of this machine")
    with pytest.raises(RuntimeError, match="Failed to bind to address"):
        second.add_insecure_port(f"{address}:{port}")
    await first.stop(None)
    assert second.add_insecure_port(f"{address}:{port}") == port, "it is free again"
    await second.start()
    await second.stop(None)


@in_a_loop
async def test_a_client_of_a_server_that_starts_late_waited_for_it() -> None:
    server = rpc.server()
    port = server.add_insecure_port("127.0.0.1:0")
    server.refuse_until_start()
    channel = rpc.insecure_channel(f"127.0.0.1:{port}")
    call = channel.unary_unary("/test.Test/Call")
    with pytest.raises(rpc.AioRpcError) as refused:
        await call(b"")
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "time to connect" not in str(refused.value.details())
    await server.start()
    with pytest.raises(rpc.AioRpcError) as served:
        await call(b"", wait_for_ready=True)
    assert served.value.code() == grpc.StatusCode.UNIMPLEMENTED, "it serves now, and has no method"
    await channel.close()
    await server.stop(None)


@in_a_loop
async def test_a_server_that_ended_before_its_start_kept_refusing() -> None:
    loop = asyncio.get_running_loop()
    server = rpc.server()
    server.add_insecure_port("127.0.0.1:0")
    server.refuse_until_start()
    ((bound, _),) = server._sockets
    number = bound.fileno()
    await server.stop(None)
    assert not loop.remove_reader(number)


@in_a_loop
async def test_clients_are_refused_by_a_reset_and_wait_without_descriptors() -> None:
    loop, bound = Loop(asyncio.get_running_loop()), Socket()
    refusal = Refusal(cast(asyncio.AbstractEventLoop, loop), cast(socket.socket, bound))
    refusal.start()
    first = FakeConnection()
    bound.waiting = [first]
    await loop.turn()
    assert (first.resets, first.closed) == (True, True)
    bound.waiting = [errno.EMFILE]
    await loop.turn()
    assert loop.reader is None, "it does not spin"
    assert bound.listens


@in_a_loop
async def test_a_connection_lost_while_it_opened_left_an_unread_exception() -> None:
    """asyncio logged it: "Future exception was never retrieved"."""
    loop = asyncio.get_running_loop()
    reported: list[object] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))

    opened = loop.create_connection

    async def lost_at_once(factory: Callable[[], asyncio.Protocol], *address: Any) -> None:
        transport, _ = await opened(factory, *address)
        transport.abort()
        await asyncio.sleep(0)
        raise ConnectionResetError(errno.ECONNRESET, "it was reset")

    server = rpc.server()
    port = server.add_insecure_port("127.0.0.1:0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create_connection", lost_at_once)
        async with rpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(rpc.AioRpcError) as failed:
                await channel.unary_unary("/test.Test/Call")(b"")
    assert "it was reset" in str(failed.value.details())
    await server.stop(None)
    del channel, failed
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    del others
    await asyncio.sleep(0)
    gc.collect()
    assert reported == []
