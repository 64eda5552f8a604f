"""broker remove: takes a broker out of the cluster for good.

| the broker                     | steps                                                                    |
|--------------------------------|--------------------------------------------------------------------------|
| serves                         | lasting rest is counted; it is drained; groups have the                  |
|                                | time of --within to consume the rest; it stops, is no member of the      |
|                                | configuration any more, and is forgotten                                 |
| is lost                        | nothing is known of it but its topics; with --accept-loss it is forgotten |
| has stopped, and is a member   | the same: nameservers forget it after a clean stop, or after 24 hours     |
| is in the routes, and silent   | BROKER_UNREACHABLE: stop its process first                               |

If there is a rest and no --accept-loss, and after Ctrl-C or an error, it serves again as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import YesOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.figures import counted
from trovemq.cli.session import Session
from trovemq.cli.times import duration_text, parse_duration_ms
from trovemq.cli.topic_spread import fifo_topics_on
from trovemq.models.broker import Remainder
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import Client, ClusterState, DrainStatus, LostBroker

POLL_S: Final = 0.2
NAMED_MAX: Final = 5
STOP_WAIT_MS: Final = 30_000
GONE: Final = (errors.BROKER_UNREACHABLE, errors.BROKER_NOT_FOUND, errors.SERVICE_NOT_AVAILABLE)
_STOPPED: Final = (
    "{} has stopped, so its messages cannot be counted; it is still a member of the cluster's configuration"
)
_LASTING: Final = ("unread", "dead_letters", "topic")
"""Kinds of which a drain leaves as much as before."""

GraceOption = Annotated[
    int,
    typer.Option(
        "--grace",
        metavar="TIME",
        parser=parse_duration_ms,
        help="How long new messages are still stored, while clients learn of the drain.",
    ),
]
WithinOption = Annotated[
    int,
    typer.Option(
        "--within",
        metavar="TIME",
        parser=parse_duration_ms,
        help="How long groups may take to consume the rest.",
    ),
]
AcceptLossOption = Annotated[
    bool,
    typer.Option("--accept-loss", help="Remove it although messages, timers or topics are lost with it."),
]


async def remove(
    session: Session,
    broker: Annotated[str, typer.Argument(metavar="BROKER", show_default=False)],
    accept_loss: AcceptLossOption = False,
    grace: GraceOption = "2s",  # type: ignore[assignment]  # parsed by the option
    within: WithinOption = "30s",  # type: ignore[assignment]
    yes: YesOption = False,
) -> None:
    """Remove a broker for good. It is drained and stopped; refused while it has messages."""
    async with session.client() as client:
        state = await session.call(client.admin.brokers.awaited(broker, within_s=session.wait_s))
        lost = next((one for one in state.lost if one.name == broker), None)
        text = _STOPPED.format(broker) if lost is None else _lost_text(lost)
        is_known = lost is not None or state.broker(broker) is not None
        if lost is not None or (not is_known and await _is_member(session, client, broker)):
            left: Sequence[Remainder] = [Remainder("unknown", 0 if lost is None else lost.topics)]
            if not accept_loss:
                raise _refusal(session, broker, left, text)
            session.confirm(f"Forget broker {broker}? {text}.", yes=yes)
            await session.call(client.admin.config.remove_member(broker))
            if not (await session.call(client.admin.brokers.forget(broker))) and lost is not None:
                text = (
                    f"no nameserver has forgotten {broker}: it is back, or the nameserver is older than this"
                )
                raise TroveError(errors.BROKER_NOT_FOUND, text, broker=broker)
        else:
            # Nothing is done to a live one, but a user who may not do it is refused before the broker stops.
            await session.call(client.admin.brokers.forget(broker))
            left = await _stopped(session, client, state, broker, accept_loss, grace, within, yes)
            await _forgotten(session, client, broker)
    _show(session, broker, left)


async def _is_member(session: Session, client: Client, broker: str) -> bool:
    """Whether an owner of a configuration has it as a member."""
    statuses = await session.call(client.admin.config.status())
    return any(one.broker == broker for status in statuses for one in status.members)


async def _stopped(
    session: Session,
    client: Client,
    state: ClusterState,
    broker: str,
    accept_loss: bool,
    grace_ms: int,
    within_ms: int,
    yes: bool,
) -> Sequence[Remainder]:
    """Drains and stops the broker. Returns the losses. Raises TroveError BROKER_NOT_EMPTY."""
    brokers = client.admin.brokers
    if state.broker(broker) is None:
        names = ", ".join(route.broker.name for route in state.brokers) or "none"
        raise TroveError(errors.BROKER_NOT_FOUND, f"broker {broker} is neither live nor lost (live: {names})")
    _check_place(state, broker, accept_loss=accept_loss)
    left = await _answered(session, broker, brokers.remainders(broker))
    if not accept_loss and any(one.kind in _LASTING for one in left):
        raise _refusal(session, broker, left)
    loss = f" This is lost: {_text(left)}." if accept_loss and left else ""
    session.confirm(f"Drain and stop broker {broker}?{loss}", yes=yes)
    before = await session.call(brokers.drain_status(broker))
    try:
        await drained(session, client, await session.call(brokers.drain(broker, grace_ms=grace_ms)))
        left = await _consumed(session, client, broker, 0 if accept_loss else within_ms)
        if left and not accept_loss:
            raise _refusal(session, broker, left)
        stop = brokers.drain(broker, grace_ms=0, stop_wait_max_ms=STOP_WAIT_MS)
        await drained(session, client, await session.call(stop))
    except BaseException as error:
        if before.state == "serving":
            await _undo(session, client, broker, error)
        raise
    return left


def _check_place(state: ClusterState, broker: str, *, accept_loss: bool) -> None:
    """TroveError CONFIG_OWNER_STAYS, BROKER_NOT_EMPTY: its part in a configuration that others share."""
    from trovemq._net.configurations import owner_of

    info = next(route.broker for route in state.brokers if route.broker.name == broker)
    others = [
        one.broker for one in state.brokers if one.broker.name != broker and one.broker.config is not None
    ]
    shared = info.config
    if shared is None:
        return
    sharing = [one for one in others if one.config is not None and one.config.id == shared.id]
    if not sharing:
        return
    staying = sorted(one.name for one in sharing if not one.draining) or sorted(one.name for one in sharing)
    if owner_of([info, *sharing]) == broker:
        text = f"{broker} owns the cluster's configuration: trovemq cluster config-owner {staying[0]}"
        raise TroveError(errors.CONFIG_OWNER_STAYS, text, broker=broker)
    if not accept_loss and (topics := fifo_topics_on(state.brokers, broker)):
        rest = ",".join(staying)
        text = f"the FIFO topic {topics[0]} lies on {broker}, and its senders would wait for ever"
        text += f": trovemq topic spread {topics[0]} --brokers {rest}"
        raise TroveError(errors.BROKER_NOT_EMPTY, text, broker=broker)


async def _undo(session: Session, client: Client, broker: str, error: BaseException) -> None:
    """The broker serves again after a break. If it does not, that is said: with the error, or for Ctrl-C."""
    try:
        await session.call(client.admin.brokers.undrain(broker))
    except TroveError as failure:
        text = (
            f"{broker} is still drained, or it stops ({failure.message}): see trovemq cluster;"
            f" to let it serve again: trovemq broker drain {broker} --undo"
        )
        if isinstance(error, TroveError):
            raise TroveError(error.spec, f"{error.message}; {text}", **error.fields) from error
        session.output.say_if_interrupted(text)


async def _forgotten(session: Session, client: Client, broker: str) -> None:
    """The nameservers forget a broker that has stopped."""
    session.output.say_if_interrupted(f"{broker} has stopped, but nameservers may still name it as lost")
    try:
        await session.call(client.admin.config.remove_member(broker))
    except TroveError as error:
        text = f"{broker} has stopped, but its place in the configuration is not removed: {error.message}"
        text += f"; then repeat it: trovemq broker remove {broker} --accept-loss"
        raise TroveError(error.spec, text, **error.fields) from error
    try:
        await session.call(client.admin.brokers.forget(broker))
    except TroveError as error:
        text = f"{broker} has stopped, but nameservers may still name it as lost: {error.message}"
        raise TroveError(error.spec, text, **error.fields) from error


async def _answered(
    session: Session, broker: str, call: Awaitable[tuple[Remainder, ...]]
) -> tuple[Remainder, ...]:
    try:
        return await session.call(call)
    except TroveError as error:
        if error.spec not in GONE:
            raise
        text = f"{broker} is in the routes and does not answer: stop its process first ({error.message})"
        raise TroveError(errors.BROKER_UNREACHABLE, text, brokers=broker) from error


async def _consumed(session: Session, client: Client, broker: str, within_ms: int) -> tuple[Remainder, ...]:
    """The rest after the time for groups. Raises TroveError if the broker took new messages meanwhile."""
    clock = asyncio.get_running_loop()
    ends = clock.time() + within_ms / 1000
    most = 0
    while left := await session.call(client.admin.brokers.remainders(broker)):
        now = sum(one.count for one in left)
        most = max(most, now)
        session.progress.at(most - now, most, f"groups consume the rest on {broker}")
        if clock.time() >= ends or any(one.kind in _LASTING for one in left):
            break
        await asyncio.sleep(POLL_S)
    status = await session.call(client.admin.brokers.drain_status(broker))
    if status.state != "drained":
        text = f"{broker} is {status.state} again, so it was not stopped: another user ended its drain"
        raise TroveError(errors.SERVICE_NOT_AVAILABLE, text, broker=broker)
    return left


async def drained(session: Session, client: Client, begun: DrainStatus) -> DrainStatus:
    """Waits until the broker is drained, or has ended if it is to stop."""
    status, clock = begun, asyncio.get_running_loop()
    started = clock.time()
    while status.stops or status.state == "draining":
        session.progress.at(int(clock.time() - started), None, f"{begun.broker} is {status.state}, seconds")
        await asyncio.sleep(POLL_S)
        try:
            status = await session.call(client.admin.brokers.drain_status(begun.broker))
        except TroveError as error:
            if begun.stops and error.spec in GONE:
                return begun
            raise
    return status


def _refusal(session: Session, broker: str, left: Sequence[Remainder], text: str = "") -> TroveError:
    """BROKER_NOT_EMPTY; with --json the whole rest is beside it."""
    session.output.note(left=[_COLUMNS.fields(one) for one in left])
    return TroveError(errors.BROKER_NOT_EMPTY, text or f"{broker} still has {_text(left)}", broker=broker)


def _show(session: Session, broker: str, left: Sequence[Remainder]) -> None:
    lost = [_COLUMNS.fields(one) for one in left]
    session.output.item({"broker": broker, "state": "removed", "lost": lost})
    if session.output.objects:
        return
    from trovemq.cli.render import card

    session.output.show(card({"broker": broker, "state": "removed", "lost": _text(left) or "nothing"}))
    session.output.remark("its store stays on its disk: delete it there, and disable its service")


def _lost_text(lost: LostBroker) -> str:
    alone = f", {lost.topics_alone} of them on no other broker" if lost.topics_alone else ""
    return (
        f"{lost.name} is away since {duration_text(lost.lost_ms)}, so its messages cannot be counted;"
        f" it had {counted(lost.topics, 'topic')}{alone}"
    )


_TEXTS: Final[dict[str, Callable[[Remainder], str]]] = {
    "unconsumed": lambda one: (
        f"{counted(one.count, 'message')} of {one.topic} that group {one.group} has not consumed"
    ),
    "unread": lambda one: f"{counted(one.count, 'message')} of {one.topic} that no group reads",
    "dead_letters": lambda one: f"{counted(one.count, 'dead letter')} of group {one.group}",
    "delayed": lambda one: f"{counted(one.count, 'delayed message')}",
    "half_messages": lambda one: f"{counted(one.count, 'half message')}",
    "transactions": lambda one: f"{counted(one.count, 'open atomic transaction')}",
    "topic": lambda one: f"topic {one.topic}, which no other broker has",
    "unknown": lambda one: (
        f"{counted(one.count, 'topic')} with an unknown number of messages"
        if one.count
        else "an unknown number of messages"
    ),
}


def _text(left: Sequence[Remainder]) -> str:
    """The first ones in words."""
    words = [_TEXTS[one.kind](one) for one in left[:NAMED_MAX]]
    more = [f"{len(left) - NAMED_MAX:,} more"] if len(left) > NAMED_MAX else []
    return "; ".join([*words, *more])


_COLUMNS: Final[Columns[Remainder]] = Columns(
    Column("kind", "kind", lambda one: one.kind),
    Column("count", "count", lambda one: one.count),
    Column("topic", "topic", lambda one: one.topic or None),
    Column("group", "group", lambda one: one.group or None),
)
