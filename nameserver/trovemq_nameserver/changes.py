"""The log of the route table's changes: which topics of which brokers changed since a version.

It has names only. The reader of a change takes the present state of the names, so a change that is
applied twice, or late, does no harm.

Invariants
- A version that is answered is followed by every later change in the log.
- The log names at most NAMES_KEPT topics and brokers; the oldest changes are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

NAMES_KEPT: Final = 16_384
NAMES_OF_CHANGE_MAX: Final = 4_096
"""A change of more topics is a change of the broker and all of them."""


class _Change(NamedTuple):
    version: int
    broker: str
    topics: Collection[str] | None
    described: bool


class Changed:
    """The changes of one broker: `whole`, it came, left, or all of its topics may differ; otherwise those of
    `topics`, and with `described` its description."""

    __slots__ = ("described", "topics", "whole")

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        self.whole = False
        self.described = False


class ChangeLog:
    """The newest changes. Versions rise by one with each."""

    def __init__(self) -> None:
        self._changes: deque[_Change] = deque()
        self._names = 0
        self._known_from = 0

    def add(self, version: int, broker: str, topics: Collection[str] | None, *, described: bool) -> None:
        """topics: the names that changed; None: the whole broker. described: its description changed."""
        if topics is not None and len(topics) > NAMES_OF_CHANGE_MAX:
            topics = None
        self._changes.append(_Change(version, broker, topics, described))
        self._names += _names(topics)
        while self._names > NAMES_KEPT:
            oldest = self._changes.popleft()
            self._names -= _names(oldest.topics)
            self._known_from = oldest.version

    def since(self, version: int) -> dict[str, Changed] | None:
        """The changes after that version, by broker; None if that is too long ago."""
        if version < self._known_from:
            return None
        found: dict[str, Changed] = {}
        for change in reversed(self._changes):
            if change.version <= version:
                break
            changed = found.get(change.broker)
            if changed is None:
                changed = found[change.broker] = Changed()
            changed.described |= change.described
            if change.topics is None:
                changed.whole = True
            else:
                changed.topics.update(dict.fromkeys(change.topics))
        return found


def _names(topics: Collection[str] | None) -> int:
    return 1 + len(topics or ())
