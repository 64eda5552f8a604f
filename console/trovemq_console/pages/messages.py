"""The result of the search box, and one message: its fields, its body, its track."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trovemq import Client, Message, MessageTrack, TrackEvent, TroveError, errors
from trovemq.cli.track import REASON_TEXTS
from trovemq_console.bodies import VIEWS, body_view
from trovemq_console.finding import TEXT_MAX, Finder
from trovemq_console.pages.console import Console, number, text
from trovemq_console.rendering import link

_DONE = {
    "acknowledged": "good",
    "consumed": "good",
    "filtered-out": "quiet",
    "skipped": "quiet",
    "dropped": "quiet",
}
_WAITING = {"ready", "in-flight", "returned", "locked", "not-reached", "delayed", "in-transaction"}


async def search(console: Console, request: Request) -> Response:
    """The result of the search box; the message itself if there is only one."""
    query, topic = text(request, "q").strip(), text(request, "topic")
    finder = Finder(console.cluster, query, topic)
    found = await finder.find()
    exact = found.kind in ("place", "id", "key")
    if exact and len(found.messages) == 1 and found.complete and not found.notes:
        return RedirectResponse(link("/message", id=found.messages[0].offset_msg_id), 303)
    status = 200 if query and (found.messages or found.topics or found.groups) else 404
    return console.respond(
        request,
        "search.html",
        200 if not query else status,
        found=found,
        topic=topic,
        cut=len(query) > TEXT_MAX,
    )


async def message(console: Console, request: Request) -> Response:
    """One whole message, and its track."""
    client = await console.client()
    one = await _asked(client, request)
    track = await _track(client, one)
    view = body_view(one.body, text(request, "view"), number(request, "at") or 0)
    return console.respond(
        request,
        "message.html",
        message=one,
        track=track if isinstance(track, MessageTrack) else None,
        track_problem=track if isinstance(track, TroveError) else None,
        steps=steps_of(track.events) if isinstance(track, MessageTrack) else [],
        view=view,
        views=VIEWS,
        level_of=level_of,
        reasons=REASON_TEXTS,
        command_line=console.settings.command("get", one.offset_msg_id),
        track_command=console.settings.command("track", one.message_id),
    )


async def body(console: Console, request: Request) -> Response:
    """The body as a file, byte for byte; browsers save it and do not show it."""
    one = await _asked(await console.client(), request)
    name = f"{one.offset_msg_id}.bin"
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "content-security-policy": "default-src 'none'; sandbox",
    }
    return Response(one.body, media_type="application/octet-stream", headers=headers)


async def _asked(client: Client, request: Request) -> Message:
    """The message of `id`, or of `topic`, `queue` and `offset`."""
    broker = text(request, "broker") or None
    if text(request, "id"):
        answer = await client.get(text(request, "id"), broker=broker)
        return answer.messages[0]
    topic = text(request, "topic")
    if not topic:
        raise TroveError(
            errors.REQUEST_ILLEGAL, "the address lacks id=…, or topic=… and offset=…", field="id"
        )
    offset = number(request, "offset")
    if offset is None:
        raise TroveError(errors.REQUEST_ILLEGAL, "the address lacks offset=…", field="offset")
    return await client.get_at(topic, number(request, "queue") or 0, offset, broker=broker)


async def _track(client: Client, one: Message) -> MessageTrack | TroveError:
    try:
        return await client.track(one.offset_msg_id)
    except TroveError as error:
        return error


@dataclass(frozen=True, slots=True)
class Step:
    """An event of the timeline, and the time since the previous one."""

    event: TrackEvent
    passed_ms: int | None


def steps_of(events: tuple[TrackEvent, ...]) -> list[Step]:
    """The timeline."""
    found: list[Step] = []
    for event in events:
        before = found[-1].event.timestamp if found else None
        found.append(Step(event, None if before is None else max(event.timestamp - before, 0)))
    return found


def level_of(reason: str) -> str:
    """The style of a reason: good, quiet, warn or bad."""
    return _DONE.get(reason, "warn" if reason in _WAITING else "bad")
