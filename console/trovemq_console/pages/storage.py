"""Storage: each broker's log and indexes, retention, and the topics that hold the disk."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq import Client, TroveError
from trovemq_console.cluster import HOLDING_KEPT_S, BrokerAnswer, gather_bounded
from trovemq_console.pages.console import Console

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
    holding, age_s = await console.cluster.holding()
    return console.respond(
        request,
        "storage.html",
        answers=answers,
        rules=[{} if isinstance(one, TroveError) else one for one in rules],
        holds=holding.topics,
        left_out=holding.left_out,
        age_s=int(age_s),
        age_max_s=int(HOLDING_KEPT_S),
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
