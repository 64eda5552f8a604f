"""The cluster's configuration: its owner, the copy of each broker, and the entries to mend."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq.cli.config_problems import lacked_versions, newest, problems_of, unanswering
from trovemq_console.pages.console import Console, paging

LEVELS: Final = {
    "owner": "good",
    "current": "good",
    "alone": "quiet",
    "stored": "warn",
    "unknown": "warn",
}
"""Any other state is bad: the broker serves no messages, or another one than its table names owns it."""


async def configuration(console: Console, request: Request) -> Response:
    """The page."""
    client = await console.client()
    statuses = await client.admin.config.status()
    problems = list(problems_of(statuses))
    page = paging(request, len(problems))
    return console.respond(
        request,
        "configuration.html",
        rows=[(one, lacked_versions(one, statuses)) for one in sorted(statuses, key=lambda one: one.broker)],
        levels=LEVELS,
        best=newest(statuses),
        problems=problems[page.first : page.last],
        page=page,
        missing=unanswering(statuses, statuses.missing),
        command=console.settings.command("cluster", "config"),
    )
