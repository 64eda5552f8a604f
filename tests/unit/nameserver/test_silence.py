"""Brokers that are silent, and a nameserver that did not run, in time of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from trovemq_nameserver.heartbeats import HeartbeatReader
from trovemq_nameserver.registration import Received, RegistrationService
from trovemq_nameserver.routes import RouteLimits
from trovemq_nameserver.service import EXPIRY_INTERVAL_MS, Registry
from trovemq_proto.v1 import common_pb2, route_pb2
from trovemq_rpc.testing.loop import MemoryLoop

LIMITS = RouteLimits(broker_silent_ms=10_000, broker_broken_ms=2_000)
INTERVAL_S = EXPIRY_INTERVAL_MS / 1000


@dataclass
class Stream:
    """A broker's end of its registration stream."""

    replies: list[route_pb2.HeartbeatReply] = field(default_factory=list)
    _requests: asyncio.Queue[Received | None] = field(default_factory=asyncio.Queue)

    def send(self) -> None:
        info = common_pb2.BrokerInfo(cluster="C", name="a", address="127.0.0.1:8081")
        self._requests.put_nowait(route_pb2.Heartbeat(broker=info, data_version=1))

    def send_large(self, topic_count: int) -> None:
        topics = [common_pb2.TopicRoute(topic=f"topic-{n:05}", queue_count=8) for n in range(topic_count)]
        heartbeat = route_pb2.Heartbeat(topics=topics, data_version=2)
        self._requests.put_nowait(HeartbeatReader()(heartbeat.SerializeToString()))

    def end(self) -> None:
        self._requests.put_nowait(None)

    async def requests(self) -> AsyncIterator[Received]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def write(self, reply: route_pb2.HeartbeatReply) -> None:
        self.replies.append(reply)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def scene(story: Callable[[MemoryLoop, Registry, Stream], Awaitable[None]]) -> None:
    """Runs a story of a broker that registered at 0 s."""
    loop = MemoryLoop(end_s=100)

    async def program() -> None:
        registry = Registry(LIMITS, 8, lambda: int(loop.time() * 1000))
        stream = Stream()
        service = RegistrationService(registry)
        tasks = [
            asyncio.create_task(service.register(stream.requests(), cast(Any, stream))),
            asyncio.create_task(registry.run_expiry()),
        ]
        stream.send()
        await asyncio.sleep(INTERVAL_S / 2)
        assert registry.table.broker_count == 1
        await story(loop, registry, stream)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(program())


def test_a_nameserver_that_was_stopped_for_a_while_lost_its_brokers() -> None:
    """It did not run while they sent: their heartbeats are there, unread, when it runs again."""

    async def story(loop: MemoryLoop, registry: Registry, stream: Stream) -> None:
        loop.now_s += 60
        for _ in range(5):  # everything that was due meanwhile happens before it reads
            await asyncio.sleep(0)
        stream.send()
        await asyncio.sleep(2 * INTERVAL_S)
        assert registry.table.broker_count == 1
        assert registry.expirations == 0
        assert [reply.HasField("error") for reply in stream.replies] == [False, False]

    scene(story)


def test_a_broker_was_lost_while_its_topics_waited_to_be_read() -> None:
    """The topics of many other brokers are read before."""

    async def story(loop: MemoryLoop, registry: Registry, stream: Stream) -> None:
        others_end = asyncio.Event()

        async def others() -> None:
            async with registry.turns._one_at_a_time:
                await others_end.wait()

        reading = asyncio.create_task(others())
        await asyncio.sleep(0)
        stream.send_large(1_000)
        await asyncio.sleep(2 * LIMITS.broker_silent_ms / 1000)
        assert registry.table.broker_count == 1
        others_end.set()
        await reading
        await asyncio.sleep(INTERVAL_S)
        assert len(registry.table.routes()[0].topics) == 1_000
        assert [reply.HasField("error") for reply in stream.replies] == [False, False]

    scene(story)


def test_any_number_of_large_heartbeats_waited_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trovemq_nameserver.service.HEARTBEATS_WAITING_SIZE", 60_000)

    async def story(loop: MemoryLoop, registry: Registry, stream: Stream) -> None:
        service, streams = RegistrationService(registry), [Stream() for _ in range(5)]
        calls = [asyncio.create_task(service.register(one.requests(), cast(Any, one))) for one in streams]
        async with registry.turns._one_at_a_time:
            for one in streams:
                one.send_large(1_500)
            await asyncio.sleep(INTERVAL_S)
            assert 30_000 < registry.bytes_waiting <= 60_000
        refused = [one.replies[0].error.symbol for one in streams if one.replies]
        assert set(refused) == {"LIMIT_EXCEEDED"}
        await asyncio.sleep(INTERVAL_S)
        assert registry.bytes_waiting == 0
        stream.send_large(1_500)
        await asyncio.sleep(INTERVAL_S)
        assert len(registry.table.routes()[0].topics) == 1_500
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    scene(story)


def test_a_broker_that_stays_silent_after_the_stop_leaves() -> None:
    async def story(loop: MemoryLoop, registry: Registry, stream: Stream) -> None:
        loop.now_s += 60
        await asyncio.sleep(3 * INTERVAL_S)
        assert registry.table.broker_count == 0
        assert registry.expirations == 1
        assert [reply.error.symbol for reply in stream.replies] == ["", "SERVICE_NOT_AVAILABLE"]

    scene(story)


def test_watchers_were_not_woken_when_a_broken_stream_expired() -> None:
    async def story(loop: MemoryLoop, registry: Registry, stream: Stream) -> None:
        with registry.watchers.watch() as watch:
            stream.end()
            await asyncio.sleep(INTERVAL_S)
            assert registry.table.broker_count == 1, "it may come back"
            broken_s = loop.time()
            assert await watch.changed()
            assert registry.table.broker_count == 0
            assert loop.time() - broken_s <= LIMITS.broker_broken_ms / 1000 + INTERVAL_S

    scene(story)


def test_watchers_were_not_woken_when_a_broker_was_silent() -> None:
    async def story(loop: MemoryLoop, registry: Registry, stream: Stream) -> None:
        with registry.watchers.watch() as watch:
            assert await watch.changed()
            assert registry.table.broker_count == 0
            assert loop.time() <= LIMITS.broker_silent_ms / 1000 + 2 * INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            assert [reply.error.symbol for reply in stream.replies] == ["", "SERVICE_NOT_AVAILABLE"]

    scene(story)


def test_a_stream_that_never_registers_is_ended() -> None:
    async def story(loop: MemoryLoop, registry: Registry, stream: Stream) -> None:
        silent = Stream()
        service = RegistrationService(registry)
        await service.register(silent.requests(), cast(Any, silent))
        assert [reply.error.symbol for reply in silent.replies] == ["SERVICE_NOT_AVAILABLE"]
        assert loop.time() <= LIMITS.broker_silent_ms / 1000 + 2 * INTERVAL_S

    scene(story)
