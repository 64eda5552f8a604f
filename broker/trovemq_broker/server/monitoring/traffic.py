"""Counts traffic in and out as plain numbers, which metrics and statistics read.

They change on the event loop only. Only existing topics are counted, so the tables are bounded by the number
of topics; the numbers of a deleted topic are removed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from trovemq_daemon.metrics import Buckets
from trovemq_daemon.slow_requests import SlowRequests
from trovemq_proto.errors import TroveError
from trovemq_proto.records.fields import ROWS_MAX
from trovemq_store.engine.steps import Steps

# RocketMQ's bounds of rocketmq_message_size, in bytes
MESSAGE_SIZE_BUCKETS: Final = (1_024, 4_096, 524_288, 1_048_576, 2_097_152, 4_194_304)
_SIZE_BOUNDS: Final = np.array(MESSAGE_SIZE_BUCKETS, np.int64)


TOPICS_STEP: Final = 128


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """The traffic of one topic since the start."""

    topic: str
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int


class ObserveRpc(Protocol):
    """Counts one answered request. `response`: OK or the symbol of an error."""

    def __call__(
        self, method: str, response: str, elapsed_ms: float, *, is_long_polling: bool = False
    ) -> None: ...


def _observe_nothing(method: str, response: str, elapsed_ms: float, *, is_long_polling: bool = False) -> None:
    """Does nothing, for callers without metrics."""


@dataclass(slots=True)
class Traffic:
    observe: ObserveRpc = _observe_nothing
    slow: SlowRequests = field(default_factory=SlowRequests)
    messages_in: int = 0  # of all topics, since the start
    bytes_in: int = 0
    messages_out: Counter[str] = field(default_factory=Counter)
    bytes_out: Counter[str] = field(default_factory=Counter)
    message_sizes: dict[str, Buckets] = field(default_factory=dict)
    """By topic, of records appended, in bytes: also their count, and the sum of their bytes."""
    refusals: Counter[str] = field(default_factory=Counter)  # appends refused, by symbol
    one_way_refusals: Counter[str] = field(default_factory=Counter)  # one-way appends among them

    def appended(
        self, topic: str, message_count: int, byte_count: int, positions: NDArray[np.int64] | None = None
    ) -> None:
        """Counts an append. `positions`: where the records begin in these bytes; None counts them with one
        size. Nothing is counted if all messages were duplicates."""
        if not message_count:
            return
        self.messages_in += message_count
        self.bytes_in += byte_count
        sizes = self.message_sizes.get(topic)
        if sizes is None:
            sizes = self.message_sizes[topic] = Buckets(MESSAGE_SIZE_BUCKETS)
        if positions is None or message_count == 1 or _have_one_size(positions, byte_count):
            sizes.add_alike(message_count, byte_count)
        elif message_count <= ROWS_MAX:
            for begin, end in pairwise([*positions.tolist(), byte_count]):
                sizes.add(end - begin)
        else:
            places = np.searchsorted(_SIZE_BOUNDS, np.diff(positions, append=byte_count))
            sizes.add_counts(np.bincount(places, minlength=len(sizes.counts)).tolist(), byte_count)

    def fetched(self, topic: str, message_count: int, byte_count: int) -> None:
        if message_count:
            self.messages_out[topic] += message_count
            self.bytes_out[topic] += byte_count

    def refused(self, symbol: str, *, one_way: bool = False) -> None:
        self.refusals[symbol] += 1
        if one_way:
            self.one_way_refusals[symbol] += 1

    def answered(
        self, method: str, response: str, started: float, *, waited: bool = False, peer: str | None = None
    ) -> None:
        """Counts an answered frame of a stream; `started`: time.perf_counter() when it was read. `peer`: None
        if the time includes that of the client: such a frame is never logged as slow. It was asked for while
        the call was open: grpcio ends the process when it is asked after that."""
        elapsed_ms = (time.perf_counter() - started) * 1000
        self.observe(method, response, elapsed_ms, is_long_polling=waited)
        if elapsed_ms >= self.slow.limit_ms and peer is not None and not waited:
            self.slow.note(method, response, elapsed_ms, peer)

    @contextmanager
    def answering(self, method: str, context: Any = None) -> Iterator[None]:
        """Counts the answer of a stream of pages, which is made in this block, by its result."""
        started, response = time.perf_counter(), "CANCELLED"
        peer = None if context is None else context.peer()
        try:
            yield
            response = "OK"
        except TroveError as error:
            response = error.symbol
            raise
        finally:
            self.answered(method, response, started, peer=peer)

    def busiest(self, topics_max: int) -> Steps[tuple[list[TopicTraffic], int]]:
        """The topics with most messages in and out, and how many others had any."""
        most: list[tuple[int, str, TopicTraffic]] = []  # a heap
        left_out = 0
        for number, topic in enumerate({*self.message_sizes, *self.messages_out}, 1):
            if number % TOPICS_STEP == 0:
                yield
            sizes = self.message_sizes.get(topic)
            into = (sizes.count, int(sizes.total)) if sizes is not None else (0, 0)
            row = TopicTraffic(topic, *into, self.messages_out[topic], self.bytes_out[topic])
            entry = (row.messages_in + row.messages_out, topic, row)
            if len(most) < topics_max:
                heappush(most, entry)
            else:
                heappushpop(most, entry)
                left_out += 1
        return [row for _, _, row in most], left_out

    def forget(self, topic: str) -> None:
        for table in (
            self.messages_out,
            self.bytes_out,
            self.message_sizes,
        ):
            table.pop(topic, None)


def _have_one_size(positions: NDArray[np.int64], byte_count: int) -> bool:
    """Whether all records that begin at these positions of `byte_count` bytes have one size."""
    size, rest = divmod(byte_count, len(positions))
    return not rest and positions.tobytes() == np.arange(0, byte_count, size, dtype=np.int64).tobytes()
