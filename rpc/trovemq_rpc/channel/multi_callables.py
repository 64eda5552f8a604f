"""The multi-callables of generated stubs: objects that make a method's calls."""

from __future__ import annotations

from typing import Any

from trovemq_rpc.channel.call import Call
from trovemq_rpc.channel.call_channel import CallChannel
from trovemq_rpc.channel.client_method import ClientMethod
from trovemq_rpc.channel.interceptors import ClientCallDetails, intercepted
from trovemq_rpc.channel.kinds import (
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)
from trovemq_rpc.wire.metadata import MetadataLike


class MultiCallable:
    """The base of the four. `_kind` is the class of its calls."""

    _kind: type[Call]
    _intercept: str

    def __init__(self, channel: CallChannel, method: ClientMethod) -> None:
        self._channel = channel
        self._method = method

    def _call(
        self,
        request: Any,
        timeout: float | None,
        metadata: MetadataLike | None,
        credentials: Any,
        wait_for_ready: bool | None,
        compression: Any,
    ) -> Any:
        if credentials is not None:
            raise NotImplementedError("call credentials are not supported: send the token as metadata")
        channel = self._channel
        if channel.interceptors:
            found = [i for i in channel.interceptors if hasattr(i, self._intercept)]
            if found:
                details = ClientCallDetails(self._method.path, timeout, metadata, None, wait_for_ready)
                return intercepted(self.direct, found, self._intercept, details, request, compression)
        return self.direct(request, timeout, metadata, wait_for_ready, compression)

    def direct(
        self,
        request: Any,
        timeout: float | None,
        metadata: MetadataLike | None,
        wait_for_ready: bool | None,
        compression: Any,
        path: str | None = None,
    ) -> Call:
        """Without interceptors."""
        method = self._method
        if path is not None and path != method.path:
            method = ClientMethod(self._channel, path, method.serialize, method.deserialize)
        kind: Any = self._kind
        call: Call = kind(self._channel, method, request, timeout, metadata, wait_for_ready, compression)
        return call


class UnaryUnaryMultiCallable(MultiCallable):
    """One request, one response."""

    _kind: type[Call] = UnaryUnaryCall
    _intercept = "intercept_unary_unary"

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
        channel = self._channel
        if credentials is None and not channel.interceptors:
            kind: Any = self._kind
            return kind(channel, self._method, request, timeout, metadata, wait_for_ready, compression)
        return self._call(request, timeout, metadata, credentials, wait_for_ready, compression)


class UnaryStreamMultiCallable(UnaryUnaryMultiCallable):
    """One request, a stream of responses."""

    _kind = UnaryStreamCall
    _intercept = "intercept_unary_stream"


class StreamUnaryMultiCallable(MultiCallable):
    """A stream of requests, one response."""

    _kind: type[Call] = StreamUnaryCall
    _intercept = "intercept_stream_unary"

    def __call__(
        self,
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        return self._call(request_iterator, timeout, metadata, credentials, wait_for_ready, compression)


class StreamStreamMultiCallable(StreamUnaryMultiCallable):
    """A stream each way."""

    _kind = StreamStreamCall
    _intercept = "intercept_stream_stream"
