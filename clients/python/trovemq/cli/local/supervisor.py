"""Starts the members of a local cluster, starts them again when they end, and stops them.

- The members of a stage start together, when those of the stages before are ready. A member that exits before
  it was ever ready, is not ready within READY_S_MAX, or is ended RESTARTS_MAX times, fails the start.
- A member that was ready and ends with exit code 0 has obeyed `broker remove`, `broker drain --stop` or
  SIGTERM. It stays stopped, and the others serve; when the last one has stopped, the run ends.
- A member that can never become ready, as a broker that was removed, is stopped and left out.
- Any other member that ends is started again, after a delay that doubles while it ends soon after its start.
  After RESTARTS_MAX starts in a row without becoming ready it stays stopped, and the others serve.
- A first signal stops the stages in the opposite order, each member within STOP_S_MAX; a second one ends all
  at once.

It knows neither processes nor output: both are seams.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from trovemq._common.backoff import Backoff
from trovemq.cli.local.members import Member
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

READY_S_MAX: Final = 300.0
"""A start that takes longer has failed: recovery reads a segment of 64 MiB in less than a second."""
READY_POLL_S: Final = 0.05
NEW_POLL_S: Final = 0.5
NOTICE_S: Final = 60.0
"""After this time a start that waits says why."""
STABLE_S: Final = 10.0
"""Run time of a member after which it is started again with the shortest delay."""
RESTARTS_MAX: Final = 10
DELAYS: Final = Backoff(delay_ms=200.0, delay_max_ms=30_000.0)
STOP_S_MAX: Final = 15.0
"""Longer than the daemons' own bound (10 s), after which they end themselves."""
TEND_S: Final = 60.0


