"""Acts: everything that changes something. Each must be confirmed, and shows the command that does the same.

The first POST shows the effect; the second one, from that page, makes the change. Without `--allow-changes`
both are refused. Forms carry the session's token; see `guard` for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq import TroveError, errors
from trovemq_console.guard import session_of
from trovemq_console.pages import access_acts, group_acts, message_acts, topic_acts
from trovemq_console.pages.act_parts import Act
from trovemq_console.pages.console import Console
from trovemq_console.pages.forms import read_form

ACTS: Final[Mapping[str, Act]] = {
    **message_acts.ACTS,
    **topic_acts.ACTS,
    **group_acts.ACTS,
    **access_acts.ACTS,
}


async def act(console: Console, request: Request) -> Response:
    """Shows an act's preview, or does it."""
    chosen = ACTS.get(request.path_params["name"])
    if chosen is None:
        raise TroveError(errors.REQUEST_ILLEGAL, "there is no such act")
    if not console.settings.allow_changes:
        return console.respond(request, "read_only.html", 403, title=chosen.title)
    form = await read_form(request)
    if not console.sessions.is_form_token(session_of(request), form.text("token")):
        return console.respond(request, "expired.html", 403, title=chosen.title)
    if chosen.shows_secret and not console.settings.may_show_secrets:
        return console.respond(request, "no_secret.html", 403, title=chosen.title)
    client = await console.client()
    if form.text("confirmed") != "yes":
        preview = await chosen.preview(client, form, console.settings)
        values: dict[str, Any] = {
            "preview": preview,
            "form": preview.form or form,
            "action": request.url.path,
        }
        return console.respond(request, "confirm.html", title=chosen.title, **values)
    try:
        outcome = await chosen.perform(client, form)
    except TroveError as error:
        if await _has_several_brokers(console):
            error.add_note("Brokers that answered before may have made the change: look at each of them.")
        raise
    finally:
        console.cluster.expire()
    return console.respond(request, "outcome.html", title=chosen.title, outcome=outcome)


async def _has_several_brokers(console: Console) -> bool:
    with suppress(TroveError):
        return len((await console.cluster.state()).brokers) > 1
    return False
