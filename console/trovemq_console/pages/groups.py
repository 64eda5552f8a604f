"""Consumer groups: the list, and one group with its lag over time, members, settings and reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq import GroupDescription, QueueLag, TroveError
from trovemq_console.charts import spark
from trovemq_console.cluster import gather_bounded
from trovemq_console.pages.console import Console, paging, required, text
from trovemq_console.sampling import History

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
        chart=spark(history.points(("lag", name)), "lag", 420, 64),
        queue_chart=lambda lag: spark(history.points(_queue_key(name, lag)), "lag", 96, 22, before="—"),
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


def _record(history: History, name: str, lags: list[QueueLag]) -> None:
    history.add(("lag", name), sum(lag.lag for lag in lags))
    for lag in lags[:QUEUES_SHOWN]:
        history.add(_queue_key(name, lag), lag.lag)
