"""Reads the requests of Fetch and Pull as commands. native_messages.py makes their replies."""

from __future__ import annotations

from typing import NamedTuple

from trovemq_broker.fetch.pull import PullRequest
from trovemq_broker.server.wire.native_messages import pull_request
from trovemq_proto.v1 import message_pb2


class Fetch(NamedTuple):
    """A request for messages of one queue, which may wait for them. `wait_ms` and `replies_max` are the
    client's wishes, without limits."""

    fetch_id: int
    pull: PullRequest
    wait_ms: int
    replies_max: int


class MoreReplies(NamedTuple):
    """A fetch that stands may have more replies."""

    fetch_id: int
    replies: int


def read_fetch(request: message_pb2.FetchRequest) -> Fetch | MoreReplies:
    """The command of a frame of Fetch."""
    if request.replies_more:
        return MoreReplies(request.fetch_id, request.replies_more)
    return read_pull(request)


def read_pull(request: message_pb2.FetchRequest) -> Fetch:
    """The command of a Pull, which has one reply. One that bears a replica's lag waits no longer than that:
    its empty reply says that the queue had not grown in that time."""
    wait_ms = min(request.wait_ms, request.max_lag_ms) if request.max_lag_ms > 0 else request.wait_ms
    return Fetch(request.fetch_id, pull_request(request), wait_ms, request.replies_max)


def fetch_id_of(request: message_pb2.FetchRequest) -> int:
    """The id by which the client knows the replies."""
    return request.fetch_id
