"""The command line in this process: a child process for each call would take most of a test's time."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stderr, redirect_stdout

from trovemq.cli import app


def run_here(address: str, *arguments: str, encoding: str = "utf-8") -> tuple[int, bytes, str]:
    """Exit code, standard output and standard error of `trovemq --json --server ADDRESS …`.

    Each call has a separate event loop, and gRPC calls back into loops that were closed; asyncio then logs
    that, which must not stand among the answer.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    asyncio_log = logging.getLogger("asyncio")
    asyncio_log.disabled = True
    try:
        with redirect_stdout(out), redirect_stderr(io.StringIO()) as err:
            code = app.run(["--server", address, "--json", *arguments])
    finally:
        asyncio_log.disabled = False
    assert isinstance(out.buffer, io.BytesIO)
    return code, out.buffer.getvalue(), err.getvalue()
