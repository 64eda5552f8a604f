"""How a client identifies itself: its id, and the metadata of its calls."""

from __future__ import annotations

import itertools
import os
import platform
import socket
import time
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

_HOST_SIZE_MAX: Final = 100  # a client id has at most 255 characters
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"

_numbers = itertools.count()


def new_client_id() -> str:
    """`HOST@PID@NUMBER@TIME`, in the form of RocketMQ's clients; one for each producer and subscriber."""
    return f"{_host()}@{os.getpid()}@{next(_numbers)}@{_base36(time.time_ns())}"


@lru_cache(maxsize=1_024)
def metadata_of(client_id: str) -> tuple[tuple[str, str], ...]:
    """The metadata of every call of this client."""
    return (
        ("x-mq-client-id", client_id),
        ("x-mq-language", "PYTHON"),
        ("x-mq-client-version", _version()),
        ("x-mq-protocol", "v2"),
        ("x-mq-namespace", ""),
    )


def user_agent() -> v2.UA:
    return v2.UA(
        language=v2.Language.PYTHON, version=_version(), platform=platform.system(), hostname=_host()
    )


def _host() -> str:
    name = socket.gethostname().encode("ascii", "replace").decode().replace("@", "-")
    return name[:_HOST_SIZE_MAX] or "unknown"


@cache
def _version() -> str:
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
