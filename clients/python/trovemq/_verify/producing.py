"""Sends a run at a rate, over restarts of the broker, and writes every outcome into the ledger.

Each producer sends batches to one queue after the other. The batches of one queue are sent one after the
other (by an ordering key), so that offsets follow the order of sending. A batch that was not acknowledged is
sent again, with the same message ids and a new sequence number, until it is; the ledger has a line for each
message of each attempt. At most BATCHES_IN_FLIGHT_MAX batches of a producer are in flight or wait for another
attempt: while a broker is unreachable no new messages are made, and afterwards only those of one second are
added.

Invariant: a message is sent again only after the outcome of its last send is in the ledger.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from trovemq._common.backoff import Backoff
from trovemq._verify.content import RunContent
from trovemq._verify.ledger import ACKNOWLEDGED, REFUSED, UNKNOWN, LedgerEntry, LedgerWriter, Place
from trovemq._verify.tasks import together
from trovemq.receipts import COPIES_LATE, PartialBatchError, SendReceipt
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq.client import Client
    from trovemq.producer import Producer

BATCHES_IN_FLIGHT_MAX: Final = 16  # of one producer
BATCH_MESSAGES_MAX: Final = 500
BATCH_BYTES_MAX: Final = 256 << 10  # of bodies; well below a broker's limit of one frame
IN_FLIGHT_BYTES_MAX: Final = 128 << 20  # more than all those batches: no send ever waits for space
TICK_SECONDS: Final = 0.005
CATCH_UP_SECONDS: Final = 1.0
DRAIN_SECONDS_MAX: Final = 60.0  # how long after its time a run still repeats sends
ORDERING_KEY: Final = "verify"  # any text: the queue is given

# Errors after which certainly nothing was stored; after an error in neither table the outcome is unknown.
NOT_STORED: Final = frozenset(
    {
        errors.DISK_FULL,
        errors.CREATE_MAPPED_FILE_FAILED,
        errors.SERVICE_NOT_AVAILABLE,
        errors.OS_PAGE_CACHE_BUSY,
        errors.LIMIT_EXCEEDED,
        errors.BROKER_UNREACHABLE,
        errors.BROKER_NOT_FOUND,
        errors.NOT_ENOUGH_REPLICAS,
    }
)
CALLERS_FAULT: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED"})


@dataclass(slots=True)
class RunSummary:
    """Counts of a run: messages sent (each once) and acknowledged; sends with an unknown or refused
    outcome."""

    sent: int = 0
    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """The summary's object; `givenUp` are the messages that were never acknowledged."""
        return {
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "unknown": self.unknown,
            "refused": self.refused,
            "givenUp": self.sent - self.acknowledged,
            "seconds": round(self.seconds, 3),
            "messagesPerSecond": round(self.acknowledged / max(self.seconds, 1e-9)),
        }


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run.

    Attributes:
        topic: The topic.
        places: Its queues, as (broker, queue id).
        content: The content of the messages.
        rate: Messages a second, all producers together.
        seconds: How long new messages are sent.
        producers: How many send at a time.
    """

    topic: str
    places: Sequence[Place]
    content: RunContent
    rate: float
    seconds: float
    producers: int


async def produce_run(client: Client, plan: RunPlan, ledger: LedgerWriter, summary: RunSummary) -> None:
    """Sends the run and writes its end line; updates `summary` meanwhile.

    Raises:
        TroveError: Every send would fail: TOPIC_NOT_FOUND, MESSAGE_SIZE_EXCEEDED, … The ledger then
            has no end line.
    """
    started = asyncio.get_running_loop().time()
    senders = [_Sender(client, plan, ledger, summary, number) for number in range(plan.producers)]
    await together(sender.run() for sender in senders)
    summary.seconds = asyncio.get_running_loop().time() - started
    ledger.end(summary.to_json())


@dataclass(slots=True)
class _Message:
    message_id: str
    key: str
    body: bytes
    body_hash: bytes


class _Sender:
    """One producer of a run."""

    def __init__(
        self, client: Client, plan: RunPlan, ledger: LedgerWriter, summary: RunSummary, number: int
    ) -> None:
        self._client = client
        self._plan = plan
        self._ledger = ledger
        self._summary = summary
        self._number = number
        self._rate = plan.rate / plan.producers
        self._batch_messages_max = max(1, min(BATCH_MESSAGES_MAX, BATCH_BYTES_MAX // plan.content.size))
        self._next_message = 0
        self._next_sequence = 0
        self._turn = number  # producers begin at different queues
        self._free = asyncio.Semaphore(BATCHES_IN_FLIGHT_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._backoff = Backoff()
        self._give_up_at = 0.0
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Sends for the duration of the run, then waits for the sends in flight."""
        ends = asyncio.get_running_loop().time() + self._plan.seconds
        self._give_up_at = ends + DRAIN_SECONDS_MAX
        async with self._client.producer(
            self._plan.topic, in_flight_bytes_max=IN_FLIGHT_BYTES_MAX
        ) as producer:
            try:
                await self._send_until(producer, ends)
                while self._tasks and self._failure is None:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                if self._failure is not None:
                    raise self._failure
            except BaseException:
                await self._cancel()
                await producer.abort()
                raise

    async def _send_until(self, producer: Producer, ends: float) -> None:
        loop = asyncio.get_running_loop()
        tokens, last = 1.0, loop.time()
        while True:
            await self._free.acquire()
            now = loop.time()
            if now >= ends or self._failure is not None:
                return
            tokens, last = (
                min(tokens + (now - last) * self._rate, max(1.0, self._rate * CATCH_UP_SECONDS)),
                now,
            )
            count = min(int(tokens), self._batch_messages_max)
            if count:
                tokens -= count
                task = loop.create_task(self._deliver(producer, self._made(count)))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
            else:
                self._free.release()
            wait_seconds = max(TICK_SECONDS, (1.0 - tokens) / self._rate) if tokens < 1.0 else 0.0
            await asyncio.sleep(min(wait_seconds, max(0.0, ends - now)))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free.release()
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _made(self, count: int) -> list[_Message]:
        """Makes the next messages."""
        content, first = self._plan.content, self._next_message
        self._next_message += count
        self._summary.sent += count
        messages = []
        for number in range(first, first + count):
            body = content.body(self._number, number)
            message_id = content.message_id(self._number, number)
            messages.append(_Message(message_id, content.key(number), body, sha256(body).digest()))
        return messages

    # --- one batch until it is acknowledged -----------------------------------------------------------

    async def _deliver(self, producer: Producer, batch: list[_Message]) -> None:
        failures = 0
        while batch:
            place, sequence = self._next_place(), self._next_sequence
            self._next_sequence += len(batch)
            batch = await self._attempt(producer, batch, place, sequence)
            failures += 1
            if asyncio.get_running_loop().time() >= self._give_up_at:
                return
            if batch:
                await asyncio.sleep(self._backoff.seconds(failures))

    def _next_place(self) -> Place:
        self._turn += 1
        return self._plan.places[self._turn % len(self._plan.places)]

    async def _attempt(
        self, producer: Producer, batch: list[_Message], place: Place, sequence: int
    ) -> list[_Message]:
        """Sends the batch once and writes the outcomes; returns the messages that are not acknowledged."""
        try:
            receipts = await producer.send_batch(
                [message.body for message in batch],
                keys=[message.key for message in batch],
                message_ids=[message.message_id for message in batch],
                queue_id=place[1],
                broker=place[0],
                ordering_key=ORDERING_KEY,
            )
        except PartialBatchError as error:  # its other frames may have other outcomes
            indexes = error.indexes
            again = self._answered([(sequence + i, batch[i]) for i in indexes], error.receipts, place)
            left = sorted(set(range(len(batch))).difference(indexes))
            self._failed([(sequence + i, batch[i]) for i in left], place, UNKNOWN, error)
            return again + [batch[i] for i in left]
        except TroveError as error:
            in_doubt = error.in_doubt
            if not in_doubt and not error.retriable and error.spec.grpc_status in CALLERS_FAULT:
                raise
            outcome = REFUSED if error.spec in NOT_STORED and not in_doubt else UNKNOWN
            self._failed(list(enumerate(batch, sequence)), place, outcome, error)
            return batch
        return self._answered(list(enumerate(batch, sequence)), receipts, place)

    def _answered(
        self, messages: Sequence[tuple[int, _Message]], receipts: Sequence[SendReceipt], place: Place
    ) -> list[_Message]:
        """Writes the outcomes of messages that the broker has. Returns those whose copies were late: a next
        leader may cut them, so they are as if no answer had come."""
        late = {number for number, one in enumerate(receipts) if one.status == COPIES_LATE}
        if not late:
            self._acknowledged(messages, receipts)
            return []
        held = [number for number in range(len(messages)) if number not in late]
        self._acknowledged([messages[number] for number in held], [receipts[number] for number in held])
        open_ones = [messages[number] for number in sorted(late)]
        self._failed(open_ones, place, UNKNOWN, TroveError(errors.REPLICA_TIMEOUT))
        return [message for _, message in open_ones]

    def _acknowledged(
        self, messages: Iterable[tuple[int, _Message]], receipts: Sequence[SendReceipt]
    ) -> None:
        now = time.time_ns() // 1_000_000
        self._summary.acknowledged += len(receipts)
        self._ledger.add(
            LedgerEntry(
                ACKNOWLEDGED,
                message.message_id,
                message.key,
                message.body_hash,
                receipt.broker,
                receipt.queue_id,
                self._number,
                sequence,
                now,
                receipt.queue_offset,
                receipt.offset_msg_id,
                receipt.durability,
                receipt.store_timestamp,
                copies=receipt.copies,
            )
            for (sequence, message), receipt in zip(messages, receipts, strict=True)
        )

    def _failed(
        self, messages: Sequence[tuple[int, _Message]], place: Place, outcome: str, error: TroveError
    ) -> None:
        now = time.time_ns() // 1_000_000
        if outcome == UNKNOWN:
            self._summary.unknown += len(messages)
        else:
            self._summary.refused += len(messages)
        self._ledger.add(
            LedgerEntry(
                outcome,
                message.message_id,
                message.key,
                message.body_hash,
                *place,
                self._number,
                sequence,
                now,
                error=error.symbol,
            )
            for sequence, message in messages
        )
