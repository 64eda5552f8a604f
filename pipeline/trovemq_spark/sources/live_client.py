"""Calls to a cluster from Spark's driver: the queues, their offsets, the offset of a time.

Each request uses one connection that is closed afterwards: the routes are then never older than the request,
and a reader that Spark keeps for days, or copies to its tasks, has no open connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from trovemq import Client, ClientOptions, QueueOffsets, connect
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark import live_loop
from trovemq_spark.connection_options import ENVIRONMENT_ALONE, ConnectionOptions
from trovemq_spark.sources.offsets import Identities, Queue

_SAMPLE_BYTES: Final = 1 << 18
_LOOK_AGAIN_SECONDS: Final = 0.05
_CALLS_MAX: Final = 64
"""The most calls in flight."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets that a queue has, [minimum, maximum), and the identity of its topic (None: not known)."""

    minimum: int
    maximum: int
    identity: int | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The address of a cluster. Picklable.

    server: HOST:PORT of nameservers, with commas, or of one broker; reconnect_timeout_ms: how long a server
        that was reachable may be unreachable.
    """

    server: str
    reconnect_timeout_ms: int
    connection: ConnectionOptions = ENVIRONMENT_ALONE

    def client_options(self) -> ClientOptions:
        return self.connection.of_client(ClientOptions(reconnect_timeout_ms=self.reconnect_timeout_ms))

    def ask(self, question: Callable[[Client], Awaitable[_Answer]], *, wait_ms: int = 0) -> _Answer:
        """Connects, asks and closes; repeats this for wait_ms if a server is unreachable.

        Raises TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, REQUEST_ILLEGAL (not an address), or the
        question's.
        """

        async def once() -> _Answer:
            async with connect(self.server, options=self.client_options()) as client:
                return await question(client)

        async def asked() -> _Answer:
            loop = asyncio.get_running_loop()
            give_up = loop.time() + wait_ms / 1000
            while True:
                try:
                    return await once()
                except TroveError as error:
                    if not (error.retriable and loop.time() < give_up):
                        raise
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)

        return live_loop.run(asked())


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected queues: topics by name, by a pattern of the whole name, or queue by queue."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    queues: frozenset[Queue] = frozenset()


def span_of(queue: QueueOffsets) -> Span:
    """The span of a broker's answer."""
    return Span(queue.min_offset, queue.max_offset, queue.topic_identity)


async def queue_spans(client: Client, selection: Selection) -> dict[Queue, Span]:
    """The selected queues with their present offsets.

    Raises TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, BROKER_NOT_FOUND for an unknown name (a pattern may
    match nothing), BROKER_UNREACHABLE.
    """
    if selection.pattern is not None:
        listed = {topic.topic for topic in await client.admin.list_topics()}
        topics: Iterable[str] = filter(re.compile(selection.pattern).fullmatch, listed)
    else:
        topics = selection.topics or {queue.topic for queue in selection.queues}
    names = sorted(topics)
    answers = await _all([client.queue_offsets(topic) for topic in names])
    spans = {
        Queue(topic, found.broker, found.queue_id): span_of(found)
        for topic, queues in zip(names, answers, strict=True)
        for found in queues
    }
    if not selection.queues:
        return spans
    for queue in sorted(selection.queues - spans.keys()):
        raise TroveError(errors.QUEUE_NOT_FOUND, f"{describe(queue)} is assigned, and is not there")
    return {queue: spans[queue] for queue in selection.queues}


async def offsets_at(
    client: Client, queues: Iterable[Queue], timestamp_ms: int, *, upper: bool = False
) -> dict[Queue, int]:
    """For each queue the first offset that was stored at or after a time (epoch ms), or its end; with `upper`
    the last offset at or before that time, or its first."""
    chosen = sorted(queues)
    found = await _all(
        [
            client.search_offset(queue.topic, queue.queue_id, timestamp_ms, upper=upper, broker=queue.broker)
            for queue in chosen
        ]
    )
    return dict(zip(chosen, found, strict=True))


async def wait_for_brokers(client: Client, names: Iterable[str], timeout_ms: int) -> None:
    """Waits until all of them are in the routes. Raises TroveError BROKER_NOT_FOUND for one that does not
    appear in time."""
    wanted = set(names)
    give_up = asyncio.get_running_loop().time() + timeout_ms / 1000
    while True:
        live = {route.broker.name for route in (await client.admin.cluster()).brokers}
        if wanted <= live:
            return
        if asyncio.get_running_loop().time() > give_up:
            away, there = ", ".join(sorted(wanted - live)), ", ".join(sorted(live)) or "none"
            text = f"{away}: not in the routes for {timeout_ms} ms, and has queues that are being read"
            raise TroveError(errors.BROKER_NOT_FOUND, f"{text} (live: {there})")
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


def identities_of(spans: Mapping[Queue, Span]) -> Identities:
    """The identities of their topics, where the brokers know them."""
    return {
        (queue.topic, queue.broker): span.identity
        for queue, span in spans.items()
        if span.identity is not None
    }


async def mean_record_size(client: Client, queue: Queue, offset: int) -> float:
    """Mean bytes of a record, by the first records from an offset on; 0 if there is none."""
    batches = client.pull_batches(
        queue.topic,
        queue_id=queue.queue_id,
        broker=queue.broker,
        offset=offset,
        bytes_max=_SAMPLE_BYTES,
        prefetch=1,
    )
    try:
        async for batch in batches:
            if len(batch):
                return batch.nbytes / len(batch)
        return 0.0
    finally:
        await batches.aclose()


async def commit_group_offsets(client: Client, group: str, offsets: Mapping[Queue, int]) -> list[str]:
    """Stores the next offsets of a consumer group. Returns the offsets that could not be stored, with the
    reason, in words."""
    chosen = sorted(offsets)
    calls = [
        client.admin.commit_offset(group, queue.topic, queue.queue_id, offsets[queue], queue.broker)
        for queue in chosen
    ]
    outcomes = await _all([_failure(call) for call in calls])
    return [f"{describe(queue)}: {why}" for queue, why in zip(chosen, outcomes, strict=True) if why]


async def _failure(call: Awaitable[None]) -> str:
    """The reason of a failure; "" for success."""
    try:
        await call
    except TroveError as error:
        return str(error)
    return ""


def describe(queue: Queue) -> str:
    """For messages to people."""
    return f"topic {queue.topic}, broker {queue.broker}, queue {queue.queue_id}"


async def _all(calls: Iterable[Awaitable[_Answer]]) -> list[_Answer]:
    """The results in order, with a limit on concurrent calls."""
    space = asyncio.Semaphore(_CALLS_MAX)

    async def one(call: Awaitable[_Answer]) -> _Answer:
        async with space:
            return await call

    return await asyncio.gather(*map(one, calls))
