"""The caller of the present request, as who makes its topics and groups.

The check of access sets it before a handler begins; a topic or a group that a request makes, also by its
first use, is its caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from trovemq_store.topics.creators import NOBODY, Creator

_present: Final[ContextVar[Creator]] = ContextVar("creator", default=NOBODY)


def present_creator() -> Creator:
    """NOBODY where the broker asks nobody who calls."""
    return _present.get()


def set_creator(creator: Creator) -> None:
    """Of the present task's request."""
    _present.set(creator)


@contextmanager
def as_creator(creator: Creator) -> Iterator[None]:
    """For what is called within."""
    token = _present.set(creator)
    try:
        yield
    finally:
        _present.reset(token)
