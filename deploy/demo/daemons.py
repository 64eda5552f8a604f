"""The demo's daemons and console as child processes: started, watched and stopped, each by its process id.

Each child is in a separate session, so that Ctrl-C reaches only the demo, which then stops them in order.
On Linux the kernel ends them (SIGTERM) when the demo itself is killed: no child keeps running, and the next
start finds its ports free.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Final

from trovemq.cli.local.processes import end_with_parent

READY_TIMEOUT_S: Final = 60.0
READY_POLL_S: Final = 0.05
STOP_TIMEOUT_S: Final = 15.0
PORT_FREE_TIMEOUT_S: Final = 5.0

# The meaning of the daemons' exit codes (they document them in --help).
EXIT_CODES: Final = {
    0: "another process asked it to stop",
    1: "unexpected error",
    2: "usage or settings",
    3: "the store is locked by another broker",
    4: "the store has other settings, or is newer than this broker",
    5: "fatal storage error",
    6: "address in use",
}


class DemoError(Exception):
    """The demo cannot continue; the text gives the reason and the remedy."""


class Daemon:
    """One child process: `python -m MODULE ARGUMENTS`."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], http: str) -> None:
        self.name: Final = name
        self._command = [sys.executable, "-m", module, *arguments]
        self._ready_url = f"http://{http}/readyz"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts the process; its log goes to our standard error."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent(os.getpid()),
        )

    async def wait_ready(self) -> None:
        """Returns when /readyz answers 200. Raises DemoError after a minute."""
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while not await asyncio.to_thread(_answers, self._ready_url):
            if asyncio.get_running_loop().time() > deadline:
                raise DemoError(
                    f"the {self.name} is not ready after {READY_TIMEOUT_S:g} s ({self._ready_url})"
                )
            await asyncio.sleep(READY_POLL_S)

    async def wait_end(self) -> int:
        """The exit code, once the process has ended; -N after signal N."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> int:
        """SIGTERM, and SIGKILL if that takes too long; the exit code (0 where it never ran)."""
        if self._process is None:
            return 0
        self._signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    def kill(self) -> None:
        """SIGKILL; the store then counts as crashed."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def explain(self, code: int) -> str:
        """The meaning of an exit code, in words."""
        if code < 0:
            return f"the {self.name} was ended by {signal.Signals(-code).name}"
        return f"the {self.name} stopped with exit code {code} ({EXIT_CODES.get(code, 'see its log above')})"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


async def wait_ports_free(addresses: Iterable[str]) -> None:
    """Returns when every address can be listened on: a demo that was just killed needs a moment to let go.

    Raises DemoError that names the first address that stays taken.
    """
    for address in addresses:
        deadline = asyncio.get_running_loop().time() + PORT_FREE_TIMEOUT_S
        while not port_is_free(address):
            if asyncio.get_running_loop().time() > deadline:
                raise DemoError(
                    f"{address} is in use by another process (a demo that still runs?): stop it, "
                    "or choose other addresses, see `make run ARGS=--help`"
                )
            await asyncio.sleep(READY_POLL_S)


def port_is_free(address: str) -> bool:
    """Whether this HOST:PORT can be listened on. Raises DemoError for one that this machine cannot have."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise DemoError(f"cannot listen on {address}: {error.strerror}") from None
        except (ValueError, OverflowError):
            raise DemoError(f"{address!r} is not HOST:PORT") from None
    return True
