"""One open Append stream to one broker: frames go out and acknowledgements come back, any number at a time.

One task writes and one reads. If the transport accepts a frame at once, a callback writes it instead,
because a task costs one more iteration of the event loop. A frame is encoded only when the writer takes
it, so messages that are sent in the same iteration, or while earlier frames are being written, share a frame.
When the stream breaks, frames that were not written to it are certainly not stored; those that wait for an
acknowledgement are in doubt. The submitter gets both back and decides whether and where to retry.

A frame that may still grow waits while GROWING_FRAMES_MAX of its queue are unanswered, for GROWING_WAIT_S at
most; frames of other queues overtake it. So single messages that are sent faster than the broker answers
share frames, instead of filling the broker with frames of one message.

A program that sends a message, waits for its answer and then sends the next one has nothing that could
share a frame. So after LONE_FRAMES_MIN frames of one message, each submitted while no other was under way,
the next one is written at once, and not at the end of the iteration; and the loop polls for its answer
for a moment without sleeping (trovemq_rpc/channel/polling.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Protocol

from trovemq._wire.connection import Connection, Stream
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq.receipts import AppendOutcome

_log = logging.getLogger(__name__)

FRAMES_IN_FLIGHT_MAX = 256
GROWING_FRAMES_MAX = 2  # of one queue: while one is answered, the next one is at the broker
GROWING_WAIT_S = 0.005  # a distant broker answers late, and is not busy
LONE_FRAMES_MIN = 4
"""More than one: a program that begins to send many also sends a few alone. No benchmark has a case for
it."""
EXPIRY_CHECK_SECONDS = 0.25


class Frame(Protocol):
    """A frame that can be submitted. `deadline` is in the loop's time.

    growing: Messages may join it until it is written. lone: It was written with one message, others could
    have joined. queue: Frames with the same value keep their order.
    """

    one_way: bool
    deadline: float
    growing: bool
    lone: bool

    @property
    def queue(self) -> Hashable: ...

    def take(self, frame_id: int) -> bytes | None:
        """The serialised frame, fetched once when it is written now; None if nothing must be sent."""

    def written(self) -> None:
        """A one-way frame was passed to the connection."""

    def answered(self, outcome: AppendOutcome) -> None:
        """The broker's reply."""

    def failed(self, error: TroveError, *, in_doubt: bool) -> None:
        """No reply will come; in_doubt: it may have been stored nevertheless."""


