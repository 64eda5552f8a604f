"""The creator of a topic or a group: the attribute `trovemq.creator` of its entry, which RocketMQ keeps.

Entries of callers without a name do not have it. It is written once and never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

CREATOR_ATTRIBUTE: Final = "trovemq.creator"


def _unlimited(_noun: str, _count: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Creator:
    """The creator of an entry. `check(noun, count)`: noun is `topic` or `group`, count is how many the
    creator has already; TroveError LIMIT_EXCEEDED if it may have no more."""

    name: str = ""
    check: Callable[[str, int], None] = _unlimited

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of a new entry."""
        return {CREATOR_ATTRIBUTE: self.name} if self.name else {}


NOBODY: Final = Creator()


def creator_of(attributes: Mapping[str, str]) -> str:
    """The creator's name; empty if there is none."""
    return attributes.get(CREATOR_ATTRIBUTE, "")
