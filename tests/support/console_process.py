"""A console as a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.fork_server import popen

STOP_SECONDS_MAX = 240


@contextmanager
def running_console(
    server: str, *arguments: str, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address, with the token where there is one; and the process."""
    command = [
        sys.executable,
        "-m",
        "trovemq_console.command",
        "--listen",
        "127.0.0.1:0",
        "--nameserver",
        server,
    ]
    process = popen(
        [*command, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        match = re.search(r"https?://\S+", line)
        assert match is not None, line + process.stderr.read()
        yield match[0].rstrip("/"), process
    finally:
        process.terminate()
        process.wait(STOP_SECONDS_MAX)
        process.stderr.close()
