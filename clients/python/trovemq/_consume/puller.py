"""Pulls one queue by one Fetch stream, some fetches ahead of the reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from trovemq._consume.fetch_plan import NO_END, Fetch, FetchPlan
from trovemq._net.connections import ConnectionPool
from trovemq._wire.connection import Stream
from trovemq._wire.streams import FetchAnswer, fetch_request, more_replies
from trovemq.fetched import FetchedBatch
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.numpy_extra import has_numpy

REPLIES_MAX: Final = 16
"""At the end of the queue the broker sends at most this many batches before the client asks for more; while
it waits, new messages gather for the next batch."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The range of one queue to pull."""

    topic: str
    queue_id: int
    offset: int | None  # None: the beginning of the queue
    bytes_max: int
    tags: tuple[str, ...]
    prefetch: int
    follow: bool
    wait_ms: int
    broker: str | None
    end: int = NO_END
    messages_max: int = 0
    topic_identity: int | None = None  # of the topic that has the offset; None: not known


class Puller:
    """One pull: opens the stream, keeps fetches in flight, opens it again after a break.

    Args:
        pool: Routes and connections.
        request: The range to pull.
    """

    def __init__(self, pool: ConnectionPool, request: PullRequest) -> None:
        self._pool = pool
        self._request = request
        self._plan = self._plan_from(request.offset or 0)
        self._topic_identity = request.topic_identity  # each fetch is checked against it
        self._broker = ""
        self._failures = 0
        self._failing_since = 0.0

    def _plan_from(self, offset: int) -> FetchPlan:
        request = self._request
        return FetchPlan(
            offset,
            bytes_max=request.bytes_max,
            fetches_max=request.prefetch,
            foretell=not request.tags,
            end=request.end,
            messages_max=request.messages_max,
            replies_max=REPLIES_MAX
            if request.follow and request.end == NO_END and request.prefetch > 1
            else 1,
        )

    async def batches(self) -> AsyncGenerator[FetchedBatch, None]:
        """The queue's batches in order. Raises TroveError."""
        # The broker of the queue is determined once: a broker that is missing at first is the caller's
        # mistake.
        request = self._request
        if request.follow:
            has_numpy()  # imports it now: at the first full batch that would hold up a hundred live messages
        self._broker = self._pool.routes.broker_of_queue(request.topic, request.queue_id, request.broker).name
        if self._plan.position >= request.end:
            return
        while True:
            try:
                async with aclosing(self._one_stream()) as stream:
                    async for batch in stream:
                        yield batch
                return
            except TroveError as error:
                if not self._begins_later(error):
                    await self._back_off(error)

    def _begins_later(self, error: TroveError) -> bool:
        """Whether the queue has lost the messages before its first one; then the plan continues there."""
        first = int(error.fields.get("min_offset", 0)) if error.spec is errors.OFFSET_OUT_OF_RANGE else 0
        if self._request.offset is not None or self._plan.position or not first:
            return False
        self._plan = self._plan_from(first)
        return True

    async def _back_off(self, error: TroveError) -> None:
        """Waits before the next stream; raises if another try is useless."""
        loop, options = asyncio.get_running_loop(), self._pool.options
        if not error.retriable or self._pool.closed:
            raise await self._pool.explained(error)
        if not self._failures:
            self._failing_since = loop.time()
        self._failures += 1
        self._pool.note_failure(self._broker, error)
        if loop.time() - self._failing_since > options.reconnect_timeout_ms / 1000:
            raise error
        self._plan.restart()
        await asyncio.sleep(options.backoff.seconds(self._failures))

    async def _one_stream(self) -> AsyncGenerator[FetchedBatch, None]:
        stream = self._pool.connection(self._pool.routes.broker(self._broker)).open_fetch()
        reading: asyncio.Task[FetchAnswer] | None = None
        try:
            while True:
                if self._plan.has_requests:
                    await self._send_fetches(stream)
                answer = await (reading or stream.read())
                self._take(answer)
                if self._plan.has_requests:
                    await self._send_fetches(stream)
                # The next answer is read while the caller works on this one, except at the end of the queue.
                at_end = answer.batch.next_offset >= answer.batch.max_offset
                reading = None if at_end else asyncio.get_running_loop().create_task(stream.read())
                while (batch := self._plan.next_to_hand_out()) is not None:
                    if len(batch.data) or batch.damaged_offsets:
                        yield batch
                    if self._at_end(batch):
                        return
                    if self._plan.has_requests:
                        await self._send_fetches(stream)
        finally:
            stream.cancel()
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    def _take(self, answer: FetchAnswer) -> None:
        if answer.error is not None:
            raise answer.error
        self._failures = 0
        if self._topic_identity is None:
            self._topic_identity = answer.batch.topic_identity
        self._plan.answered(answer.fetch_id, answer.batch, answer.replies_remaining)

    def _at_end(self, batch: FetchedBatch) -> bool:
        if batch.next_offset >= self._request.end:
            return True
        return not self._request.follow and batch.next_offset >= batch.max_offset

    async def _send_fetches(self, stream: Stream) -> None:
        while (fetch := self._plan.next_to_send()) is not None:
            await stream.send(self._frame(fetch))
        if (more := self._plan.replies_to_ask_for()) is not None:
            fetch_id, count = more
            await stream.send(more_replies(fetch_id, self._request.topic, self._request.queue_id, count))

    def _frame(self, fetch: Fetch) -> bytes:
        request = self._request
        return fetch_request(
            fetch.fetch_id,
            request.topic,
            request.queue_id,
            offset=fetch.start,
            messages_max=fetch.messages_max,
            bytes_max=request.bytes_max,
            wait_ms=request.wait_ms if request.follow else 0,
            tags=request.tags,
            replies_max=fetch.replies_max,
            topic_identity=self._topic_identity,
            max_lag_ms=self._pool.options.max_lag_ms,
        )
