"""Topics: the list, one topic with its queues and settings, its messages by offset or time, and new ones."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import typer
from starlette.requests import Request
from starlette.responses import Response

from trovemq import Client, GroupDescription, Message, TopicDescription, TroveError, errors
from trovemq.cli.times import parse_moment
from trovemq.cli.topics import MessageType
from trovemq_console.charts import chart
from trovemq_console.cluster import TopicEntry, gather_bounded
from trovemq_console.pages.console import Console, number, paging, required, text
from trovemq_console.rendering import rate_text
from trovemq_console.sampling import History

MESSAGE_TYPES: Final = tuple(str(kind.value) for kind in MessageType)
MESSAGES_SHOWN: Final = 25
NEW_MAX: Final = 100
SIZES_SECONDS_MAX: Final = 2.0
"""A broker may take longer to add up a large topic for the first time. Then a later page shows the size."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in the list; `messages` is None if no broker answered."""

    entry: TopicEntry
    messages: int | None
    rate: float | None
    last_stored: int
    problem: str = ""


async def topics(console: Console, request: Request) -> Response:
    """The list, filtered and paged here."""
    wanted = text(request, "filter").strip().lower()
    system = text(request, "system") == "on"
    everything = await console.cluster.topics(system=system)
    matching = [entry for entry in everything if wanted in entry.name.lower()]
    page = paging(request, len(matching))
    shown = matching[page.first : page.last]
    client = await console.client()
    described = await gather_bounded(client.admin.describe_topic(entry.name) for entry in shown)
    history = console.sampler.history
    rows = [_row(entry, answer, history) for entry, answer in zip(shown, described, strict=True)]
    return console.respond(
        request,
        "topics.html",
        rows=rows,
        page=page,
        total=len(everything),
        has_brokers=bool((await console.cluster.state()).brokers),
        wanted=text(request, "filter"),
        system=system,
        message_types=MESSAGE_TYPES,
    )


async def topic(console: Console, request: Request) -> Response:
    """One topic."""
    name = required(request, "name")
    client = await console.client()
    described = await _with_sizes(client, name)
    groups = await groups_of(client, name)
    history = console.sampler.history
    _record(history, name, described)

    async def refresh() -> None:
        _record(history, name, await client.admin.describe_topic(name))

    console.sampler.watch(("topic", name), refresh)
    listing = await _messages(client, request, name)
    return console.respond(
        request,
        "topic.html",
        name=name,
        described=described,
        messages=depth(described),
        size=size_of(described),
        rate=history.rate(("topic", name)),
        chart=chart(history.rates(("topic", name)), "messages in a second", rate_text),
        queue_rate=lambda broker, queue: history.rate(("queue", name, broker, str(queue))),
        groups=groups,
        listing=listing,
        now=time.time_ns() // 1_000_000,
        ask=request.query_params,
        message_types=MESSAGE_TYPES,
        command=console.settings.command("topic", "describe", name, "--sizes"),
    )


async def new_messages(console: Console, request: Request) -> Response:
    """Rows of the messages stored since a time, for the live tail; the page ignores those that it has."""
    name = required(request, "name")
    since = number(request, "since") or 0
    client = await console.client()
    answer = await client.search(name, begin=since, newest_first=False, max=NEW_MAX)
    return console.respond(request, "message_rows.html", messages=answer.messages[::-1])


@dataclass(frozen=True, slots=True)
class Listing:
    """A part of a topic's messages.

    Attributes:
        mode: `newest`, `time` or `offset`.
        cursor: Where an older (by time: newer) part begins; None if there is none.
        next_offset: The same by offset.
        problem: Why there are no messages.
    """

    mode: str
    messages: tuple[Message, ...]
    cursor: str | None = None
    next_offset: int | None = None
    command: str = ""
    problem: str = ""


async def _messages(client: Client, request: Request, name: str) -> Listing:
    try:
        if text(request, "offset"):
            return await _from_offset(client, request, name)
        return await _by_time(client, request, name)
    except TroveError as error:
        return Listing("newest", (), problem=f"{error}. {error.spec.what_to_do}")


async def _by_time(client: Client, request: Request, name: str) -> Listing:
    moment = await moment_of(client, name, text(request, "at"))
    answer = await client.search(
        name,
        begin=moment or 0,
        newest_first=moment is None,
        max=MESSAGES_SHOWN,
        cursor=text(request, "cursor") or None,
    )
    return Listing("newest" if moment is None else "time", answer.messages, answer.cursor)


async def _from_offset(client: Client, request: Request, name: str) -> Listing:
    offset, queue = number(request, "offset") or 0, number(request, "queue") or 0
    found: list[Message] = []
    pulled = client.pull(name, queue_id=queue, offset=offset, broker=text(request, "broker") or None)
    async with aclosing(pulled) as messages:
        async for message in messages:
            found.append(message)
            if len(found) == MESSAGES_SHOWN:
                break
    more = found[-1].queue_offset + 1 if len(found) == MESSAGES_SHOWN else None
    return Listing("offset", tuple(found), next_offset=more)


async def moment_of(client: Client, topic: str, given: str) -> int | None:
    """Epoch ms by the clock of the topic's broker; None for "". Raises TroveError REQUEST_ILLEGAL for
    anything but a time."""
    if not given:
        return None
    try:
        moment = parse_moment(given)
        return moment.at(await client.broker_time(topic) if moment.relative else 0)
    except typer.BadParameter as error:
        raise TroveError(errors.REQUEST_ILLEGAL, error.message, field="time") from None


async def groups_of(client: Client, name: str) -> list[GroupDescription]:
    """The groups that read the topic; () if this user may not list them."""
    try:
        groups = await client.admin.groups.list_all()
    except TroveError:
        return []
    reading = {group.group: group for group in groups if name in group.topics}
    return [reading[group] for group in sorted(reading)]


async def _with_sizes(client: Client, name: str) -> list[TopicDescription]:
    """The topic; without the bytes of its queues if these take long."""
    try:
        async with asyncio.timeout(SIZES_SECONDS_MAX):
            return await client.admin.describe_topic(name, with_sizes=True)
    except TimeoutError:
        return await client.admin.describe_topic(name)


def size_of(described: list[TopicDescription]) -> int | None:
    """Bytes of the log that the messages take; None if a broker does not know them."""
    sizes = [queue.bytes for one in described for queue in one.queues]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def depth(described: list[TopicDescription]) -> int:
    """The number of messages in all queues of these brokers."""
    return sum(queue.max_offset - queue.min_offset for one in described for queue in one.queues)


def _row(entry: TopicEntry, answer: list[TopicDescription] | TroveError, history: History) -> TopicRow:
    if isinstance(answer, TroveError):
        return TopicRow(entry, None, None, 0, answer.symbol)
    _record(history, entry.name, answer)
    last = max((queue.last_store_timestamp for one in answer for queue in one.queues), default=0)
    return TopicRow(entry, depth(answer), history.rate(("topic", entry.name)), last)


def _record(history: History, name: str, described: list[TopicDescription]) -> None:
    """Records the present ends of the queues, which grow with the messages."""
    history.add(("topic", name), sum(queue.max_offset for one in described for queue in one.queues))
    for one in described:
        for queue in one.queues[:64]:
            history.add(("queue", name, one.broker, str(queue.queue_id)), queue.max_offset)
