"""The Fetch stream without a network: on our own transport, no request and no reply needs a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.fetch.long_poll import LongPolls
from broker.fetch.pull import Puller, PullSettings
from broker.server.monitoring.traffic import Traffic
from broker.server.native.fetch_stream import FetchParts, FetchStream
from tests.support import fake_loop
from tests.support.engine import open_store, send
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import message_pb2
from trovemq_store.files.memory import MemoryFileSystem


class Context:
    """Requests are offered to the receiver while `read` waits, replies go to a list."""

    can_send = True
    receiver: Callable[[Any], bool] | None = None

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.replies: list[message_pb2.FetchReply] = []
        self.reads = 0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    async def read(self) -> Any:
        request = await self.requests.get()
        self.reads += 1
        return request

    async def write(self, message: bytes) -> None:
        while not self.can_send:
            await asyncio.sleep(0.01)
        assert self.try_send(message)

    def try_send(self, message: bytes) -> bool:
        if self.can_send:
            self.replies.append(message_pb2.FetchReply.FromString(message))
        return self.can_send

    def set_receiver(self, receiver: Callable[[Any], bool] | None) -> None:
        self.receiver = receiver

    def offer(self, offset: int, wait_ms: int = 60_000) -> None:
        request = message_pb2.FetchRequest(
            fetch_id=offset + 1, topic="orders", offset=offset, wait_ms=wait_ms
        )
        assert self.receiver is not None
        if not self.requests.empty() or not self.receiver(request):
            self.requests.put_nowait(request)


class Bench:
    def __init__(self) -> None:
        self.store = open_store(MemoryFileSystem())
        self.polls = LongPolls()
        self.puller = Puller(self.store, PullSettings())
        self.context: Any = Context()
        parts = FetchParts(self.puller, self.polls, Traffic(), fetches_waiting_max=4)
        self.stream = FetchStream(parts, self.context)
        self.serving = asyncio.create_task(self.stream.serve())

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            send(self.store, body)
        self.polls.wake([("orders", QueueId(0))])  # `send` has dispatched

    @property
    def answered(self) -> list[tuple[int, int]]:
        """(fetch id, next offset) of each reply."""
        return [(reply.fetch_id, reply.next_offset) for reply in self.context.replies]


def scene(program: Callable[[Bench], Any]) -> None:
    async def run() -> None:
        bench = Bench()
        await fake_loop.turns()
        await program(bench)
        bench.serving.cancel()
        await asyncio.wait({bench.serving})
        assert bench.context.receiver is None, "a stream that is over takes nothing"

    fake_loop.run(run())


def test_a_request_for_a_message_that_is_there_is_answered_at_once() -> None:
    async def program(bench: Bench) -> None:
        bench.send(b"one", b"two")
        bench.context.offer(0)
        assert bench.answered == [(1, 2)], "no turn of the loop was needed"
        assert bench.context.reads == 0

    scene(program)


def test_a_reader_at_the_end_gets_each_message_without_a_task() -> None:
    async def program(bench: Bench) -> None:
        for number in range(5):
            bench.context.offer(number)
            bench.send(b"%d" % number)
            await fake_loop.turns()
        assert bench.answered == [(number + 1, number + 1) for number in range(5)]
        assert (bench.context.reads, len(bench.polls)) == (0, 0)

    scene(program)


def test_while_the_client_does_not_read_its_requests_wait() -> None:
    async def program(bench: Bench) -> None:
        bench.send(b"one", b"two")
        bench.context.can_send = False
        bench.context.offer(0)
        bench.context.offer(1)
        await fake_loop.turns()
        assert (bench.answered, bench.context.reads) == ([], 1), "the reader waits with the first reply"
        bench.context.can_send = True
        await asyncio.sleep(1)
        assert bench.answered == [(1, 2), (2, 2)]

    scene(program)


def test_more_fetches_than_may_wait_are_refused_by_name() -> None:
    async def program(bench: Bench) -> None:
        for number in range(4):
            bench.context.offer(0)
            await fake_loop.turns()
            assert len(bench.context.replies) == (number == 3)
        assert bench.context.replies[0].error.symbol == "LIMIT_EXCEEDED"

    scene(program)


def test_who_appends_does_not_hear_of_a_reader_whose_pull_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_request: Any) -> Any:
        raise RuntimeError("a fault of the reader's side")

    async def program(bench: Bench) -> None:
        bench.context.offer(0)
        monkeypatch.setattr(bench.puller, "pull", broken)
        bench.send(b"one")
        await asyncio.wait({bench.serving})
        assert bench.answered == []

    scene(program)
