"""Checks tag filters: a filter that is a legal tag for RocketMQ, but is clearly a mistake, is refused.

The protocol accepts any text between two `||` as a tag, also `a && b`, and such a filter matches nothing.
Unusual tags can be given as a list (`tags=[…]`).
"""

from __future__ import annotations

import re
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_SEPARATOR: Final = "||"
_AND: Final = re.compile(r"&&|\sand\s", re.IGNORECASE)
_OR: Final = re.compile(r"\||\sor\s", re.IGNORECASE)
_MEANT: Final = (
    (_AND, "a message has one tag, so no message has two; conditions on properties are SQL's (sql=)"),
    (_OR, f"one of several tags is written with {_SEPARATOR} between them"),
)


def check_tag_filter(expression: str) -> None:
    """Raises TroveError FILTER_ILLEGAL, which suggests the right form, for `a && b`, `a | b`, `a and b`."""
    for part in expression.split(_SEPARATOR):
        meant = what_was_meant(part)
        if meant is not None:
            text = (
                f"the filter {part.strip()[:80]!r} is not a tag: {meant} (tags that look like this: tags=[…])"
            )
            raise TroveError(errors.FILTER_ILLEGAL, text)


def what_was_meant(tag: str) -> str | None:
    """The right form of a tag that looks like an expression; None for any other."""
    return next((meant for sign, meant in _MEANT if sign.search(tag)), None)
