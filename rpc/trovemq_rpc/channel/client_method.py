"""A method, prepared so that its calls encode only their differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trovemq_rpc.channel.call_channel import CallChannel
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.headers import list_size
from trovemq_rpc.wire.compression import ACCEPTED


class ClientMethod:
    """The common part of all calls of a method: serializers, and most of the header block."""

    __slots__ = ("block", "deserialize", "list_size", "path", "serialize", "takes_view")

    def __init__(
        self,
        channel: CallChannel,
        path: str,
        serialize: Callable[[Any], bytes] | None,
        deserialize: Callable[[bytes], Any] | None,
    ) -> None:
        self.path = path
        self.serialize = serialize
        self.deserialize = deserialize
        self.takes_view = bool(getattr(deserialize, "takes_view", False))
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"https" if channel.credentials is not None else b"http"),
            (b":path", path.encode()),
            (b":authority", channel.authority.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", channel.user_agent.encode()),
            (b"grpc-accept-encoding", ACCEPTED),
        ]
        self.block = Connection.encode(fields)
        self.list_size = list_size(fields)
