"""Notices to the Consume streams of a group that another client has joined it, so that they release messages
that their programs have not begun.

| event                                   | notice                                                           |
|-----------------------------------------|------------------------------------------------------------------|
| a client subscribes to a topic          | to the streams of its group and topic that belong to other       |
|                                         | clients, at once                                                 |
| further ones within `NOTICE_INTERVAL_S` | to all streams of the group and topic, once, when that time is   |
|                                         | over                                                             |

Invariants
- Streams of a group and topic get one notice in `NOTICE_INTERVAL_S` at most, however many clients join.
- A stream has one notice at most that is not written yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.server.core.clients import ClientRegistry

NOTICE_INTERVAL_S: Final = 1.0
STEP_STREAMS: Final = 64
"""The most streams that get their notice in one turn of the event loop."""


class Member(Protocol):
    """A Consume stream, for its notices."""

    @property
    def client_id(self) -> str:
        """Its client."""

    def note_joined(self) -> None:
        """Another client has joined: sends a notice, unless one is about to be written."""


class _Members:
    """The streams of one group and topic."""

    __slots__ = ("joined", "notifier", "streams")

    def __init__(self) -> None:
        self.streams: dict[Member, None] = {}
        self.joined: set[str] = set()
        """The clients that have joined since the last notice; of more than two, two."""
        self.notifier: asyncio.Task[None] | None = None


class JoinNotices:
    """The open Consume streams of one broker, by group and topic. Used on the event loop."""

    def __init__(self, registry: ClientRegistry) -> None:
        self._members: dict[GroupTopicKey, _Members] = {}
        registry.add_joined_listener(self._on_joined)

    def __len__(self) -> int:
        """The number of groups and topics that have streams."""
        return len(self._members)

    def add(self, pair: GroupTopicKey, stream: Member) -> None:
        """A stream of this group and topic is open."""
        members = self._members.get(pair)
        if members is None:
            members = self._members[pair] = _Members()
        members.streams[stream] = None

    def discard(self, pair: GroupTopicKey, stream: Member) -> None:
        """The stream has ended."""
        members = self._members.get(pair)
        if members is None or stream not in members.streams:
            return
        del members.streams[stream]
        if not members.streams:
            del self._members[pair]
            if members.notifier is not None:
                members.notifier.cancel()

    def _on_joined(self, client_id: str, group: str, topics: Iterable[str]) -> None:
        for topic in topics:
            members = self._members.get((group, topic))
            if members is None:
                continue
            if len(members.joined) < 2:
                members.joined.add(client_id)
            if members.notifier is None:
                notifier = asyncio.get_running_loop().create_task(_notify(members), name="join-notices")
                members.notifier = notifier


async def _notify(members: _Members) -> None:
    """Sends notices until nobody has joined for a while."""
    while members.joined:
        joined, members.joined = members.joined, set()
        streams = list(members.streams)
        for number, stream in enumerate(streams, 1):
            if stream in members.streams and joined != {stream.client_id}:
                stream.note_joined()
            if not number % STEP_STREAMS:
                await asyncio.sleep(0)
        await asyncio.sleep(NOTICE_INTERVAL_S)
    members.notifier = None
