"""Consumer groups: the list, and one group with its lag over time, members, settings and reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq import Client, GroupDescription, QueueLag, TroveError, errors
from trovemq_console.charts import chart, spark
from trovemq_console.cluster import gather_bounded
from trovemq_console.pages.console import Console, paging, required, text
from trovemq_console.rendering import number_text, rate_text
from trovemq_console.sampling import History
from trovemq_proto.system_topics import DEAD_LETTER_PREFIX

GROUPS_SHOWN: Final = 25
QUEUES_SHOWN: Final = 256


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list, over all brokers."""

    name: str
    members: int
    topics: tuple[str, ...]
    orderly: bool
    lag: int | None
    in_flight: int | None
    oldest_ms: int | None
    problem: str = ""


async def groups(console: Console, request: Request) -> Response:
    """The list, filtered and paged here."""
    client = await console.client()
    wanted = text(request, "filter").strip().lower()
    by_name: dict[str, list[GroupDescription]] = {}
    for one in await client.admin.groups.list_all():
        by_name.setdefault(one.group, []).append(one)
    matching = sorted(name for name in by_name if wanted in name.lower())
    page = paging(request, len(matching), GROUPS_SHOWN)
    shown = matching[page.first : page.last]
    lags = await gather_bounded(client.admin.groups.lag(name) for name in shown)
    rows = [_row(name, by_name[name], lag) for name, lag in zip(shown, lags, strict=True)]
    return console.respond(
        request, "groups.html", rows=rows, page=page, total=len(by_name), wanted=text(request, "filter")
    )


async def group(console: Console, request: Request) -> Response:
    """One group."""
    name = required(request, "name")
    client = await console.client()
    described = await client.admin.groups.describe(name)
    lags = await client.admin.groups.lag(name)
    members = await client.admin.groups.members(name)
    history = console.sampler.history
    _record(history, name, lags)

    async def refresh() -> None:
        _record(history, name, await client.admin.groups.lag(name))

    console.sampler.watch(("group", name), refresh)
    return console.respond(
        request,
        "group.html",
        name=name,
        described=described,
        members=members,
        lags=sorted(lags, key=lambda lag: (-lag.lag, lag.topic, lag.broker, lag.queue_id))[:QUEUES_SHOWN],
        queue_count=len(lags),
        total=sum(lag.lag for lag in lags),
        in_flight=sum(lag.in_flight for lag in lags),
        oldest=max((lag.lag_ms for lag in lags), default=0),
        topics=sorted({lag.topic for lag in lags} | {topic for one in described for topic in one.topics}),
        consumed=history.rate(("consumed", name)),
        arriving=history.rate(("arriving", name)),
        dead_letters=await _dead_letters(client, name),
        chart=chart(history.points(("lag", name)), "lag", number_text),
        consumed_chart=chart(history.rates(("consumed", name)), "messages consumed a second", rate_text),
        queue_chart=lambda lag: spark(history.points(_queue_key(name, lag)), "lag", number_text, 96, 22),
        command=console.settings.command("group", "lag", name),
    )


def _row(name: str, described: list[GroupDescription], lags: list[QueueLag] | TroveError) -> GroupRow:
    topics = tuple(sorted({topic for one in described for topic in one.topics}))
    members = max(one.member_count for one in described)
    orderly = any(one.settings.orderly for one in described)
    if isinstance(lags, TroveError):
        return GroupRow(name, members, topics, orderly, None, None, None, lags.symbol)
    total, in_flight = sum(lag.lag for lag in lags), sum(lag.in_flight for lag in lags)
    return GroupRow(
        name, members, topics, orderly, total, in_flight, max((lag.lag_ms for lag in lags), default=0)
    )


def _queue_key(group: str, lag: QueueLag) -> tuple[str, ...]:
    return ("lag", group, lag.broker, lag.topic, str(lag.queue_id))


async def _dead_letters(client: Client, group: str) -> int | None:
    """How many the group has; None if this user may not see them."""
    try:
        queues = await client.queue_offsets(DEAD_LETTER_PREFIX + group)
    except TroveError as error:
        return 0 if error.spec is errors.TOPIC_NOT_FOUND else None
    return sum(queue.max_offset - queue.min_offset for queue in queues)


def _record(history: History, name: str, lags: list[QueueLag]) -> None:
    """Records the present lag and offsets, which grow with consumed and new messages."""
    history.add(("consumed", name), sum(lag.committed or 0 for lag in lags))
    history.add(("arriving", name), sum(lag.max_offset for lag in lags))
    history.add(("lag", name), sum(lag.lag for lag in lags))
    for lag in lags[:QUEUES_SHOWN]:
        history.add(_queue_key(name, lag), lag.lag)
