"""MessageService: the data plane. The two streams and Pull use serialised frames (see frames.py)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import grpc

from trovemq_broker.produce.batches import Batch, Done
from trovemq_broker.produce.put_status import STORED
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.read_core import ReadCore
from trovemq_broker.server.native.append_stream import AppendStream
from trovemq_broker.server.native.fetch_stream import FetchStream, begin_pull
from trovemq_broker.server.native.reply_stream import OpenStreams
from trovemq_broker.server.wire import send_messages as wire
from trovemq_broker.server.wire.frames import read_append_frame
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.native_messages import append_reply, born_host_of, mark_failed
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.calls import Answer, Call
from trovemq_daemon.grpc_services import service_handlers
from trovemq_proto.errors import TroveError
from trovemq_store.engine.append_result import AppendResult


class MessageReads:
    """The part that changes nothing, of a broker and of a follower."""

    def __init__(self, core: ReadCore) -> None:
        self._reads = core
        self.streams: Final = OpenStreams()

    async def fetch(self, _requests: object, context: Context) -> None:
        await self.streams.serve(FetchStream(self._reads, context))

    def on_pulls(self, calls: Sequence[Call]) -> None:
        """Pull: waits up to wait_ms."""
        for call in calls:
            try:
                begin_pull(self._reads, call)
            except Exception as error:
                call.answer(error)


class MessageService(MessageReads):
    def __init__(self, core: BrokerCore) -> None:
        super().__init__(core)
        self._core = core

    def add_to(self, server: grpc.aio.Server) -> None:
        of_turns = {"Send": self.on_sends, "Pull": self.on_pulls}
        handlers = service_handlers(wire.SERVICE, self, {"Append": read_append_frame}, of_turns)
        server.add_registered_method_handlers(wire.SERVICE.full_name, handlers)

    async def append(self, _requests: object, context: Context) -> None:
        await self.streams.serve(AppendStream(self._core, context))

    async def get_producer(self, request: Request, _context: Context) -> Reply:
        producer = wire.producer_of(request)
        core, (topic, _) = self._core, producer
        next_sequence = core.appender.deduplication.next_sequence(*producer, core.clock_ms())
        await core.appender.acknowledged(topic, core.store.end_offset)  # the producer skips these numbers
        return wire.producer_reply(next_sequence)

    def on_sends(self, calls: Sequence[Call]) -> None:
        """Send: refusals end the call with an error; only FLUSH_DISK_TIMEOUT and REPLICA_TIMEOUT, whose
        message is in the log, are in the reply."""
        with self._core.accumulator.together():
            for call in calls:
                try:
                    if self._core.group_commit.full:
                        call.run(self._send_when_free(call))
                    else:
                        self._begin_send(call)
                except Exception as error:
                    call.answer(error)

    async def _send_when_free(self, call: Call) -> None:
        await self._core.group_commit.wait_for_capacity()
        self._begin_send(call)

    def _begin_send(self, call: Call) -> None:
        started = time.perf_counter()
        try:
            send = wire.read_send(call.request)
            self._submit(send, call.context, partial(self._answer, send.topic, call.answer, started))
        except TroveError as error:
            self._refuse(call.answer, error)

    def _submit(self, send: wire.SendMessages, context: Context, done: Done) -> None:
        """Raises TroveError if the messages are refused."""
        topic, queue_id, messages = send
        queue_id = self._core.accumulator.queue_of(topic, queue_id)
        records = self._core.accumulator.encoder.encode(
            messages,
            topic=topic,
            queue_id=queue_id,
            born_host=born_host_of(context.peer()),
            now_ms=self._core.clock_ms(),
        )
        self._core.accumulator.submit(Batch(topic, queue_id, records, len(messages)), done)

    def _answer(
        self,
        topic: str,
        answer: Answer,
        started: float,
        outcome: AppendResult | Exception,
        ended_at: float = 0.0,
        error: TroveError | None = None,
    ) -> None:
        """Answers a send that was submitted."""
        if isinstance(outcome, Exception):
            self._refuse(answer, outcome)
            return
        if error is not None and error.spec not in STORED:
            self._refuse(answer, error)
            return
        core = self._core
        elapsed_us = int((ended_at - started) * 1e6)
        copies = core.appender.copies(topic)
        reply = append_reply(0, outcome, core.appender.durability, core.broker, elapsed_us, copies)
        if error is not None:
            core.traffic.refused(error.symbol)
            mark_failed(reply, error)
        answer(reply)

    def _refuse(self, answer: Answer, error: Exception) -> None:
        if isinstance(error, TroveError):
            self._core.traffic.refused(error.symbol)
        answer(error)
