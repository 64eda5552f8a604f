"""tail: the last messages of a topic, or those since a time, and then new ones.

If the topic is deleted, tail waits for a new one of that name, and prints it from its beginning; a warning
says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption, QueueOption, TagsOption, TopicArgument
from trovemq.cli.session import Session, verb
from trovemq.cli.times import Moment, parse_moment
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.message_objects import message_fields

if TYPE_CHECKING:
    from trovemq import Client, QueueOffsets
    from trovemq_proto.records import Message

LAST_MAX: Final = 10_000
WAITING_MAX: Final = 1_000
POLL_MS: Final = 20_000
WINDOW_FACTOR: Final = 4
LOOK_S: Final = 1.0
"""How often tail looks for queues that are new."""
NOT_FOUND: Final = (errors.TOPIC_NOT_FOUND, errors.QUEUE_NOT_FOUND)
GONE: Final = (*NOT_FOUND, errors.TOPIC_RECREATED)
"""Errors of a reader whose topic, or queue, was deleted."""

_log = logging.getLogger(__name__)

LastOption = Annotated[
    int | None,
    typer.Option(
        "--last",
        "-n",
        metavar="N",
        min=0,
        max=LAST_MAX,
        help="The last N messages first, of all queues together.",
        show_default=False,
    ),
]
SinceOption = Annotated[
    Moment | None,
    typer.Option(
        "--since",
        parser=parse_moment,
        metavar="TIME",
        help="Messages stored since then first: 1h, yesterday, ISO 8601 or epoch ms.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "tail", bodies=True)(tail)


@dataclass(frozen=True, slots=True)
class Following:
    """A topic that is followed. tags: only messages with one of them. queue, broker: only this one."""

    client: Client
    topic: str
    tags: list[str] | None
    queue: int | None = None
    broker: str | None = None

    def stored(self, place: QueueOffsets, first: int, end: int) -> AsyncGenerator[Message]:
        """The messages [first, end) of one queue."""
        return self._messages(place, first, end=end)

    def coming(self, place: QueueOffsets, first: int) -> AsyncGenerator[Message]:
        """The messages of one queue from `first` on, without end."""
        return self._messages(place, first, follow=True, wait_ms=POLL_MS)

    def places(self) -> Awaitable[list[QueueOffsets]]:
        """The followed queues that exist now."""
        queue_ids = None if self.queue is None else [self.queue]
        return self.client.queue_offsets(self.topic, queue_ids=queue_ids, broker=self.broker)

    async def _messages(self, place: QueueOffsets, offset: int, **how: object) -> AsyncGenerator[Message]:
        batches = self.client.pull_batches(
            self.topic,
            queue_id=place.queue_id,
            offset=offset,
            tags=self.tags,
            broker=place.broker,
            topic_identity=place.topic_identity,
            **how,  # type: ignore[arg-type]  # one of the two above
        )
        async with aclosing(batches):
            async for batch in batches:
                for message in batch.messages():
                    yield message


async def tail(
    session: Session,
    topic: TopicArgument,
    last: LastOption = None,
    since: SinceOption = None,
    queue: QueueOption = None,
    tags: TagsOption = None,
    count: Annotated[
        int | None,
        typer.Option("--max", metavar="N", min=1, help="Stop after N messages.", show_default=False),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Everything stored first, then new messages.")
    ] = False,
    follow: Annotated[bool, typer.Option(help="Wait for new messages, until Ctrl-C.")] = True,
    broker: EveryBrokerOption = None,
) -> None:
    """Print a topic's messages as they are stored. From all its queues, until Ctrl-C."""
    if from_start and (last is not None or since is not None):
        raise typer.BadParameter("give --from-start, or --last and --since")
    if not follow and last is None and since is None and not from_start:
        raise typer.BadParameter("--no-follow needs --last, --since or --from-start")
    session.progress.off()
    printing = Printing(session, count)
    async with session.client() as client:
        following = Following(client, topic, tags, queue, broker)
        places = await session.call(following.places())
        since_ms = None
        if since is not None:
            (since_ms,) = await session.times(client, topic, since, broker=broker)
        firsts = await first_offsets(session, client, topic, places, since_ms, from_start or last is not None)
        if last is not None:
            await printing.all_of(_in_order(await _last(following, places, firsts, last)))
        elif since is not None or from_start:
            await printing.all_of(in_store_order(following, places, firsts))
        if follow and not printing.done:
            await follow_queues(following, places, printing)


async def first_offsets(
    session: Session,
    client: Client,
    topic: str,
    places: Sequence[QueueOffsets],
    since: int | None,
    from_start: bool,
) -> list[int]:
    """Where each queue begins to be shown."""
    if since is None:
        return [place.min_offset if from_start else place.max_offset for place in places]
    return await asyncio.gather(
        *(
            session.call(client.search_offset(topic, place.queue_id, since, broker=place.broker))
            for place in places
        )
    )


