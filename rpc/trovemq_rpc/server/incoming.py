"""A call's requests: from DATA to messages, under the budget and the stream's window."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.streams import CLOSED, Buffer, Stream
from trovemq_rpc.server.methods import BATCH, CALLBACKS, ON_MESSAGE, Method
from trovemq_rpc.wire.compression import DecompressionError, decompress
from trovemq_rpc.wire.framing import PREFIX_SIZE, FramingError, Message, MessageReader
from trovemq_rpc.wire.status import StatusCode

if TYPE_CHECKING:
    from trovemq_rpc.server.endpoint import ServerEndpoint
    from trovemq_rpc.server.head import CallHead

NOTHING: Final = memoryview(b"")


class Incoming:
    """The reading half of ServerCall."""

    endpoint: ServerEndpoint
    stream: Stream
    method: Method
    head: CallHead
    messages: deque[Any]
    over: bool
    callbacks: Any

    ended = False  # the client sends no more
    message: Buffer = b""  # the one request of a unary call
    message_compressed = False
    reader: MessageReader | None = None
    unread = 0
    charged = 0  # bytes that the budget counts, apart from `admitted`
    admitted = 0  # a message that the budget admitted by its length
    admission_waits = False
    progress = 0  # bytes of the incomplete message since the last look

    def on_data(self, data: memoryview, ended: bool) -> None:
        """The stream's next bytes."""
        size = len(data)
        endpoint = self.endpoint
        if self.over:
            endpoint.to_acknowledge += size
            return
        if ended:
            self.ended = True
            if self.reader is None and size >= PREFIX_SIZE and not data[0]:
                length = int.from_bytes(data[1:PREFIX_SIZE], "big")
                if length == size - PREFIX_SIZE and not self.method.request_streaming:
                    endpoint.to_acknowledge += size
                    if length > endpoint.options.receive_size_max:
                        self._too_large(length)
                        return
                    self.message = data[PREFIX_SIZE:]
                    self._complete()
                    return
        self._feed(data, ended)

    def _feed(self, data: memoryview, ended: bool) -> None:
        endpoint = self.endpoint
        reader = self.reader
        if reader is None:
            reader = self.reader = MessageReader(endpoint.options.receive_size_max)
        self._account(len(data), reader)
        try:
            complete = reader.feed(data)
            if ended and not reader.at_boundary:
                raise FramingError("the stream ends inside of a message")
            messages = [self._plain(flag, message) for flag, message in complete]
        except (FramingError, DecompressionError) as error:
            code = StatusCode.RESOURCE_EXHAUSTED if error.too_large else StatusCode.INTERNAL
            self._refuse(code, str(error))
            return
        if messages and self.admitted:
            endpoint.budget.give_message(endpoint, self.admitted)
            self.charged += self.admitted
            endpoint.budget.take(endpoint, self.admitted)
            self.admitted = 0
        if reader.announced:
            self._admit(reader)
        elif messages:
            endpoint.assembling.discard(self)
        self._deliver(messages, ended)

    def _account(self, size: int, reader: MessageReader) -> None:
        """The connection's window is returned at once, unless the budget is used up by messages
        not admitted.
        """
        endpoint = self.endpoint
        self.progress += size
        if self.admitted and size <= reader.missing:
            endpoint.to_acknowledge += size
            return
        endpoint.budget.take(endpoint, size)
        self.charged += size
        if endpoint.budget.exhausted(endpoint):
            endpoint.withheld += size
        else:
            endpoint.to_acknowledge += size

    def _admit(self, reader: MessageReader) -> None:
        """A message is incomplete: where it exceeds the window, the rest may come once the budget
        has room for it.
        """
        endpoint = self.endpoint
        endpoint.assembling.add(self)
        missing = reader.missing
        window = endpoint.connection.limits.stream_window
        if self.admitted or self.admission_waits or self.stream.receive_window >= missing:
            return
        if reader.announced <= window:
            endpoint.connection.set_stream_window(self.stream, window)
            return
        self.admission_waits = True

        def admitted() -> bool:
            self.admission_waits = False
            if self.over or self.reader is None:
                return False
            self.admitted = missing
            endpoint.connection.raise_stream_window(self.stream, self.reader.missing)
            endpoint.flush_soon()
            return True

        endpoint.budget.admit(endpoint, missing, admitted)

    def _plain(self, flag: int, message: Message) -> Buffer:
        self.message_compressed = bool(flag)
        if flag:
            return decompress(self.head.encoding, message, self.endpoint.options.receive_size_max)
        return message

    def _deliver(self: Any, messages: list[Buffer], ended: bool) -> None:
        endpoint = self.endpoint
        method = self.method
        endpoint.metrics.messages_received += len(messages)
        if method.begins in {ON_MESSAGE, BATCH}:
            if messages:
                if self.messages or len(messages) > 1:
                    self._refuse(StatusCode.UNIMPLEMENTED, "more than one request in a unary call")
                    return
                self.messages.append(True)
                message = messages[0]
                self.message = bytes(message) if isinstance(message, memoryview) and not ended else message
            if ended:
                if not self.messages:
                    self._refuse(StatusCode.UNIMPLEMENTED, "a unary call without a request")
                    return
                self._settle()
                self._complete()
            return
        if method.begins == CALLBACKS:
            if messages or ended:
                deserialize = method.deserialize
                parts = [deserialize(bytes(m)) for m in messages] if deserialize else messages
                self._settle()
                endpoint.call_callbacks(self, parts, ended)
            return
        for message in messages:
            self.messages.append(bytes(message) if isinstance(message, memoryview) else message)
            self.unread += len(message) + PREFIX_SIZE
        self._open_window()
        self.wake_reader()

    def take_message(self: Any) -> Any:
        """The next request of a stream, deserialized; its bytes are free for others."""
        message = self.messages.popleft()
        size = len(message) + PREFIX_SIZE
        self.unread -= size
        self._give(size)
        self._open_window()
        deserialize = self.method.deserialize
        return message if deserialize is None else deserialize(_as_bytes(message))

    def _complete(self: Any) -> None:
        """The one request is there."""
        self.endpoint.request_complete(self)

    def _settle(self) -> None:
        """The messages so far leave the budget: the handler has them."""
        self._give(self.charged)
        self._open_window()

    def _give(self, size: int) -> None:
        size = min(size, self.charged)
        if size:
            self.charged -= size
            self.endpoint.budget.give(self.endpoint, size)

    def _open_window(self) -> None:
        if not self.ended and self.stream.state != CLOSED and not self.admission_waits:
            endpoint = self.endpoint
            window = endpoint.connection.limits.stream_window
            if self.unread < window:
                endpoint.connection.set_stream_window(self.stream, window - self.unread)
                endpoint.flush_soon()

    def release_all(self) -> None:
        """The call is over: nothing of it is held."""
        endpoint = self.endpoint
        endpoint.assembling.discard(self)
        self.reader = None
        self._give(self.charged)
        if self.admitted:
            endpoint.budget.give_message(endpoint, self.admitted)
            self.admitted = 0

    def look_for_progress(self: Any, least: int) -> None:
        """Resets the call where its incomplete message came slower than it may, though the window
        was open.
        """
        progress, self.progress = self.progress, 0
        if self.reader is None or not self.reader.announced:
            self.endpoint.assembling.discard(self)
        elif progress < min(least, self.reader.missing) and not self.admission_waits:
            self.endpoint.metrics.calls_stalled += 1
            self.reset(ErrorCode.ENHANCE_YOUR_CALM, "CANCELLED")

    def wake_reader(self) -> None:
        raise NotImplementedError

    def _too_large(self, length: int) -> None:
        limit = self.endpoint.options.receive_size_max
        self._refuse(StatusCode.RESOURCE_EXHAUSTED, f"a message of {length} bytes; at most {limit} here")

    def _refuse(self: Any, code: StatusCode, details: str) -> None:
        self.finish(code, details)
        self.stop_work()


def _as_bytes(message: Buffer) -> bytes:
    return message if isinstance(message, bytes) else bytes(message)
