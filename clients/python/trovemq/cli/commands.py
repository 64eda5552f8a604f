"""consume-directly, stack-trace: commands to one connected consumer. recall: cancels a delayed message."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption, TopicArgument, TopicOption
from trovemq.cli.completion import complete_group
from trovemq.cli.session import Session, verb

CLIENT_WAIT_SECONDS_DEFAULT: Final = 5.0
CLIENT_WAIT_SECONDS_MAX: Final = 60.0

ClientOption = Annotated[
    str,
    typer.Option(
        "--client", metavar="ID", help="The consumer's client id (group members).", show_default=False
    ),
]
GroupOption = Annotated[
    str,
    typer.Option(
        "--group",
        metavar="G",
        help="The consumer's group.",
        show_default=False,
        autocompletion=complete_group,
    ),
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0.001,
        max=CLIENT_WAIT_SECONDS_MAX,
        help="How long the client may take to answer.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command tree."""
    verb(app, "consume-directly")(consume_directly)
    verb(app, "stack-trace")(stack_trace)
    verb(app, "recall")(recall)


async def consume_directly(
    session: Session,
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="An offsetMsgId or a message id.", show_default=False)
    ],
    client_id: ClientOption,
    group: GroupOption,
    topic: TopicOption = None,
    wait: WaitOption = CLIENT_WAIT_SECONDS_DEFAULT,
    broker: EveryBrokerOption = None,
) -> None:
    """Have one consumer consume one message now. Its result is shown; offsets and attempts do not change."""
    async with session.client() as client:
        answer = await session.call(
            client.admin.groups.consume_directly(
                client_id, group, message, topic=topic, timeout_ms=_milliseconds(wait), broker=broker
            )
        )
    fields: dict[str, object] = {
        "clientId": client_id,
        "group": group,
        "message": message,
        "result": answer.result,
        "text": answer.message or None,
        "broker": answer.broker,
    }
    session.output.item(fields)
    if not session.output.objects:
        from trovemq.cli.render import card, printable

        session.output.show(card({**fields, "text": printable(answer.message) or None}))


async def stack_trace(
    session: Session,
    client_id: ClientOption,
    group: GroupOption,
    wait: WaitOption = CLIENT_WAIT_SECONDS_DEFAULT,
    broker: EveryBrokerOption = None,
) -> None:
    """Show the stacks of one consumer's threads."""
    async with session.client() as client:
        text = await session.call(
            client.admin.groups.stack_trace(client_id, group, timeout_ms=_milliseconds(wait), broker=broker)
        )
    session.output.item({"clientId": client_id, "group": group, "stackTrace": text})
    if not session.output.objects:
        from rich.text import Text

        from trovemq.cli.render import printable

        session.output.show(Text("\n".join(printable(line) for line in text.split("\n"))))


async def recall(
    session: Session,
    topic: TopicArgument,
    handle: Annotated[
        str,
        typer.Argument(
            metavar="HANDLE", help="The recall handle (of send, or of query).", show_default=False
        ),
    ],
) -> None:
    """Take a delayed message back before it is delivered."""
    async with session.client() as client:
        message_id = await session.call(client.recall(topic, handle))
    session.output.item({"topic": topic, "messageId": message_id})
    if not session.output.objects:
        from trovemq.cli.render import card

        session.output.show(card({"topic": topic, "message id": message_id, "state": "recalled"}))


def _milliseconds(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
