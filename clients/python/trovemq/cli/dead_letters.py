"""dlq list|show|resend: messages that a group could not consume."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import BrokerOption, EveryBrokerOption, GroupArgument, YesOption, parse_offset
from trovemq.cli.columns import Column, Columns
from trovemq.cli.figures import counted
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.message_objects import message_fields

if TYPE_CHECKING:
    from trovemq import Client, DeadLetter, DeadLetterReason, ResentDeadLetter

app = typer.Typer(help="Dead letters of a consumer group: list, show, resend.", no_args_is_help=True)

LIST_MAX_DEFAULT: Final = 64
TABLE_ROWS_MAX: Final = 500
RESEND_AT_ONCE: Final = 100
STEPS_A_SECOND: Final = 10
ORIGIN_TOPIC_PROPERTIES: Final = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")

ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason",
        metavar="R",
        help="Only these: exception, explicit, returned or expired; a type of exception; or a whole text.",
        show_default=False,
    ),
]
OffsetOption = Annotated[
    int | None,
    typer.Option(
        "--offset", metavar="O", parser=parse_offset, help="From this offset on.", show_default=False
    ),
]


@verb(app, "list", bodies=True)
async def list_(
    session: Session,
    group: GroupArgument,
    offset: OffsetOption = None,
    count: Annotated[int, typer.Option("--max", metavar="N", min=1, help="How many.")] = LIST_MAX_DEFAULT,
    reason: ReasonOption = None,
    broker: EveryBrokerOption = None,
) -> None:
    """List the dead letters of a group, the oldest first."""
    found: list[DeadLetter] = []
    reasons: Counter[str] = Counter()
    async with session.client() as client:
        letters = client.admin.groups.dead_letters(group, offset=offset or 0, broker=broker)
        shown = 0
        async with aclosing(_reachable(session, letters)) as all_of_them:
            async for letter in all_of_them:
                if reason is not None and not letter.reason.matches(reason):
                    continue
                if shown == count:
                    session.output.note(complete=False)
                    session.output.remark(f"there are more: add --max N or --offset {letter.offset}")
                    break
                shown += 1
                reasons[short_reason(letter)] += 1
                found.append(letter)
                if len(found) == TABLE_ROWS_MAX:
                    await _show(session, client, group, found)
                    found.clear()
        await _show(session, client, group, found)
    session.note_unseen(broker)
    if not shown and not session.away.names("missing"):
        of_reason = "" if reason is None else f" of reason {reason}"
        session.output.remark(f"group {group} has no dead letters{of_reason}")
    elif len(reasons) > 1:
        session.output.remark(", ".join(f"{number:,} {name}" for name, number in reasons.most_common()))


async def _reachable(
    session: Session, letters: AsyncGenerator[DeadLetter, None]
) -> AsyncGenerator[DeadLetter, None]:
    """The letters of the brokers that answer; the others are named."""
    async with aclosing(session.each(letters)) as all_of_them:
        try:
            async for letter in all_of_them:
                yield letter
        except TroveError as error:
            if "brokers" not in error.fields or error.spec is not errors.BROKER_UNREACHABLE:
                raise
            session.away.add("missing", error.fields["brokers"].split(", "))


async def _show(session: Session, client: Client, group: str, letters: Sequence[DeadLetter]) -> None:
    copies: dict[tuple[str, int], str] = {}
    for broker in dict.fromkeys(letter.broker for letter in letters):
        offsets = [letter.offset for letter in letters if letter.broker == broker]
        resent = await session.call(client.admin.groups.resent_dead_letters(group, offsets, broker=broker))
        copies |= {(broker, one.offset): one.offset_msg_id for one in resent if not one.error}
    for letter in letters:
        session.output.item({**letter_fields(letter), "resentAs": copies.get((letter.broker, letter.offset))})
    if not session.output.objects and letters:
        _show_table(session, letters, copies)


def _show_table(
    session: Session, letters: Sequence[DeadLetter], copies: Mapping[tuple[str, int], str]
) -> None:
    from trovemq.cli.render import body_preview, printable, table
    from trovemq_proto.time_text import format_time

    rows = [
        (
            letter.broker,
            letter.offset,
            format_time(letter.message.store_timestamp),
            printable(origin_topic(letter) or "-"),
            redeliveries(letter),
            printable(short_reason(letter)),
            "yes" if (letter.broker, letter.offset) in copies else "-",
            printable(" ".join(letter.message.keys) or "-"),
            printable(letter.message.message_id),
            body_preview(letter.message.body),
        )
        for letter in letters
    ]
    columns = ("broker", "offset", "since", "topic", "redeliveries", "reason", "resent", "keys", "id", "body")
    session.output.show(table(columns, rows, numbers=("offset", "redeliveries")))


def letter_fields(letter: DeadLetter) -> dict[str, object]:
    """The JSON object of a dead letter: the message's own, and where it came from."""
    return {
        "offset": letter.offset,
        "originTopic": origin_topic(letter),
        "broker": letter.broker,
        **reason_fields(letter.reason),
        **message_fields(letter.message.to_manifest()),
    }


def reason_fields(reason: DeadLetterReason) -> dict[str, object]:
    """The JSON fields of a reason."""
    return {
        "reason": reason.kind or None,
        "error": reason.error or None,
        "reasonText": reason.text or None,
        "deliveredTimestamps": list(reason.times),
    }


def short_reason(letter: DeadLetter) -> str:
    """The kind, and the type of the exception without its modules; "-" if it is not known."""
    reason = letter.reason
    return f"{reason.kind} {reason.error.rpartition('.')[2]}".strip() or "-"


