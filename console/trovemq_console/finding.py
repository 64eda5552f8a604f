"""The messages, topics and groups that a text in the search box may name.

| text                                   | found                                                        |
|----------------------------------------|--------------------------------------------------------------|
| `TOPIC QUEUE OFFSET`, `TOPIC/2/17`     | the message at that place                                    |
| an offsetMsgId or a message id         | the message, or all with that message id                     |
| a key                                  | the newest messages with it, of one topic or of many         |
| `prefix*`, or if nothing else was found | messages whose keys or message ids begin with it            |
| a time (epoch ms, ISO 8601, `1h`, `yesterday`) | the first messages stored at or after it             |
| a part of a name                       | topics and groups with it                                    |
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import typer

from trovemq import Client, Message, QueryAnswer, SearchAnswer, TroveError, Where, errors
from trovemq.cli.times import Moment, parse_moment
from trovemq_console.cluster import Cluster, TopicEntry, gather_bounded

TEXT_MAX: Final = 1_024
SHOWN_MAX: Final = 50
TOPICS_MAX: Final = 64
NAMES_MAX: Final = 12
_PLACE: Final = re.compile(r"([%|\w-]{1,127})[ /:](\d{1,9})[ /:](\d{1,19})", re.ASCII)
_ABSENT: Final = frozenset({"MESSAGE_NOT_FOUND", "MESSAGE_ID_ILLEGAL", "KEY_ILLEGAL", "OFFSET_OUT_OF_RANGE"})


@dataclass
class Finding:
    """The answer.

    Attributes:
        kind: How the messages were found: `place`, `id`, `key`, `prefix`, `time`; "" for no message.
        messages: The messages, newest first (by time: oldest first).
        complete: There are no others, and every broker answered.
        notes: Gaps, in words.
    """

    kind: str = ""
    messages: tuple[Message, ...] = ()
    complete: bool = True
    notes: list[str] = field(default_factory=list)
    topics: list[TopicEntry] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    moment: int | None = None

    def add(self, kind: str, messages: list[Message], complete: bool = True) -> bool:
        """Keeps the messages. Returns whether there are any."""
        if messages:
            self.kind, self.messages = kind, tuple(messages[:SHOWN_MAX])
            self.complete = self.complete and complete and len(messages) <= SHOWN_MAX
        return bool(messages)


class Finder:
    """One search.

    Args:
        cluster: The cluster to search.
        text: The text as it was typed.
        topic: Only this topic; empty: all topics.
    """

    def __init__(self, cluster: Cluster, text: str, topic: str = "") -> None:
        self._cluster = cluster
        self._text = text.strip()[:TEXT_MAX]
        self._topic = topic
        self.found = Finding()

    async def find(self) -> Finding:
        """Tries the meanings in turn, the exact ones first. Raises TroveError if no server can be reached."""
        client = await self._cluster.client()
        if self._text:
            await asyncio.gather(self._names(client), self._messages(client))
            for lost in (await self._cluster.state()).lost:
                self._note_gap(f"{lost.name} is lost: its messages were not searched")
        return self.found

    async def _messages(self, client: Client) -> None:
        if self._text.endswith("*"):
            await self._by_prefix(client, self._text.rstrip("*"))
            return
        if await self._by_place(client) or await self._by_id(client) or await self._by_key(client):
            return
        moment = moment_of(self._text)
        if moment is not None:
            await self._by_time(client, moment)
        elif " " not in self._text:
            await self._by_prefix(client, self._text)

    async def _by_place(self, client: Client) -> bool:
        match = _PLACE.fullmatch(self._text)
        if match is None:
            return False
        try:
            message = await client.get_at(match[1], int(match[2]), int(match[3]))
        except TroveError as error:
            self.found.notes.append(f"No message at that place: {error.message}")
            return False
        return self.found.add("place", [message])

    async def _by_id(self, client: Client) -> bool:
        if " " in self._text:
            return False
        try:
            answer = await client.get(self._text, topic=self._topic or None)
        except TroveError as error:
            if error.symbol not in _ABSENT:
                self.found.notes.append(f"Not looked up by id: {error}")
            return False
        self._note_unreachable(answer.unreachable)
        return self.found.add("id", list(answer.messages), not answer.more)

    async def _by_key(self, client: Client) -> bool:
        return await self._of_topics(
            "key", lambda name, most: client.query(name, self._text, max=most), newest_first=True
        )

    async def _by_prefix(self, client: Client, prefix: str) -> bool:
        if not prefix:
            return False
        where = Where.key_prefix(prefix) | Where.message_id_prefix(prefix)
        return await self._search(client, "prefix", where, 0, newest_first=True)

    async def _by_time(self, client: Client, moment: Moment) -> bool:
        topics = await self._topics_asked()
        if moment.relative and topics:
            begin = moment.at(await client.broker_time(topics[0]))
        else:
            begin = moment.here()
        self.found.moment = begin
        return await self._search(client, "time", None, begin, newest_first=False)

    async def _search(
        self, client: Client, kind: str, where: Where | None, begin: int, *, newest_first: bool
    ) -> bool:
        def ask(name: str, most: int) -> Awaitable[SearchAnswer]:
            return client.search(name, where, begin=begin, newest_first=newest_first, max=most)

        return await self._of_topics(kind, ask, newest_first=newest_first)

    async def _of_topics(
        self,
        kind: str,
        ask: Callable[[str, int], Awaitable[QueryAnswer | SearchAnswer]],
        *,
        newest_first: bool,
    ) -> bool:
        """The answers of all topics, joined. `ask` takes a topic and the most messages that it may answer."""
        names = await self._topics_asked()
        most = SHOWN_MAX if len(names) == 1 else 20
        answers = await gather_bounded(ask(name, most) for name in names)
        messages: list[Message] = []
        complete = True
        for answer in answers:
            if isinstance(answer, TroveError):
                self._note(answer)
                continue
            messages += answer.messages
            complete = complete and answer.complete
            self._note_unreachable(answer.unreachable)
        messages.sort(key=lambda message: message.store_timestamp, reverse=newest_first)
        return self.found.add(kind, messages, complete)

    async def _topics_asked(self) -> list[str]:
        """The given topic, else the first ones by name."""
        if self._topic:
            return [self._topic]
        topics = await self._cluster.topics()
        if len(topics) > TOPICS_MAX:
            self._note_gap(f"{TOPICS_MAX} of {len(topics):,} topics were searched by key and time: name one")
        return [topic.name for topic in topics[:TOPICS_MAX]]

    async def _names(self, client: Client) -> None:
        """Topics and groups with the text in their names."""
        text = self._text.rstrip("*").lower()
        if not text:
            return
        topics = await self._cluster.topics()
        self.found.topics = [topic for topic in topics if text in topic.name.lower()][:NAMES_MAX]
        try:
            groups = await client.admin.groups.list_all()
        except TroveError as error:
            self._note(error)
            return
        self._note_unreachable(groups.missing)
        names = sorted({group.group for group in groups if text in group.group.lower()})
        self.found.groups = names[:NAMES_MAX]

    def _note(self, error: TroveError) -> None:
        if error.spec not in (errors.TOPIC_NOT_FOUND, errors.KEY_ILLEGAL):
            self._note_gap(str(error))

    def _note_unreachable(self, brokers: tuple[str, ...]) -> None:
        for broker in brokers:
            self._note_gap(f"{broker} did not answer: it may have more")

    def _note_gap(self, text: str) -> None:
        if text not in self.found.notes:
            self.found.notes.append(text)
        self.found.complete = False


def moment_of(text: str) -> Moment | None:
    """A time in a form of the command line; None for anything else."""
    if text.isdigit() and len(text) != 13:
        return None  # a number of another length is more likely a key
    try:
        return parse_moment(text)
    except typer.BadParameter:
        return None
