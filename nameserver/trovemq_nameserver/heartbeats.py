"""Reads heartbeats. One with many topics is read in steps, so that other requests wait for a step only.

Protobuf makes 20,000 objects of a heartbeat with 20,000 topics in one go. But each topic is a field of its
own, and some fields that follow each other are a message, too: so a large heartbeat is cut between fields.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from google.protobuf.message import DecodeError

from trovemq_daemon.request_bounds import BoundedReader, check_parts
from trovemq_nameserver.routes import RouteLimits, check_topics_read
from trovemq_nameserver.topics import (
    PLACES_MAX,
    TOPICS_A_STEP,
    TopicFields,
    TopicNames,
    TopicRoute,
    checked_topics,
)
from trovemq_nameserver.wire import topics_from_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, route_pb2
from trovemq_proto.varints import read_varint

LARGE_SIZE: Final = 16_384
HEARTBEAT_PARTS: Final = 8_192
"""The most fields of a heartbeat beside its topics: most are names of removed topics."""

TOPIC_PARTS_MAX: Final = PLACES_MAX + 16
"""The most fields of a topic: most are the brokers of its placement."""
STEP_SIZE: Final = 65_536
"""Fields of at most this size, and the one that ends them, are read in one step: placements take some."""

_TOPICS_TAG: Final = route_pb2.Heartbeat.TOPICS_FIELD_NUMBER << 3 | 2


class LargeHeartbeat:
    """A heartbeat that is not read yet. `check`: raises TroveError for a broker that the sender may not
    register; called with the heartbeat without its topics."""

    __slots__ = ("check", "data")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self.check: Callable[[route_pb2.Heartbeat], None] = _everything_is_fine


class HeartbeatReader(BoundedReader):
    """Reads small heartbeats; gives large ones as LargeHeartbeat."""

    def __init__(self) -> None:
        super().__init__(route_pb2.Heartbeat)

    def __call__(self, data: bytes) -> route_pb2.Heartbeat | LargeHeartbeat:
        if len(data) > LARGE_SIZE:
            return LargeHeartbeat(bytes(data))
        return route_pb2.Heartbeat.FromString(data)


def read_large(
    data: bytes, limits: RouteLimits, names: TopicNames
) -> Generator[None, None, tuple[route_pb2.Heartbeat, Mapping[str, TopicRoute]]]:
    """The heartbeat without its topics, and these; in steps. Raises TroveError LIMIT_EXCEEDED,
    REQUEST_ILLEGAL."""
    heartbeat = route_pb2.Heartbeat()
    try:
        cuts = yield from _cuts(data, limits)
        topics = yield from checked_topics(_topics(data, cuts, heartbeat), names)
    except (DecodeError, ValueError, IndexError) as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"the bytes are not a Heartbeat: {error}") from None
    return heartbeat, topics


def _cuts(data: bytes, limits: RouteLimits) -> Generator[None, None, Sequence[int]]:
    """Positions between fields, the first and the last of the data among them: at most TOPICS_A_STEP fields
    lie between two."""
    cuts, position, fields, topics = [0], 0, 0, 0
    while position < len(data):
        fields += 1
        if data[position] == _TOPICS_TAG:
            topics += 1
            size = data[position + 1]
            position += 2
            if size >= 0x80:
                size, position = read_varint(data, position - 1)
            if size > TOPIC_PARTS_MAX:
                _check_topic_parts(data[position : position + size])
            position += size
        else:
            tag, position = read_varint(data, position)
            position = _end_of_field(data, tag & 7, position)
        if fields % TOPICS_A_STEP == 0 or position - cuts[-1] >= STEP_SIZE:
            check_topics_read(topics, limits)
            if fields - topics > HEARTBEAT_PARTS:
                raise TroveError(errors.LIMIT_EXCEEDED, f"the Heartbeat has more than {fields} fields")
            cuts.append(position)
            yield
    if position > len(data):
        raise ValueError("a field is cut")
    check_topics_read(topics, limits)
    return [*cuts, position]


def _check_topic_parts(data: bytes) -> None:
    """TroveError LIMIT_EXCEEDED, before protobuf makes an object of each."""
    check_parts(data, common_pb2.TopicRoute.DESCRIPTOR, TOPIC_PARTS_MAX, always_fine=0)


def _end_of_field(data: bytes, kind: int, position: int) -> int:
    match kind:
        case 2:
            size, position = read_varint(data, position)
            return position + size
        case 0:
            return read_varint(data, position)[1]
        case 1:
            return position + 8
        case 5:
            return position + 4
        case _:
            raise ValueError("a group, or an unknown form")


def _topics(data: bytes, cuts: Sequence[int], heartbeat: route_pb2.Heartbeat) -> Iterator[TopicFields]:
    """The topics; all other fields are merged into `heartbeat`."""
    for begin, end in pairwise(cuts):
        part = route_pb2.Heartbeat.FromString(data[begin:end])
        yield from topics_from_wire(part.topics)
        part.ClearField("topics")
        heartbeat.MergeFrom(part)


def _everything_is_fine(_heartbeat: route_pb2.Heartbeat) -> None:
    """Of a nameserver without users."""
