"""The search in live brokers: their own look-ups by id and key; for all other conditions their queues are
read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message, RecordBatch
from trovemq_spark.search.pieces import answers
from trovemq_spark.search.question import Question, damage_row
from trovemq_spark.sources.live_client import Cluster

if TYPE_CHECKING:
    from trovemq import Client, QueueOffsets

_RECONNECT_TIMEOUT_MS: Final = 10_000
_MESSAGES_AT_ONCE: Final = 1000
# A broker without such a place treats the id as a message id, which it may be configured not to look up.
_NO_SUCH_ID: Final = (errors.MESSAGE_NOT_FOUND, errors.MESSAGE_ID_ILLEGAL, errors.INDEX_DISABLED)


class ServerPart:
    """One search over all brokers of an address."""

    def __init__(self, server: str, question: Question, add: Callable[[pa.RecordBatch], None]) -> None:
        self._cluster = Cluster(server, _RECONNECT_TIMEOUT_MS)
        self._question = question
        self._add = add
        self.notes: list[str] = []
        self.complete = True

    def run(self) -> None:
        """Passes every row that is found to `add`. Raises TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT."""
        self._cluster.ask(self._ask)

    async def _ask(self, client: Client) -> None:
        if self._question.offset_msg_id:
            await self._by_id(client, self._question.offset_msg_id)
            return
        for topic in await self._topics(client):
            try:
                await self._by_topic(client, topic)
            except TroveError as error:
                if error.spec is not errors.TOPIC_NOT_FOUND:
                    raise
                if self._question.topic:
                    self.notes.append(f"the server has no topic {topic}")

    async def _topics(self, client: Client) -> list[str]:
        if self._question.topic:
            return [self._question.topic]
        listed = await client.admin.list_topics(include_system=True)
        return sorted({topic.topic for topic in listed})

    async def _by_id(self, client: Client, offset_msg_id: str) -> None:
        try:
            answer = await client.get(offset_msg_id)
        except TroveError as error:
            if error.spec not in _NO_SUCH_ID:
                raise
            return
        self._add_messages(list(answer.messages))

    async def _by_topic(self, client: Client, topic: str) -> None:
        if not self._question.index_key:
            await self._read(client, topic)
            return
        try:
            await self._by_key(client, topic)
        except TroveError as error:
            if error.spec is not errors.INDEX_DISABLED:
                raise
            await self._read(client, topic)

    async def _by_key(self, client: Client, topic: str) -> None:
        question = self._question
        found = client.query_all(
            topic,
            question.index_key,
            type="message_id" if question.message_id else "key",
            begin=question.begin_ms,
            end=question.end_ms,
        )
        messages: list[Message] = []
        try:
            async with aclosing(found):
                async for message in found:
                    messages.append(message)
                    if len(messages) == _MESSAGES_AT_ONCE:
                        self._add_messages(messages)
                        messages = []
        except TroveError as error:
            if error.spec not in (errors.BROKER_UNREACHABLE, errors.MESSAGES_REMOVED_EARLY):
                raise
            self.complete = False
            self.notes.append(error.message)
        self._add_messages(messages)

    def _add_messages(self, messages: list[Message]) -> None:
        """Takes those of a broker's messages for which all conditions hold."""
        if not messages:
            return
        records = RecordBatch.split(b"".join(message.record for message in messages))
        offsets = np.array([message.queue_offset for message in messages], np.int64)
        for rows in answers(records, self._question, queue_offsets=offsets):
            self._add(rows)

    # --- reading queues ---

    async def _read(self, client: Client, topic: str) -> None:
        for queue in await client.queue_offsets(topic):
            begin = queue.min_offset
            if self._question.begin_ms > 0:
                begin = await client.search_offset(
                    topic, queue.queue_id, self._question.begin_ms, broker=queue.broker
                )
            if begin < queue.max_offset:
                async with aclosing(self._rows(client, topic, queue, max(begin, queue.min_offset))) as found:
                    async for rows in found:
                        self._add(rows)

    async def _rows(
        self, client: Client, topic: str, queue: QueueOffsets, begin: int
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """The matching rows of a queue from `begin` on, up to its end at the time of the search."""
        batches = client.pull_batches(topic, queue_id=queue.queue_id, offset=begin, broker=queue.broker)
        async with aclosing(batches):
            async for batch in batches:
                for offset in batch.damaged_offsets:
                    where = f"{topic}, broker {queue.broker}, queue {queue.queue_id}, offset {offset}"
                    yield damage_row(-1, f"{where}: the record cannot be read")
                if len(batch):
                    for rows in answers(
                        batch.records,
                        self._question,
                        broker_name=queue.broker,
                        queue_offsets=None if batch.queue_offsets is None else batch.offsets,
                    ):
                        yield rows
                if batch.next_offset >= queue.max_offset:
                    return
