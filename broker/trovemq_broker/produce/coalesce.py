"""Joins sends that arrive together into one append, of a part for each (topic, queue).

Sends are appended when a few turns of the event loop have brought no further one: the server accepts calls
one after the other, so concurrent sends arrive a few turns apart, and one append for all of them costs little
more than an append for one. A turn with nothing to do takes microseconds. While a sync runs (sync flush),
sends are appended just before the next sync begins, or earlier if this one takes long: their acknowledgements
wait for the next sync anyway.

A topic that is deduplicated has appends of its own; so have sends that are more than one batch. Where the
append of all is refused, each queue's sends are appended by themselves, and only those at fault are refused.

Invariants
- A send waits for a bounded number of turns, and for the running sync at most gather_max_ms.
- Within a queue the records lie in the order in which the sends came.
- Every send is answered exactly once, with its own part of the append, with its queue's error, or
  with the error of its own messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from trovemq_broker.produce.append import Appender
from trovemq_broker.produce.choose_queue import QueueChooser
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.produce.outgoing import OutgoingEncoder, OutgoingMessage
from trovemq_daemon.callback_handlers import answer_into
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records.columns import QueuePart
from trovemq_store.engine.append_result import FIRST, NO_ORIGINALS, AppendResult, new_result

GATHER_TURNS_MAX: Final = 64  # of the event loop
QUIET_TURNS: Final = 4  # a call needs this many turns from its acceptance to here
WAITING_BYTES_MAX: Final = 64 << 20  # in one gathering, of all queues
_OF_ONE_SEND: Final = (
    errors.PRODUCER_SEQUENCE_ILLEGAL,
    errors.PRODUCER_SEQUENCE_TOO_OLD,
    errors.PRODUCER_SEQUENCE_CONFLICT,
    errors.MESSAGE_TYPE_CONFLICT,
)
"""Errors of one send, which refuse the whole append: then each send is appended by itself."""


class SendOutcome(NamedTuple):
    """The result of one send: where its messages were stored."""

    queue_id: QueueId
    result: AppendResult


Done: TypeAlias = Callable[[SendOutcome | Exception], None]
"""Called once with the result of a send, or the reason why it was not appended. Must not raise."""


@dataclass(slots=True)
class _Send:
    records: bytes
    count: int
    done: Done


_Groups: TypeAlias = dict[tuple[str, QueueId], list[_Send]]


class Coalescer:
    def __init__(
        self, appender: Appender, encoder: OutgoingEncoder, batch_size_max: int, commit: GroupCommit
    ) -> None:
        self._commit = commit
        self._appender = appender
        self._encoder = encoder
        self._batch_size_max = batch_size_max
        self._chooser = QueueChooser()
        self._groups: _Groups = {}
        self._chosen: dict[str, QueueId] = {}
        self._waiting_bytes = 0
        self._gathering = self._waits_for_sync = False
        self.block = 0
        """The number of the present block of `together`; 0 outside of one. In a block nothing is appended."""
        self._blocks = 0
        self._arrived = 0

    async def send(
        self,
        topic: str,
        queue_id: QueueId,
        messages: Sequence[OutgoingMessage],
        *,
        born_host: bytes | None,
        now_ms: EpochMs,
        checked: bool = False,
    ) -> SendOutcome:
        """As `begin`. Returns after the append. If it raises TroveError, nothing was written."""
        done: asyncio.Future[SendOutcome] = asyncio.get_running_loop().create_future()
        self.begin(
            topic,
            queue_id,
            messages,
            answer_into(done),
            born_host=born_host,
            now_ms=now_ms,
            checked=checked,
        )
        return await done

    def together(self) -> Coalescer:
        """Sends that begin in this block (`with`) belong together: they are appended at its end, unless a
        sync runs."""
        return self

    def __enter__(self) -> None:
        self._blocks = self.block = self._blocks + 1

    def __exit__(self, *_: object) -> None:
        self.block = 0
        if self._gathering and not self._waits_for_sync:
            self._append_groups()

    def begin(
        self,
        topic: str,
        queue_id: QueueId,
        messages: Sequence[OutgoingMessage],
        done: Done,
        *,
        born_host: bytes | None,
        now_ms: EpochMs,
        checked: bool = False,
    ) -> None:
        """Appends the messages, in order and contiguously, to the queue (-1: the broker chooses one).

        `checked`: the messages have passed the checks of their protocol. `done` is called after the append;
        the caller waits for durability. If it raises TroveError, nothing is written, and `done` is not
        called.
        """
        if not messages:
            raise TroveError(errors.REQUEST_ILLEGAL, "a send needs at least one message")
        queue_id = self._queue_for(topic, queue_id)
        records = self._encoder.encode(
            messages,
            topic=topic,
            queue_id=queue_id,
            born_host=born_host,
            now_ms=now_ms,
            checked=checked,
        )
        self._enqueue(topic, queue_id, records, len(messages), done)

    def begin_checked(
        self,
        topic: str,
        body: bytes,
        block: bytes,
        done: Done,
        *,
        born_host: bytes,
        born_timestamp: EpochMs,
    ) -> None:
        """As begin(), for one message to any queue that has passed the checks of its protocol; `block`: its
        encoded properties."""
        queue_id = self._chosen.get(topic)
        if queue_id is None:
            queue_id = self.shared_queue(topic)
        record = self._encoder.encode_block(topic, queue_id, born_host, body, block, born_timestamp)
        self._enqueue(topic, queue_id, record, 1, done)

    def encoded(
        self,
        topic: str,
        queue_id: QueueId,
        body: bytes,
        block: bytes,
        *,
        born_host: bytes,
        born_timestamp: EpochMs,
    ) -> bytes:
        """The record of one message for append_now(), which has passed the checks of its protocol; `block`:
        its encoded properties. TroveError PROPERTIES_SIZE_EXCEEDED."""
        return self._encoder.encode_block(topic, queue_id, born_host, body, block, born_timestamp)

    def append_now(self, queues: Mapping[tuple[str, QueueId], Sequence[bytes]]) -> list[AppendResult]:
        """Appends records of one message each (results of encoded(), of messages without a property that the
        broker decides about) to these queues, together, after the sends that wait. The caller waits for
        durability. No topic is deduplicated.

        Returns a result for each queue; none if the records are more than a batch, and nothing was done.
        Raises as Appender.append().
        """
        records = list(chain.from_iterable(queues.values()))
        if sum(map(len, records)) > self._batch_size_max:
            return []
        if self._groups:
            self._append_groups()
        if len(queues) == 1:
            ((topic, queue_id),) = queues
            data = records[0] if len(records) == 1 else b"".join(records)
            return [self._appender.append(topic, queue_id, data, None)]
        parts = [QueuePart(*queue, len(own)) for queue, own in queues.items()]
        return self._appender.append_joined(parts, bytearray().join(records), checked=True)

    def _queue_for(self, topic: str, queue_id: QueueId) -> QueueId:
        """The named queue, or the one that all sends of this gathering without a queue share."""
        if queue_id >= 0:
            self._appender.topic_for_write(topic, queue_id)
            return queue_id
        return self.shared_queue(topic)

    def shared_queue(self, topic: str) -> QueueId:
        """The queue that all sends of this gathering without a queue share. Raises as
        Appender.topic_for_write."""
        queue_id = self._chosen.get(topic)
        if queue_id is None:
            config = self._appender.topic_for_write(topic)
            if not self._gathering:
                self._schedule()
            queue_id = self._chosen[topic] = self._chooser.choose(topic, config.write_queue_count)
        return queue_id

    def _enqueue(self, topic: str, queue_id: QueueId, records: bytes, count: int, done: Done) -> None:
        if len(records) > self._batch_size_max:
            raise TroveError(
                errors.BATCH_SIZE_EXCEEDED,
                f"the messages take {len(records)} bytes, the limit is {self._batch_size_max}",
                batch_size_max=self._batch_size_max,
            )
        if self._waiting_bytes + len(records) > WAITING_BYTES_MAX:
            raise TroveError(errors.OS_PAGE_CACHE_BUSY, f"{self._waiting_bytes} bytes of sends are waiting")
        if not self._gathering:
            self._schedule()
        self._groups.setdefault((topic, queue_id), []).append(_Send(records, count, done))
        self._waiting_bytes += len(records)
        self._arrived += 1

    def _schedule(self) -> None:
        """Begins to gather, unless that has begun."""
        if not self._gathering:
            self._gathering = True
            self._waits_for_sync = self._commit.before_next_sync(self._append_groups)
            if not self._waits_for_sync and not self.block:
                asyncio.get_running_loop().call_soon(self._gather, 0, 0, GATHER_TURNS_MAX)

    def _gather(self, seen: int, quiet: int, turns_left: int) -> None:
        """Runs once a turn of the loop: appends when QUIET_TURNS have brought no further send."""
        quiet = quiet + 1 if seen == self._arrived else 0
        if quiet >= QUIET_TURNS or not turns_left:
            self._append_groups()
        else:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._gather, self._arrived, quiet, turns_left - 1)

    def _append_groups(self) -> None:
        self._gathering = self._waits_for_sync = False
        self._arrived = 0
        groups, self._groups = self._groups, {}
        self._chosen.clear()
        self._waiting_bytes = 0
        if len(groups) > 1:
            groups = self._append_joined(groups)
        for (topic, queue_id), sends in groups.items():
            for part in self._parts(sends):
                self._append(topic, queue_id, part)

    def _append_joined(self, groups: _Groups) -> _Groups:
        """Appends to several queues in one run. Returns the sends left, to be appended queue by queue."""
        joined: _Groups = {}
        size = 0
        for queue, sends in groups.items():
            own_size = len(sends[0].records) if len(sends) == 1 else sum(len(send.records) for send in sends)
            if size + own_size <= self._batch_size_max and self._appender.joins(queue[0]):
                joined[queue] = sends
                size += own_size
        if not joined:
            return groups
        parts = [QueuePart(*queue, _count(sends)) for queue, sends in joined.items()]
        data = bytearray().join(send.records for sends in joined.values() for send in sends)
        try:
            results = self._appender.append_joined(parts, data)
        except TroveError:
            return groups  # nothing was written: each queue gets its own error, or none
        except Exception as error:  # each sender gets it; none may wait for ever
            for sends in joined.values():
                for send in sends:
                    send.done(error)
        else:
            for (queue, sends), result in zip(joined.items(), results, strict=True):
                self._share(sends, queue[1], result)
        return {queue: sends for queue, sends in groups.items() if queue not in joined}

    def _parts(self, sends: list[_Send]) -> list[list[_Send]]:
        """Splits the sends, in order, so that no part is larger than one batch may be."""
        parts: list[list[_Send]] = [[]]
        size = 0
        for send in sends:
            if parts[-1] and size + len(send.records) > self._batch_size_max:
                parts.append([])
                size = 0
            parts[-1].append(send)
            size += len(send.records)
        return parts

    def _append(self, topic: str, queue_id: QueueId, sends: list[_Send]) -> None:
        data = sends[0].records if len(sends) == 1 else b"".join(send.records for send in sends)
        try:
            result = self._appender.append(topic, queue_id, data, None)
        except Exception as error:  # each sender gets the error; none may wait for ever
            if len(sends) > 1 and isinstance(error, TroveError) and error.spec in _OF_ONE_SEND:
                for send in sends:
                    self._append(topic, queue_id, [send])
                return
            for send in sends:
                send.done(error)
            return
        self._share(sends, queue_id, result)

    def _share(self, sends: list[_Send], queue_id: QueueId, result: AppendResult) -> None:
        first, begin = 0, 0
        if len(sends) == 1:
            sends[0].done(SendOutcome(queue_id, result))
            return
        if result.duplicates or result.gaps:
            self._share_parts(sends, queue_id, result)
            return
        status, physical_offset, _, store_timestamp, queue_offset, _, store_host, positions, *_ = result
        for send in sends:
            size, count = len(send.records), send.count
            part = new_result(
                (
                    status,
                    physical_offset + begin,
                    size,
                    store_timestamp,
                    queue_offset + first,
                    count,
                    store_host,
                    FIRST if count == 1 else positions[first : first + count] - begin,
                    *NO_ORIGINALS,
                )
            )
            first += count
            begin += size
            send.done(SendOutcome(queue_id, part))

    def _share_parts(self, sends: list[_Send], queue_id: QueueId, result: AppendResult) -> None:
        for send, part in zip(sends, result.parts(send.count for send in sends), strict=True):
            send.done(SendOutcome(queue_id, part))


def _count(sends: list[_Send]) -> int:
    """The messages of these sends."""
    return sends[0].count if len(sends) == 1 else sum(send.count for send in sends)
