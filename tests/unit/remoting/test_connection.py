"""One remoting connection without a network: its part of the budget, its answers, and their time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.remoting.connection import (
    IN_FLIGHT_BYTES_MAX,
    STALL_S,
    UNREAD_S,
    UNSENT_BYTES_MAX,
    RemotingConnection,
)
from trovemq_daemon.remoting.request import Request
from trovemq_daemon.remoting.server import RemotingServer
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.frame import FRAME_SIZE_MAX, FrameSplitter, encode_frame
from trovemq_proto.remoting.headers import IS_ONE_WAY, Header
from trovemq_rpc.budget import BytesBudget

KIB = 1 << 10


class _Server:
    """Keeps its requests; a test answers them."""

    frame_size_max = FRAME_SIZE_MAX
    illegal_frames = 0

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def together(self) -> AbstractContextManager[object]:
        return nullcontext()

    def opened(self, connection: RemotingConnection) -> None: ...

    def closed(self, connection: RemotingConnection) -> None: ...

    def begin(self, request: Request) -> None:
        self.requests.append(request)

    def ended(self, request: Request, code: int) -> None: ...

    def response_of(self, request: Request, error: BaseException) -> tuple[int, str]:
        return ResponseCode.SYSTEM_ERROR, str(error)


class _Host:
    """A host whose peer reads nothing before `take()`."""

    is_secure = False

    def __init__(self, budget: BytesBudget) -> None:
        self.budget = budget
        self.held = self.output_held = self.admissions = self.unsent_size = 0
        self.reads = True
        self.is_closed = False
        self.sent = bytearray()
        self.on_free: Callable[[], None] = lambda: None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def on_budget(self) -> None:
        self.on_free()

    def send(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        for piece in pieces:
            self.sent += piece

    def pause(self) -> None:
        self.reads = False

    def resume(self) -> None:
        self.reads = True

    def refuse(self, reason: str) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True

    abort = close


def opened(server: _Server, budget: BytesBudget) -> tuple[_Host, RemotingConnection]:
    host = _Host(budget)
    connection = RemotingConnection(host, server)
    host.on_free = connection.budget_free
    return host, connection


def frame(body: bytes = b"") -> memoryview:
    return memoryview(encode_frame(Header(10), body))


def test_connections_that_wait_for_the_budget_read_on_when_it_is_free() -> None:
    async def main() -> None:
        budget, server = BytesBudget(total=1_000 * KIB), _Server()
        ends = [opened(server, budget) for _ in range(2_000)]
        for _, connection in ends:
            connection.receive(frame(b"x" * KIB))
        paused = [host for host, _ in ends if not host.reads]
        assert len(paused) > 900
        for request in server.requests:
            request.answer()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert all(host.reads for host, _ in ends)
        assert (budget.held, {host.held for host, _ in ends}) == (0, {0})

    asyncio.run(main())


def test_an_answer_that_no_frame_can_have_is_answered_with_an_error() -> None:
    async def main() -> None:
        server = _Server()
        host, connection = opened(server, BytesBudget())
        connection.receive(frame())
        server.requests[0].answer(body=bytes(FRAME_SIZE_MAX))
        await asyncio.sleep(0)
        (answer,) = FrameSplitter().feed(memoryview(bytes(host.sent)))
        assert (answer.header().code, len(answer.body)) == (ResponseCode.SYSTEM_ERROR, 0)
        assert "the limit is" in answer.header().remark

    asyncio.run(main())


def test_answers_that_nobody_reads_count_in_the_budget_until_they_are_read() -> None:
    async def main() -> None:
        budget, server = BytesBudget(total=1_000 * KIB), _Server()
        host, connection = opened(server, budget)
        other, reading = opened(server, budget)
        connection.receive(frame())
        server.requests[0].answer(body=bytes(KIB))
        host.unsent_size = 1_000 * KIB
        await asyncio.sleep(0)
        reading.receive(frame())
        assert (budget.output_held, other.reads) == (1_000 * KIB, False)
        host.unsent_size = 0
        connection.tick(connection.now())
        await asyncio.sleep(0)
        assert (budget.output_held, other.reads) == (0, True)

    asyncio.run(main())


def test_a_pull_goes_on_when_the_answers_before_it_are_sent() -> None:
    async def main() -> None:
        server = _Server()
        _, connection = opened(server, BytesBudget())
        connection.receive(frame())
        server.requests[0].answer(body=bytes(UNSENT_BYTES_MAX))
        woken: list[bool] = []
        connection.when_writable(lambda: woken.append(True))
        assert (connection.is_full, woken) == (True, [])
        await asyncio.sleep(0)
        assert woken == [True]

    asyncio.run(main())


@pytest.mark.parametrize(("size", "ends"), [(KIB, True), (IN_FLIGHT_BYTES_MAX // 3, False)])
def test_a_frame_that_we_do_not_read_on_does_not_end_its_connection(size: int, ends: bool) -> None:
    async def main() -> None:
        host, connection = opened(_Server(), BytesBudget())
        for _ in range(3):
            connection.receive(frame(bytes(size)))
        connection.receive(frame()[:20])
        connection.tick(connection.now() + STALL_S + 1)
        assert host.is_closed is ends

    asyncio.run(main())


@pytest.mark.parametrize("form", ["the header", "the body"])
def test_a_client_that_sends_a_byte_a_second_kept_its_connection(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte counted as progress, so that a frame of 16 MiB took half a year."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now_s)
        host, connection = opened(_Server(), BytesBudget())
        data = bytes(frame(bytes(KIB)))
        begun = 12 if form == "the header" else len(data) - KIB + 10
        connection.receive(memoryview(data[:begun]))
        seconds = 0
        while not host.is_closed and seconds < 2 * STALL_S:
            seconds += 1
            now_s += 1
            connection.receive(memoryview(data[begun + seconds : begun + seconds + 1]))
            connection.tick(now_s)
        assert STALL_S <= seconds < 2 * STALL_S

    asyncio.run(main())


def test_a_frame_that_waited_for_the_budget_of_others_ended_its_connection() -> None:
    async def main() -> None:
        budget, server = BytesBudget(total=100 * KIB), _Server()
        _, other = opened(server, budget)
        other.receive(frame(bytes(200 * KIB)))
        host, connection = opened(server, budget)
        connection.receive(frame()[:20])
        assert not host.reads
        connection.tick(connection.now() + STALL_S + 1)
        assert not host.is_closed

    asyncio.run(main())


def test_a_flood_of_one_way_requests_is_held_to_the_limit() -> None:
    """Their client takes no answers, and waits for none."""

    async def main() -> None:
        budget, server = BytesBudget(), _Server()
        host, connection = opened(server, budget)
        one = memoryview(encode_frame(Header(10, flag=IS_ONE_WAY), bytes(64 * KIB)))
        sent = 0
        while host.reads:
            connection.receive(one)
            sent += 1
        assert sent <= IN_FLIGHT_BYTES_MAX // (64 * KIB) + 1
        assert host.held <= IN_FLIGHT_BYTES_MAX + (128 << 10)
        for request in server.requests:
            request.answer()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (host.reads, bytes(host.sent), host.held) == (True, b"", 0)

    asyncio.run(main())


def test_answers_that_are_not_read_end_the_connection() -> None:
    async def main() -> None:
        host, connection = opened(_Server(), BytesBudget())
        connection.receive(frame())
        connection.writable(False)
        connection.tick(connection.now() + UNREAD_S - 1)
        assert not host.is_closed
        connection.tick(connection.now() + UNREAD_S + 1)
        assert host.is_closed

    asyncio.run(main())


def test_codes_that_clients_make_up_are_one_series_of_the_metrics() -> None:
    async def main() -> None:
        registry = CollectorRegistry()
        server = RemotingServer(RpcMetrics(registry, cluster="c", node_type="broker", node_id="b"), {})
        connection = server.accept(_Host(BytesBudget()))
        for code in range(1_000, 1_100):
            connection.receive(memoryview(encode_frame(Header(code), b"")))
        text = generate_latest(registry).decode()
        assert "UNKNOWN" in text
        assert "1050" not in text

    asyncio.run(main())
