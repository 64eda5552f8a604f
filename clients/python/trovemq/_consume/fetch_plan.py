"""Plans the fetches in flight for one queue, and the order in which their answers are returned.

To keep several fetches in flight, the beginning of the next one must be known before the answer to the
previous one has arrived. So each fetch requests a number of messages that should just fit into its bytes, by
the sizes so far, and covers the offsets [start, end). If an answer ends before its end, a fetch for the rest
is inserted after it. If it ends later (blank offsets are skipped), the next one is trimmed. Answers are
returned in the order of this list, without gaps and repetitions. This module does no I/O.

At the end of a queue that is followed, a fetch may stand: it gets several replies, and needs no request in
between. After each reply it is in the list again, as the last one, from where the reply ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, replace

from trovemq.fetched import FetchedBatch

# Request slightly less than fitted, or every answer would lack the last record.
FILL = 0.95
NO_END = (1 << 63) - 1
_MESSAGES_MAX = (1 << 31) - 1  # the largest number in a request


@dataclass(slots=True)
class Fetch:
    """One fetch. end None: it takes whatever it gets, at most `limit` messages (0: as many as fit), and the
    next offset is unknown before its answer."""

    fetch_id: int
    start: int
    end: int | None
    limit: int = 0
    replies_max: int = 0  # more than 1: it stands
    sent: bool = False
    batch: FetchedBatch | None = None

    @property
    def messages_max(self) -> int:
        """0 = as many as fit."""
        return self.limit if self.end is None else self.end - self.start

    @property
    def next_start(self) -> int | None:
        """Where the next fetch begins; None if that is not known."""
        if self.end is None:
            return None if self.batch is None else self.batch.next_offset
        return self.end


class FetchPlan:
    """The fetches of one queue from `offset` on.

    Args:
        offset: The first queue offset.
        bytes_max: Bytes of one answer.
        fetches_max: Answers in flight or waiting to be returned.
        foretell: Whether the next offsets can be predicted (not with a tag filter, which leaves unknown
            gaps).
        end: The queue offset to stop before.
        messages_max: Messages of one answer; 0 = as many as fit.
        replies_max: Replies that a fetch at the end of the queue may get; 0 and 1: one.
    """

    def __init__(
        self,
        offset: int,
        *,
        bytes_max: int,
        fetches_max: int,
        foretell: bool,
        end: int = NO_END,
        messages_max: int = 0,
        replies_max: int = 0,
    ) -> None:
        self.position = offset  # the next offset to return
        self.max_offset = offset  # the last known end of the queue
        self._bytes_max = bytes_max
        self._fetches_max = fetches_max
        self._foretell = foretell
        self._end = end
        self._messages_max = messages_max
        self._replies_max = replies_max
        self._standing: Fetch | None = None  # has had a reply, and gets more
        self._replies_remaining = 0  # of it
        self._count = 0  # messages to request; 0: not known yet
        self._fetches: deque[Fetch] = deque()
        self._next_id = 1

    @property
    def has_requests(self) -> bool:
        """Whether there may be something to send. Nothing, while the broker sends more without a request."""
        return self._standing is None or self._replies_remaining * 2 <= self._replies_max

    # --- sending --------------------------------------------------------------------------------------

    def next_to_send(self) -> Fetch | None:
        """A fetch to send now; None if enough are in flight, or no more messages are known."""
        if self._standing is not None:
            return None
        fetch = next((fetch for fetch in self._fetches if not fetch.sent), None)
        if fetch is None and len(self._fetches) < self._fetches_max:
            fetch = self._append_fetch()
        if fetch is not None:
            fetch.sent = True
        return fetch

    def _append_fetch(self) -> Fetch | None:
        start = self._fetches[-1].next_start if self._fetches else self.position
        known_end = min(self.max_offset, self._end)
        if start is None or (self._fetches and start >= known_end):
            return None
        end = None
        if self._count and self._foretell and start < known_end:
            end = min(start + self._count, known_end)
        fetch = self._made(start, end)
        if start >= self.max_offset:
            fetch.replies_max = self._replies_max
        self._fetches.append(fetch)
        return fetch

    def replies_to_ask_for(self) -> tuple[int, int] | None:
        """The id of the standing fetch, and how many more replies to ask for, once half of them have come."""
        fetch = self._standing
        if fetch is None or not self.has_requests:
            return None
        more = self._replies_max - self._replies_remaining
        self._replies_remaining = self._replies_max
        return fetch.fetch_id, more

    def _made(self, start: int, end: int | None) -> Fetch:
        self._next_id += 1
        limit = self._messages_max
        if self._end != NO_END:
            limit = min(limit or _MESSAGES_MAX, max(self._end - start, 1))
        return Fetch(self._next_id, start, end, limit)

    # --- answers --------------------------------------------------------------------------------------

    def answered(self, fetch_id: int, batch: FetchedBatch, replies_remaining: int = 0) -> None:
        """Takes an answer; ignores one whose fetch is no longer in the plan."""
        found = self._standing
        if found is None or found.fetch_id != fetch_id:
            found = next((fetch for fetch in self._fetches if fetch.fetch_id == fetch_id), None)
        if found is None:
            return
        found.batch = batch
        if replies_remaining > 0:
            asked_for = self._replies_max if self._standing is None else self._replies_remaining
            self._replies_remaining = (
                asked_for - 1
            )  # the broker's own number may not count the last that were asked for
            self._standing = Fetch(fetch_id, batch.next_offset, None, sent=True)
            self._fetches.append(self._standing)
        else:
            self._standing = None
        self.max_offset = max(self.max_offset, batch.max_offset)
        covered = batch.next_offset - found.start
        if found.end is None or 0 < covered < found.end - found.start:
            self._count = max(1, int(covered * FILL))
        elif batch.nbytes * 2 <= self._bytes_max and covered >= self._count:
            self._count *= 2
        if self._messages_max:
            self._count = min(self._count, self._messages_max)
        if found.end is not None and found.start < batch.next_offset < found.end:
            rest = self._made(batch.next_offset, found.end)
            self._fetches.insert(self._fetches.index(found) + 1, rest)

    def next_to_hand_out(self) -> FetchedBatch | None:
        """The next answer in order, if it has arrived."""
        if not self._fetches or self._fetches[0].batch is None:
            return None
        fetch = self._fetches.popleft()
        assert fetch.batch is not None
        batch = fetch.batch if fetch.start >= self.position else _from(fetch.batch, self.position)
        self.position = max(self.position, batch.next_offset)
        return batch if batch.next_offset <= self._end else _until(batch, self._end)

    def restart(self) -> None:
        """The stream broke: messages that were not returned are fetched again."""
        self._fetches.clear()
        self._standing = None


def _from(batch: FetchedBatch, offset: int) -> FetchedBatch:
    """The part of a batch at and above a queue offset."""
    damaged = tuple(damaged for damaged in batch.damaged_offsets if damaged >= offset)
    first = bisect_left(batch.offset_list, offset)
    if first >= len(batch):
        return replace(batch, data=b"", queue_offsets=None, damaged_offsets=damaged)
    queue_offsets = None if batch.queue_offsets is None else batch.queue_offsets[first:]
    data = memoryview(batch.data)[batch.rows[first].position :]
    return replace(batch, data=data, queue_offsets=queue_offsets, damaged_offsets=damaged)


def _until(batch: FetchedBatch, offset: int) -> FetchedBatch:
    """The part of a batch below a queue offset."""
    damaged = tuple(damaged for damaged in batch.damaged_offsets if damaged < offset)
    count = bisect_left(batch.offset_list, offset)
    data = memoryview(batch.data)
    if count < len(batch):
        data = data[: batch.rows[count].position]
    queue_offsets = None if batch.queue_offsets is None or not count else batch.queue_offsets[:count]
    return replace(batch, data=data, next_offset=offset, queue_offsets=queue_offsets, damaged_offsets=damaged)