class AppendStream:
    """Writes frames to one broker; opens its stream when there is something to write.

    Args:
        connection: The broker.
        reached: Called with True after the broker answered, with False after it could not be reached.
    """

    def __init__(self, connection: Connection, reached: Callable[[bool], None]) -> None:
        self._connection = connection
        self._reached = reached
        self._pending: deque[Frame] = deque()
        self._in_flight: dict[int, Frame] = {}
        self._unanswered: dict[Hashable, int] = {}  # frames in flight, by their queue
        self._held_timer: asyncio.TimerHandle | None = None
        self._held_long: set[Hashable] = set()  # queues of which the next frame need not wait
        self._lone_frames = 0  # one after the other, until now
        self._next_frame_id = 1
        self._broken: TroveError | None = None
        self._wake: asyncio.Future[None] | None = None
        self._stream: Stream | None = None
        self._write_scheduled = False
        self._task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    def submit(self, frame: Frame) -> None:
        """Queues a frame; an idle writer takes it in the loop's next iteration."""
        if self._closed:
            frame.failed(_closed_error(), in_doubt=False)
            return
        if self._in_flight or self._pending or frame.one_way:
            self._lone_frames = 0
        self._pending.append(frame)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._lone_frames >= LONE_FRAMES_MIN:
            self._write_now()
        elif not self._write_scheduled:
            self._write_soon()
        if self._expiry is None:
            self._watch_deadlines()

    async def close(self) -> None:
        """Fails the frames that are queued or in flight."""
        self._closed = True
        for timer in (self._expiry, self._held_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_all(_closed_error())

    # --- writing --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            while not self._pending:
                await self._wait()
            self._broken = None
            try:
                # It waits for an answer first: a frame on a connection that never worked would be in doubt.
                await self._connection.server_info()
                self._reached(True)
                await self._serve(self._connection.open_append())
            except Exception as failure:  # no caller awaits this task: its frames must get the error
                self._reached(False)
                self._fail_all(_as_trove_error(failure))

    async def _serve(self, stream: Stream) -> None:
        reader = asyncio.get_running_loop().create_task(self._read(stream))
        self._stream = stream
        try:
            while self._broken is None:
                await self._write_pending(stream)
                if not self._must_go_on():
                    self._watch_held()
                    await self._wait()
            raise self._broken
        finally:
            self._stream = None
            stream.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _may_write(self) -> bool:
        return self._next() >= 0

    def _next(self) -> int:
        """The index of the frame to write now; -1 if there is none. No frame overtakes one of its queue."""
        if len(self._in_flight) >= FRAMES_IN_FLIGHT_MAX or self._broken is not None:
            return -1
        held: set[Hashable] | None = None
        for index, frame in enumerate(self._pending):
            queue = frame.queue
            if held is not None and queue in held:
                continue
            few = self._unanswered.get(queue, 0) < GROWING_FRAMES_MAX
            if few or not frame.growing or queue in self._held_long:
                return index
            if held is None:
                held = set()
            held.add(queue)
        return -1

    def _watch_held(self) -> None:
        """Frames that are held now are written in GROWING_WAIT_S."""
        capacity = len(self._in_flight) < FRAMES_IN_FLIGHT_MAX
        if self._pending and capacity and self._held_timer is None:
            loop = asyncio.get_running_loop()
            self._held_timer = loop.call_later(GROWING_WAIT_S, self._let_held_go)

    def _let_held_go(self) -> None:
        self._held_timer = None
        self._held_long = {frame.queue for frame in self._pending}
        self._write_soon()

    def _take(self, index: int) -> tuple[Frame, bytes | None]:
        """Encodes a frame and notes that it is in flight. None if nothing of it is to be sent."""
        frame = self._pending[index]
        del self._pending[index]
        frame_id = self._next_frame_id
        try:
            data = frame.take(frame_id)
        except Exception as error:  # without this, the frame would never have a result
            frame.failed(_not_encodable(error), in_doubt=False)
            return frame, None
        if data is not None:
            self._lone_frames = self._lone_frames + 1 if frame.lone else 0
            self._next_frame_id = frame_id + 1
            if not frame.one_way:
                self._in_flight[frame_id] = frame
                queue = frame.queue
                self._unanswered[queue] = self._unanswered.get(queue, 0) + 1
                if self._held_long:
                    self._held_long.discard(queue)
        return frame, data

    def _must_go_on(self) -> bool:
        return self._may_write() or self._broken is not None

    async def _write_pending(self, stream: Stream) -> None:
        while (index := self._next()) >= 0:
            frame, data = self._take(index)
            if data is None:
                continue
            try:
                await stream.send(data)
            except TroveError as error:
                if frame.one_way:
                    frame.failed(error, in_doubt=True)
                raise
            if frame.one_way:
                frame.written()

    def _write_soon(self) -> None:
        """Writes at the end of this iteration of the loop, so that its messages share a frame."""
        stream, wake = self._stream, self._wake
        if stream is None or not stream.writable:
            self._wake_writer()
        elif not self._write_scheduled and wake is not None and not wake.done():
            self._write_scheduled = True
            asyncio.get_running_loop().call_soon(self._write_now)

    def _write_now(self) -> None:
        """Writes the frames that the transport takes without waiting; the task writes the rest."""
        self._write_scheduled = False
        stream, wake = self._stream, self._wake
        if stream is not None and wake is not None and not wake.done():  # else the task is about to write
            while self._pending and stream.writable and (index := self._next()) >= 0:
                frame, data = self._take(index)
                if data is None:
                    continue
                try:
                    stream.send_now(data, alone=self._lone_frames > LONE_FRAMES_MIN)
                except Exception as failure:  # as in _run
                    self._broken = _as_trove_error(failure)
                    if frame.one_way:
                        frame.failed(self._broken, in_doubt=True)
                    break
                if frame.one_way:
                    frame.written()
        if self._pending or self._broken is not None:
            if self._must_go_on():
                self._wake_writer()
            else:
                self._watch_held()

    async def _wait(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _wake_writer(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # --- reading --------------------------------------------------------------------------------------

    async def _read(self, stream: Stream) -> None:
        try:
            stream.set_receiver(self._answered)
            while True:
                self._answered(await stream.read())
        except Exception as failure:  # as in _run
            self._broken = _as_trove_error(failure)
            self._wake_writer()

    def _answered(self, outcome: AppendOutcome) -> bool:
        frame_id = outcome.frame_id
        frame = self._in_flight.get(frame_id)
        if frame is not None:  # None: its deadline has passed
            queue = frame.queue
            frame.answered(outcome)
            del self._in_flight[frame_id]
            left = self._unanswered[queue] = self._unanswered[queue] - 1
            if not left:
                del self._unanswered[queue]
        if self._pending and not self._write_scheduled:
            self._write_soon()
        return True

    def _count_answered(self, queue: Hashable) -> None:
        left = self._unanswered[queue] - 1
        if left:
            self._unanswered[queue] = left
        else:
            del self._unanswered[queue]

    # --- ends -----------------------------------------------------------------------------------------

    def _fail_all(self, error: TroveError) -> None:
        doubtful, unsent = list(self._in_flight.values()), list(self._pending)
        self._in_flight.clear()
        self._unanswered.clear()
        self._held_long.clear()
        self._pending.clear()
        in_doubt = errors.UNREAD not in error.fields
        for frame in doubtful:
            frame.failed(error, in_doubt=in_doubt)
        for frame in unsent:
            frame.failed(error, in_doubt=False)

    def _watch_deadlines(self) -> None:
        now = asyncio.get_running_loop().time()
        for frame_id, frame in list(self._in_flight.items()):
            if frame.deadline <= now:
                del self._in_flight[frame_id]
                self._count_answered(frame.queue)
                self._reached(False)
                frame.failed(self._late(), in_doubt=True)
        for frame in [frame for frame in self._pending if frame.deadline <= now]:
            self._pending.remove(frame)
            frame.failed(self._late(), in_doubt=False)
        if self._may_write():
            self._wake_writer()
        self._expiry = None
        if self._in_flight or self._pending:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(EXPIRY_CHECK_SECONDS, self._watch_deadlines)

    def _late(self) -> TroveError:
        server = self._connection.address
        return TroveError(errors.REQUEST_TIMEOUT, f"{server} did not acknowledge in time", server=server)


def _not_encodable(error: Exception) -> TroveError:
    if isinstance(error, TroveError):
        return error
    return TroveError(errors.REQUEST_ILLEGAL, f"the message cannot be encoded: {error}")


def _closed_error() -> TroveError:
    return TroveError(errors.SERVICE_NOT_AVAILABLE, "the connection was given up")


def _as_trove_error(failure: Exception) -> TroveError:
    if isinstance(failure, TroveError):
        return failure
    _log.error("an Append stream failed", exc_info=failure)
    return TroveError(errors.UNKNOWN_ERROR, f"{type(failure).__name__}: {failure}")
