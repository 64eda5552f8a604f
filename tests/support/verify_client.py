"""Runs of `trovemq verify` without a network: a client whose producer follows a script."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from trovemq.receipts import BatchReceipt, PartialBatchError, SendReceipt
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId

STORED, UNKNOWN_STORED, UNKNOWN_NOT, REFUSED, HALF = "stored", "unknown stored", "unknown", "refused", "half"
LATE = "late copies of the first half"


@dataclass
class ScriptedProducer:
    """Stores the messages of `send`; `script` has the results of the next batches, then all are stored."""

    send: Callable[..., Any]
    topic: str
    script: deque[str | TroveError] = field(default_factory=deque)
    batches: list[list[str]] = field(default_factory=list)  # unique keys
    aborted: bool = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def abort(self) -> None:
        self.aborted = True

    async def send_batch(
        self,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[str],
        message_ids: Sequence[str],
        queue_id: QueueId,
        broker: str,
        ordering_key: str,
    ) -> list[SendReceipt]:
        assert ordering_key
        self.batches.append(list(message_ids))
        outcome = self.script.popleft() if self.script else STORED
        if isinstance(outcome, TroveError):
            raise outcome
        stored = len(bodies) // (2 if outcome == HALF else 1) if outcome in _STORING else 0
        receipts = [
            await self.send(
                self.topic,
                bodies[i],
                keys=[keys[i]],
                message_id=message_ids[i],
                queue_id=queue_id,
                broker=broker,
            )
            for i in range(stored)
        ]
        if outcome == LATE:
            half = len(bodies) // 2
            receipts[:half] = [one._replace(status="FLUSH_SLAVE_TIMEOUT") for one in receipts[:half]]
        if outcome in (UNKNOWN_STORED, UNKNOWN_NOT):
            raise TroveError(errors.BROKER_UNREACHABLE, "broken off", in_doubt="true")
        if outcome == REFUSED:
            raise TroveError(errors.DISK_FULL)
        if outcome == HALF:
            raise _HalfError(receipts, len(bodies))
        return receipts


_STORING = (STORED, UNKNOWN_STORED, HALF, LATE)


class _HalfError(PartialBatchError):
    """The first half of a batch is stored."""

    def __init__(self, receipts: list[SendReceipt], count: int) -> None:
        first = TroveError(errors.REQUEST_TIMEOUT, "late", in_doubt="true")
        super().__init__(first, BatchReceipt(()), list(range(len(receipts))), count)
        self.receipts = receipts  # type: ignore[assignment]  # a sequence of receipts, too


async def messages_of_pages(query: Callable[..., Any], topic: str, key: str, **options: Any) -> AsyncIterator:  # type: ignore[type-arg]
    """`Client.query_all` over pages of `query`."""
    cursor = None
    while True:
        page = await query(topic, key, cursor=cursor, **options)
        for message in page.messages:
            yield message
        if page.complete:
            return
        cursor = page.cursor
