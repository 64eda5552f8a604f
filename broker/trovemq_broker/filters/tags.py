"""Filters by tag: `*` or an empty text matches all messages, `a || b` those whose tag is exactly one of
these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import PROPERTY_TAGS, java_hash

ALL: Final = "*"
_SEPARATOR: Final = "||"


class TakeAll:
    """Matches every message, also one without a tag."""

    expression = ALL
    kind: Literal["tag", "sql"] = "tag"
    tag_hashes: frozenset[int] | None = None
    takes_all = True

    def matches(self, properties: Mapping[str, str]) -> bool:
        return True


class TagFilter:
    """Matches messages that have one of the tags. `tag_hashes`: their tags codes in the consume queue."""

    kind: Literal["tag", "sql"] = "tag"
    takes_all = False

    def __init__(self, expression: str, tags: frozenset[str]) -> None:
        assert tags, "a filter without a tag would match nothing"
        assert "" not in tags, "a message without a tag matches no tag"
        self.expression = expression
        self.tags = tags
        self.tag_hashes: frozenset[int] | None = frozenset(java_hash(tag) for tag in tags)

    def matches(self, properties: Mapping[str, str]) -> bool:
        return properties.get(PROPERTY_TAGS) in self.tags


def parse_tags(expression: str) -> TagFilter | TakeAll:
    """Parses the expression. Raises TroveError FILTER_ILLEGAL if it has separators and not one tag."""
    text = expression.strip()
    if text in ("", ALL):
        return TakeAll()
    tags = frozenset(tag for part in text.split(_SEPARATOR) if (tag := part.strip()))
    if not tags:
        raise TroveError(
            errors.FILTER_ILLEGAL,
            "tag filter: at character 1: expected a tag, `*`, or tags with `||` between them",
            position=1,
        )
    return TagFilter(expression, tags)
