"""Shows progress: a bar on standard error, only at a terminal, if a verb takes longer than two seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from trovemq.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

SECONDS_BEFORE: Final = 2.0
SECONDS_BETWEEN: Final = 0.1


class Progress:
    """The progress of a verb. Without `at` only the time is shown; after `off` nothing."""

    def __init__(self, output: Output) -> None:
        self._wanted = output.shows_progress
        self._text = "working"
        self._done = 0
        self._total: int | None = None
        self._in_bytes = False

    def at(
        self, done: int, total: int | None = None, text: str | None = None, *, in_bytes: bool = False
    ) -> None:
        """Sets how much is done, and the total (None or 0: unknown)."""
        self._done, self._total, self._in_bytes = done, total or None, in_bytes
        self._text = text or self._text

    def off(self) -> None:
        """Shows no bar from now on, because the answer is being printed or a question is asked."""
        self._wanted = False

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Shows the bar while the block runs."""
        showing = asyncio.create_task(self._show()) if self._wanted else None
        try:
            yield
        finally:
            if showing is not None:
                showing.cancel()
                await asyncio.gather(showing, return_exceptions=True)

    async def _show(self) -> None:
        await asyncio.sleep(SECONDS_BEFORE)
        if not self._wanted:
            return
        bar = _bar()
        task = bar.add_task(self._text, total=self._total, amount="")
        bar.start()
        try:
            while self._wanted:
                text, amount = self._text, self._amount()
                bar.update(task, completed=self._done, total=self._total, description=text, amount=amount)
                bar.refresh()
                await asyncio.sleep(SECONDS_BETWEEN)
        finally:
            bar.stop()

    def _amount(self) -> str:
        from trovemq.cli.render import humane_size

        if not self._done and self._total is None:
            return ""
        numbers = (self._done,) if self._total is None else (self._done, self._total)
        return " of ".join(humane_size(number) if self._in_bytes else f"{number:,}" for number in numbers)


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}", style="progress.download"),
    )
    console = Console(stderr=True)
    return Progress(*columns, Elapsed(), Remaining(), console=console, transient=True, auto_refresh=False)
