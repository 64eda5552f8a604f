"""A call on the channel, from its request to its status. It begins when it is made, not when it is awaited.

| state   | means                                           | leads to                               |
|---------|-------------------------------------------------|----------------------------------------|
| waiting | there is no connection, or no free stream on it | sent, over                             |
| sent    | it is a stream; `stream` and `endpoint` are set | waiting (no server looked at it), over |
| over    | it has a status                                 |                                        |

Only a call that no server looked at is sent again (gRPC's "transparent retry"): one whose stream was refused
(REFUSED_STREAM), or that is above the last id of a GOAWAY.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from trovemq_rpc.channel.call_channel import CallChannel
from trovemq_rpc.channel.call_context import CallContext
from trovemq_rpc.channel.client_method import ClientMethod
from trovemq_rpc.channel.endpoint import ChannelEndpoint
from trovemq_rpc.channel.response import ResponseInfo, read_trailers
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.headers import (
    LIST_SIZE_OF_A_BYTE_MAX,
    Field,
    Fields,
    ResponseHead,
    list_size,
)
from trovemq_rpc.http2.streams import CLOSED, Stream
from trovemq_rpc.wire.compression import compress, encoding_of
from trovemq_rpc.wire.deadline import encode_timeout
from trovemq_rpc.wire.metadata import MetadataLike, encode_metadata, too_large_metadata
from trovemq_rpc.wire.status import StatusCode, status_of_reset

ATTEMPTS_MAX: Final = 5  # of a call that no server looks at: a sixth would hardly be better


def _timeout_field(remaining_s: float) -> Field:
    return b"grpc-timeout", encode_timeout(max(0.0, remaining_s))


@lru_cache(maxsize=256)  # most calls of a program have the same timeout, and leave at once
def _timeout_block(remaining_s: float) -> bytes:
    return Connection.encode([_timeout_field(remaining_s)])


class Call(CallContext):
    """The common part of all four kinds. Attributes that few calls need belong to the class until they are
    set: so a call is made quickly.
    """

    stream: Stream
    method: ClientMethod

    unprocessed = False  # the call is over, and no server looked at it
    wheel_key = 0
    wait_for_ready = False
    _attempts = 0
    _metadata: list[Field] | None = None
    _compression = b"identity"

    def __init__(
        self,
        channel: CallChannel,
        method: ClientMethod,
        timeout: float | None,
        metadata: MetadataLike | None,
        wait_for_ready: bool | None,
        compression: Any,
    ) -> None:
        self.channel = channel
        self.method = method
        if metadata is not None:
            self._metadata = encode_metadata(metadata)
        if wait_for_ready:
            self.wait_for_ready = True
        choice = compression if compression is not None else channel.compression
        if choice is not None:
            self._compression = encoding_of(choice)
        if timeout is not None:
            parts = channel.parts
            self.deadline = parts.loop.time() + timeout
            self.wheel_key = parts.wheel.add(self.deadline, self)

    # --- sending ----------------------------------------------------------------------------------------
    def start(self, endpoint: ChannelEndpoint) -> None:
        """The call becomes a stream of this connection."""
        raise NotImplementedError

    def _block(self, endpoint: ChannelEndpoint) -> bytes | None:
        """The request's header block. None if it is too large for the server: then the call is over."""
        block = self.method.block
        if self.deadline is not None:
            block += _timeout_block(self.deadline - endpoint.loop.time())
        fields: list[Field] = []
        if self._compression != b"identity":
            fields.append((b"grpc-encoding", self._compression))
        if self._metadata is not None:
            fields += self._metadata
        if fields:
            block += Connection.encode(fields)
        limit = endpoint.connection.peer_header_list_size_max
        if len(block) * LIST_SIZE_OF_A_BYTE_MAX > limit:
            if self.deadline is not None:
                fields.append(_timeout_field(self.deadline - endpoint.loop.time()))
            size = self.method.list_size + list_size(fields)
            if size > limit:
                self.finish(StatusCode.RESOURCE_EXHAUSTED, too_large_metadata(size, limit))
                return None
        return block

    def _message(self, request: Any, plain: bool = False) -> tuple[int, bytes]:
        """A request as its compressed flag and bytes."""
        serialize = self.method.serialize
        message: bytes = request if serialize is None else serialize(request)
        flag = 0
        if self._compression != b"identity" and not plain:
            message = compress(self._compression, message)
            flag = 1
        limit = self.channel.options.send_size_max
        if 0 <= limit < len(message):
            self.finish(StatusCode.RESOURCE_EXHAUSTED, f"a request of {len(message)} bytes; at most {limit}")
        return flag, message

    def _started(self, endpoint: ChannelEndpoint, stream: Stream) -> None:
        self.endpoint = endpoint
        self.stream = stream
        stream.owner = self
        self.sent = True
        if self._waiters is not None:
            self._wake_waiters()
        endpoint.flush_call()

    # --- events -----------------------------------------------------------------------------------------
    def on_headers(self, head: ResponseHead, ended: bool) -> None:
        info = head.cache
        if info is None:
            info = head.cache = ResponseInfo(head)
        if ended:
            code, details = read_trailers(head.fields)
            if code is None:
                code, details = info.failure or (StatusCode.UNKNOWN, "the response has no grpc-status")
            self._trailers = head.fields
            self.ended = True
            self.finish(code, details)
            return
        self._info = info
        if info.failure is not None:
            self.refuse(*info.failure)
            return
        self.encoding = info.encoding
        if self._head_waiters is not None:
            self._wake_heads()

    def on_data(self, data: memoryview, ended: bool) -> None:
        if self.over:
            self.endpoint.to_acknowledge += len(data)
            return
        if len(data):
            self.feed(data, False)
        if ended and not self.over:
            self.ended = True
            self.finish(StatusCode.UNKNOWN, "the response ended without a status")

    def on_trailers(self, fields: Fields) -> None:
        if self.over:
            return
        self.ended = True
        self._trailers = fields
        code, details = self._ending(fields)
        if code is None:
            self.finish(StatusCode.UNKNOWN, "the response ended without a status")
        elif code is StatusCode.OK and self.reader is not None and not self.reader.at_boundary:
            self.finish(StatusCode.INTERNAL, "the response ends inside of a message")
        else:
            self.finish(code, details)

    def _ending(self, fields: Fields) -> tuple[StatusCode | None, str]:
        """The status in the trailers. Equal trailers are the same list, so most are read once."""
        if fields is self.endpoint.trailers_ok:
            return StatusCode.OK, ""
        code, details = read_trailers(fields)
        if code is StatusCode.OK and not details:
            self.endpoint.trailers_ok = fields
        return code, details

    def on_reset(self, code: int) -> None:
        if self.over:
            return
        if code == ErrorCode.REFUSED_STREAM and self._info is None:
            self.on_unprocessed("the server refused the stream")
            return
        name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else str(code)
        status = status_of_reset(code)
        if self.deadline is not None and status is StatusCode.CANCELLED and not self.time_remaining():
            status = StatusCode.DEADLINE_EXCEEDED
        self.finish(status, f"Received RST_STREAM with error code {code} ({name})")

    def on_lost(self, reason: str) -> None:
        if not self.over:
            self.finish(StatusCode.UNAVAILABLE, reason)

    def on_unprocessed(self, reason: str) -> None:
        """No server looked at the call: it is sent again, and the caller does not notice."""
        if self.over:
            return
        self._attempts += 1
        if self._attempts >= ATTEMPTS_MAX or not self.can_repeat() or self.channel.closed:
            self.finish(StatusCode.UNAVAILABLE, reason)
            self.unprocessed = True
            return
        self.channel.metrics.transparent_retries += 1
        self.sent = False
        self.channel.submit(self)

    def on_too_large(self) -> None:
        self.refuse(StatusCode.RESOURCE_EXHAUSTED, "the response's metadata is too large")

    def on_writable(self) -> None:
        """All that was held back is written."""

    def on_deadline(self) -> None:
        self.wheel_key = 0
        if not self.over:
            self.finish(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def can_repeat(self) -> bool:
        return True

    # --- the end ----------------------------------------------------------------------------------------
    def refuse(self, code: StatusCode, details: str) -> None:
        self.finish(code, details)

    def reset(self, code: ErrorCode, status: str) -> None:
        self.endpoint.reset(self.stream, code)
        self.finish(StatusCode[status], "the response makes no progress")

    def finish(self, code: StatusCode, details: str = "") -> None:
        """The call has its status; a stream that is still open is reset."""
        if self.over:
            return
        self.over = True
        self._status = code
        self._details = details
        channel = self.channel
        if self.wheel_key:
            channel.parts.wheel.remove(self.wheel_key, self)
            self.wheel_key = 0
        if not self.sent:
            self.unprocessed = True
        else:
            endpoint = self.endpoint
            self.stream.owner = None  # else a cycle would wait for the garbage collector
            if self.stream.state != CLOSED:
                endpoint.reset(self.stream, ErrorCode.NO_ERROR if self.ended else ErrorCode.CANCEL)
            if self.reader is not None:
                self.on_over()
            endpoint.call_over()
        ended = channel.metrics.calls_ended
        name = code._name_  # `name` is a descriptor in Python
        ended[name] = ended.get(name, 0) + 1
        channel.calls.discard(self)
        if self._head_waiters is not None:
            self._wake_heads()
        if self._waiters is not None:
            self._wake_waiters()
        if self._done_callbacks:
            for callback in self._done_callbacks:
                channel.loop.call_soon(callback, self)

    def on_over(self) -> None:
        self.release_all()