def origin_topic(letter: DeadLetter) -> str | None:
    """The topic that it was consumed from; None if that is unknown."""
    properties = letter.message.properties
    return next((properties[name] for name in ORIGIN_TOPIC_PROPERTIES if properties.get(name)), None)


def redeliveries(letter: DeadLetter) -> int:
    """How often it was redelivered: as in RocketMQ, a dead letter counts its first delivery, too."""
    return max(letter.message.reconsume_times - 1, 0)


@verb(app, "show", bodies=True)
async def show(
    session: Session,
    group: GroupArgument,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", parser=parse_offset, show_default=False)],
    broker: BrokerOption = None,
) -> None:
    """Show one dead letter whole."""
    from trovemq import DeadLetter

    async with session.client() as client:
        message = await session.call(client.get_at(f"%DLQ%{group}", 0, offset, broker=broker))
    letter = DeadLetter(broker or "", offset, message)
    session.output.item({**letter_fields(letter), "broker": broker})
    if session.output.objects:
        return
    from trovemq.cli.render import card, message_card, printable
    from trovemq_proto.time_text import format_time

    session.output.show(message_card(message))
    session.output.show(
        card(
            {
                "came from": printable(origin_topic(letter) or "-"),
                "redeliveries": redeliveries(letter),
                "reason": printable(str(letter.reason) or "-"),
                "delivered": ", ".join(map(format_time, letter.reason.times)) or "-",
            }
        )
    )


@verb(app, "resend")
async def resend(
    session: Session,
    group: GroupArgument,
    offsets: Annotated[
        list[int] | None,
        typer.Option(
            "--offset", metavar="O", parser=parse_offset, help="This one (repeatable).", show_default=False
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter of the group.")] = False,
    reason: ReasonOption = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", metavar="N", min=0.01, help="At most N a second; else all at once.", show_default=False
        ),
    ] = None,
    yes: YesOption = False,
    broker: EveryBrokerOption = None,
) -> None:
    """Send dead letters to their topic again. Each once; its result is shown, and it stays where it is."""
    if everything + bool(offsets) + (reason is not None) != 1:
        raise typer.BadParameter("give --all, --reason R, or --offset O (repeatable)")
    async with session.client() as client:
        chosen = await _chosen(session, client, group, sorted(set(offsets or [])), reason, broker)
        count = sum(len(offsets) for offsets in chosen.values())
        session.confirm(f"Send {counted(count, 'message')} again?", yes=yes)
        results: list[ResentDeadLetter] = []
        for name, wanted in chosen.items():
            results += await _resend_paced(session, client, group, name, wanted, rate)
    show_results(session, results)


async def _chosen(
    session: Session,
    client: Client,
    group: str,
    offsets: list[int],
    reason: str | None,
    broker: str | None,
) -> dict[str | None, list[int]]:
    """Offsets by broker: the given ones, or all that exist now and have the reason."""
    if offsets:
        return {broker: offsets}
    found: dict[str | None, list[int]] = {}
    letters = client.admin.groups.dead_letters(group, broker=broker)
    async with aclosing(_reachable(session, letters)) as all_of_them:
        async for letter in all_of_them:
            if reason is None or letter.reason.matches(reason):
                found.setdefault(letter.broker, []).append(letter.offset)
    return found


async def _resend_paced(
    session: Session, client: Client, group: str, broker: str | None, offsets: list[int], rate: float | None
) -> list[ResentDeadLetter]:
    """Resends the letters at the rate. A failure of a whole call ends it: the error names the messages sent
    until then."""
    results: list[ResentDeadLetter] = []
    clock = asyncio.get_running_loop()
    begin = clock.time()
    for part in _parts(offsets, rate):
        if rate is not None:
            await asyncio.sleep(max(begin + len(results) / rate - clock.time(), 0))
        try:
            session.progress.at(len(results), len(offsets), "sending dead letters again")
            results += await session.call(client.admin.groups.resend_dead_letters(group, part, broker=broker))
        except TroveError as error:
            done = [result.offset for result in results if not result.error]
            session.output.note(resent=done)
            if done:
                session.output.remark(f"sent until then: offsets {done}")
            raise error
    return results


def _parts(offsets: list[int], rate: float | None) -> Iterator[list[int]]:
    """The messages of each call: with a rate about a tenth of a second's share."""
    size = RESEND_AT_ONCE if rate is None else max(1, min(RESEND_AT_ONCE, int(rate / STEPS_A_SECOND)))
    for first in range(0, len(offsets), size):
        yield offsets[first : first + size]


def show_results(session: Session, results: Sequence[ResentDeadLetter]) -> None:
    """Shows the result of each. Raises TroveError if some could not be sent: then the error's fields have the
    results."""
    session.show_list(results, _RESENT)
    failed = [result for result in results if result.error]
    before = sum(result.again for result in results)
    sent = len(results) - len(failed) - before
    session.output.note(resent=sent, before=before, failed=len(failed))
    session.output.remark(f"{sent:,} sent, {before:,} had been sent before, {len(failed):,} not")


def _result(result: ResentDeadLetter) -> str:
    if result.error:
        return f"{result.error}: {result.error_message}"
    return "had been sent before" if result.again else "sent"


_RESENT: Final[Columns[ResentDeadLetter]] = Columns(
    Column("offset", "offset", lambda result: result.offset, number=True),
    Column(
        "topic",
        "topic",
        lambda result: result.topic or None,
        lambda result: result.topic or "-",
        escaped=True,
    ),
    Column("offsetMsgId", "offsetMsgId", lambda result: result.offset_msg_id or None),
    Column("error", None, lambda result: result.error or None),
    Column("errorMessage", None, lambda result: result.error_message or None),
    Column("again", "result", lambda result: result.again, _result, escaped=True),
    Column("broker", "broker", lambda result: result.broker, place=0),
)
