"""The creator of the topics and groups of the present request: its caller.

The check of access sets the creator before a handler begins. It counts also for topics and groups that a
request creates by their first use.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Final

from trovemq_store.topics.creators import NOBODY, Creator

_present: Final[ContextVar[Creator]] = ContextVar("creator", default=NOBODY)


present_creator: Final[Callable[[], Creator]] = _present.get
"""The creator; NOBODY if the broker does not authenticate callers."""
set_creator: Final[Callable[[Creator], Token[Creator]]] = _present.set
"""Sets the creator for the present task, or until reset_creator()."""
reset_creator: Final[Callable[[Token[Creator]], None]] = _present.reset
