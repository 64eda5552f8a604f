"""The registry of open Consume streams, by group and topic, and client. It ends a client's earlier stream,
and notifies streams of members that join and of deliveries that became void.

| event                                   | effect                                                           |
|-----------------------------------------|------------------------------------------------------------------|
| a client opens another stream           | the earlier one is replaced: it would get messages until the     |
|                                         | broker notices that its connection is lost                       |
| deliveries became void                  | notice to all streams of the group and topic                     |
| a client subscribes to a topic          | notice to the streams of its group and topic that belong to      |
|                                         | other clients, at once                                           |
| further ones within `NOTICE_INTERVAL_S` | notice to all streams of the group and topic, once, when that    |
|                                         | time is over                                                     |

Invariants
- A client has one stream of a group and topic.
- Streams of a group and topic get one notice of members that join in `NOTICE_INTERVAL_S` at most, however
  many clients join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.server.core.clients import ClientRegistry

NOTICE_INTERVAL_S: Final = 1.0
STEP_STREAMS: Final = 64
"""The most streams that get their notice of a member in one iteration of the event loop."""


class ConsumerStream(Protocol):
    """An open stream, for the registry."""

    @property
    def client_id(self) -> str:
        """Its client."""

    def replace(self) -> None:
        """The client has opened another stream: ends this one."""

    def note_joined(self) -> None:
        """Another client has joined: sends a notice, unless one is about to be written."""

    def note_void(self) -> None:
        """Deliveries became void: sends a notice, unless one is about to be written."""


class _Pair:
    """The streams of one group and topic."""

    __slots__ = ("joined", "notifier", "streams")

    def __init__(self) -> None:
        self.streams: dict[str, ConsumerStream] = {}
        """By client id."""
        self.joined: set[str] = set()
        """The clients that have joined since the last notice; of more than two, two."""
        self.notifier: asyncio.Task[None] | None = None


class ConsumeStreams:
    """The open streams of one broker. For use on the event loop only."""

    def __init__(self, registry: ClientRegistry) -> None:
        self._pairs: dict[GroupTopicKey, _Pair] = {}
        registry.add_joined_listener(self._on_joined)

    def __len__(self) -> int:
        """The number of streams."""
        return sum(len(pair.streams) for pair in self._pairs.values())

    def add(self, key: GroupTopicKey, stream: ConsumerStream) -> None:
        """The stream serves its client for this group and topic from now on."""
        pair = self._pairs.get(key)
        if pair is None:
            pair = self._pairs[key] = _Pair()
        earlier = pair.streams.pop(stream.client_id, None)
        pair.streams[stream.client_id] = stream
        if earlier is not None:
            earlier.replace()

    def discard(self, key: GroupTopicKey, stream: ConsumerStream) -> None:
        """The stream has ended."""
        pair = self._pairs.get(key)
        if pair is None or pair.streams.get(stream.client_id) is not stream:
            return
        del pair.streams[stream.client_id]
        if not pair.streams:
            del self._pairs[key]
            if pair.notifier is not None:
                pair.notifier.cancel()

    def note_void(self, key: GroupTopicKey) -> None:
        """Deliveries of this group and topic became void."""
        pair = self._pairs.get(key)
        if pair is not None:
            for stream in list(pair.streams.values()):
                stream.note_void()

    def _on_joined(self, client_id: str, group: str, topics: Iterable[str]) -> None:
        for topic in topics:
            pair = self._pairs.get((group, topic))
            if pair is None:
                continue
            if len(pair.joined) < 2:
                pair.joined.add(client_id)
            if pair.notifier is None:
                notifier = asyncio.get_running_loop().create_task(_notify(pair), name="join-notices")
                pair.notifier = notifier


async def _notify(pair: _Pair) -> None:
    """Sends notices until no client has joined for a while."""
    while pair.joined:
        joined, pair.joined = pair.joined, set()
        for number, stream in enumerate(list(pair.streams.values()), 1):
            if pair.streams.get(stream.client_id) is stream and joined != {stream.client_id}:
                stream.note_joined()
            if not number % STEP_STREAMS:
                await asyncio.sleep(0)
        await asyncio.sleep(NOTICE_INTERVAL_S)
    pair.notifier = None
