"""track: the track of one message, and why a group has not consumed it yet."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import typer

from trovemq.cli.arguments import (
    BrokerOption,
    MessageArgument,
    SearchedTopicOption,
    parse_offset,
    parse_queue,
)
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.time_text import format_time

if TYPE_CHECKING:
    from trovemq import ConsumptionStatus, MessageTrack

_NAMES: Final = {
    "queue_id": "queueId",
    "queue_offset": "queueOffset",
    "physical_offset": "commitLogOffset",
    "offset_msg_id": "offsetMsgId",
    "message_id": "messageId",
    "tag": "tags",
    "client_id": "clientId",
}
REASON_TEXTS: Final = {
    "acknowledged": "consumed",
    "consumed": "consumed",
    "dead": "not consumed: it is a dead letter",
    "filtered-out": "filtered out by the group's filter",
    "skipped": "passed by: its offset was set after it",
    "dropped": "dropped: filtered away later, or unreadable",
    "in-flight": "in flight",
    "returned": "returned, is delivered again",
    "ready": "comes with the next receive",
    "locked": "waits for its message group",
    "not-reached": "not reached yet",
    "no-member": "no consumer is connected to receive it",
    "delayed": "waits for its time",
    "recalled": "recalled: it is not delivered",
    "in-transaction": "its transaction is open",
    "rolled-back": "its transaction was rolled back: it is not delivered",
    "given-up": "its transaction was given up: it is not delivered",
    "gone": "gone",
}

_IN_LINE: Final = ("not-reached", "no-member")


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "track")(track)
    verb(app, "biography", hidden=True)(track)  # the former name, until the first release


async def track(
    session: Session,
    identifier: MessageArgument,
    topic: SearchedTopicOption = None,
    broker: BrokerOption = None,
) -> None:
    """Show the track of a message. It says, too, why a group has not consumed it yet."""
    name: str | tuple[str, int, int]
    if len(identifier) == 1:
        name = identifier[0]
    elif len(identifier) == 3 and topic is None:
        name = (identifier[0], parse_queue(identifier[1]), parse_offset(identifier[2]))
    else:
        raise typer.BadParameter("give one ID, or TOPIC QUEUE OFFSET")
    async with session.client() as client:
        try:
            found = await session.call(client.track(name, topic, broker=broker))
        except TroveError as error:
            if error.spec is not errors.MESSAGE_NOT_FOUND or not isinstance(name, str):
                raise
            hint = f"{error.message}. Is it a key? This gives ids: trovemq query {topic or 'TOPIC'} {name}"
            raise TroveError(error.spec, hint, **error.fields) from None
    for kind, rows in (("copy", found.copies), ("event", found.events), ("status", found.statuses)):
        for row in rows:
            session.output.item({"type": kind, **_fields(asdict(row))})
    session.output.note(complete=found.complete, missing=list(found.unreachable), notes=list(found.notes))
    session.note_unseen(broker)
    for note in found.notes:
        session.output.remark(note)
    if not session.output.objects:
        _show(session, found)


def _fields(values: dict[str, object]) -> dict[str, object]:
    return {_NAMES.get(name) or _camel(name): value for name, value in values.items()}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _show(session: Session, found: MessageTrack) -> None:
    from rich.text import Text

    for number in sorted({copy.message for copy in found.copies}):
        copies = [copy for copy in found.copies if copy.message == number]
        first = copies[0]
        session.output.show(Text(_printable(f"{first.message_id or first.offset_msg_id} on {first.broker}")))
        session.output.show(Text(""))
        _show_timeline(session, found, number)
        session.output.show(Text(""))
        _show_statuses(session, [one for one in found.statuses if one.message == number])


def _show_timeline(session: Session, found: MessageTrack, number: int) -> None:
    from trovemq.cli.render import table

    rows = [
        (
            format_time(event.timestamp),
            event.kind if event.count == 1 else f"{event.kind} x{event.count}",
            _printable(event.group or "-"),
            event.attempt or None,
            _printable(event.client_id or "-"),
            format_time(event.until),
            _printable(f"{event.topic}/{event.queue_id}@{event.queue_offset}"),
            _printable(event.detail),
        )
        for event in found.events
        if event.message == number
    ]
    columns = ("time", "what", "group", "attempt", "consumer", "until", "place", "detail")
    session.output.show(table(columns, rows, numbers=("attempt",)))


def _show_statuses(session: Session, statuses: list[ConsumptionStatus]) -> None:
    from rich.text import Text

    from trovemq.cli.render import table

    if not statuses:
        session.output.show(Text("No group reads its topic."))
        return
    open_ones = [one for one in statuses if not one.consumed]
    if open_ones:
        rows = [
            (
                _printable(one.group),
                one.reason,
                _why(one),
                format_time(one.until),
                one.attempt or None,
                f"{'≈' if one.ahead_estimated else ''}{one.ahead:,}" if one.reason in _IN_LINE else None,
                f"{one.subscribed} of {one.online}",
                _printable(one.client_id or "-"),
            )
            for one in open_ones
        ]
        columns = ("not consumed by", "reason", "why", "until", "attempt", "ahead", "members", "consumer")
        session.output.show(table(columns, rows, numbers=("attempt", "ahead")))
    if done := [one for one in statuses if one.consumed]:
        if open_ones:
            session.output.show(Text(""))
        rows_done = [
            (_printable(one.group), one.reason, _why(one), format_time(one.until), one.attempt or None)
            for one in done
        ]
        names = ("completed by", "reason", "why", "at", "attempt")
        session.output.show(table(names, rows_done, numbers=("attempt",)))


def _why(status: ConsumptionStatus) -> str:
    said = REASON_TEXTS.get(status.reason, status.reason)
    if status.reason == "filtered-out" and status.filter:
        said = f"filtered out by the group's filter {status.filter}"
    return _printable(f"{said} ({status.detail})" if status.detail else said)


def _printable(text: str) -> str:
    from trovemq.cli.render import printable

    return printable(text)
