"""Storage: each broker's log and indexes, retention, and the topics that hold the disk."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq import Client, TopicDescription, TroveError
from trovemq_console.cluster import BrokerAnswer, gather_bounded
from trovemq_console.pages.console import Console

HOLDING_MAX: Final = 100
UNTIL_ACKNOWLEDGED: Final = "until_acknowledged"
RETENTION_SETTINGS: Final = (
    "reserved_time_ms",
    "disk_used_percent_max",
    "disk_warning_percent",
    "clean_forcibly_enable",
    "disk_forcible_percent",
)


async def storage(console: Console, request: Request) -> Response:
    """The page."""
    client = await console.client()
    answers = await console.cluster.brokers()
    rules = await gather_bounded(_retention(client, answer) for answer in answers)
    listed = await client.admin.list_topics()
    names = sorted({one.topic for one in listed if one.options.get("retention") == UNTIL_ACKNOWLEDGED})
    described = await gather_bounded(client.admin.describe_topic(name) for name in names[:HOLDING_MAX])
    holds: list[TopicDescription] = [
        one for answer in described if not isinstance(answer, TroveError) for one in answer
    ]
    holds.sort(key=lambda one: -(one.hold.bytes if one.hold else 0))
    return console.respond(
        request,
        "storage.html",
        answers=answers,
        rules=[{} if isinstance(one, TroveError) else one for one in rules],
        holds=holds,
        left_out=max(len(names) - HOLDING_MAX, 0),
        command=console.settings.command("stats"),
        scrub=console.settings.command("store", "scrub"),
        backup=console.settings.command("store", "backup", "/backups/today"),
    )


async def _retention(client: Client, answer: BrokerAnswer) -> dict[str, str]:
    """The broker's settings of retention; {} for a broker that did not answer before. Raises TroveError, for
    example if the user has no right to read settings."""
    if answer.counters is None:
        return {}
    found = await client.admin.brokers.settings(*RETENTION_SETTINGS, broker=answer.info.name)
    return {one.name: one.value for one in found}
