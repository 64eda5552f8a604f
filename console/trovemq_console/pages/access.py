"""Users and rules of access, if the brokers authenticate callers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from trovemq import AccessRule, BrokerAnswers, TroveError, UserDescription
from trovemq_console.pages.console import Console


async def access(console: Console, request: Request) -> Response:
    """The page; if the brokers refuse, their reason."""
    client = await console.client()
    users = BrokerAnswers[UserDescription]()
    rules = BrokerAnswers[AccessRule]()
    problem: TroveError | None = None
    try:
        users = await client.admin.users.list_all()
        rules = await client.admin.rules.list_all()
    except TroveError as error:
        problem = error
    return console.respond(
        request,
        "access.html",
        users=users,
        rules=rules,
        missing=sorted({*users.missing, *rules.missing}),
        problem=problem,
        command=console.settings.command("user", "list"),
    )
