"""How a client identifies itself: its id, and the metadata of its calls."""

from __future__ import annotations

import itertools
import os
import socket
import time
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

_HOST_SIZE_MAX: Final = 100  # a client id has at most 255 characters
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"

_numbers = itertools.count()


def new_client_id() -> str:
    """`HOST@PID@NUMBER@TIME`, in the form of RocketMQ's clients; one for each producer and subscriber."""
    return f"{hostname()}@{os.getpid()}@{next(_numbers)}@{_base36(time.time_ns())}"


@lru_cache(maxsize=1_024)
def metadata_of(client_id: str) -> tuple[tuple[str, str], ...]:
    """The metadata of every call of this client."""
    return (
        ("x-mq-client-id", client_id),
        ("x-mq-language", "PYTHON"),
        ("x-mq-client-version", sdk_version()),
        ("x-mq-protocol", "v2"),
        ("x-mq-namespace", ""),
    )


def hostname() -> str:
    """The name of this machine, for brokers."""
    name = socket.gethostname().encode("ascii", "replace").decode().replace("@", "-")
    return name[:_HOST_SIZE_MAX] or "unknown"


@cache
def sdk_version() -> str:
    """The version of this package."""
    try:
        return version("trovemq")
    except PackageNotFoundError:  # run from a source tree
        return "0"


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text or "0"
