"""Processes that a measurement starts: when a server answers, and the last line of a command."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOOK_S: Final = 0.05
LINE_SIZE_MAX: Final = 1 << 24


class ProcessError(Exception):
    """A command failed or took too long; the message says how."""


def answers(port: int, process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Waits until the process listens on this port. False: it has ended, or the time is over."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
        except OSError:
            time.sleep(LOOK_S)
        else:
            return True
    return False


async def last_line(*command: str, timeout_s: float) -> str:
    """The last line that the command prints. Raises ProcessError if it fails, or prints nothing."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, limit=LINE_SIZE_MAX
    )
    try:
        found, faults = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ProcessError(f"{' '.join(command)}: took more than {timeout_s} s") from None
    if process.returncode or not found.strip():
        raise ProcessError(f"{' '.join(command)}: {faults.decode(errors='replace')[-2000:]}")
    return found.decode().strip().splitlines()[-1]
