"""The Append stream: frames are appended in the order in which they arrive; each is acknowledged or refused
by itself.

In async mode the reply is written at once; where a turn of the loop brings many frames, they are joined
(gathered_frames.py). In sync mode the reply is written after the sync that covers the append; further frames
are appended meanwhile. While too many bytes wait for the disk no further frame is read; only a frame that has
waited too long for space is refused.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc

from trovemq_broker.produce.append import Appender
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.server.core.refused_message import RefusedMessage
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.gathered_frames import GatheredFrames
from trovemq_broker.server.native.reply_stream import ReplyStream
from trovemq_broker.server.wire.frames import AppendFrame
from trovemq_broker.server.wire.native_messages import append_reply, born_host_of, mark_failed, refused_reply
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.v1 import message_pb2
from trovemq_store.engine.append_result import AppendResult


@dataclass(frozen=True, slots=True)
class AppendParts:
    """The common parts of all Append streams."""

    appender: Appender
    group_commit: GroupCommit
    traffic: Traffic
    broker: str
    frames_in_flight_max: int = 256
    gathered: GatheredFrames | None = None
    """Of all streams, with async flush; None: each frame is an append."""


class AppendStream(ReplyStream):
    def __init__(self, parts: AppendParts, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        super().__init__(context, parts.frames_in_flight_max)
        self._parts = parts
        self._durability = parts.appender.durability
        self._sync = parts.appender.sync
        self.born_host: Final = born_host_of(self._peer)

    async def handle(self, request: AppendFrame | RefusedMessage) -> None:
        started = time.perf_counter()
        refusal = None
        if isinstance(request, RefusedMessage):
            refusal, request = request.error, cast("AppendFrame", request.message)
        elif self._parts.group_commit.full and not request.fault:
            try:
                await self._parts.group_commit.wait_for_capacity()
            except TroveError as error:
                refusal = error
        reply = self._append(request, started, refusal)
        if reply is not None:
            await self.reply(reply)

    def handle_now(self, request: AppendFrame | RefusedMessage) -> bool:
        if isinstance(request, RefusedMessage) or self._parts.group_commit.full:
            return False
        gathered = self._parts.gathered
        if gathered is not None and self._parts.appender.busy and gathered.take(self, request):
            return True
        reply = self._append(request, time.perf_counter())
        if reply is not None:
            self.reply_now(reply)
        return True

    def _append(
        self,
        request: AppendFrame,
        started: float,
        refusal: TroveError | None = None,
        result: AppendResult | None = None,
    ) -> bytes | None:
        """Appends a frame, unless it was appended with this result. Returns the reply; None if it is sent
        later, or the frame is one-way."""
        parts = self._parts
        try:
            if refusal is not None:
                raise refusal
            if request.fault:
                raise TroveError(errors.BATCH_ILLEGAL, request.fault)
            if result is None:
                result = parts.appender.append(
                    request.topic, request.queue_id, request.records, self.born_host, owned=request.owned
                )
        except TroveError as error:
            parts.traffic.refused(error.symbol, one_way=request.one_way)
            parts.traffic.answered("Append", error.symbol, started, peer=self._peer)
            if request.one_way:
                return None
            return refused_reply(request.frame_id, error, parts.broker).SerializeToString()
        parts.traffic.appended(request.topic, result.record_count, result.bytes_written, result.positions)
        if request.one_way:
            return None
        elapsed_us = int((time.perf_counter() - started) * 1e6)
        reply = append_reply(request.frame_id, result, self._durability, parts.broker, elapsed_us)
        if self._sync:
            self._reply_when_durable(reply, result.end, started)
            return None
        parts.traffic.answered("Append", "OK", started, peer=self._peer)
        return reply.SerializeToString()

    def finish_gathered(
        self, frame: AppendFrame, result: AppendResult | None, started: float, *, flush: bool
    ) -> None:
        """Replies to a gathered frame. `result`: of its append; None: it is appended by itself, now.
        `flush`: see reply_now."""
        try:
            reply = self._append(frame, started, None, result)
            if not frame.one_way:
                self.reply_soon(lambda: reply, flush=flush)
        except Exception as error:
            self.end_with(error)

    def _reply_when_durable(
        self, reply: message_pb2.AppendReply, end: PhysicalOffset, started: float
    ) -> None:
        def resolve(error: TroveError | None) -> None:
            response = error.symbol if error else "OK"
            self._parts.traffic.answered("Append", response, started, peer=self._peer)
            if error is not None:
                self._parts.traffic.refused(error.symbol)
                mark_failed(reply, error)
            self.reply_soon(reply.SerializeToString)

        self.begin_waiting()
        self._parts.group_commit.when_durable(end, resolve)
