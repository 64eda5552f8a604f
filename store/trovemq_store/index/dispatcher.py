"""Applies appended records to every projection, in log order, once.

The consume queues are always up to date with `position`: they have exactly the visible records. The key index
may lag, because it was just switched on or a file is not created yet. It then reads the log in small steps,
and queries scan the part that it has not reached. With `index_later` the indexing of small batches is
deferred, up to DEFERRED_BYTES_MAX or DEFERRED_RECORDS_MAX: many records at once cost the index a half or a
third.

Records that came from another node, and those that a start found above the commit limit, were not offered:
they lie in [position, unoffered_end) of the log, and are read from there before any batch that was offered.
The last ones of another node may be at hand still (kept_runs.py).

Invariants
- Batches are applied in log order and nothing is skipped: a batch that a consume queue could not take stays
  at the head and is tried again.
- position <= the end of the records that may be visible; position <= end of the log.
- A batch is applied to the key index only when everything before it has been applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_store.files.files import StorageError
from trovemq_store.index.deferred_records import DeferredRecords
from trovemq_store.index.index_file import FileWantedError
from trovemq_store.index.kept_runs import KeptRuns
from trovemq_store.index.undispatched import whole_batches
from trovemq_store.log.projection import DispatchBatch, Projection
from trovemq_store.topics.deletions import TopicDeletions

DEFERRED_BATCH_MAX: Final = 256
"""Records of a batch whose indexing is deferred, at most: to defer larger ones saves less than a tenth of
their dispatch, and from some hundreds on costs more (bench/dispatch.py, "columns")."""
DEFERRED_BYTES_MAX: Final = 512 << 10
DEFERRED_RECORDS_MAX: Final = 1_024
"""Upper bounds of the unindexed tail, in bytes and records, that a query scans (half a millisecond; no
benchmark has a case for it); one batch more. Twice as much between `call_soon` and its call."""
UNOFFERED_BYTES: Final = 1 << 20
"""Bytes of the log that are applied together, about, where they are read from it."""
AT_STOP_BYTES_MAX: Final = 64 << 20
"""Bytes of the log that are indexed at a stop, at most: one or two seconds."""
UNLIMITED: Final = PhysicalOffset((1 << 63) - 1)
"""The commit limit of a store whose records may be applied as soon as they are on disk."""
NO_RECORDS: Final = RecordBatch(b"", np.empty(0, np.int64), np.empty(0, np.int64))

OnVisible = Callable[[DispatchBatch], None]
CallSoon = Callable[[Callable[[], None]], object]
LogRuns = Callable[[PhysicalOffset, PhysicalOffset, int], Iterable[DispatchBatch]]
"""(begin, end, bytes_max of one run) -> the log's runs of [begin, end)."""


