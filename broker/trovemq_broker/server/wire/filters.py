"""Filters as RocketMQ's requests state them."""

from __future__ import annotations

from typing import Final

from trovemq_broker.filters.filter import TAKE_ALL, Filter, parse_filter
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

SQL: Final = "sql"
TAG: Final = "tag"


def read_filter(expression: v2.FilterExpression) -> Filter:
    """Raises TroveError FILTER_ILLEGAL. An unspecified type is that of tags."""
    if expression.type in (v2.TAG, v2.FILTER_TYPE_UNSPECIFIED):
        return parse_filter(TAG, expression.expression) if expression.expression else TAKE_ALL
    if expression.type == v2.SQL:
        return parse_filter(SQL, expression.expression)
    raise TroveError(errors.FILTER_ILLEGAL, f"filter type {expression.type} is neither TAG nor SQL")


def filter_expression(kind: str, expression: str) -> v2.FilterExpression:
    """The filter of a subscription, which has a Filter's kind."""
    return v2.FilterExpression(type=v2.SQL if kind == SQL else v2.TAG, expression=expression)