class Printing:
    """Prints messages to standard output, up to a limit."""

    def __init__(self, session: Session, count: int | None) -> None:
        self._session = session
        self._remaining = count

    @property
    def done(self) -> bool:
        """Whether the limit is reached."""
        return self._remaining == 0

    def one(self, message: Message) -> None:
        """Adds a message, printed with the next flush."""
        from trovemq.cli.render import message_line

        output = self._session.output
        output.item(message_fields(message.to_manifest()))
        output.show(message_line(message))
        if self._remaining is not None:
            self._remaining -= 1

    def flush(self) -> None:
        """Prints the output so far. Raises BrokenPipeError."""
        self._session.output.flush()

    async def all_of(self, messages: AsyncGenerator[Message]) -> None:
        """Prints them while they are read."""
        async with aclosing(messages):
            async for message in messages:
                self.one(message)
                self.flush()
                if self.done:
                    return


async def _in_order(messages: list[Message]) -> AsyncGenerator[Message]:
    for message in messages:
        yield message


async def _last(
    following: Following, places: Sequence[QueueOffsets], firsts: Sequence[int], last: int
) -> list[Message]:
    """The last messages of all queues, in the order of their store times."""
    found = await asyncio.gather(
        *(
            _last_of_queue(following, place, max(first, place.min_offset), last)
            for place, first in zip(places, firsts, strict=True)
        )
    )
    messages = sorted((one for queue in found for one in queue), key=lambda one: one.store_timestamp)
    return messages[len(messages) - last :] if last < len(messages) else messages


async def _last_of_queue(
    following: Following, place: QueueOffsets, first: int, last: int
) -> Sequence[Message]:
    """Reads more of the queue's end each time, since few messages may have the tags."""
    window = last
    while True:
        begin = max(first, place.max_offset - window)
        found: deque[Message] = deque(maxlen=last)
        if begin < place.max_offset and last:
            async for message in following.stored(place, begin, place.max_offset):
                found.append(message)
        if len(found) == last or begin == first:
            return found
        window *= WINDOW_FACTOR


def in_store_order(
    following: Following, places: Sequence[QueueOffsets], firsts: Sequence[int]
) -> AsyncGenerator[Message]:
    """The stored messages of all queues from these first offsets on, in the order of their store times."""
    streams = [
        following.stored(place, first, place.max_offset)
        for place, first in zip(places, firsts, strict=True)
        if first < place.max_offset
    ]
    return _merged(streams)


async def _merged(streams: Sequence[AsyncGenerator[Message]]) -> AsyncGenerator[Message]:
    """All messages of the queues in the order of their store times."""
    async with AsyncExitStack() as stack:
        for stream in streams:
            await stack.enter_async_context(aclosing(stream))
        heads = await asyncio.gather(*(anext(stream, None) for stream in streams))
        waiting = {at: head for at, head in enumerate(heads) if head is not None}
        while waiting:
            at = min(waiting, key=lambda one: (waiting[one].store_timestamp, one))
            yield waiting.pop(at)
            if (head := await anext(streams[at], None)) is not None:
                waiting[at] = head


async def follow_queues(following: Following, places: Sequence[QueueOffsets], printing: Printing) -> None:
    """Prints new messages of all queues, until the limit is reached; those of queues that appear later from
    their first message on."""
    waiting: asyncio.Queue[Message] = asyncio.Queue(WAITING_MAX)
    try:
        async with asyncio.TaskGroup() as tasks:
            followers = _Followers(following, waiting, tasks)
            for place in places:
                followers.follow(place, place.max_offset)
            looking = tasks.create_task(followers.look_for_more())
            while not printing.done:
                printing.one(await waiting.get())
                if waiting.empty():
                    printing.flush()
            looking.cancel()
            followers.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


class _Followers:
    """A task for each queue. While the topic does not exist there is none."""

    def __init__(self, following: Following, into: asyncio.Queue[Message], tasks: asyncio.TaskGroup) -> None:
        self._following = following
        self._into = into
        self._tasks = tasks
        self._by_queue: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._made_again = False  # the log says so, once for all queues

    def follow(self, place: QueueOffsets, first: int) -> None:
        """Begins with a queue."""
        self._by_queue[place.broker, place.queue_id] = self._tasks.create_task(self._put(place, first))

    def cancel(self) -> None:
        """Ends all of them."""
        for task in self._by_queue.values():
            task.cancel()

    async def look_for_more(self) -> None:
        """Looks for queues that appear, or whose topic is there again, without end."""
        missing = False
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                places = await self._following.places()
            except TroveError as error:
                if error.spec in NOT_FOUND and not missing:
                    missing = True
                    _log.warning("tail waits for topic %s: %s", self._following.topic, error)
                elif error.spec not in NOT_FOUND and not error.retriable:
                    raise
                continue
            missing = self._made_again = False
            for place in places:
                if (place.broker, place.queue_id) not in self._by_queue:
                    self.follow(place, place.min_offset)

    async def _put(self, place: QueueOffsets, first: int) -> None:
        try:
            async with aclosing(self._following.coming(place, first)) as messages:
                async for message in messages:
                    await self._into.put(message)
        except TroveError as error:
            if error.spec not in GONE:
                raise
            if error.spec is errors.TOPIC_RECREATED and not self._made_again:
                self._made_again = True
                _log.warning("broker %s: %s; it is printed from there", place.broker, error.message)
            del self._by_queue[place.broker, place.queue_id]  # a later one of that name is another queue
