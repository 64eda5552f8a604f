"""Producers and consumers of a cluster that changes: each send and each delivery becomes an event.

A topic of type FIFO has two message groups, each sent one message after the other; one of type MIXED has a
stream of which some messages are delayed, and some are of a transaction. A message is sent again, with the
same unique key, until it is acknowledged. A group has two members, in two clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, Self

import trovemq
from tests.world.cluster_history import (
    BEGUN,
    REFUSED,
    STORED,
    UNKNOWN,
    Consumed,
    Event,
    Key,
    QueuePlace,
    Received,
    Sent,
    read_key,
)
from trovemq import Client, ClientOptions, SendReceipt, TroveError

PAUSE_S: Final = 0.04
"""Between two messages of a stream."""
RETRY_S: Final = 0.1
DELAY_S: Final = 0.5
SEND_MS_MAX: Final = 5_000
MEMBERS: Final = 2
ROUTE_WAIT_MS: Final = 30_000
ORDERED: Final = ("a", "b")
PLAIN: Final = ("plain",)
EVERY: Final = 8
"""Messages of a plain stream; one of them is delayed, and one is of a transaction."""


class Load:
    """Entered once; topics and groups come and go. `events`: the history."""

    def __init__(self, server: str, events: list[Event]) -> None:
        self._server = server
        self._events = events
        self._exits = AsyncExitStack()
        self._sender: Client
        self._receivers: list[Client] = []
        self._streams: dict[str, list[asyncio.Task[None]]] = {}
        self._members: dict[str, list[asyncio.Task[None]]] = {}
        self._producers: dict[str, trovemq.Producer] = {}
        self._ended: set[str] = set()
        self._sending = asyncio.Event()
        self._settling = asyncio.Event()
        self._sends = 0
        self._sending.set()
        self._settling.set()

    async def __aenter__(self) -> Self:
        options = ClientOptions(delivery_timeout_ms=SEND_MS_MAX, call_timeout_ms=SEND_MS_MAX)
        self._sender = await self._connected(options)
        self._receivers = [await self._connected(ClientOptions()) for _ in range(MEMBERS)]
        return self

    async def _connected(self, options: ClientOptions) -> Client:
        connecting = trovemq.connect(self._server, wait_ms=ROUTE_WAIT_MS, options=options)
        return await self._exits.enter_async_context(connecting)

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for some in (*self._streams.values(), *self._members.values()) for task in some]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._exits.aclose()

    def check(self) -> None:
        """Raises the exception of a task that has failed: a fault of this program."""
        for some in (*self._streams.values(), *self._members.values()):
            for task in some:
                if task.done():
                    task.result()

    # --- sending --------------------------------------------------------------------------------------

    async def begin_topic(self, topic: str, life: int, message_type: str) -> None:
        self._ended.discard(topic)
        producer = self._sender.producer(topic, checker=_roll_back)
        self._producers[topic] = await self._exits.enter_async_context(producer)
        streams = ORDERED if message_type == "FIFO" else PLAIN
        self._streams[topic] = [
            asyncio.create_task(self._stream(topic, life, stream), name=f"{topic} {stream}")
            for stream in streams
        ]

    async def end_topic(self, topic: str) -> None:
        """Its messages are no longer sent, once the present ones have an outcome."""
        self._ended.add(topic)
        await asyncio.gather(*self._streams.pop(topic))
        await self._producers.pop(topic).close()

    async def pause(self) -> None:
        """No message is under way afterwards, but those that are refused again and again."""
        self._sending.clear()
        while self._sends:
            await asyncio.sleep(RETRY_S)

    def resume(self) -> None:
        self._sending.set()

    async def _stream(self, topic: str, life: int, stream: str) -> None:
        number = 0
        while topic not in self._ended:
            await self._sending.wait()
            self._sends += 1
            try:
                is_stored = await self._until_stored(Key(topic, life, stream, number))
            finally:
                self._sends -= 1
            number += is_stored
            await asyncio.sleep(PAUSE_S)

    async def _until_stored(self, key: Key) -> bool:
        """Sends a message until it is acknowledged; False: until its topic ends, or all pause."""
        send = self._way(key)
        while True:
            self._events.append(Sent(key, BEGUN))
            try:
                receipt = await send(key)
            except TroveError as error:
                self._events.append(Sent(key, UNKNOWN if error.in_doubt else REFUSED))
            else:
                self._events.append(Sent(key, STORED, receipt.broker))
                return True
            if key.topic in self._ended or not self._sending.is_set():
                return False
            await asyncio.sleep(RETRY_S)

    def _way(self, key: Key) -> Callable[[Key], Awaitable[SendReceipt]]:
        if key.stream in ORDERED:
            return self._send_ordered
        return {EVERY // 3: self._send_delayed, EVERY - 2: self._send_in_transaction}.get(
            key.number % EVERY, self._send_plain
        )

    async def _send_plain(self, key: Key) -> SendReceipt:
        return await self._producers[key.topic].send(str(key).encode(), message_id=str(key))

    async def _send_ordered(self, key: Key) -> SendReceipt:
        producer = self._producers[key.topic]
        return await producer.send(str(key).encode(), message_id=str(key), message_group=key.stream)

    async def _send_delayed(self, key: Key) -> SendReceipt:
        producer = self._producers[key.topic]
        return await producer.send(str(key).encode(), message_id=str(key), deliver_after=DELAY_S)

    async def _send_in_transaction(self, key: Key) -> SendReceipt:
        """After a commit that failed the broker asks for the outcome: the message may be stored then."""
        async with self._producers[key.topic].transaction() as transaction:
            receipt = await transaction.send(str(key).encode(), message_id=str(key))
            try:
                await transaction.commit()
            except TroveError as error:
                raise TroveError(error.spec, error.message, in_doubt="true") from error
        return receipt

    # --- receiving ------------------------------------------------------------------------------------

    def begin_group(self, group: str, topic: str) -> None:
        self._members[group] = [
            asyncio.create_task(self._member(client, group, topic), name=f"{group} of {topic}")
            for client in self._receivers
        ]

    async def end_group(self, group: str) -> None:
        tasks = self._members.pop(group)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def hold(self) -> None:
        """Messages are received, and not acknowledged until `release`."""
        self._settling.clear()

    def release(self) -> None:
        self._settling.set()

    async def _member(self, client: Client, group: str, topic: str) -> None:
        while True:
            try:
                async with client.subscribe(topic, group, start="earliest") as messages:
                    async for message in messages:
                        await self._consume(group, message)
            except TroveError:
                await asyncio.sleep(RETRY_S)

    async def _consume(self, group: str, message: trovemq.ReceivedMessage) -> None:
        key = read_key(message.message_id)
        if message.body != str(key).encode():
            key = key._replace(stream=f"altered: {message.body!r}")  # no message was sent with this key
        place = QueuePlace(message.broker, message.queue_id, message.queue_offset)
        self._events.append(Received(group, key, place))
        await self._settling.wait()
        try:
            await message.ack()
        except TroveError:
            return  # it is delivered again
        self._events.append(Consumed(group, key, place))


def _roll_back(_: object) -> trovemq.TransactionResolution:
    return trovemq.TransactionResolution.ROLLBACK
