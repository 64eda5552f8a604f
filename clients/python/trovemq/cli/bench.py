"""bench produce|fetch: measures one producer or one reader against a running broker."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption, QueueOption
from trovemq.cli.figures import counted
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import Client, Producer, QueueOffsets

app = typer.Typer(help="Measure one producer or one reader.", no_args_is_help=True)

BATCHES_IN_FLIGHT_MAX: Final = 16
QUEUE_COUNT: Final = 8

BenchTopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Made where it is missing.")]


@verb(app, "produce")
async def produce(
    session: Session,
    topic: BenchTopicArgument = "bench",
    messages: Annotated[
        int, typer.Option("--messages", metavar="N", min=1, help="How many to send.")
    ] = 200_000,
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", min=1, max=4 << 20, help="Each body's size.")
    ] = 1024,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, max=100_000, help="Messages a batch.")
    ] = 1000,
    queue: QueueOption = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Send N messages in batches. Each has a message id and one key, and each acknowledgement is awaited."""
    async with session.client() as client:
        await make_topic(session, client, topic)
        queue_ids = None if queue is None else [queue]
        places = await session.call(client.queue_offsets(topic, queue_ids=queue_ids, broker=broker))
        async with client.producer(topic) as producer:
            started = time.perf_counter()
            await _send_all(session, producer, places, messages, size, batch)
            seconds = time.perf_counter() - started
    show_rate(session, "produced", messages, messages * size, seconds)


async def make_topic(session: Session, client: Client, topic: str) -> None:
    """Creates the topic if no broker has it."""
    try:
        await session.call(client.admin.describe_topic(topic))
    except TroveError as error:
        if error.spec is not errors.TOPIC_NOT_FOUND:
            raise
        await session.call(client.admin.create_topic(topic, queue_count=QUEUE_COUNT, exist_ok=True))


async def _send_all(
    session: Session,
    producer: Producer,
    places: Sequence[QueueOffsets],
    messages: int,
    size: int,
    batch: int,
) -> None:
    """Keeps some batches in flight, to one queue after the other."""
    bodies = [bytes(size)] * batch
    in_flight: deque[asyncio.Task[object]] = deque()
    try:
        for number, first in enumerate(range(0, messages, batch)):
            count = min(batch, messages - first)
            keys = [str(first + i) for i in range(count)]
            place = places[number % len(places)]
            sending = producer.send_batch(
                bodies[:count], keys=keys, queue_id=place.queue_id, broker=place.broker
            )
            in_flight.append(asyncio.ensure_future(sending))
            session.progress.at(first, messages, "sending")
            if len(in_flight) == BATCHES_IN_FLIGHT_MAX:
                await session.call(in_flight.popleft())
        while in_flight:
            await session.call(in_flight.popleft())
    finally:
        for task in in_flight:
            task.cancel()


@verb(app, "fetch")
async def fetch(
    session: Session,
    topic: BenchTopicArgument = "bench",
    messages: Annotated[
        int, typer.Option("--messages", metavar="N", min=1, help="Stop after N messages.")
    ] = 10_000_000,
    queue: QueueOption = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Read every message of a topic from its start, queue after queue."""
    found = size = 0
    async with session.client() as client:
        queue_ids = None if queue is None else [queue]
        places = await session.call(client.queue_offsets(topic, queue_ids=queue_ids, broker=broker))
        started = time.perf_counter()
        for place in places:
            batches = client.pull_batches(
                topic, queue_id=place.queue_id, offset=place.min_offset, broker=place.broker
            )
            async for fetched in session.each(batches):
                found += len(fetched)
                session.progress.at(found, text="fetching")
                size += fetched.body_nbytes
                if found >= messages:
                    break
            if found >= messages:
                break
        seconds = time.perf_counter() - started
    show_rate(session, "fetched", found, size, seconds)


def show_rate(session: Session, what: str, messages: int, size_bytes: int, seconds: float) -> None:
    """The result of one measurement."""
    seconds = max(seconds, 1e-9)
    session.output.item(
        {
            "what": what,
            "messages": messages,
            "bodyBytes": size_bytes,
            "seconds": round(seconds, 6),
            "messagesPerSecond": round(messages / seconds),
            "bodyBytesPerSecond": round(size_bytes / seconds),
        }
    )
    if session.output.objects:
        return
    from trovemq.cli.render import card, humane_size

    session.output.show(
        card(
            {
                what: f"{counted(messages, 'message')}, {humane_size(size_bytes)} of bodies",
                "time": f"{seconds:.3f} s",
                "rate": f"{messages / seconds:,.0f} messages/s, {humane_size(round(size_bytes / seconds))}/s",
            }
        )
    )
