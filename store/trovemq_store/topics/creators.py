"""Who made a topic or a group: the attribute `trovemq.creator` of its entry, which RocketMQ keeps.

Entries of callers without a name have none. It is written once; nobody changes it later.
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
    """Who makes an entry. `check(noun, count)`: noun is `topic` or `group`, and so many are the creator's
    already; TroveError LIMIT_EXCEEDED where that is enough."""

    name: str = ""
    check: Callable[[str, int], None] = _unlimited

    @property
    def attributes(self) -> dict[str, str]:
        """Those of a new entry."""
        return {CREATOR_ATTRIBUTE: self.name} if self.name else {}


NOBODY: Final = Creator()


def creator_of(attributes: Mapping[str, str]) -> str:
    """Empty where nobody is known."""
    return attributes.get(CREATOR_ATTRIBUTE, "")
