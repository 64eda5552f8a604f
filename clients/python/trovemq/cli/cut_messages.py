"""cluster cut-records --resend: sends the messages among cut records to their topics again.

A message keeps its message id. It is sent only if the cluster has no message with that id in its topic: so
a run may be repeated, messages that several nodes have cut are sent once, and one that its sender has sent
again is not doubled. The look-up is exact, and needs no note of sent messages, which would be lost with a
node. Records of the broker (events, timers, half messages), or without a message id, are not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trovemq.cli.columns import Column, Columns
from trovemq.cli.figures import counted
from trovemq.cli.session import Session
from trovemq.client import Client
from trovemq.models.replica import CutMessage, CutRecords
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import PROPERTY_SHARDING_KEY, Message
from trovemq_proto.system_topics import is_system_topic

WANTED: Final = "to be sent"
SENT: Final = "sent"
PRESENT: Final = "the topic has it"
OF_BROKER: Final = "a record of the broker's own"
WITHOUT_ID: Final = "no message id: it cannot be known whether the topic has it"


@dataclass(frozen=True, slots=True)
class _Cut:
    """One message of one node, and its result."""

    node: str
    cut: CutMessage
    state: str
    error: TroveError | None = field(default=None)

    @property
    def message(self) -> Message:
        return self.cut.message


async def resend_cut(
    session: Session, client: Client, files: Sequence[CutRecords], group: str | None, *, yes: bool
) -> None:
    """Shows the messages, asks, sends those that their topics lack, in the order of the log, and shows the
    result of each."""
    found = await _looked_up(session, client, await _messages(session, client, files, group))
    wanted = sum(one.state == WANTED for one in found)
    if wanted and not yes:
        session.show_table(_MESSAGES, map(_MESSAGES.row, found))
        session.confirm(f"Send {counted(wanted, 'message')} again?", yes=yes)
    results = [await _sent(session, client, one) if one.state == WANTED else one for one in found]
    session.show_list(results, _MESSAGES)
    sent = sum(one.state == SENT for one in results)
    present = sum(one.state == PRESENT for one in results)
    failed = [one for one in results if one.error is not None]
    skipped = len(results) - sent - present - len(failed)
    session.output.note(resent=sent, before=present, failed=len(failed), skipped=skipped)
    session.output.remark(
        f"{sent:,} sent, {present:,} are in their topics, {skipped:,} skipped, {len(failed):,} failed"
    )


async def _messages(
    session: Session, client: Client, files: Sequence[CutRecords], group: str | None
) -> list[_Cut]:
    found: list[_Cut] = []
    for cut in files:
        offset = 0
        while True:
            call = client.admin.replicas.cut_messages(cut, offset=offset, group=group)
            messages, offset = await session.call(call)
            if not messages:
                break
            found += [_Cut(cut.node, one, _first_state(one.message)) for one in messages]
    return found


def _first_state(message: Message) -> str:
    if is_system_topic(message.topic):
        return OF_BROKER
    return WANTED if message.unique_key else WITHOUT_ID


async def _looked_up(session: Session, client: Client, found: Sequence[_Cut]) -> list[_Cut]:
    """Of the messages to be sent, the ones that their topics lack; each once."""
    seen: set[tuple[str, str | None]] = set()
    made = []
    for number, one in enumerate(found):
        session.progress.at(number, len(found), "looking for the messages in their topics")
        key = (one.message.topic, one.message.message_id)
        if one.state == WANTED and (key in seen or await _is_present(session, client, one.message)):
            made.append(replace(one, state=PRESENT))
            continue
        if one.state == WANTED:
            seen.add(key)
        made.append(one)
    return made


async def _is_present(session: Session, client: Client, message: Message) -> bool:
    try:
        await session.call(client.get(message.message_id, topic=message.topic))
    except TroveError as error:
        if error.spec in (errors.MESSAGE_NOT_FOUND, errors.TOPIC_NOT_FOUND):
            return False
        raise
    return True


async def _sent(session: Session, client: Client, one: _Cut) -> _Cut:
    message = one.message
    try:
        await session.call(
            client.send(
                message.topic,
                message.body,
                keys=message.keys,
                tag=message.tags,
                properties=message.user_properties,
                message_id=message.message_id,
                message_group=message.properties.get(PROPERTY_SHARDING_KEY),
            )
        )
    except TroveError as error:
        return replace(one, state="", error=error)
    return replace(one, state=SENT)


_MESSAGES: Final[Columns[_Cut]] = Columns(
    Column("node", "node", lambda one: one.node),
    Column("offset", "offset", lambda one: one.cut.offset, number=True),
    Column("topic", "topic", lambda one: one.message.topic, escaped=True),
    Column("messageId", "message id", lambda one: one.message.message_id, escaped=True),
    Column(
        "keys",
        "keys",
        lambda one: list(one.message.keys),
        lambda one: " ".join(one.message.keys),
        escaped=True,
    ),
    Column(
        "result",
        "result",
        lambda one: one.state or None,
        lambda one: one.state or str(one.error),
        escaped=True,
    ),
    Column("error", None, lambda one: None if one.error is None else one.error.symbol),
)
