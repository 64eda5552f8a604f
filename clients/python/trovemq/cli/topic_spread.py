"""topic spread: the brokers on which a topic lies. The steps of a FIFO topic are in _admin/spreading.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import join
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import TopicArgument
from trovemq.cli.session import Session
from trovemq.cli.times import parse_duration_ms

if TYPE_CHECKING:
    from trovemq import BrokerRoute, QueueRemainder, TopicSpread

NAMED_MAX: Final = 3

BrokersOption = Annotated[
    str,
    typer.Option(
        "--brokers",
        metavar="A,B",
        help="The brokers that take its new messages from now on.",
        show_default=False,
    ),
]
QueuesOption = Annotated[
    int | None,
    typer.Option(
        "--queues",
        metavar="N",
        min=1,
        max=1024,
        help="Queues on each of them; else a new one gets as many as the others have.",
        show_default=False,
    ),
]
SettleOption = Annotated[
    int,
    typer.Option(
        "--settle",
        metavar="TIME",
        parser=parse_duration_ms,
        help="FIFO: how long it stays closed after the change (RocketMQ's clients: 35s).",
    ),
]
DisorderOption = Annotated[
    bool,
    typer.Option(
        "--accept-disorder",
        help="FIFO: change it at once; messages of a group may be consumed in another order.",
    ),
]


async def spread(
    session: Session,
    topic: TopicArgument,
    brokers: BrokersOption,
    queues: QueuesOption = None,
    settle: SettleOption = "5s",  # type: ignore[assignment]  # parsed by the option
    accept_disorder: DisorderOption = False,
) -> None:
    """Have a topic lie on these brokers. Nothing moves: others take no new messages of it.

    A FIFO topic takes none at all until its groups have consumed the present ones; Ctrl-C leaves it as it
    was, or closed once its queues have changed. Then, and after a crash, run the command again: `topic
    describe` shows `writes closed`.
    """
    names = [name.strip() for name in brokers.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise typer.BadParameter("--brokers needs the names of different brokers: --brokers A,B")
    most, shown = 0, None
    async with session.client() as client:
        steps = client.admin.spreading(
            topic, names, queues, settle_s=settle / 1000, accept_disorder=accept_disorder
        )
        async for step in session.each(steps):
            left = sum(one.count for one in step.left)
            most = max(most, left)
            session.progress.at(most - left, most, _text(step))
            if step == shown:
                continue
            shown = step
            session.output.say_if_interrupted(_text_after_interrupt(step))
            session.output.item(_fields(step))
            session.output.flush()
    assert shown is not None, "the last step is done"
    session.output.note(**({"pending": list(shown.pending)} if shown.pending else {}))
    if session.output.objects:
        return
    from trovemq.cli.render import card

    placed = ", ".join(f"{name} {count}" for name, count in sorted(shown.placement.items()))
    session.output.show(card({"topic": topic, "queues": placed, "pending": ", ".join(shown.pending) or "-"}))


def _text(step: TopicSpread) -> str:
    match step.state:
        case "closing":
            return f"{', '.join(step.pending) or 'the brokers'} stop to take messages of {step.topic}"
        case "waiting":
            return f"{step.topic} is closed until its groups have consumed it: {_left_text(step.left)}"
        case "moving":
            return f"{', '.join(step.pending)} change the queues of {step.topic}"
        case "settling":
            return f"clients learn the new queues of {step.topic}"
    return "done"


def _left_text(left: Sequence[QueueRemainder]) -> str:
    rows = [
        f"{one.group} {one.count:,} of queue {one.queue_id} on {one.broker}"
        if one.group
        else f"{one.broker} is away"
        for one in left[:NAMED_MAX]
    ]
    more = [f"{len(left) - NAMED_MAX:,} more queues"] if len(left) > NAMED_MAX else []
    return "; ".join([*rows, *more])


def _text_after_interrupt(step: TopicSpread) -> str:
    if step.state in ("closing", "waiting"):
        return f"{step.topic} is open again, with the queues that it had"
    if step.state in ("moving", "settling"):
        return f"{step.topic} is still closed: run the command again"
    return f"{step.topic} has its new queues, and is open"


def _fields(step: TopicSpread) -> dict[str, object]:
    return {
        "topic": step.topic,
        "state": step.state,
        "placement": dict(sorted(step.placement.items())),
        "pending": list(step.pending),
        "left": [
            {"group": one.group or None, "broker": one.broker, "queueId": one.queue_id, "count": one.count}
            for one in step.left
        ],
    }


def fifo_topics_on(routes: Iterable[BrokerRoute], broker: str) -> list[str]:
    """The FIFO topics that have queues on that broker, as the routes say: their senders wait for it."""
    return sorted(
        {
            topic.topic
            for route in routes
            for topic in route.topics
            if topic.message_type == "FIFO" and topic.placement.get(broker)
        }
    )


def spread_command(topic: str, brokers: Iterable[str]) -> str:
    """The command that has the topic lie on these brokers."""
    return join(["trovemq", "topic", "spread", topic, "--brokers", ",".join(brokers)])
