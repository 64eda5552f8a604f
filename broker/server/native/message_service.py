"""MessageService: the data plane. The two streams and Pull speak serialised frames (see frames.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import grpc

from broker.produce.coalesce import Coalescer
from broker.server.native.append_stream import AppendParts, AppendStream
from broker.server.native.convert import append_reply, born_host_of, mark_failed, outgoing_message
from broker.server.native.fetch_stream import FetchParts, FetchStream, pull_once
from broker.server.native.frames import read_append_frame
from broker.server.native.reply_stream import OpenStreams
from trovemq_daemon.request_bounds import bounded
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import message_pb2

SERVICE_NAME: Final = message_pb2.DESCRIPTOR.services_by_name["MessageService"].full_name
SEND_MESSAGES_MAX: Final = 1_024

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class MessageService:
    def __init__(
        self, append: AppendParts, fetch: FetchParts, coalescer: Coalescer, clock_ms: Callable[[], int]
    ) -> None:
        self._append = append
        self._fetch = fetch
        self._coalescer = coalescer
        self._clock_ms = clock_ms
        self.streams: Final = OpenStreams()

    def add_to(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Append": grpc.stream_stream_rpc_method_handler(
                self.append, request_deserializer=read_append_frame
            ),
            "Fetch": grpc.stream_stream_rpc_method_handler(
                self.fetch, request_deserializer=bounded(message_pb2.FetchRequest)
            ),
            "Send": grpc.unary_unary_rpc_method_handler(
                self.send,
                request_deserializer=message_pb2.SendRequest.FromString,
                response_serializer=message_pb2.AppendReply.SerializeToString,
            ),
            "Pull": grpc.unary_unary_rpc_method_handler(
                self.pull, request_deserializer=message_pb2.FetchRequest.FromString
            ),
            "GetProducer": grpc.unary_unary_rpc_method_handler(
                self.get_producer,
                request_deserializer=message_pb2.GetProducerRequest.FromString,
                response_serializer=message_pb2.GetProducerReply.SerializeToString,
            ),
        }
        server.add_registered_method_handlers(SERVICE_NAME, handlers)

    async def append(self, _requests: object, context: Context) -> None:
        await self.streams.serve(AppendStream(self._append, context))

    async def fetch(self, _requests: object, context: Context) -> None:
        await self.streams.serve(FetchStream(self._fetch, context))

    async def pull(self, request: message_pb2.FetchRequest, _context: Context) -> bytes:
        return await pull_once(self._fetch, request)

    async def get_producer(
        self, request: message_pb2.GetProducerRequest, _context: Context
    ) -> message_pb2.GetProducerReply:
        found = self._append.appender.deduplication.next_sequence(
            request.topic, request.producer_id.encode(), self._clock_ms()
        )
        return message_pb2.GetProducerReply(next_sequence=found)

    async def send(self, request: message_pb2.SendRequest, context: Context) -> message_pb2.AppendReply:
        """Refusals end the call; only FLUSH_DISK_TIMEOUT, whose message is in the log, is a reply."""
        try:
            return await self._send(request, context)
        except TroveError as error:
            self._append.traffic.refused(error.symbol)
            raise

    async def _send(self, request: message_pb2.SendRequest, context: Context) -> message_pb2.AppendReply:
        if len(request.messages) > SEND_MESSAGES_MAX:
            count = len(request.messages)
            raise TroveError(errors.REQUEST_ILLEGAL, f"{count} messages, the limit is {SEND_MESSAGES_MAX}")
        append = self._append
        if append.group_commit.full:
            await append.group_commit.wait_for_capacity()
        started = time.perf_counter()
        outcome = await self._coalescer.send(
            request.topic,
            request.queue_id,
            [outgoing_message(message) for message in request.messages],
            born_host=born_host_of(context.peer()),
            now_ms=self._clock_ms(),
        )
        result = outcome.result
        elapsed_us = int((time.perf_counter() - started) * 1e6)
        append.traffic.appended(request.topic, result.record_count, result.bytes_written, result.positions)
        reply = append_reply(0, result, append.appender.durability, append.broker, elapsed_us)
        if append.appender.sync:
            try:
                await append.group_commit.durable(result.end)
            except TroveError as error:
                if error.spec is not errors.FLUSH_DISK_TIMEOUT:
                    raise
                append.traffic.refused(error.symbol)
                mark_failed(reply, error)
        return reply
