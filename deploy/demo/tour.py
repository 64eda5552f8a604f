"""The demo's steps with a running broker: load the missing rows, then show five look-ups."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trovemq
from deploy.demo import flights
from deploy.demo.daemons import DemoError
from deploy.demo.examples import choose_examples, show_examples
from deploy.demo.load import Progress, load_flights


async def take_tour(server: str, say: Callable[[str], None]) -> None:
    """Loads and shows. Raises TroveError, DemoError."""
    async with trovemq.connect(server) as client:
        await _load(client, say)
        await show_examples(await choose_examples(client), server, say)


async def _load(client: trovemq.Client, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    try:
        with progress_bar() as progress:
            loaded = await load_flights(client, progress)
    except FileNotFoundError as error:
        raise DemoError(str(error)) from None
    if loaded.sent == 0:
        say(f"found all {loaded.found:,} flights in the store: nothing to load")
        return
    seconds = time.monotonic() - started
    found = f"found {loaded.found:,} flights, " if loaded.found else ""
    say(f"{found}loaded {loaded.sent:,} in {seconds:.1f} s, every one on disk")


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar at a terminal; elsewhere a line for every tenth."""
    if not sys.stdout.isatty():
        yield _Tenths()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("loading flights"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("load", total=flights.FLIGHT_COUNT)
        yield lambda count: bar.advance(task, count)


class _Tenths:
    """Prints how far the load is, at most ten times."""

    def __init__(self) -> None:
        self._done = 0

    def __call__(self, count: int) -> None:
        before, self._done = self._done, self._done + count
        tenth = self._done * 10 // flights.FLIGHT_COUNT
        if tenth > before * 10 // flights.FLIGHT_COUNT:
            print(f"loading flights: {self._done:,} of {flights.FLIGHT_COUNT:,}", flush=True)
