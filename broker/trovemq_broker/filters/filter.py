"""Filters of a topic's messages for a consumer: by tag, or by SQL-92 conditions on their properties.

Invariants
- A filter never changes, and the same text is always parsed to an equal filter.
- Parsed filters are cached, least recently used ones are evicted: at most FILTERS_MAX filters, with
  EXPRESSIONS_LENGTH_MAX characters of expressions, because a parsed filter grows with its expression.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, Literal, Protocol

from trovemq_broker.filters.sql import parse_sql
from trovemq_broker.filters.tags import TakeAll, parse_tags
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

__all__ = ["EXPRESSION_LENGTH_MAX", "TAKE_ALL", "Filter", "FilterCache", "FilterKind", "parse_filter"]

FilterKind = Literal["tag", "sql"]

EXPRESSION_LENGTH_MAX: Final = 8_192
FILTERS_MAX: Final = 1_024
EXPRESSIONS_LENGTH_MAX: Final = 1 << 20

_KINDS: Final[dict[str, FilterKind]] = {"": "tag", "tag": "tag", "sql": "sql", "sql92": "sql"}


class Filter(Protocol):
    """`tag_hashes`: the tags codes in a consume queue that may match; None = any may match. `takes_all`:
    matches() is always True."""

    @property
    def expression(self) -> str: ...
    @property
    def kind(self) -> FilterKind: ...
    @property
    def tag_hashes(self) -> frozenset[int] | None: ...
    @property
    def takes_all(self) -> bool: ...

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether it matches a message with these stored properties: TAGS, KEYS and those of users."""
        ...


class FilterCache:
    """The filters that were used last, by kind and expression."""

    def __init__(
        self, filters_max: int = FILTERS_MAX, expressions_length_max: int = EXPRESSIONS_LENGTH_MAX
    ) -> None:
        self._filters_max = filters_max
        self._expressions_length_max = expressions_length_max
        self._filters: OrderedDict[tuple[FilterKind, str], Filter] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return len(self._filters)

    def parse(self, kind: str, expression: str) -> Filter:
        """The filter. `kind` is tag or sql, or RocketMQ's name TAG or SQL92, or nothing, which means tag.

        TroveError FILTER_ILLEGAL, which names the position (from 1) and the expected tokens there.
        """
        known = _KINDS.get(kind.lower())
        if known is None:
            raise TroveError(
                errors.FILTER_ILLEGAL, f"a filter is of kind tag or sql, not {kind[:40]!a}", field="kind"
            )
        if len(expression) > EXPRESSION_LENGTH_MAX:
            raise TroveError(
                errors.FILTER_ILLEGAL,
                f"the filter has {len(expression)} characters, more than {EXPRESSION_LENGTH_MAX}",
                position=EXPRESSION_LENGTH_MAX + 1,
            )
        found = self._filters.get((known, expression))
        if found is None:
            made = parse_tags(expression) if known == "tag" else parse_sql(expression)
            return self._remember(known, expression, made)
        self._filters.move_to_end((known, expression))
        return found

    def _remember(self, kind: FilterKind, expression: str, made: Filter) -> Filter:
        self._filters[kind, expression] = made
        self._length += len(expression)
        while len(self._filters) > self._filters_max or self._length > self._expressions_length_max:
            (_, forgotten), _ = self._filters.popitem(last=False)
            self._length -= len(forgotten)
        return made


TAKE_ALL: Final[Filter] = TakeAll()
_CACHE: Final = FilterCache()

parse_filter: Final = _CACHE.parse
"""FilterCache.parse of the one cache of the process."""
