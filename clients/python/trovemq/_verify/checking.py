"""Reads a run back: every queue from its beginning, then look-ups by offsetMsgId, message id and key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from trovemq._verify.evidence import Evidence
from trovemq._verify.ledger import Place
from trovemq._verify.ledger_rows import AckedRow, KeyQuestion
from trovemq._verify.tasks import for_each
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message, decode_message

if TYPE_CHECKING:
    from trovemq.answers import GetAnswer
    from trovemq.client import Client
    from trovemq.fetched import FetchedBatch
    from trovemq.models.cluster import QueueOffsets

LOOK_UPS_AT_A_TIME: Final = 32
KEY_QUESTIONS_AT_A_TIME: Final = 8
PAGE_MESSAGES: Final = 256
OFFSET_MAX: Final = (1 << 63) - 1

Result = TypeVar("Result")


class Calls(Protocol):
    """Awaits requests within a time limit."""

    async def call(self, awaitable: Awaitable[Result]) -> Result:
        """The result. Raises TroveError REQUEST_TIMEOUT."""

    def each(self, items: AsyncGenerator[Result]) -> AsyncGenerator[Result]:
        """The items of a stream, each within the limit."""


@dataclass(slots=True)
class CheckCounts:
    """Records read by queue offset, messages looked up by offsetMsgId and message id, queries by key."""

    read: int = 0
    looked_up: int = 0
    asked_by_key: int = 0


class Checker:
    """Reads the messages that a ledger names and passes them to the evidence.

    Args:
        client: The cluster.
        calls: How requests are awaited.
        evidence: The loaded ledger.
        progress: Gets a line now and then.
    """

    def __init__(
        self, client: Client, calls: Calls, evidence: Evidence, progress: Callable[[str], None]
    ) -> None:
        self._client = client
        self._calls = calls
        self._evidence = evidence
        self._progress = progress
        self._topic = evidence.header.topic
        self.counts = CheckCounts()

    async def check(self, sample: int | None, *, expired_ok: bool) -> None:
        """Reads everything by queue offset; all (None) or a sample by the other names.

        Raises:
            TroveError: Reading is not possible: BROKER_UNREACHABLE, TOPIC_NOT_FOUND, INDEX_DISABLED, …;
                BROKER_NOT_FOUND if a broker of the ledger is not in the routes.
        """
        await self._read_queues(expired_ok=expired_ok)
        self._evidence.settle()
        if sample == 0:
            return
        await for_each(self._evidence.to_look_up(sample), self._look_up, LOOK_UPS_AT_A_TIME)
        await for_each(self._evidence.key_questions(sample), self._ask_by_key, KEY_QUESTIONS_AT_A_TIME)

    # --- by queue offset ------------------------------------------------------------------------------

    async def _read_queues(self, *, expired_ok: bool) -> None:
        queues = await self._calls.call(self._client.queue_offsets(self._topic))
        bounds = {(queue.broker, queue.queue_id): queue for queue in queues}
        begins = self._evidence.header.begins
        brokers = {broker for broker, _ in (*begins, *self._evidence.places())}
        absent = brokers.difference(broker for broker, _ in bounds)
        if absent:
            names = ", ".join(sorted(absent))
            text = f"the run used brokers that do not have {self._topic} or are not there: {names}"
            raise TroveError(errors.BROKER_NOT_FOUND, text, brokers=names)
        for place in sorted({*bounds, *self._evidence.places()}):
            self._evidence.begin_queue()
            await self._read_queue(place, bounds.get(place), begins.get(place, 0), expired_ok=expired_ok)

    async def _read_queue(
        self, place: Place, bounds: QueueOffsets | None, begin: int, *, expired_ok: bool
    ) -> None:
        if bounds is None:  # the queue itself is missing
            self._evidence.compare(place, 0, OFFSET_MAX, {}, frozenset())
            return
        position = max(begin, bounds.min_offset)
        self._evidence.skip(place, position, expired_ok=expired_ok)
        if position < bounds.max_offset:
            batches = self._client.pull_batches(
                self._topic, queue_id=place[1], offset=position, broker=place[0]
            )
            async for batch in self._calls.each(batches):
                messages, unreadable = readable(batch, position)
                self._evidence.compare(place, position, batch.next_offset, messages, unreadable)
                position = batch.next_offset
                self.counts.read += len(messages)
                self._progress(f"queue {place[1]} of {place[0]}: {position:,} of {batch.max_offset:,}")
                await asyncio.sleep(0)
        self._evidence.compare(place, position, OFFSET_MAX, {}, frozenset())

    # --- by the other names ---------------------------------------------------------------------------

    async def _look_up(self, row: AckedRow) -> None:
        found = await self._get(self._client.get(row.offset_msg_id, broker=row.broker))
        self._evidence.looked_up(row, "offsetMsgId", found)
        found = await self._get(self._client.get(row.message_id, topic=self._topic, broker=row.broker))
        self._evidence.looked_up(row, "messageId", found)
        self.counts.looked_up += 1
        self._progress(f"looked up {self.counts.looked_up:,} messages by offsetMsgId and message id")

    async def _get(self, answer: Awaitable[GetAnswer]) -> list[Message] | None:
        """The messages; None if the record cannot be read."""
        try:
            return list((await self._calls.call(answer)).messages)
        except TroveError as error:
            if error.spec is errors.MESSAGE_NOT_FOUND:
                return []
            if error.spec is errors.RECORD_DAMAGED:
                return None
            raise

    async def _ask_by_key(self, question: KeyQuestion) -> None:
        messages = self._client.query_all(
            self._topic,
            question.key,
            begin=question.begin,
            end=question.end,
            page_size=PAGE_MESSAGES,
            broker=question.broker,
        )
        part: list[Message] = []
        async for message in self._calls.each(messages):
            part.append(message)
            if len(part) == PAGE_MESSAGES:
                self._evidence.answered(question, part)
                part.clear()
        self._evidence.answered(question, part)
        self._evidence.answer_ended(question)
        self.counts.asked_by_key += 1
        self._progress(f"asked for {self.counts.asked_by_key:,} keys")


def readable(batch: FetchedBatch, begin: int) -> tuple[dict[int, Message], set[int]]:
    """The messages of a batch by queue offset, and the offsets whose records cannot be read.

    begin: the first queue offset of the batch that was read.
    """
    unreadable = set(batch.damaged_offsets)
    try:
        found = {message.queue_offset: message for message in batch.messages()}
        damaged = {offset for offset, message in found.items() if message.body_error}
        return {offset: found[offset] for offset in found.keys() - damaged}, unreadable | damaged
    except TroveError:
        pass  # one of them is damaged: read one by one
    messages: dict[int, Message] = {}
    try:
        records = batch.split()
    except TroveError:  # not even its records can be separated
        return {}, {*unreadable, *range(begin, batch.next_offset)}
    for offset, record in records:
        try:
            messages[offset] = decode_message(record, queue_offset=offset)
        except TroveError:
            unreadable.add(offset)
    return messages, unreadable
