"""Messages that are stored and not yet visible: delayed ones, and those of open transactions.

No call lists them all. Both pages read the newest records of the system topic that stores them, and the track
of each; the brokers' counters have their number. Every delayed message can be found by topic and key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from trovemq import Client, DelayedMessage, Message, MessageTrack, TroveError, errors
from trovemq_console.cluster import gather_bounded, is_refusal, number_of
from trovemq_console.pages.console import Console, text

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
READ_MAX: Final = 50
ENDED: Final = frozenset({"committed", "rolled-back", "given-up"})
FIRED: Final = frozenset({"delivered", "recall"})


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A waiting message; `due` is its delivery time (epoch ms), 0 in a transaction."""

    message: Message
    topic: str
    due: int
    producer_group: str


async def delayed(console: Console, request: Request) -> Response:
    """Delayed messages: the newest ones, or those with a key."""
    client = await console.client()
    topic, key = text(request, "topic").strip(), text(request, "key").strip()
    found: list[DelayedMessage] = []
    complete = True
    problem: TroveError | None = None
    if topic and key:
        try:
            found, complete = await client.admin.groups.find_delayed(topic, key)
        except TroveError as error:
            problem = error
    tracks, refusal = ([], None) if found else await _newest(client, TIMER_TOPIC)
    waiting = [
        PendingMessage(message, real_topic(message), due_of(message), "")
        for message, track in tracks
        if not FIRED & {copy.role for copy in track.copies} and "TIMER_DEL_UNIQKEY" not in message.properties
    ]
    answers = await console.cluster.brokers()
    return console.respond(
        request,
        "delayed.html",
        topic=topic,
        key=key,
        found=found,
        complete=complete,
        problem=problem,
        waiting=sorted(waiting, key=lambda one: one.due),
        pending=sum(number_of(answer.counters, "timers_pending") for answer in answers),
        read_max=READ_MAX,
        refusal=refusal,
    )


async def transactions(console: Console, request: Request) -> Response:
    """Half messages whose transaction has not ended."""
    tracks, refusal = await _newest(await console.client(), HALF_TOPIC)
    open_ones = [
        PendingMessage(message, real_topic(message), 0, message.properties.get("PGROUP", ""))
        for message, track in tracks
        if not ENDED & {event.kind for event in track.events}
    ]
    answers = await console.cluster.brokers()
    totals = {
        name: sum(number_of(answer.counters, name) for answer in answers)
        for name in (
            *("half_messages", "transactions_committed", "transactions_rolled_back", "transactions_given_up"),
            *("atomic_open", "atomic_committed", "atomic_rolled_back", "atomic_timed_out"),
        )
    }
    values: dict[str, Any] = {"totals": totals, "read_max": READ_MAX, "refusal": refusal}
    return console.respond(request, "transactions.html", rows=open_ones, **values)


_Tracks = list[tuple[Message, MessageTrack]]


async def _newest(client: Client, topic: str) -> tuple[_Tracks, TroveError | None]:
    """The newest records of the topic with their tracks. If no broker has one, or this user may not read it,
    there are none, and the second value is the error."""
    try:
        messages: Sequence[Message] = (await client.search(topic, max=READ_MAX)).messages
    except TroveError as error:
        if error.spec is errors.TOPIC_NOT_FOUND:
            return [], None
        if is_refusal(error):
            return [], error
        raise
    tracks: Iterable[MessageTrack | TroveError] = await gather_bounded(
        client.track(message.offset_msg_id) for message in messages
    )
    answered = zip(messages, tracks, strict=True)
    return [(message, track) for message, track in answered if isinstance(track, MessageTrack)], None


def real_topic(message: Message) -> str:
    """The topic to which it will be delivered."""
    return message.properties.get("REAL_TOPIC", "")


def due_of(message: Message) -> int:
    """The message's delivery time, epoch ms; 0 if it has none."""
    for name in ("TIMER_DELIVER_MS", "TIMER_OUT_MS"):
        value = message.properties.get(name, "")
        if value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
    return 0
