"""Reads replies with routes. Placements are counted in the bytes first: protobuf would make an object of each
of the millions that a message of 64 MiB has space for.

Only a topic of more than PLACES_MAX * 2 bytes can have too many, so the others are skipped.
"""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.reply_parts import PartJoiner
from trovemq_proto.v1 import common_pb2, route_pb2
from trovemq_proto.varints import read_varint

PLACES_MAX: Final = 1_000
"""Brokers of a topic's placement, as of a nameserver."""
SIZE_FINE: Final = 65_536
"""Replies up to this size are not examined."""

_BROKERS: Final = route_pb2.ClusterReply.BROKERS_FIELD_NUMBER << 3 | 2
assert _BROKERS == route_pb2.RouteReply.BROKERS_FIELD_NUMBER << 3 | 2, "both replies are walked"
_TOPICS: Final = common_pb2.BrokerRoute.TOPICS_FIELD_NUMBER << 3 | 2
_PLACEMENT: Final = common_pb2.TopicRoute.PLACEMENT_FIELD_NUMBER << 3 | 2
_ENTRY_SIZE_MIN: Final = 2
_UNREADABLE: Final = "the server's routes are not readable"


_Reply = TypeVar("_Reply", route_pb2.ClusterReply, route_pb2.RouteReply)


def read_routes(reply: type[_Reply], data: bytes) -> _Reply:
    """Raises TroveError LIMIT_EXCEEDED; BROKER_UNREACHABLE for bytes that are no such reply."""
    try:
        if len(data) > SIZE_FINE:
            _walk(data, 0, len(data), (_BROKERS, _TOPICS))
        return reply.FromString(data)
    except (DecodeError, IndexError, ValueError):
        raise TroveError(errors.BROKER_UNREACHABLE, _UNREADABLE) from None


class RoutesJoiner:
    """The replies of one stream, whose large ones come in parts."""

    def __init__(self) -> None:
        self._joiner = PartJoiner()

    def add(self, message: bytes) -> route_pb2.ClusterReply | None:
        """The reply that ends with this message; None while parts are missing. Raises the errors of
        read_routes."""
        try:
            whole = self._joiner.add(message)
        except (DecodeError, ValueError):
            raise TroveError(errors.BROKER_UNREACHABLE, _UNREADABLE) from None
        return None if whole is None else read_routes(route_pb2.ClusterReply, whole)


def _walk(data: bytes, position: int, end: int, path: tuple[int, ...]) -> None:
    """Walks the fields of a message, and into those of the path; at its end the placements are counted.

    Raises TroveError LIMIT_EXCEEDED, IndexError, ValueError.
    """
    into = path[0] if path else _PLACEMENT
    places = 0
    while position < end:
        tag = data[position]  # most tags and sizes have one byte
        position += 1
        if tag >= 0x80:
            tag, position = read_varint(data, position - 1)
        match tag & 7:
            case 2:
                size = data[position]
                position += 1
                if size >= 0x80:
                    size, position = read_varint(data, position - 1)
                if tag == into:
                    if not path:
                        places += 1
                    elif len(path) > 1 or size > PLACES_MAX * _ENTRY_SIZE_MIN:
                        _walk(data, position, min(position + size, end), path[1:])
                position += size
            case 0:
                _, position = read_varint(data, position)
            case 1:
                position += 8
            case 5:
                position += 4
            case _:
                raise ValueError("a group, or an unknown form")
    if places > PLACES_MAX:
        text = f"a topic of the routes lies on {places:,} brokers; the limit is {PLACES_MAX:,}"
        raise TroveError(errors.LIMIT_EXCEEDED, text)
