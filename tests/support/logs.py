"""The daemons' log in a block; afterwards this process logs as it did before.

The daemons set up logging once a process. A test that left it so would send the libraries' errors of every
later test to structlog's default, which is standard output.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import structlog

from trovemq_daemon.logging import configure_logging


@contextmanager
def logging_restored() -> Iterator[None]:
    """At the end structlog and the root logger are as at the beginning."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    configured, configuration = structlog.is_configured(), structlog.get_config()
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        structlog.reset_defaults()
        if configured:
            structlog.configure(**configuration)


@contextmanager
def logged(
    level: Literal["debug", "info"] = "info", clock: Callable[[], float] = time.monotonic
) -> Iterator[io.StringIO]:
    """Every line from `level` upwards, as text."""
    stream = io.StringIO()
    with logging_restored():
        configure_logging(level, "text", stream=stream, clock=clock)
        yield stream
