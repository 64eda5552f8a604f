"""The caller of the present request, as who makes its topics and groups.

The check of access sets it before a handler begins; a topic or a group that a request makes, also by its
first use, is its caller's.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Final

from trovemq_store.topics.creators import NOBODY, Creator

_present: Final[ContextVar[Creator]] = ContextVar("creator", default=NOBODY)


def present_creator() -> Creator:
    """NOBODY if the broker does not authenticate callers."""
    return _present.get()


def set_creator(creator: Creator) -> Token[Creator]:
    """Of the present task's request, or until reset_creator()."""
    return _present.set(creator)


def reset_creator(token: Token[Creator]) -> None:
    _present.reset(token)
