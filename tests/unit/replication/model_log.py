"""A node's log in memory: records of any bytes in small segments."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable

from trovemq_broker.replication.frames import Offset
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_store.replica.epochs import Epoch

SEGMENT_SIZE = 2_048


class ModelLog:
    """Records one after the other; one that does not fit begins the next segment. `ends`: of each."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.begin = LOG_ORIGIN
        self.flushed = LOG_ORIGIN
        self.ends: list[Offset] = []
        self.begin_epoch: Callable[[Epoch], None] = lambda _epoch: None

    @property
    def end(self) -> Offset:
        return Offset(self.begin + len(self.data))

    def append(self, record: bytes) -> None:
        unused = SEGMENT_SIZE - self.end % SEGMENT_SIZE
        if len(record) > unused:
            self.data += bytes(unused)
            self.ends.append(self.end)  # the blank counts as a record
        self.data += record
        self.ends.append(self.end)

    def read(self, offset: int, size_max: int) -> tuple[bytes, int]:
        """In the model, a blank is sent as bytes, too: only the real log knows its length without reading."""
        segment_end = (offset // SEGMENT_SIZE + 1) * SEGMENT_SIZE
        at = bisect_left(self.ends, offset + 1)
        end = self.ends[at]
        for later in itertools.islice(self.ends, at + 1, None):
            if later - offset > size_max or later > segment_end:
                break
            end = later
        assert end <= max(segment_end, self.ends[at])
        return bytes(self.data[offset - self.begin : end - self.begin]), 0

    def append_raw(self, offset: int, data: bytes | memoryview, blank: int) -> None:
        assert offset == self.end
        assert blank == 0
        self.data += data
        self.ends.append(self.end)

    def cut(self, to: Offset) -> None:
        del self.data[to - self.begin :]
        self.ends = [end for end in self.ends if end < to]
        if to > self.begin:
            self.ends.append(to)  # within a frame that a follower got as one
        self.flushed = min(self.flushed, to)
        assert self.end == to

    def trim(self, to: Offset) -> None:
        """The records before are gone."""
        del self.data[: to - self.begin]
        self.ends = [end for end in self.ends if end > to]
        self.begin = to

    def restart_at(self, begin: Offset) -> None:
        self.data, self.begin, self.flushed, self.ends = bytearray(), begin, begin, []
