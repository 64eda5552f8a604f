"""--watch: repeats an answer until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import typer

from trovemq.cli.session import Session
from trovemq.cli.times import parse_duration_ms

EVERY_MS_DEFAULT: Final = 2_000
EVERY_MS_MIN: Final = 100

WatchOption = Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")]


def parse_every(text: str | int) -> int:
    """Milliseconds. Raises typer.BadParameter (usage)."""
    milliseconds = text if isinstance(text, int) else parse_duration_ms(text)
    if milliseconds < EVERY_MS_MIN:
        raise typer.BadParameter(f"{text!r} is less than {EVERY_MS_MIN} ms")
    return milliseconds


EveryOption = Annotated[
    int,
    typer.Option(
        "--every",
        parser=parse_every,
        metavar="T",
        help="How often, with --watch: 500ms, 2s.",
        show_default="2s",
    ),
]


async def watched(session: Session, show: Callable[[], Awaitable[None]], every_ms: int | None) -> None:
    """Calls `show` once, or at each interval, and prints its output at once."""
    if every_ms is not None:
        session.progress.off()
    while True:
        await show()
        if every_ms is None:
            return
        session.output.replace()
        session.away.clear()
        await asyncio.sleep(every_ms / 1000)
