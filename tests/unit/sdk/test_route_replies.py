"""Replies with routes: the placements of topics are counted before protobuf makes objects of them."""

from __future__ import annotations

from typing import Any

import pytest

from trovemq._wire.route_replies import PLACES_MAX, SIZE_FINE, read_routes
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, route_pb2

REPLIES: tuple[Any, ...] = (route_pb2.ClusterReply, route_pb2.RouteReply)


def routes_of(*placements: int) -> bytes:
    """A reply, of either kind and larger than SIZE_FINE. For each topic the number of its brokers."""
    topics = [
        common_pb2.TopicRoute(
            topic=f"t{number}",
            queue_count=1 << 20,
            placement={f"broker-{place}": 1 << 20 for place in range(count)},
        )
        for number, count in enumerate(placements)
    ]
    topics += [common_pb2.TopicRoute(topic="x" * 255) for _ in range(SIZE_FINE // 255)]
    info = common_pb2.BrokerInfo(name="b", data_version=1 << 40)
    routes = [common_pb2.BrokerRoute(broker=info, topics=topics), common_pb2.BrokerRoute(broker=info)]
    lost = [route_pb2.LostBroker(name="c", lost_ms=5)]
    whole: bytes = route_pb2.ClusterReply(brokers=routes, lost=lost).SerializeToString()
    return whole


@pytest.mark.parametrize("reply", REPLIES)
def test_routes_with_the_most_brokers_of_a_placement_are_read(reply: Any) -> None:
    data = routes_of(PLACES_MAX, 0, PLACES_MAX)
    assert read_routes(reply, data) == reply.FromString(data)
    assert read_routes(reply, b"") == reply()


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("placements", [(PLACES_MAX + 1,), (0, PLACES_MAX, PLACES_MAX + 1)])
def test_placements_of_a_reply_were_parsed_without_a_limit(
    reply: Any, placements: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unparsed:
        @staticmethod
        def FromString(data: bytes) -> None:
            raise AssertionError("it is parsed")

    unparsed: Any = Unparsed
    with pytest.raises(TroveError, match="a topic of the routes lies on 1,001 brokers") as refused:
        read_routes(unparsed, routes_of(*placements))
    assert refused.value.symbol == "LIMIT_EXCEEDED"


def test_empty_entries_are_counted_too() -> None:
    """The smallest ones: two bytes each."""
    entries = b"\x22\x00" * 1_000_000
    topic = b"\x0a\x01t" + entries
    route = b"\x12" + _size(len(topic)) + topic
    with pytest.raises(TroveError, match="1,000,000 brokers"):
        read_routes(route_pb2.ClusterReply, b"\x0a" + _size(len(route)) + route)


def _size(count: int) -> bytes:
    written = bytearray()
    while count >= 0x80:
        written.append(count & 0x7F | 0x80)
        count >>= 7
    return bytes([*written, count])


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("size", [50, SIZE_FINE + 50])
def test_bytes_that_are_no_routes_are_an_error_of_the_server(reply: Any, size: int) -> None:
    data = routes_of(2)
    for broken in (data[:size], b"\xff" * size, b"\x0b" * size):
        with pytest.raises(TroveError, match="routes are not readable") as refused:
            read_routes(reply, broken)
        assert refused.value.symbol == "BROKER_UNREACHABLE"
