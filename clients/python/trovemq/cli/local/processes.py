"""A member of a local cluster as a child process.

It has a separate session, so that Ctrl-C reaches only the command, which then stops all in order. When the
command itself is killed, the kernel sends SIGTERM, for a clean stop: no daemon runs for ever, and the next
start finds the ports free.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from trovemq.cli.local.members import ROLES, Member, Plan
from trovemq.cli.local.supervisor import Readiness

PR_SET_PDEATHSIG: Final = 1
PROBE_S_MAX: Final = 1.0
REPLY_SIZE_MAX: Final = 64 << 10
LOG_SIZE_MAX: Final = 16 << 20
"""A longer log becomes `log.1`, which is replaced."""
DAEMON_VARIABLES: Final = ("TROVEMQ_BROKER_", "TROVEMQ_NAMESERVER_", "ETCD_")
"""Variables that set up another daemon: its TLS port or its file of settings fits none of these."""
LAST_LINES_SIZE: Final = 4 << 10
REMOVED: Final = "it was removed from its cluster"
"""What /readyz of a broker says under `configuration` after `broker remove`."""


class Process:
    """A child process that runs, or has run."""

    def __init__(self, command: list[str], log: Path, inherited: int) -> None:
        """Starts it. `inherited` is a descriptor that it keeps open. Raises OSError."""
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter
                command,
                env={name: os.environ[name] for name in os.environ.keys() - ignored_variables()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(inherited,),
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid()),  # noqa: PLW1509  the command has no threads
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def wait(self) -> int:
        """The exit code, once it has ended; -N after signal N."""
        if self._process.poll() is None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            descriptor = os.pidfd_open(self.pid)
            loop.add_reader(descriptor, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        return self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        self._process.send_signal(number)


def end_with_parent(parent: int) -> Callable[[], None] | None:
    """A function by which a child asks the kernel for SIGTERM when process `parent` dies; None but on Linux.

    The libc is looked up here, before any fork.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before prctl
            os._exit(1)

    return in_child


def ignored_variables() -> list[str]:
    """The variables of the environment that would be settings of daemons, and are not passed on."""
    return sorted(name for name in os.environ if name.startswith(DAEMON_VARIABLES))


class Processes:
    """Starts members as processes, and asks whether they are ready.

    Args:
        modules: The module of each daemon's command line, by its entry point's name.
        inherited: A descriptor that each keeps open.
    """

    def __init__(self, plan: Plan, modules: Mapping[str, str], inherited: int) -> None:
        self._plan = plan
        self._modules = modules
        self._inherited = inherited

    def launch(self, member: Member) -> Process:
        """Starts a member. Raises OSError."""
        trim_log(self._plan.log(member))
        role = ROLES[member.role]
        # -P: nothing in the current directory is imported.
        program = [role.program] if role.program else [sys.executable, "-P", "-m", self._modules[role.daemon]]
        command = [*program, *self._plan.arguments(member)]
        return Process(command, self._plan.log(member), self._inherited)

    async def ready(self, member: Member) -> Readiness:
        """Whether it serves, and every nameserver lists it."""
        if ROLES[member.role].program:
            return await self._is_healthy(member)
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                status, body = await _get(member.http_port, "/readyz")
            found = json.loads(body)
            reasons = [str(one) for one in found["reasons"]]
            unlisted = str(found["warnings"].get("nameservers", ""))
        except (OSError, ValueError, TimeoutError, LookupError, TypeError, AttributeError):
            return Readiness(is_ready=False)
        if any(one.startswith(f"configuration: {REMOVED}") for one in reasons):
            why = f"{REMOVED}; without {self._plan.store(member)} it joins as a new one"
            return Readiness(is_ready=False, why=why, never=True)
        return Readiness(status == 200 and not unlisted, why="; ".join([*reasons, unlisted]).rstrip("; "))

    async def _is_healthy(self, member: Member) -> Readiness:
        """Of etcd."""
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                status, body = await _get(member.http_port, "/health")
        except (OSError, ValueError, TimeoutError, LookupError):
            return Readiness(is_ready=False)
        return Readiness(status == 200 and b'"true"' in body, why="etcd has no leader yet")

    def tend(self) -> None:
        """Keeps the logs within their sizes."""
        for member in self._plan.members:
            trim_log(self._plan.log(member))

    def last_words(self, member: Member) -> str:
        """The last line of its log, and where that is."""
        log = self._plan.log(member)
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - LAST_LINES_SIZE))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{last} (log: {log})" if last else f"log: {log}"


async def _get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a GET. Raises OSError, ValueError for another reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        reply = b""
        while (chunk := await reader.read(REPLY_SIZE_MAX)) and len(reply) <= REPLY_SIZE_MAX:
            reply += chunk
    finally:
        writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body


def trim_log(log: Path) -> None:
    """Makes a long log `log.1`. The daemon appends to the same file, which is empty then; a line that it
    writes at this moment may be lost. Where the disk refuses it, the log stays as it is."""
    try:
        if log.stat().st_size > LOG_SIZE_MAX:
            shutil.copyfile(log, log.with_name("log.1"))
            os.truncate(log, 0)
    except OSError:
        return
