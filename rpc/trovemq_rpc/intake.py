"""The received half of a call: DATA becomes whole messages, under the budget and the stream's window. The
server uses it for requests, the channel for responses.

| a message | gets |
| --- | --- |
| fits the stream's window | nothing more: its bytes are charged to the budget as they come |
| is larger than the window | an admission by its announced length; then the window opens for its rest |
| is complete | stays charged until it is read; the window opens for as many bytes |

Invariants:
- `charged` and `admitted` are the budget's counts for this call; both are 0 when it is over.
- The stream's receive window is `window` less the unread bytes, or more for one message that was admitted.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from trovemq_rpc.endpoint import Endpoint
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.streams import CLOSED, Buffer, Stream
from trovemq_rpc.wire.compression import DecompressionError, decompress
from trovemq_rpc.wire.framing import (
    COUNT_UNLIMITED,
    PREFIX_SIZE,
    FramingError,
    Message,
    MessageReader,
)
from trovemq_rpc.wire.status import StatusCode

NOTHING: Final = memoryview(b"")
WINDOW_GROWN_MAX: Final = 4 << 20
"""The largest window of a stream that is read as fast as it comes: 4 MiB a round trip fill a fast network."""

PROGRESS_SIZE_MIN: Final = 512
"""The least bytes of a message that an honest peer sends within `stall_timeout_s`: no network carries less
at once.
"""
STALL_BEHIND_UPDATE_S: Final = 30.0
"""Replaces a shorter `stall_timeout_s` where the peer may have to wait for our WINDOW_UPDATE: the network to
it may be slow.
"""
SPACE_TICKS_MAX: Final = 60
"""Seconds that an incomplete message may wait for space: as long as people wait for an answer."""

Received = tuple[int, Buffer]  # whether it was compressed, and the plain message


class Intake:
    """The received half of a call. Attributes that small calls do not need belong to the class until they are
    set, so that a call is made quickly.
    """

    endpoint: Endpoint
    stream: Stream
    over: bool

    encoding = b"identity"  # grpc-encoding of the incoming messages
    ended = False  # the peer sends no more
    message_compressed = False  # of the message that was read last
    reader: MessageReader | None = None
    kept: deque[memoryview] | None = None
    """Bytes of messages that were too many for an iteration of the loop."""
    kept_size = 0
    unread = 0
    window = 0  # of the stream, once it has grown
    charged = 0  # bytes that the budget counts, apart from `admitted`
    admitted = 0  # a message that the budget admitted by its length
    admission_waits = False
    _ticket = 0  # of the admission that waits
    received = 0  # bytes of the stream in all
    progress = 0  # bytes since the last progress of the incomplete message
    _ticks_still = 0  # since then
    _ticks_waited = 0  # that the message waited for space here

    # --- the two ends' own ------------------------------------------------------------------------------
    def deliver(self, messages: list[Received], ended: bool) -> None:
        """Whole messages; views of the receive buffer among them are valid until this returns."""
        raise NotImplementedError

    def refuse(self, code: StatusCode, details: str) -> None:
        """Ends the call: the message is malformed or too large."""
        raise NotImplementedError

    def reset(self, code: ErrorCode, status: str) -> None:
        """Ends the stream: the peer broke the protocol or a limit."""
        raise NotImplementedError

    # --- in ---------------------------------------------------------------------------------------------
    def feed(self, data: memoryview, ended: bool) -> None:
        """The stream's next bytes."""
        endpoint = self.endpoint
        reader = self.reader
        size_max = endpoint.options.receive_size_max
        if reader is None:
            reader = self.reader = MessageReader(size_max)
        self._account(len(data), reader)
        share = endpoint.share
        if self.kept_size:
            self._keep(data)
        elif reader.is_whole_message(data) and (share is None or share.left):
            if share is not None:
                share.take(1)
            self.deliver([(0, data[PREFIX_SIZE:])], ended)
        else:
            self._cut(reader, data, ended)

    def _cut(self, reader: MessageReader, data: memoryview, ended: bool) -> None:
        """Delivers the messages in the data, or as many as the connection may have in this iteration."""
        endpoint = self.endpoint
        share, size_max = endpoint.share, endpoint.options.receive_size_max
        try:
            complete, used = reader.feed(data, COUNT_UNLIMITED if share is None else share.left)
            if share is not None and complete:
                share.take(len(complete))
            if used < len(data):
                self._keep(data[used:])
                endpoint.loop.call_soon(self._cut_more)
                ended = False
            if ended and not reader.at_boundary:
                raise FramingError("the stream ends inside of a message")
            messages = [(flag, self._decompressed(flag, message, size_max)) for flag, message in complete]
        except (FramingError, DecompressionError) as error:
            code = StatusCode.RESOURCE_EXHAUSTED if error.too_large else StatusCode.INTERNAL
            self.refuse(code, str(error))
            return
        if messages:
            self._ticks_still = self._ticks_waited = 0
        if messages and self.admitted:
            admitted, self.admitted = self.admitted, 0
            self.charged += admitted
            endpoint.budget.take(endpoint, admitted)
            endpoint.budget.give_message(endpoint, admitted)
        if reader.announced:
            self._admit(reader)
        elif messages:
            endpoint.assembling.discard(self)
        if messages or ended:
            self.deliver(messages, ended)
        else:
            self.open_window()

    def _keep(self, data: memoryview) -> None:
        if self.kept is None:
            self.kept = deque()
        if data:
            is_ours = isinstance(data.obj, bytes)  # and not the receive buffer, which is used again
            self.kept.append(data if is_ours else memoryview(bytes(data)))
            self.kept_size += len(data)

    def _cut_more(self) -> None:
        """Delivers messages of the bytes that were kept, in the next iteration of the loop."""
        kept, self.kept, self.kept_size = self.kept, None, 0
        while kept and self.reader is not None:  # the call is not over
            data = kept.popleft()
            self._cut(self.reader, data, self.ended and not kept)
            if self.kept_size:
                for later in kept:
                    self._keep(later)
                return

    def _account(self, size: int, reader: MessageReader) -> None:
        """Charges the bytes, and returns the connection's window at once, unless the budget is used up. Bytes
        of an admitted message are counted already.
        """
        endpoint = self.endpoint
        self.progress += size
        self.received += size
        if self.admitted and size <= reader.missing:
            endpoint.to_acknowledge += size
            return
        budget = endpoint.budget
        budget.held += size  # `budget.take`, for each message
        endpoint.held += size
        self.charged += size
        if budget.held < budget.total and endpoint.held < budget.connection_share:
            endpoint.to_acknowledge += size
            return
        window = endpoint.connection.limits.connection_window
        if endpoint.admissions and endpoint.withheld * 2 >= window:
            endpoint.to_acknowledge += size  # admitted messages need the other half
        elif budget.exhausted(endpoint):
            endpoint.withheld += size
        else:
            endpoint.to_acknowledge += size

    def _admit(self, reader: MessageReader) -> None:
        """A message is incomplete. If it exceeds the window, its rest may come when the budget has space."""
        endpoint = self.endpoint
        endpoint.assembling.add(self)
        missing = reader.missing
        if self.admitted or self.admission_waits or self.stream.receive_window >= missing:
            return
        if reader.announced <= (self.window or endpoint.connection.limits.stream_window):
            self.open_window()
            return
        self.admission_waits = True

        def admitted() -> bool:
            self.admission_waits = False
            if self.over or self.reader is None:
                return False
            self.admitted = missing
            space = min(endpoint.withheld, missing)  # it needs the connection's window, too
            endpoint.withheld -= space
            endpoint.connection.acknowledge(space)
            endpoint.connection.raise_stream_window(self.stream, self.reader.missing)
            endpoint.flush_soon()
            return True

        self._ticket = endpoint.budget.admit(endpoint, missing, admitted)

    def _decompressed(self, flag: int, message: Message, size_max: int) -> Buffer:
        return decompress(self.encoding, message, size_max) if flag else message

    # --- out --------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """The messages so far leave the budget: all were delivered, and none waits to be read."""
        endpoint = self.endpoint
        charged = self.charged - self.kept_size
        if charged:
            self.charged = self.kept_size
            endpoint.budget.give(endpoint, charged)
        free = (self.window or endpoint.connection.limits.stream_window) - self.unread - self.kept_size
        if (free - self.stream.receive_window) * 2 >= free:  # else it is too early for a WINDOW_UPDATE
            self.open_window()

    def open_window(self) -> None:
        """The peer may send the window less the unread bytes. The window doubles each time while less than a
        quarter of the budget is used.
        """
        endpoint = self.endpoint
        window = self.window or endpoint.connection.limits.stream_window
        free = window - self.unread - self.kept_size
        if (free - self.stream.receive_window) * 2 < free or free <= 0:
            return  # too early for a WINDOW_UPDATE: so it is after most messages
        if self.ended or self.stream.state == CLOSED or self.admission_waits or self.admitted:
            return
        if endpoint.connection.set_stream_window(self.stream, free):
            endpoint.flush_soon()
            if window < WINDOW_GROWN_MAX and endpoint.budget.held * 4 < endpoint.budget.total:
                self.window = window * 2

    def _give(self, size: int) -> None:
        size = min(size, self.charged)
        if size:
            self.charged -= size
            self.endpoint.budget.give(self.endpoint, size)

    def release_all(self) -> None:
        """The call is over: nothing of it is held."""
        endpoint = self.endpoint
        endpoint.assembling.discard(self)
        self.reader = self.kept = None
        self.kept_size = 0
        self._give(self.charged)
        if self.admission_waits:
            self.admission_waits = False
            endpoint.budget.withdraw(self._ticket)
        if self.admitted:
            admitted, self.admitted = self.admitted, 0
            endpoint.budget.give_message(endpoint, admitted)

    def look_for_progress(self) -> None:
        """Is called once a second while a message is incomplete. Resets the call if the peer may send and
        sends next to nothing. Ticks are counted, not time: where our own loop stood still, the peer did
        nothing wrong.
        """
        endpoint, reader = self.endpoint, self.reader
        if reader is None or not reader.announced:
            endpoint.assembling.discard(self)
            return
        least = min(PROGRESS_SIZE_MIN, reader.missing)
        if self.progress >= least:
            self.progress = self._ticks_waited = 0
            self._ticks_still = 1
        elif self.admission_waits or endpoint.withheld:
            self._ticks_waited += 1
            if self._ticks_waited >= SPACE_TICKS_MAX:
                self.refuse(StatusCode.RESOURCE_EXHAUSTED, "no space for a message of this size")
        elif least > min(self.stream.receive_window, endpoint.connection.receive_window):
            self._ticks_still = 0  # the messages before are not read yet: the peer has to wait
        else:
            self._ticks_still += 1
            if self._ticks_still >= self._stall_timeout_s():
                endpoint.metrics.calls_stalled += 1
                endpoint.options.log_refusal(endpoint.peer(), "a call was ended: its message did not grow")
                self.reset(ErrorCode.ENHANCE_YOUR_CALM, "CANCELLED")

    def _stall_timeout_s(self) -> float:
        """Longer if the peer needed a WINDOW_UPDATE to send on: ours may not have arrived."""
        endpoint = self.endpoint
        limits, timeout_s = endpoint.connection.limits, endpoint.options.stall_timeout_s
        stream_known = self.received + PROGRESS_SIZE_MIN <= limits.stream_window
        if stream_known and endpoint.consumed + PROGRESS_SIZE_MIN <= limits.connection_window:
            return timeout_s
        return max(timeout_s, STALL_BEHIND_UPDATE_S)


def lasting(message: Any) -> Buffer:
    """A copy of a message that is a view of the receive buffer; any other message itself."""
    return bytes(message) if isinstance(message, memoryview) else message


def as_bytes(message: Buffer) -> bytes:
    return message if isinstance(message, bytes) else bytes(message)
