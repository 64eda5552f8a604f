"""Joins the frames of all Append streams that one turn of the event loop brings into one append.

So it is with async flush while the broker is busy. After a turn that brought few frames each one is appended
by itself, at once. Gathered frames are appended after the turn's reads, just before its dispatch, and then
acknowledged: no frame waits for a later turn.

A frame is gathered if it is one small record with IPv4 hosts for a topic whose appends may be joined. Any
other frame is appended by itself, after those that came before it. (One that is left to its stream's reader
is handled after the dispatch, because the reader is woken later.) Where the append of all is refused, each
frame is appended by itself, and gets its own error, or none.

Invariants
- The records of a stream, and those of a queue, lie in the log in the order in which their frames came.
- Every gathered frame is appended or refused, exactly once, before the turn's dispatch.
"""

from __future__ import annotations

import time
from contextvars import Context, copy_context
from struct import Struct
from typing import Final, NamedTuple, Protocol

from trovemq_broker.produce.append import Appender
from trovemq_broker.server.wire.frames import AppendFrame
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.layout import BORN_HOST_AT, HOST_SIZE_IPV4, RECORD_SIZE_MIN
from trovemq_proto.records.limits import PORT_MAX
from trovemq_store.engine.append_result import FIRST, NO_ORIGINALS, AppendResult, new_result

FRAMES_MAX: Final = 64  # gathered at a time, less than a stream may have in flight
FRAME_SIZE_MAX: Final = 4 << 10
"""Bytes of a record; a longer one is not worth another copy."""

_HEAD: Final = Struct(">i32xi12xi")  # TOTALSIZE, SYSFLAG and the born port of a record with IPv4 hosts
assert _HEAD.size == BORN_HOST_AT + HOST_SIZE_IPV4, "all fields up to the born host"


class FrameStream(Protocol):
    """An Append stream, as the gathering of its frames sees it."""

    @property
    def born_host(self) -> bytes | None:
        """Of the records' sender, packed; None if it is not known."""

    def begin_waiting(self) -> None:
        """A reply will follow by finish_gathered()."""

    def finish_gathered(
        self, frame: AppendFrame, result: AppendResult | None, started: float, *, flush: bool
    ) -> None:
        """Replies to a frame. `result`: of its append; None: the stream appends it by itself, now. `flush`:
        the reply is the stream's last one for now."""

    def end_with(self, error: Exception | None) -> None:
        """Ends the stream with this error."""


class Gathered(NamedTuple):
    """A frame of one record, which is the frame's own and has the stream's born host."""

    stream: FrameStream
    frame: AppendFrame
    started: float  # time.perf_counter()
    context: Context
    """In which it came: it has the frame's user."""


class GatheredFrames:
    """The frames of all streams. frames_max: at most this many at a time."""

    def __init__(self, appender: Appender, frames_max: int) -> None:
        assert not appender.sync, "with sync flush the acknowledgements wait for the disk anyway"
        self._appender = appender
        self._frames_max = min(FRAMES_MAX, frames_max)
        self._frames: list[Gathered] = []
        self._queues: dict[tuple[str, QueueId], list[int]] = {}  # the places of its frames in that list
        self._numbers: dict[tuple[str, QueueId], int] = {}  # of the queues, in the order of their records
        self._reached: dict[FrameStream, int] = {}  # the number of the queue of its last frame

    def take(self, stream: FrameStream, frame: AppendFrame) -> bool:
        """Takes a frame, which is answered in this turn. False: it is to be appended by itself now."""
        if not self._prepare(frame, stream.born_host):
            self.append_all()
            return False
        queue = (frame.topic, frame.queue_id)
        number = self._numbers.get(queue)
        if number is not None and number < self._reached.get(stream, 0):
            self.append_all()  # the frame would come before one of its stream that was first
            number = None
        if number is None:
            number = self._numbers[queue] = len(self._numbers)
            self._queues[queue] = []
        self._reached[stream] = number
        if not frame.one_way:
            stream.begin_waiting()
        if not self._frames:
            self._appender.append_later(self.append_all)
        self._queues[queue].append(len(self._frames))
        self._frames.append(Gathered(stream, frame, time.perf_counter(), copy_context()))
        if len(self._frames) >= self._frames_max:
            self.append_all()
        return True

    def _prepare(self, frame: AppendFrame, born_host: bytes | None) -> bool:
        """Gives the frame a copy of its record, with this born host. False: it cannot be gathered."""
        records = frame.records
        if (
            frame.fault
            or born_host is None
            or len(born_host) != HOST_SIZE_IPV4
            or not RECORD_SIZE_MIN <= len(records) <= FRAME_SIZE_MAX
            or not ((frame.topic, frame.queue_id) in self._queues or self._appender.may_join(frame.topic))
        ):
            return False
        size, sys_flag, born_port = _HEAD.unpack_from(records)
        if size != len(records) or sys_flag or not 0 <= born_port <= PORT_MAX:
            return False
        record = memoryview(bytearray(records))
        record[BORN_HOST_AT : BORN_HOST_AT + HOST_SIZE_IPV4] = born_host
        frame.records, frame.owned = record, True
        return True

    def append_all(self) -> None:
        """Appends and answers the gathered frames."""
        if not self._frames:
            return
        self._appender.joined(len(self._frames))
        frames, self._frames = self._frames, []
        queues, self._queues = self._queues, {}
        self._numbers.clear()
        self._reached.clear()
        last = {gathered.stream: gathered for gathered in frames}  # its reply ends the stream's write
        results: list[AppendResult | None] = [None] * len(frames)
        try:
            if len(frames) > 1 and all(self._appender.may_join(topic) for topic, _ in queues):
                self._append(frames, queues, results)
        except TroveError:
            pass  # nothing was written: each frame gets its own error, or none
        except Exception as error:  # each stream ends with it: no frame may wait for ever
            for stream, *_ in frames:
                stream.end_with(error)
            return
        for gathered, result in zip(frames, results, strict=True):
            stream, frame, started, context = gathered
            flush = last[stream] is gathered
            context.run(stream.finish_gathered, frame, result, started, flush=flush)

    def _append(
        self,
        frames: list[Gathered],
        queues: dict[tuple[str, QueueId], list[int]],
        results: list[AppendResult | None],
    ) -> None:
        """Appends the frames together, and sets the result of each."""
        appender = self._appender
        data = bytearray().join([frames[place].frame.records for own in queues.values() for place in own])
        if len(queues) == 1:
            ((topic, queue_id),) = queues
            appended = [appender.append(topic, queue_id, memoryview(data), None, owned=True)]
        else:
            parts = [QueuePart(*queue, len(places)) for queue, places in queues.items()]
            appended = appender.append_joined(parts, data)
        for places, result in zip(queues.values(), appended, strict=True):
            assert result.record_count == len(places), "each frame is one record"
            status, begin, _, store_timestamp, queue_offset, _, store_host, *_ = result
            for index, place in enumerate(places):
                size = len(frames[place].frame.records)
                fields = (status, begin, size, store_timestamp, queue_offset + index, 1, store_host, FIRST)
                results[place] = new_result((*fields, *NO_ORIGINALS))
                begin = PhysicalOffset(begin + size)
