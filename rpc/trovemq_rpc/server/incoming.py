"""The requests of a call. A small unary request needs neither reader nor budget; all others go through Intake
to a reader or a receiver.
"""

from __future__ import annotations

from typing import Any

from trovemq_rpc.http2.streams import Buffer
from trovemq_rpc.intake import Received, as_bytes, lasting
from trovemq_rpc.server.call_endpoint import CallEndpoint
from trovemq_rpc.server.method import ON_HEADERS, Method
from trovemq_rpc.stream_intake import StreamIntake
from trovemq_rpc.wire.framing import PREFIX_SIZE, unpack_prefix
from trovemq_rpc.wire.status import StatusCode


class Incoming(StreamIntake):
    """The receiving half of ServerCall."""

    endpoint: CallEndpoint
    method: Method

    message: Buffer = b""  # the one request of a unary call
    _has_message = False

    def on_data(self, data: memoryview, ended: bool) -> None:
        """The stream's next bytes. A unary request in one frame needs no reader and no budget."""
        size = len(data)
        endpoint = self.endpoint
        if self.over:
            endpoint.to_acknowledge += size
            return
        if ended:
            self.ended = True
            if self.reader is None and size >= PREFIX_SIZE and not self.method.request_streaming:
                length = size - PREFIX_SIZE
                if unpack_prefix(data) == (0, length):
                    endpoint.to_acknowledge += size
                    limit = endpoint.options.receive_size_max
                    if length > limit:
                        details = f"a message of {length} bytes; at most {limit} here"
                        self.refuse(StatusCode.RESOURCE_EXHAUSTED, details)
                        return
                    self.message = data[PREFIX_SIZE:]
                    endpoint.request_complete(self)
                    return
        self.feed(data, ended)

    def deliver(self, messages: list[Received], ended: bool) -> None:
        if self.method.begins != ON_HEADERS:
            self._deliver_unary(messages, ended)
        else:
            if self.receiver is not None:
                messages = self.offer(messages)
                if self.over:  # the receiver ended the call
                    return
            if messages:
                self.queue(messages)
            elif not self.unread:
                self.settle()
            if messages or ended:
                self.wake_reader()

    def _deliver_unary(self, messages: list[Received], ended: bool) -> None:
        if messages:
            if self._has_message or len(messages) > 1:
                self.refuse(StatusCode.UNIMPLEMENTED, "more than one request in a unary call")
                return
            self._has_message = True
            flag, message = messages[0]
            self.message_compressed = bool(flag)
            self.message = lasting(message)
        if ended:
            if not self._has_message:
                self.refuse(StatusCode.UNIMPLEMENTED, "a unary call without a request")
                return
            self.settle()
            self.endpoint.request_complete(self)

    def take_message(self) -> Any:
        """The next queued request of a stream, deserialized."""
        message = self.take()
        deserialize = self.method.deserialize
        return message if deserialize is None else deserialize(as_bytes(message))
