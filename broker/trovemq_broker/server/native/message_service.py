"""MessageService: the data plane. The two streams and Pull use serialised frames (see frames.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.produce.accumulator import Accumulator, Batch, Done
from trovemq_broker.server.native.append_stream import AppendParts, AppendStream
from trovemq_broker.server.native.fetch_stream import FetchParts, FetchStream, begin_pull
from trovemq_broker.server.native.reply_stream import OpenStreams
from trovemq_broker.server.wire.frames import read_append_frame
from trovemq_broker.server.wire.native_messages import (
    append_reply,
    born_host_of,
    mark_failed,
    outgoing_message,
)
from trovemq_daemon.calls import Answer, Call
from trovemq_daemon.grpc_services import service_handlers
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.v1 import message_pb2
from trovemq_store.engine.append_result import AppendResult

SERVICE: Final = message_pb2.DESCRIPTOR.services_by_name["MessageService"]
SEND_MESSAGES_MAX: Final = 1_024

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class MessageService:
    def __init__(
        self,
        append: AppendParts,
        fetch: FetchParts,
        accumulator: Accumulator,
        clock_ms: Callable[[], EpochMs],
    ) -> None:
        self._append = append
        self._fetch = fetch
        self._accumulator = accumulator
        self._clock_ms = clock_ms
        self.streams: Final = OpenStreams()

    def add_to(self, server: grpc.aio.Server) -> None:
        of_turns = {"Send": self.on_sends, "Pull": self.on_pulls}
        handlers = service_handlers(SERVICE, self, {"Append": read_append_frame}, of_turns)
        server.add_registered_method_handlers(SERVICE.full_name, handlers)

    async def append(self, _requests: object, context: Context) -> None:
        await self.streams.serve(AppendStream(self._append, context))

    async def fetch(self, _requests: object, context: Context) -> None:
        await self.streams.serve(FetchStream(self._fetch, context))

    def on_pulls(self, calls: Sequence[Call]) -> None:
        """Pull: waits up to wait_ms."""
        for call in calls:
            try:
                begin_pull(self._fetch, call)
            except Exception as error:
                call.answer(error)

    async def get_producer(
        self, request: message_pb2.GetProducerRequest, _context: Context
    ) -> message_pb2.GetProducerReply:
        found = self._append.appender.deduplication.next_sequence(
            request.topic, request.producer_id.encode(), self._clock_ms()
        )
        return message_pb2.GetProducerReply(next_sequence=found)

    def on_sends(self, calls: Sequence[Call]) -> None:
        """Send: refusals end the call with an error; only FLUSH_DISK_TIMEOUT, whose message is in the log, is
        in the reply."""
        with self._accumulator.together():
            for call in calls:
                try:
                    if self._append.group_commit.full:
                        call.run(self._send_when_free(call))
                    else:
                        self._begin_send(call.request, call.context, call.answer)
                except Exception as error:
                    call.answer(error)

    async def _send_when_free(self, call: Call) -> None:
        await self._append.group_commit.wait_for_capacity()
        self._begin_send(call.request, call.context, call.answer)

    def _begin_send(self, request: message_pb2.SendRequest, context: Context, answer: Answer) -> None:
        append = self._append
        started = time.perf_counter()

        def ended(
            outcome: AppendResult | Exception, ended_at: float = 0.0, error: TroveError | None = None
        ) -> None:
            if isinstance(outcome, Exception):
                refused(outcome)
                return
            if error is not None and error.spec is not errors.FLUSH_DISK_TIMEOUT:
                refused(error)
                return
            elapsed_us = int((ended_at - started) * 1e6)
            reply = append_reply(0, outcome, append.appender.durability, append.broker, elapsed_us)
            if error is not None:
                append.traffic.refused(error.symbol)
                mark_failed(reply, error)
            answer(reply)

        def refused(error: Exception) -> None:
            if isinstance(error, TroveError):
                append.traffic.refused(error.symbol)
            answer(error)

        try:
            self._submit(request, context, ended)
        except TroveError as error:
            refused(error)

    def _submit(self, request: message_pb2.SendRequest, context: Context, done: Done) -> None:
        """Raises TroveError if the request is refused."""
        count = len(request.messages)
        if not count:
            raise TroveError(errors.REQUEST_ILLEGAL, "a send needs at least one message")
        if count > SEND_MESSAGES_MAX:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{count} messages, the limit is {SEND_MESSAGES_MAX}")
        topic = request.topic
        queue_id = self._accumulator.queue_of(topic, QueueId(request.queue_id))
        records = self._accumulator.encoder.encode(
            [outgoing_message(message) for message in request.messages],
            topic=topic,
            queue_id=queue_id,
            born_host=born_host_of(context.peer()),
            now_ms=self._clock_ms(),
        )
        self._accumulator.submit(Batch(topic, queue_id, records, count), done)
