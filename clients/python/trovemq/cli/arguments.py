"""Arguments and options that several verbs take, each declared once."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from trovemq._consume.filters import what_was_meant
from trovemq.cli.completion import complete_group, complete_topic
from trovemq.cli.times import TIME_MAX, Moment, parse_moment

QUEUE_ID_MAX: Final = 2**31 - 1


def parse_queue(text: str) -> int:
    """The number of a queue. Raises typer.BadParameter, as parse_offset does."""
    return _number(text, QUEUE_ID_MAX)


def parse_offset(text: str) -> int:
    """A parser, because the help would print a range of typer's with its largest number."""
    return _number(text, TIME_MAX)


def _number(text: str, largest: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(largest)) and int(text) <= largest):
        raise typer.BadParameter(f"{text!r} is not a number from 0 to {largest}")
    return int(text)


def parse_tag(text: str) -> str:
    """One tag; `a || b` and similar expressions are not a tag."""
    if what_was_meant(text) is not None or "|" in text:
        meant = "a message has one tag; give --tag once for each that will do"
        raise typer.BadParameter(f"{text!r} is not a tag: {meant}")
    return text


TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topic)
]
GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=complete_group)
]
OptionalGroupArgument = Annotated[
    str | None, typer.Argument(metavar="[GROUP]", show_default=False, autocompletion=complete_group)
]
QueueArgument = Annotated[int, typer.Argument(metavar="QUEUE", parser=parse_queue, show_default=False)]
BrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="NAME",
        help="This broker only; needed where several have the queue.",
        show_default=False,
    ),
]
QueueOption = Annotated[
    int | None,
    typer.Option("--queue", metavar="Q", parser=parse_queue, help="The queue's number.", show_default=False),
]
EarliestOption = Annotated[bool, typer.Option("--to-earliest", help="To each queue's first message.")]
LatestOption = Annotated[bool, typer.Option("--to-latest", help="To each queue's end.")]
TopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="This topic only.",
        show_default=False,
        autocompletion=complete_topic,
    ),
]
EveryBrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker", metavar="NAME", help="This broker only; otherwise every one.", show_default=False
    ),
]
SearchedTopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Look for a message id in this topic only.",
        show_default=False,
        autocompletion=complete_topic,
    ),
]
MessageArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="ID | TOPIC QUEUE OFFSET",
        help="An offsetMsgId, a message id, or a place.",
        show_default=False,
        autocompletion=complete_topic,
    ),
]
ExistOkOption = Annotated[
    bool, typer.Option("--exist-ok", help="One of that name is no error; it stays as it is.")
]
OneBrokerOption = Annotated[
    str | None,
    typer.Option("--broker", metavar="NAME", help="Needed where there are several.", show_default=False),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")]
TagsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        parser=parse_tag,
        metavar="TAG",
        help="Only messages with this tag (repeatable).",
        show_default=False,
    ),
]
BeginOption = Annotated[
    Moment,
    typer.Option(
        "--begin",
        parser=parse_moment,
        metavar="TIME",
        help="Stored at or after: epoch ms, ISO 8601, or 1h, yesterday.",
        show_default=False,
    ),
]
EndOption = Annotated[
    Moment,
    typer.Option(
        "--end",
        parser=parse_moment,
        metavar="TIME",
        help="Stored at or before: epoch ms, ISO 8601, or 1h, yesterday.",
        show_default=False,
    ),
]