class Dispatcher:
    """`required` must have every visible record; `optional` projections may lag."""

    def __init__(
        self,
        required: Projection,
        optional: list[Projection],
        deletions: TopicDeletions,
        read_log: LogRuns,
        position: PhysicalOffset,
    ) -> None:
        self._required: Final = required
        self._optional: Final = optional
        self._deletions: Final = deletions
        self._read_log: Final = read_log
        self._pending: deque[DispatchBatch] = deque()
        self.position = position
        self.before_apply: OnVisible | None = None
        """Called with each batch before it is applied: its records may delete topics."""
        self.unoffered_end = LOG_ORIGIN
        """Below it, records that are not applied are read from the log."""
        self._kept: Final = KeptRuns()
        self.pending_bytes = 0
        self.failures = 0
        self.index_later = False
        """Set if a caller calls catch_up() regularly: then small batches need not be indexed at once."""
        self.call_soon: CallSoon | None = None
        """Set while a caller can call back soon, in its thread: then a dispatch completes without waiting for
        indexing. A call that comes when it is not set any more does nothing."""
        self._index_called = False
        self._deferred = DeferredRecords()
        self._deferred_from = position

    def offer(self, batch: DispatchBatch) -> None:
        """Adds a batch that was just appended; dispatch() applies it once it may be visible."""
        assert not self._pending or self._pending[-1].end <= batch.physical_offset, (
            "batches come in log order"
        )
        assert batch.physical_offset >= self.position, "an appended batch is not visible yet"
        self._pending.append(batch)
        self.pending_bytes += batch.records.nbytes

    def has_before(self, physical_offset: PhysicalOffset) -> bool:
        """Whether a record below that offset is not applied yet."""
        if self._pending and self._pending[0].physical_offset < physical_offset:
            return True
        return self.position < min(self.unoffered_end, physical_offset)

    def leave_unoffered(self, end: PhysicalOffset, last: DispatchBatch | None = None) -> None:
        """The log now ends at `end`, and its records after `position` are to be read from it. last: those
        that were just appended, with their bytes."""
        assert end >= self.unoffered_end, "the log only grows"
        assert end >= self.position, "applied records are in the log"
        self._pending.clear()
        self.pending_bytes = 0
        self.unoffered_end = end
        if last is None:
            self._kept.clear()
        else:
            self._kept.add(last)

    def unoffered(self) -> Iterator[DispatchBatch]:
        """The records of [position, unoffered_end), with those of deleted topics marked."""
        if self.position < self.unoffered_end:
            runs = self._read_log(self.position, self.unoffered_end, UNOFFERED_BYTES)
            yield from map(self._alive, runs)

    def dispatch(self, visible_end: PhysicalOffset, on_visible: OnVisible | None = None) -> None:
        """Applies every pending batch that ends at or before `visible_end`, and calls on_visible with each.

        StorageError if the consume queues could not take one: it stays, and is tried at the next call.
        """
        if self.position < self.unoffered_end:
            self._dispatch_unoffered(visible_end, on_visible)
        while self._pending and self._pending[0].end <= visible_end:
            batch = self._pending[0]
            self.apply(batch)
            self._pending.popleft()
            self.pending_bytes -= batch.records.nbytes
            assert self.pending_bytes >= 0, "each batch is counted once"
            if on_visible is not None:
                on_visible(batch)
        assert self._pending or self.pending_bytes == 0, "nothing is pending: no bytes are"

    def _dispatch_unoffered(self, visible_end: PhysicalOffset, on_visible: OnVisible | None) -> None:
        """Applies the records of [position, unoffered_end) that end at or before `visible_end`."""
        assert self.position < self.unoffered_end, "the log has records that were not offered"
        stop = min(visible_end, self.unoffered_end)
        if stop <= self.position:
            return
        end = self.unoffered_end if self._kept.begin is None else self._kept.begin
        if self.position < end:
            self._dispatch_from_log(min(stop, end), end, on_visible)
        if self._kept.begin == self.position:
            for batch in self._kept.below(stop):
                self.apply(batch)
                if on_visible is not None and len(batch.records):
                    on_visible(batch)
        assert self.position <= stop, "no record above the visible end is applied"

    def _dispatch_from_log(
        self, stop: PhysicalOffset, end: PhysicalOffset, on_visible: OnVisible | None
    ) -> None:
        """Applies the records of [position, end) that end at or before `stop`."""
        # A little more than is applied, because a record at `stop` says that the one before it is whole.
        size_max = min(UNOFFERED_BYTES, stop - self.position)
        runs = self._read_log(self.position, self.unoffered_end, size_max)
        for batch in whole_batches(runs, stop, followed=bool(self._pending)):
            self.apply(batch)
            if on_visible is not None:
                on_visible(batch)
        if self.position < stop == end and not any(True for _ in self._read_log(self.position, end, 1)):
            self.apply(DispatchBatch(NO_RECORDS, end, end))  # there is only a blank, or damage

    def apply(self, batch: DispatchBatch) -> None:
        """Applies the run at `position` to every projection that is up to date."""
        assert batch.end >= self.position, "batches are applied in log order"
        if self.before_apply is not None:
            self.before_apply(batch)
        if batch.alive is None and self._deletions.any:
            alive = self._deletions.alive_mask(batch.records, batch.physical_offset)
            batch = replace(batch, alive=alive) if alive is not None else batch
        try:
            self._required.apply(batch)
        except StorageError:
            self.failures += 1
            raise
        assert self._required.position >= batch.end, "the consume queues have every visible record"
        deferred = self._defer(batch)
        if not deferred:
            for projection in self._optional:
                if projection.position >= self.position:
                    self._try_apply(projection, batch)
        self.position = batch.end
        if deferred and self._exceeds(1):
            self._index_soon()

    def _defer(self, batch: DispatchBatch) -> bool:
        """Whether the optional projections get the batch later, with others."""
        size, count = batch.records.nbytes, len(batch.records.positions)
        small = self.index_later and 0 < count <= DEFERRED_BATCH_MAX and size <= DEFERRED_BYTES_MAX
        if small and (self._deferred.count or not self.lagging()):
            if not self._deferred.count:
                self._deferred_from = self.position
            self._deferred.add(batch, size, count)
            return True
        self.index_deferred()
        return False

    def _exceeds(self, factor: int) -> bool:
        """Whether more is deferred than `factor` times the upper bounds."""
        deferred = self._deferred
        return (
            deferred.size_bytes > factor * DEFERRED_BYTES_MAX
            or deferred.count > factor * DEFERRED_RECORDS_MAX
        )

    def _index_soon(self) -> None:
        """Calls index_deferred() soon, or now where twice the upper bounds are exceeded."""
        if self.call_soon is None or self._exceeds(2):
            self.index_deferred()
        elif not self._index_called:
            self._index_called = True
            self.call_soon(self._index_now)

    def _index_now(self) -> None:
        self._index_called = False
        if self.call_soon is not None:
            self.index_deferred()

    def index_deferred(self) -> None:
        """Applies the deferred records to the optional projections."""
        if self._deferred.count:
            try:
                self.catch_up(self._deferred.size_bytes)
            except StorageError:  # they lag; records become visible all the same
                self.failures += 1

    def index_at_stop(self) -> None:
        """Applies the deferred records, and lets projections that lag for another reason read on,
        AT_STOP_BYTES_MAX of the log at most. The next start continues with a longer lag; RocketMQ's would
        not."""
        with suppress(StorageError):
            for _ in range(0, AT_STOP_BYTES_MAX, DEFERRED_BYTES_MAX):
                if not self.catch_up(DEFERRED_BYTES_MAX):
                    return

    def _try_apply(self, projection: Projection, batch: DispatchBatch) -> bool:
        try:
            projection.apply(batch)
        except FileWantedError:
            return False
        except StorageError:
            self.failures += 1
            return False
        return True

    # --- lagging projections ------------------------------------------------------------------------
    @property
    def lagging_long(self) -> list[Projection]:
        """The projections that lag, unless they lack only deferred records."""
        return [] if self._deferred.count else self.lagging()

    def lagging(self) -> list[Projection]:
        """The projections that have not reached `position`."""
        return [projection for projection in self._optional if projection.position < self.position]

    def catch_up(self, bytes_max: int) -> bool:
        """Lets each lagging projection read about `bytes_max` of the log. True if there is more to read and
        some projection made progress (one that cannot create a file should be tried again later)."""
        lagging = self.lagging()
        before = [projection.position for projection in lagging]
        run = self._deferred.take() if self._deferred.count else None
        for projection in lagging:
            if run is None or projection.position != self._deferred_from:
                self._read_lagging(projection, bytes_max)
            else:
                self._try_apply(projection, self._alive(run))
        after = [projection.position for projection in lagging]
        return bool(self.lagging()) and before != after

    def _alive(self, run: DispatchBatch) -> DispatchBatch:
        """The run, with the records of topics that have been deleted marked."""
        return replace(run, alive=self._deletions.alive_mask(run.records, run.physical_offset))

    def _read_lagging(self, projection: Projection, bytes_max: int) -> None:
        target = self.position
        for run in self._read_log(projection.position, target, bytes_max):
            if not self._try_apply(projection, self._alive(run)):
                return
            bytes_max -= run.records.nbytes
            if bytes_max <= 0:
                return
        # Below the target there are only blanks and damage.
        self._try_apply(projection, DispatchBatch(NO_RECORDS, target, target))
