"""The multi-callables of generated stubs: objects that make a method's calls."""

from __future__ import annotations

from typing import Any, Final

from trovemq_rpc.channel.call import Call
from trovemq_rpc.channel.call_channel import CallChannel
from trovemq_rpc.channel.client_method import ClientMethod
from trovemq_rpc.channel.kinds import (
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)
from trovemq_rpc.wire.metadata import MetadataLike

NO_CREDENTIALS: Final = "call credentials are not supported: send the token as metadata"


class MultiCallable:
    """The base of the four. `_kind` is the class of its calls."""

    _kind: type[Call]

    def __init__(self, channel: CallChannel, method: ClientMethod) -> None:
        self._channel = channel
        self._method = method


class UnaryUnaryMultiCallable(MultiCallable):
    """One request, one response."""

    _kind: type[Call] = UnaryUnaryCall

    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        if credentials is not None:
            raise NotImplementedError(NO_CREDENTIALS)
        kind: Any = self._kind
        return kind(self._channel, self._method, request, timeout, metadata, wait_for_ready, compression)


class UnaryStreamMultiCallable(UnaryUnaryMultiCallable):
    """One request, a stream of responses."""

    _kind = UnaryStreamCall


class StreamUnaryMultiCallable(MultiCallable):
    """A stream of requests, one response."""

    _kind: type[Call] = StreamUnaryCall

    def __call__(
        self,
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        if credentials is not None:
            raise NotImplementedError(NO_CREDENTIALS)
        kind: Any = self._kind
        return kind(
            self._channel, self._method, request_iterator, timeout, metadata, wait_for_ready, compression
        )


class StreamStreamMultiCallable(StreamUnaryMultiCallable):
    """A stream in both directions."""

    _kind = StreamStreamCall
