"""Dead letters: the groups that have some, and those of one group."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq import Client, DeadLetter, TroveError, errors
from trovemq.cli.dead_letters import origin_topic, redeliveries
from trovemq_console.cluster import gather_bounded
from trovemq_console.pages.console import Console, number, text
from trovemq_proto.records.dead_letter_reason import KINDS

PREFIX: Final = "%DLQ%"
LETTERS_SHOWN: Final = 50
GROUPS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter, and where it was resent; "" if it was not."""

    letter: DeadLetter
    origin: str
    redeliveries: int
    reason: str
    resent: str


async def dead_letters(console: Console, request: Request) -> Response:
    """The groups that have dead letters, or the dead letters of one group."""
    client = await console.client()
    group = text(request, "group")
    if group:
        return await _of_group(console, request, client, group)
    topics = await client.admin.list_topics(include_system=True)
    names = sorted({one.topic for one in topics if one.topic.startswith(PREFIX)})
    shown = names[:GROUPS_MAX]
    offsets = await gather_bounded(client.queue_offsets(name) for name in shown)
    rows = [
        (name.removeprefix(PREFIX), sum(queue.max_offset - queue.min_offset for queue in queues))
        for name, queues in zip(shown, offsets, strict=True)
        if not isinstance(queues, TroveError)
    ]
    rows.sort(key=lambda row: (-row[1], row[0]))
    return console.respond(
        request,
        "dead_letter_groups.html",
        rows=rows,
        left_out=len(names) - len(shown),
        missing=topics.missing,
    )


async def _of_group(console: Console, request: Request, client: Client, group: str) -> Response:
    offset, broker = number(request, "offset") or 0, text(request, "broker") or None
    reason = text(request, "reason")
    letters: list[DeadLetter] = []
    more: DeadLetter | None = None
    missing: list[str] = []
    async with aclosing(client.admin.groups.dead_letters(group, offset=offset, broker=broker)) as found:
        try:
            async for letter in found:
                if reason and not letter.reason.matches(reason):
                    continue
                if len(letters) == LETTERS_SHOWN:
                    more = letter
                    break
                letters.append(letter)
        except TroveError as error:
            if broker or error.spec is not errors.BROKER_UNREACHABLE or "brokers" not in error.fields:
                raise
            missing = error.fields["brokers"].split(", ")
    resent = await _resent(client, group, letters)
    rows = [
        LetterRow(
            letter,
            origin_topic(letter) or "",
            redeliveries(letter),
            str(letter.reason),
            resent.get((letter.broker, letter.offset), ""),
        )
        for letter in letters
    ]
    return console.respond(
        request,
        "dead_letters.html",
        group=group,
        rows=rows,
        brokers=sorted({letter.broker for letter in letters}),
        more=more,
        missing=missing,
        offset=offset,
        reason=reason,
        kinds=KINDS,
        broker=broker,
        command=console.settings.command("dlq", "list", group),
    )


async def _resent(client: Client, group: str, letters: list[DeadLetter]) -> dict[tuple[str, int], str]:
    """The copies of those that were resent, by broker and offset."""
    found: dict[tuple[str, int], str] = {}
    for broker in dict.fromkeys(letter.broker for letter in letters):
        offsets = [letter.offset for letter in letters if letter.broker == broker]
        for one in await client.admin.groups.resent_dead_letters(group, offsets, broker=broker):
            if not one.error:
                found[broker, one.offset] = one.offset_msg_id
    return found
