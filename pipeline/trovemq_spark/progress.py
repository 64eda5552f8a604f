"""A progress bar on a terminal, on standard error: standard output has only the report."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)


class ProgressBar:
    """A line for each step of a job (job.py, Progress); a context manager. Safe to call from threads."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console or Console(file=sys.stderr),
        )
        self._step = self._progress.add_task("starting Spark", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._end_step()
        self._progress.stop()

    def begin(self, what: str, total: int) -> None:
        self._end_step()
        self._step = self._progress.add_task(what, total=total or None)

    def advance(self, count: int = 1) -> None:
        self._progress.advance(self._step, count)

    def _end_step(self) -> None:
        """Items that were not counted are done, too, when the next step begins."""
        task = self._progress.tasks[-1]
        self._progress.update(self._step, total=task.total or task.completed or 1)
        self._progress.update(self._step, completed=self._progress.tasks[-1].total)
