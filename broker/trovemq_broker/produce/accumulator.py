"""Gathers the batches of all producers, and appends them: frames of Append streams and sends of both
protocols.

Batches that come in one iteration of the event loop are one append, of a part for each (topic, queue): it
costs little more than the append of one batch. The flush mode decides only when the batches are appended:

- async: just before the dispatch; but a frame at once if nothing was appended before it in its iteration;
- sync: if a sync runs, just before the next one begins (or when it takes longer than gather_max_ms), because
  acknowledgements wait for the next sync anyway; otherwise frames at once, others at the end of the
  iteration.

They are appended earlier at the end of a block of `together`, before they are more than one append can hold,
and before a batch that cannot be joined: more than one small record whose hosts are to be filled in.

Queues whose topic is deduplicated, or traced, are appended separately. Where a joined append is refused,
its batches are appended one after the other, and only those at fault are refused.

Invariants
- The records of a queue lie in the log in the order in which their batches came, and so do those of a stream.
- Each batch is answered exactly once: with its own part of the append when that is as durable as the flush
  mode, and the acknowledgements of a replica group, promise, or with its own error.
- A batch that creates a topic creates it in the name of its caller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, TypeAlias

from numpy import int64
from numpy.typing import NDArray

from trovemq_broker.produce.append import Appender
from trovemq_broker.produce.batches import Batch, Done, Waiting, fail_all, joinable, parts_of, record_count
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.produce.outgoing import OutgoingEncoder
from trovemq_broker.produce.queue_chooser import QueueChooser
from trovemq_broker.security.creators import present_creator, reset_creator, set_creator
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records.columns import QueuePart
from trovemq_store.engine.append_result import AppendResult

OnAppended: TypeAlias = Callable[[str, int, int, NDArray[int64]], None]
"""(topic, records, bytes, where each record begins in them): counts an append to one queue."""
_Queue: TypeAlias = tuple[str, QueueId]


class Accumulator:
    """batch_size_max: bytes of the largest append. encoder: makes the records of batches for submit()."""

    def __init__(
        self,
        appender: Appender,
        encoder: OutgoingEncoder,
        batch_size_max: int,
        commit: GroupCommit,
        on_appended: OnAppended = lambda *_: None,
    ) -> None:
        self._appender = appender
        self._commit = commit
        self.encoder: Final = encoder
        self._batch_size_max = batch_size_max
        self._on_appended = on_appended
        self._sync = appender.sync
        self._acks_wait = commit.acks_wait
        self._chooser = QueueChooser()
        self._chosen: dict[str, QueueId] = {}
        self._queues: dict[_Queue, list[Waiting]] = {}
        """The waiting batches, in the order of their records."""
        self._size = 0  # bytes of the waiting batches
        self._reached: dict[object, _Queue] = {}  # by stream: the queue of its last waiting batch
        self._scheduled = self._waits_for_sync = self._in_block = False

    def together(self) -> Accumulator:
        """Batches that are submitted in this block (`with`) are appended at its end, unless a sync runs."""
        return self

    def __enter__(self) -> None:
        self._in_block = True

    def __exit__(self, *_: object) -> None:
        self._in_block = False
        if not self._sync:
            self.append_all()
        elif not self._waits_for_sync:
            self._end_gathering()

    def queue_of(self, topic: str, queue_id: QueueId) -> QueueId:
        """The queue of a batch that is to be encoded, which waits for the others of its iteration: the named
        one, or for -1 the one that all batches of this iteration without a queue share. TroveError
        TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, and others: the topic may not be written."""
        if queue_id >= 0:
            self._appender.topic_for_write(topic, queue_id)
            chosen = queue_id
        elif (found := self._chosen.get(topic)) is not None:
            return found
        else:
            config = self._appender.topic_for_write(topic)
            chosen = self._chosen[topic] = self._chooser.choose(topic, config.write_queue_count)
        if not self._scheduled:
            self._schedule()
        return chosen

    def submit(self, batch: Batch, done: Done) -> None:
        """Appends the batch, now or with others that come soon; `done` is called when it is as durable as the
        flush mode promises."""
        waits = self._scheduled or self._in_block
        if not (waits or (self._commit.syncing if self._sync else self._appender.dispatch_scheduled)):
            self._append_alone(batch, done)
            return
        own = batch if batch.record_count else joinable(batch)
        if own is None:
            self.append_all()
            self._append_alone(batch, done)
            return
        topic, queue_id, records, _, _, _, stream, _ = own
        size = len(records)
        if self._size + size > self._batch_size_max:
            self.append_all()
        queue = (topic, queue_id)
        if stream is not None:
            self._keep_order(stream, queue)
        if not self._scheduled:
            self._schedule()
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = []
        found.append((own, done, present_creator()))
        self._size += size

    def _keep_order(self, stream: object, queue: _Queue) -> None:
        """Appends the waiting batches if one of the stream would come after its next one, of this queue."""
        reached = self._reached.get(stream)
        if reached == queue:
            return
        if reached is not None and queue in self._queues:
            queues = list(self._queues)
            if queues.index(queue) < queues.index(reached):
                self.append_all()
        self._reached[stream] = queue

    def _schedule(self) -> None:
        self._scheduled = True
        if not self._sync:
            self._appender.append_later(self._end_gathering)
            return
        self._waits_for_sync = self._commit.before_next_sync(self._end_gathering)
        if not self._waits_for_sync and not self._in_block:
            asyncio.get_running_loop().call_soon(self._end_gathering)

    def _end_gathering(self) -> None:
        """The iteration of the loop ends, or the next sync begins."""
        self._scheduled = self._waits_for_sync = False
        if self._chosen:
            self._chosen.clear()
        if self._queues:
            self.append_all()

    def append_all(self) -> None:
        """Appends the waiting batches."""
        if not self._queues:
            return
        queues, self._queues = self._queues, {}
        self._size = 0
        if self._reached:
            self._reached.clear()
        if len(queues) == 1:
            ((queue, waiting),) = queues.items()
            self._append_queue(queue, waiting)
            return
        for joined, group in groupby(queues.items(), self._joins):
            if joined:
                self._append_joined(list(group))
            else:
                for queue, waiting in group:
                    self._append_queue(queue, waiting)

    def _joins(self, item: tuple[_Queue, list[Waiting]]) -> bool:
        return self._appender.joins(item[0][0])

    def _append_joined(self, queues: Sequence[tuple[_Queue, list[Waiting]]]) -> None:
        """Appends to several queues in one run."""
        if len(queues) == 1:
            self._append_queue(*queues[0])
            return
        parts = [QueuePart(*queue, record_count(waiting)) for queue, waiting in queues]
        data = bytearray().join([batch.records for _, waiting in queues for batch, _, _ in waiting])
        try:
            results = self._appender.append_joined(parts, data)
        except TroveError:  # nothing was written: each batch gets its own error, or none
            for _, waiting in queues:
                self._append_each(waiting)
        except Exception as error:  # each sender gets it: none may wait for ever
            for _, waiting in queues:
                fail_all(waiting, error)
        else:
            ended_at = time.perf_counter()
            for (queue, waiting), result in zip(queues, results, strict=True):
                self._share(queue[0], waiting, result, ended_at)

    def _append_queue(self, queue: _Queue, waiting: list[Waiting]) -> None:
        """Appends to one queue."""
        if len(waiting) == 1:
            self._append_each(waiting)
            return
        topic, queue_id = queue
        data = memoryview(bytearray().join([batch.records for batch, _, _ in waiting]))
        if not self._appender.has_topic(topic):
            self._append_each(
                waiting
            )  # it was deleted: the first one may create it, in the name of its caller
            return
        try:
            result = self._appender.append(topic, queue_id, data, None, owned=True)
        except TroveError:  # nothing was written: each batch gets its own error, or none
            self._append_each(waiting)
        except Exception as error:  # each sender gets it: none may wait for ever
            fail_all(waiting, error)
        else:
            self._share(topic, waiting, result, time.perf_counter())

    def _append_each(self, waiting: Iterable[Waiting]) -> None:
        """Appends the batches one after the other, each in the name of its caller."""
        for batch, done, creator in waiting:
            token = set_creator(creator)
            try:
                self._append_alone(batch, done)
            finally:
                reset_creator(token)

    def _append_alone(self, batch: Batch, done: Done) -> None:
        """Appends one batch."""
        topic, queue_id, records, _, born_host, owned, _, split = batch
        try:
            result = self._appender.append(topic, queue_id, records, born_host, owned=owned)
        except TroveError as error:
            if split is None:
                done(error)
                return
            for part, own in split():
                self._append_alone(part, own)
            return
        except Exception as error:  # its sender gets it: others must not hear of it
            done(error)
            return
        self._on_appended(topic, result.record_count, result.bytes_written, result.positions)
        if self._acks_wait:
            self._answer_when_durable(topic, done, result, time.perf_counter())
        else:
            done(result, time.perf_counter())

    def _share(self, topic: str, waiting: list[Waiting], result: AppendResult, ended_at: float) -> None:
        """Answers the batches of one queue, each with its part of the result."""
        self._on_appended(topic, result.record_count, result.bytes_written, result.positions)
        parts: Iterable[AppendResult] = (result,)
        if result.duplicates or result.gaps:
            parts = result.parts(batch.record_count for batch, _, _ in waiting)
        elif len(waiting) > 1:
            parts = parts_of(waiting, result)
        if self._acks_wait:
            for (_, done, _), part in zip(waiting, parts, strict=True):
                self._answer_when_durable(topic, done, part, ended_at)
        else:
            for (_, done, _), part in zip(waiting, parts, strict=True):
                done(part, ended_at)

    def _answer_when_durable(self, topic: str, done: Done, result: AppendResult, ended_at: float) -> None:
        commit = self._commit
        when = commit.when_acknowledged if commit.copies is None else self._appender.when_acknowledged(topic)
        when(result.end, lambda error: done(result, ended_at, error))
