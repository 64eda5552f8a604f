"""The messages of several SendMessage calls of one iteration of the loop, as one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from trovemq_broker.produce.batches import Batch, Done
from trovemq_broker.server.wire.send_replies import Stored, reply_of, reply_of_stored
from trovemq_daemon.calls import Call
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.append_result import AppendResult

Refused: TypeAlias = Callable[[str], None]
"""Counts a message whose sync failed, by the error's symbol."""


class JoinedSends:
    """Messages of one topic, for one queue, one a call; in the order of their calls. The pieces of their
    records are added to `pieces` before. kind: the type of the first message."""

    __slots__ = (
        "_calls",
        "_message_ids",
        "_refused",
        "_sizes",
        "kind",
        "pieces",
        "queue_id",
        "size",
        "topic",
    )

    def __init__(self, topic: str, queue_id: QueueId, kind: str, refused: Refused) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.kind = kind
        self.pieces: list[bytes] = []
        self.size = 0  # bytes of the records
        self._sizes: list[int] = []
        self._calls: list[Call] = []
        self._message_ids: list[str] = []
        self._refused = refused

    def add(self, call: Call, message_id: str, size: int) -> None:
        """size: bytes of the message's record."""
        self._calls.append(call)
        self._message_ids.append(message_id)
        self._sizes.append(size)
        self.size += size

    def batch(self) -> tuple[Batch, Done]:
        """The batch for the accumulator, and what answers its calls. Nothing may be added after that."""
        count = len(self._calls)
        # not the pieces: `done` may wait for a sync, and would keep the bodies
        done = partial(_answer, self._refused, self._calls, self._message_ids)
        data = memoryview(bytearray().join(self.pieces))
        split = self._split if count > 1 else None
        return Batch(self.topic, self.queue_id, data, count, None, True, None, split), done

    def _split(self) -> Iterator[tuple[Batch, Done]]:
        """Each message as a batch of one."""
        data, begin = b"".join(self.pieces), 0
        for call, message_id, size in zip(self._calls, self._message_ids, self._sizes, strict=True):
            part = JoinedSends(self.topic, self.queue_id, self.kind, self._refused)
            part.pieces.append(data[begin : begin + size])
            part.add(call, message_id, size)
            begin += size
            yield part.batch()


def _answer(
    refused: Refused,
    calls: Sequence[Call],
    message_ids: Sequence[str],
    outcome: AppendResult | Exception,
    _ended_at: float = 0.0,
    error: TroveError | None = None,
) -> None:
    if isinstance(outcome, Exception):
        for call in calls:
            call.answer(outcome)
    elif error is not None:
        for index, (call, message_id) in enumerate(zip(calls, message_ids, strict=True)):
            refused(error.symbol)
            call.answer(reply_of((message_id,), [Stored(outcome, index, error=error)]))
    elif outcome.duplicates:
        for index, (call, message_id) in enumerate(zip(calls, message_ids, strict=True)):
            call.answer(reply_of_stored(message_id, outcome.queue_offset(index)))
    else:
        first = outcome.first_queue_offset
        for offset, (call, message_id) in enumerate(zip(calls, message_ids, strict=True), first):
            call.answer(reply_of_stored(message_id, QueueOffset(offset)))