class Child(Protocol):
    """A process."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """The exit code, once it has ended; -N after signal N."""

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """`why`: the reason of a member that is not ready, if it says one. `never`: that will not change."""

    is_ready: bool
    why: str = ""
    never: bool = False


class Launcher(Protocol):
    """Makes children."""

    def launch(self, member: Member) -> Child:
        """Starts a member. Raises OSError."""

    async def ready(self, member: Member) -> Readiness:
        """Whether it serves, and the cluster knows it."""

    def last_words(self, member: Member) -> str:
        """Why it may have ended."""

    def tend(self) -> None:
        """Is called every TEND_S."""


class Reports(Protocol):
    """The output for the user."""

    def started(self, member: Member, pid: int) -> None:
        """A member was started for the first time."""

    def all_ready(self) -> None:
        """All serve."""

    def serves_again(self, member: Member, pid: int) -> None:
        """A member was started again and is ready."""

    def trouble(self, member: Member, text: str) -> None:
        """A member ended, waits, or did not stop cleanly. Never raises."""

    def left_out(self, member: Member, text: str) -> None:
        """A member was stopped at its start, and the others serve. Never raises."""


@dataclass(frozen=True, slots=True)
class _End:
    """How a run of a member ended."""

    text: str
    was_ready: bool
    exited: bool
    """Or was not ready in time; rather than ended by a signal."""
    clean: bool = False
    """With exit code 0."""
    never: str = ""
    """Why it can never become ready."""


class Supervisor:
    """One run of a cluster."""

    def __init__(self, stages: Sequence[Sequence[Member]], launcher: Launcher, reports: Reports) -> None:
        self._stages: Final = stages
        self._launcher: Final = launcher
        self._reports: Final = reports
        self._children: Final[dict[Member, Child]] = {}
        self._given_up: Final[set[Member]] = set()
        self._stopped: Final[set[Member]] = set()
        """Members that have stopped by a command."""
        self._stopping: Final = asyncio.Event()
        self._at_once = False

    def on_signal(self) -> None:
        """The first asks for a clean stop, the second ends all members at once."""
        if self._stopping.is_set():
            self._at_once = True
            for child in self._children.values():
                child.send(signal.SIGKILL)
        self._stopping.set()

    @property
    def at_once(self) -> bool:
        """Whether a second signal came."""
        return self._at_once

    async def run(self) -> bool:
        """Serves until a signal, and stops all. Returns whether every member ended cleanly.

        Raises TroveError DAEMON_FAILED if a member did not start at first, or all have been given up.
        """
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()  # it ended by an error
        finally:
            serving.cancel()
            stopping.cancel()
            await asyncio.gather(serving, stopping, return_exceptions=True)
            clean = await self._stop_all()
        return clean and not self._given_up

    async def _serve(self) -> None:
        """Raises the error that ends it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for stage in self._stages:
                    ready = [asyncio.Event() for _ in stage]
                    for member, event in zip(stage, ready, strict=True):
                        tasks.create_task(self._keep(member, event))
                    for event in ready:
                        await event.wait()
                self._reports.all_ready()
                tasks.create_task(self._tend())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_S)
            self._launcher.tend()

    async def _keep(self, member: Member, ready: asyncio.Event) -> None:
        """Runs a member until it is given up. `ready` is set when it is ready for the first time. Raises
        TroveError DAEMON_FAILED if it ends before that, or is the last one that is given up."""
        loop, soon, unready = asyncio.get_running_loop(), 0, 0
        while True:
            began = loop.time()
            end = await self._run_once(member, ready)
            if end.never:
                self._leave_out(member, end.never)
                ready.set()
                return
            if end.exited and not ready.is_set():
                raise self._failed(f"{end.text}: {self._launcher.last_words(member)}")
            if end.clean and end.was_ready:
                self._stays_stopped(member)
                return
            unready = 0 if end.was_ready else unready + 1
            if unready == RESTARTS_MAX:
                break
            soon = 1 if loop.time() - began >= STABLE_S and end.was_ready else soon + 1
            delay_s = DELAYS.seconds(soon)
            self._reports.trouble(member, f"{end.text}; it is started again in {delay_s:.1f} s")
            await asyncio.sleep(delay_s)
        if not ready.is_set():
            words = self._launcher.last_words(member)
            raise self._failed(f"{member.name}: {RESTARTS_MAX} starts failed: {words}")
        self._give_up(member)

    async def _run_once(self, member: Member, ready: asyncio.Event) -> _End:
        try:
            child = self._launcher.launch(member)
        except OSError as error:
            text = f"{member.name} cannot be started: {error.strerror or error}"
            return _End(text, was_ready=False, exited=True)
        self._children[member] = child
        if not ready.is_set():
            self._reports.started(member, child.pid)
        ended = asyncio.create_task(child.wait())
        try:
            found = await self._becomes_ready(member, ended)
            was_ready = found.is_ready
            if was_ready and ready.is_set():
                self._reports.serves_again(member, child.pid)
            elif was_ready:
                ready.set()
            if was_ready:
                found = await self._while_new(member, ended)
            is_late = not was_ready and not ended.done()
            if found.never and not ended.done():
                await self._stop(member)
                return _End("", was_ready=False, exited=True, never=found.why)
            if is_late:
                child.send(signal.SIGKILL)
            code = await ended
        finally:
            ended.cancel()
        del self._children[member]
        text = f"{member.name} was not ready in {READY_S_MAX:.0f} s" if is_late else _end_text(member, code)
        return _End(text, was_ready, exited=code >= 0 or is_late, clean=code == 0)

    async def _becomes_ready(self, member: Member, ended: asyncio.Task[int]) -> Readiness:
        """Not ready if it ends before, takes too long, or never will be."""
        loop = asyncio.get_running_loop()
        began, noticed = loop.time(), False
        while not ended.done() and loop.time() < began + READY_S_MAX:
            found = await self._launcher.ready(member)
            if found.is_ready or found.never:
                return found
            if found.why and not noticed and loop.time() >= began + NOTICE_S:
                noticed = True
                self._reports.trouble(member, f"{member.name} is not ready yet: {found.why}")
            await asyncio.wait({ended}, timeout=READY_POLL_S)
        return Readiness(is_ready=False)

    async def _while_new(self, member: Member, ended: asyncio.Task[int]) -> Readiness:
        """For STABLE_S: a broker that served by its stored table may hear only then that it was removed."""
        ends = asyncio.get_running_loop().time() + STABLE_S
        while not ended.done() and asyncio.get_running_loop().time() < ends:
            await asyncio.wait({ended}, timeout=NEW_POLL_S)
            found = await self._launcher.ready(member)
            if found.never:
                return found
        return Readiness(is_ready=True)

    def _leave_out(self, member: Member, why: str) -> None:
        self._reports.left_out(member, f"{member.name} stays stopped: {why}")
        self._stopped.add(member)
        if not self._any_runs():
            self._stopping.set()

    def _give_up(self, member: Member) -> None:
        words = self._launcher.last_words(member)
        self._reports.trouble(member, f"{member.name} stays stopped, {RESTARTS_MAX} starts failed: {words}")
        self._given_up.add(member)
        if not self._any_runs():
            raise self._failed(f"every daemon has been given up; {member.name}: {words}")

    def _stays_stopped(self, member: Member) -> None:
        text = f"{member.name} has stopped by a command, and stays stopped until the next start of all"
        self._reports.trouble(member, text)
        self._stopped.add(member)
        if not self._any_runs():
            self._stopping.set()

    def _any_runs(self) -> bool:
        return len(self._given_up) + len(self._stopped) < sum(map(len, self._stages))

    @staticmethod
    def _failed(message: str) -> TroveError:
        return TroveError(errors.DAEMON_FAILED, message)

    async def _stop_all(self) -> bool:
        clean = True
        for stage in reversed(self._stages):
            running = [member for member in stage if member in self._children]
            clean &= all(await asyncio.gather(*map(self._stop, running)))
        return clean

    async def _stop(self, member: Member) -> bool:
        """Whether it ended cleanly."""
        child = self._children[member]
        child.send(signal.SIGKILL if self._at_once else signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S_MAX):
                code = await child.wait()
        except TimeoutError:
            child.send(signal.SIGKILL)
            code = await child.wait()
        del self._children[member]
        if code == -signal.SIGTERM:  # it was at its imports yet
            code = 0
        if code != 0:
            self._reports.trouble(member, _end_text(member, code))
        return code == 0


def _end_text(member: Member, code: int) -> str:
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}  # not of every real-time signal
        return f"{member.name} was ended by {names.get(-code, f'signal {-code}')}"
    return f"{member.name} ended with exit code {code}"
