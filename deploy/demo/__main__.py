"""`make run`: a nameserver and a broker with a year of flights in it, five look-ups, and then it serves.

Exit codes: 0 after Ctrl-C or SIGTERM, 1 if something went wrong, 2 for wrong usage.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from deploy.demo.daemons import Daemon, DemoError, wait_ports_free
from deploy.demo.settings import DemoSettings, parse_settings
from trovemq.cli.local.processes import end_with_parent


def main() -> int:
    """Runs the demo; returns the exit code."""
    settings = parse_settings(sys.argv[1:])
    if "MAKELEVEL" in os.environ and (bind := end_with_parent(os.getppid())) is not None:
        bind()  # end with the parent, should `make run` be killed
    try:
        return asyncio.run(Demo(settings).run())
    except KeyboardInterrupt:
        return 130


def say(text: str) -> None:
    """A line for the person who started the demo."""
    print(text, flush=True)


def complain(text: str) -> None:
    """Prints the error."""
    print(text, file=sys.stderr, flush=True)


class Demo:
    """The daemons, the console and the steps of the demo, until a signal, a failure, or one ends."""

    def __init__(self, settings: DemoSettings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._nameserver = Daemon(
            "nameserver", "trovemq_nameserver", settings.nameserver_arguments(), settings.nameserver_http
        )
        self._broker = Daemon("broker", "trovemq_broker", settings.broker_arguments(), settings.http)
        console = Daemon("console", "trovemq_console.command", settings.console_arguments(), settings.console)
        self._console = () if settings.once else (console,)
        self._daemons = (*self._console, self._broker, self._nameserver)  # in the order of their stop

    async def run(self) -> int:
        """Starts, loads, shows, serves, stops; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            code = await self._guarded()
        finally:
            stopped = await self._stop_daemons()
        return code or stopped

    def _on_signal(self) -> None:
        """The first signal asks for a clean stop, the second ends both daemons at once."""
        if self._stop.is_set():
            for daemon in self._daemons:
                daemon.kill()
        self._stop.set()

    async def _guarded(self) -> int:
        from trovemq_proto.errors import TroveError

        try:
            await self._until_stopped()
        except DemoError as error:
            complain(f"✗ {error}")
            return 1
        except TroveError as error:
            complain(f"✗ {error}\n  → {error.spec.what_to_do}")
            return 1
        return 0

    async def _until_stopped(self) -> None:
        """Returns after a signal (or the work's end with --once). Raises the error that ended the demo
        otherwise."""
        await self._unless_stopped(wait_ports_free(self._settings.addresses))
        if self._stop.is_set():
            return
        for daemon in self._daemons:
            await daemon.start()
        ends = {asyncio.create_task(daemon.wait_end()): daemon for daemon in self._daemons}
        work = asyncio.create_task(self._work())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and work.exception() is not None:
                await asyncio.wait(ends, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)  # the cause, maybe
            for end, daemon in ends.items():
                if end.done() and not self._stop.is_set():
                    raise DemoError(daemon.explain(end.result()))
            if work.done():
                work.result()
        finally:
            for task in (work, stop, *ends):
                task.cancel()
            await asyncio.gather(work, stop, *ends, return_exceptions=True)

    async def _unless_stopped(self, step: Coroutine[Any, Any, None]) -> None:
        task, stop = asyncio.create_task(step), asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
        task.cancel()

    async def _work(self) -> None:
        """Everything between the start and the wait for a signal."""
        from deploy.demo.tour import take_tour

        settings = self._settings
        for daemon in self._daemons:
            await daemon.wait_ready()
        say(f"broker {settings.name}: {settings.listen}, http://{settings.http}, store {settings.store}")
        say(f"nameserver: {settings.nameserver}, http://{settings.nameserver_http}")
        if self._console:
            say(f"console: http://{settings.console}")
        await take_tour(settings.listen, say)
        if not settings.once:
            say("\nServing. Stop with Ctrl-C.")
            await asyncio.Event().wait()

    async def _stop_daemons(self) -> int:
        """Stops the broker first, so that it can still leave the routes; 1 if one did not end cleanly."""
        if self._stop.is_set():
            say("\nStopping …")
        failed = 0
        for daemon in self._daemons:
            code = await daemon.stop()
            if code != 0 and self._stop.is_set():
                complain(f"✗ {daemon.explain(code)}")
                failed = 1
        if self._stop.is_set() and not failed:
            say("Stopped cleanly; the next start finds all of it.")
        return failed


if __name__ == "__main__":
    sys.exit(main())
