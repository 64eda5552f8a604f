"""The received messages of a stream: a receiver takes them as they come, or they wait until they are read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from trovemq_rpc.http2.streams import Buffer
from trovemq_rpc.intake import Intake, Received, as_bytes
from trovemq_rpc.wire.framing import PREFIX_SIZE, unpack_prefix

MESSAGE_OVERHEAD: Final = 100
"""Bytes of memory that an unread message takes beside its own. Uncounted, empty messages would take twenty
times as much as the budget counts.
"""


class StreamMethod(Protocol):
    """The part of a method that its received messages need."""

    deserialize: Callable[[bytes], Any] | None
    takes_view: bool  # whether `deserialize` takes a view of the receive buffer


class StreamIntake(Intake):
    """The received half of a call, with its receiver and its reader."""

    method: StreamMethod
    messages: deque[Received]  # only of a stream

    receiver: Callable[[Any], bool] | None = None
    waiter: asyncio.Future[None] | None = None  # of the task that waits in `read`

    @property
    def reader_waits(self) -> bool:
        """Whether a `read` waits for a message that has not arrived."""
        return self.waiter is not None and not self.messages and not self.waiter.done()

    def fail_reader(self, error: Exception) -> None:
        """`read` raises it."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)

    def wake_reader(self) -> None:
        """`read` looks again."""
        raise NotImplementedError

    # --- in ---------------------------------------------------------------------------------------------
    def pass_on(self, data: memoryview) -> bool:
        """Does in one step what `feed` does with a whole plain message for which the receiver waits while no
        limit is near: nearly all messages of a stream are such. False: nothing was done.
        """
        reader, receiver, waiter = self.reader, self.receiver, self.waiter
        if reader is None or receiver is None or waiter is None or waiter.done() or self.messages:
            return False
        endpoint = self.endpoint
        budget, share = endpoint.budget, endpoint.share
        size = len(data)
        if (
            size < PREFIX_SIZE
            or unpack_prefix(data) != (0, size - PREFIX_SIZE)
            or size - PREFIX_SIZE > reader.size_max
            or reader.buffer is not None
            or reader.prefix
            or self.kept_size
            or self.admitted
            or self.admission_waits
            or (share is not None and not share.left)
            or budget.held + size >= budget.total
            or endpoint.held + size >= budget.connection_share
        ):
            return False
        self.progress += size
        self.received += size
        self.charged += size
        endpoint.held += size
        budget.held += size
        endpoint.to_acknowledge += size
        if share is not None:
            share.take(1)
        self.message_compressed = False
        method, message = self.method, data[PREFIX_SIZE:]
        try:
            request: Any = message if method.takes_view else bytes(message)
            deserialize = method.deserialize
            taken = receiver(request if deserialize is None else deserialize(request))
        except Exception as error:
            self.fail_reader(error)
            taken = True
        if not self.over:
            if taken:
                self.settle()
            else:
                self.queue([(0, message)])
                self.wake_reader()
        return True

    def set_receiver(self, receiver: Callable[[Any], bool] | None) -> None:
        """`receiver` gets each message that arrives while the reader waits in `read`; that needs no task.
        When it returns False, `read` returns this message and those after it, until the reader waits again:
        so a reader can pause. An exception of `receiver` is raised by `read`.

        A deserializer with a true attribute `takes_view` may get something else than bytes here, which saves
        a copy: a bytearray that is the message's own, or a memoryview of the receive buffer, valid until
        `receiver` returns.
        """
        self.receiver = receiver

    def offer(self, messages: list[Received]) -> list[Received]:
        """Passes messages to the receiver as long as it takes them. Returns the rest."""
        deserialize, view = self.method.deserialize, self.method.takes_view
        for index, (flag, message) in enumerate(messages):
            receiver = self.receiver  # which the one before may have taken away
            if receiver is None or not self.reader_waits:
                return messages[index:]
            self.message_compressed = bool(flag)
            try:
                data: Any = message if view else as_bytes(message)
                taken = receiver(data if deserialize is None else deserialize(data))
            except Exception as error:
                self.fail_reader(error)
                return messages[index + 1 :]
            if not taken:
                return messages[index:]
        return []

    # --- out --------------------------------------------------------------------------------------------
    def queue(self, messages: list[Received]) -> None:
        """Queues messages of a stream until they are read."""
        assert not self.over, "a call that is over holds nothing"
        for flag, message in messages:
            self.messages.append((flag, bytes(message) if isinstance(message, memoryview) else message))
            self.unread += len(message) + PREFIX_SIZE
        overhead = MESSAGE_OVERHEAD * len(messages)
        self.charged += overhead
        self.endpoint.budget.take(self.endpoint, overhead)
        self.open_window()

    def take(self) -> Buffer:
        """The next queued message. The peer may send as many bytes again."""
        flag, message = self.messages.popleft()
        self.message_compressed = bool(flag)
        size = len(message) + PREFIX_SIZE
        self.unread -= size
        self._give(size + MESSAGE_OVERHEAD)
        self.open_window()
        return message
