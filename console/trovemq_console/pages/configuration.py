"""The cluster's configuration: its owner, the copy of each broker, and what an operator should mend."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq.cli.config_problems import behind_by, newest, problems_of, unanswering
from trovemq_console.pages.console import Console, paging

LEVELS: Final = {
    "owner": "good",
    "current": "good",
    "alone": "quiet",
    "stored": "warn",
    "unknown": "warn",
}
"""Any other state is bad: the broker serves no messages, or is not what its table says."""


async def configuration(console: Console, request: Request) -> Response:
    """The page."""
    client = await console.client()
    statuses = await client.admin.config.status()
    problems = list(problems_of(statuses))
    page = paging(request, len(problems))
    return console.respond(
        request,
        "configuration.html",
        rows=[(one, behind_by(one, statuses)) for one in sorted(statuses, key=lambda one: one.broker)],
        levels=LEVELS,
        best=newest(statuses),
        problems=problems[page.first : page.last],
        page=page,
        missing=unanswering(statuses, statuses.missing),
        command=console.settings.command("cluster", "config"),
    )
