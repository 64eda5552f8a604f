"""The Append stream: frames are appended in the order in which they arrive; each is acknowledged or refused
separately.

Frames go to the accumulator (produce/accumulator.py). The reply is written when the append is as durable as
acknowledgements of the broker promise; further frames are appended meanwhile. While too many bytes wait for
the disk, or for the copies, no further frame is read; only a frame that has waited too long for space is
refused.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final, cast

import grpc

from trovemq_broker.produce.batches import Batch
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.refused_message import RefusedMessage
from trovemq_broker.server.native.reply_stream import ReplyStream
from trovemq_broker.server.wire.frames import AppendFrame
from trovemq_broker.server.wire.native_messages import append_reply, born_host_of, mark_failed, refused_reply
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.append_result import AppendResult


class AppendStream(ReplyStream):
    def __init__(self, core: BrokerCore, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        super().__init__(context, core.settings.append_frames_in_flight_max)
        self._core = core
        self._durability = core.appender.durability
        self._acks_wait = core.group_commit.acks_wait
        self._copies = None if core.group_commit.copies is None else core.appender.copies
        self._born_host: Final = born_host_of(self._peer)
        self._submitted = 0  # frames that are not answered

    async def handle(self, request: AppendFrame | RefusedMessage) -> None:
        started = time.perf_counter()
        if isinstance(request, RefusedMessage):
            self._refuse_later(cast("AppendFrame", request.message), started, request.error)
            return
        if self._core.group_commit.full and not request.fault:
            try:
                await self._core.group_commit.wait_for_capacity()
            except TroveError as error:
                self._refuse_later(request, started, error)
                return
        self._submit(request, started)

    def handle_now(self, request: AppendFrame | RefusedMessage) -> bool:
        if isinstance(request, RefusedMessage) or self._core.group_commit.full:
            return False
        self._submit(request, time.perf_counter())
        return True

    def _submit(self, frame: AppendFrame, started: float) -> None:
        if frame.fault:
            if not self._acks_wait:
                self._core.accumulator.append_all()  # replies come in the order of the frames
            self._refuse_later(frame, started, TroveError(errors.BATCH_ILLEGAL, frame.fault))
            return
        if not frame.one_way:
            self.begin_waiting()
        self._submitted += 1
        # not with the frame itself: its records are a view of the bytes that were received
        done = partial(self._answer, frame.topic, frame.frame_id, frame.one_way, started)
        batch = Batch(frame.topic, frame.queue_id, frame.records, 0, self._born_host, frame.owned, self)
        self._core.accumulator.submit(batch, done)

    def _answer(
        self,
        topic: str,
        frame_id: int,
        one_way: bool,
        started: float,
        outcome: AppendResult | Exception,
        ended_at: float = 0.0,
        error: TroveError | None = None,
    ) -> None:
        """Answers a frame, and writes if it is the last of those that came."""
        self._submitted -= 1
        if isinstance(outcome, TroveError):
            reply = self._refusal(frame_id, started, outcome, one_way=one_way)
        elif isinstance(outcome, Exception):
            self.end_with(outcome)
            return
        elif not one_way:
            reply = self._reply(topic, frame_id, started, outcome, ended_at, error)
        if not one_way:
            self.reply_made(reply, flush=not self._submitted and not self._acks_wait)

    def _reply(
        self,
        topic: str,
        frame_id: int,
        started: float,
        result: AppendResult,
        ended_at: float,
        error: TroveError | None,
    ) -> bytes:
        core = self._core
        elapsed_us = int((ended_at - started) * 1e6)
        copies = 1 if self._copies is None else self._copies(topic)
        reply = append_reply(frame_id, result, self._durability, core.broker, elapsed_us, copies)
        if error is not None:
            core.traffic.refused(error.symbol)
            mark_failed(reply, error)
        core.traffic.answered("Append", "OK" if error is None else error.symbol, started, peer=self._peer)
        return reply.SerializeToString()

    def _refuse_later(self, frame: AppendFrame, started: float, error: TroveError) -> None:
        """Refuses a frame that was not submitted."""
        reply = self._refusal(frame.frame_id, started, error, one_way=frame.one_way)
        if not frame.one_way:
            self.begin_waiting()
            self.reply_made(reply)

    def _refusal(self, frame_id: int, started: float, error: TroveError, *, one_way: bool) -> bytes:
        core = self._core
        core.traffic.refused(error.symbol, one_way=one_way)
        core.traffic.answered("Append", error.symbol, started, peer=self._peer)
        return b"" if one_way else refused_reply(frame_id, error, core.broker).SerializeToString()
