"""Makes the message ids of this process: one sequence for all its clients, created when it is first needed.

RocketMQ's v5 form has the MAC, the process id, the second of the start and a sequence number. Two generators
in one process could give the same key; so there is one, and a new one after a fork.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from typing import TYPE_CHECKING

from trovemq_proto.numpy_extra import PLAIN_ENCODED_MAX, has_numpy
from trovemq_proto.records.unique_keys import UniqueKeyGenerator

if TYPE_CHECKING:
    from trovemq.receipts import MessageIds

SECONDS_2021 = 1_609_459_200  # 2021-01-01T00:00:00Z

_lock = threading.Lock()
_generator: UniqueKeyGenerator | None = None


def next_unique_key() -> str:
    """34 upper-case hex digits."""
    with _lock:
        generator = _generator
        return generator.next() if generator is not None else _current().next()


def next_unique_texts(count: int) -> list[str]:
    """`count` keys as texts."""
    with _lock:
        return _current().take(count)


def next_unique_keys(count: int) -> MessageIds:
    """`count` keys, as texts or as uint8[count, 34] with ASCII characters."""
    several = count > PLAIN_ENCODED_MAX and has_numpy()
    with _lock:
        return _current().take_matrix(count) if several else _current().take(count)


def _current() -> UniqueKeyGenerator:
    global _generator  # noqa: PLW0603  one sequence a process is the point
    if _generator is None:
        started = time.monotonic()
        _generator = UniqueKeyGenerator(
            uuid.getnode().to_bytes(6, "big"),
            os.getpid(),
            int(time.time()) - SECONDS_2021,
            lambda: int(time.monotonic() - started),
        )
    return _generator


def _after_fork() -> None:
    """The child process begins its own sequence; the holder of the lock stayed in the parent."""
    global _generator, _lock  # noqa: PLW0603
    _generator = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
