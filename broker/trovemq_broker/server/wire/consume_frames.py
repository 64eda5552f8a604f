"""The frames of the Consume stream: requests to commands, results to replies.

A frame may have thousands of settlements. The stream reads them, and adds their results, in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from trovemq_broker.groups.delivery.request import DeliveredRun
from trovemq_broker.groups.delivery.settlements import ACKNOWLEDGED, Invisible, Outcome
from trovemq_broker.server.wire.client_commands import Answer, consume_answer
from trovemq_broker.server.wire.frames import write_with_records
from trovemq_broker.server.wire.group_messages import settings_of
from trovemq_broker.server.wire.native_calls import Request
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_daemon.handler_guard import error_to_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.dead_letter_reason import EXCEPTION, EXPLICIT, RETURNED, DeadLetterReason
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import consumer_pb2
from trovemq_store.topics.subscription_groups import SubscriptionGroup

SERVICE: Final = consumer_pb2.DESCRIPTOR.services_by_name["ConsumerService"]
SETTLED_STEP: Final = 512
"""The most messages of a range: one step settles them."""


class SettlementKind(IntEnum):
    """The kinds of settlements. A frame may have others, of later versions."""

    ACKNOWLEDGE = consumer_pb2.ACKNOWLEDGE
    RETURN = consumer_pb2.RETURN
    EXTEND = consumer_pb2.EXTEND
    DEAD_LETTER = consumer_pb2.DEAD_LETTER


class ConsumeStart(NamedTuple):
    """The subscription of a stream. `filter`: "" for everything; `invisible_ms`: 0 if the broker renews the
    leases; `hostname`: of the client."""

    filter_type: str
    filter: str
    invisible_ms: int
    hostname: str


class SettleByReceipt(NamedTuple):
    """Ends the delivery of messages under one receipt. `ranges`: of queue offsets, of at most
    SETTLED_STEP messages each; `invisible_ms`, `suspend`, `reason`: of a return."""

    receipt: str
    ranges: list[range]
    outcome: Outcome
    invisible_ms: int = 0
    suspend: bool = False
    reason: DeadLetterReason = DeadLetterReason(RETURNED)


class SettleByHandle(NamedTuple):
    """Ends the delivery of one message, by its receipt handle. `kind`: of SettlementKind, or another one;
    `reason`: of a dead letter that it becomes."""

    handle: str
    kind: int
    invisible_ms: int
    suspend: bool
    reason: DeadLetterReason


class ConsumeFrame(NamedTuple):
    """One frame. `start`: of the first frame; `settlements`: unread, for read_settlement(); `answers`: with
    the nonces of their commands."""

    group: str
    topic: str
    start: ConsumeStart | None
    credit_messages: int
    credit_bytes: int
    received_batch: int
    settlements: Sequence[Request]
    stop: bool
    leave: bool
    answers: Sequence[tuple[str, Answer]]

    def checked_names(self) -> tuple[str, str]:
        """The group and the topic. Raises TroveError GROUP_ILLEGAL, TOPIC_ILLEGAL."""
        return group_name(v2.Resource(name=self.group)), topic_to_read(v2.Resource(name=self.topic))


def frame_of(group: str, topic: str) -> consumer_pb2.ConsumeFrame:
    """A frame of a stream of that group and topic; its needs of access are those of the stream."""
    return consumer_pb2.ConsumeFrame(group=group, topic=topic)


def read_frame(frame: consumer_pb2.ConsumeFrame) -> ConsumeFrame:
    """The command of a frame."""
    return ConsumeFrame(
        frame.group,
        frame.topic,
        _start(frame.start) if frame.HasField("start") else None,
        frame.credit_messages,
        frame.credit_bytes,
        frame.received_batch,
        frame.settlements,
        frame.stop,
        frame.leave,
        [(answer.nonce, consume_answer(answer)) for answer in frame.answers],
    )


def _start(start: consumer_pb2.ConsumeStart) -> ConsumeStart:
    return ConsumeStart(start.filter_type or "tag", start.filter, start.invisible_ms, start.hostname)


def settled_count(settlements: Sequence[consumer_pb2.Settlement]) -> int:
    """The messages that the settlements name, or their own number if it is greater."""
    named = sum(sum(map(abs, settlement.ranges[1::2])) for settlement in settlements)
    return max(named, len(settlements))


def read_settlement(settlement: consumer_pb2.Settlement) -> SettleByReceipt | SettleByHandle:
    """The command of a settlement. Raises TroveError REQUEST_ILLEGAL."""
    if settlement.handle:
        if settlement.receipt or settlement.ranges:
            text = "a settlement is by receipt or by handle, not both"
            raise TroveError(errors.REQUEST_ILLEGAL, text)
        return SettleByHandle(
            settlement.handle,
            settlement.kind,
            settlement.invisible_ms,
            settlement.suspend,
            _reason_of(settlement),
        )
    ranges, kind = _ranges_of(settlement.ranges), settlement.kind
    if kind == consumer_pb2.ACKNOWLEDGE or not ranges:
        return SettleByReceipt(settlement.receipt, ranges, ACKNOWLEDGED)
    if kind != consumer_pb2.RETURN:
        raise TroveError(errors.REQUEST_ILLEGAL, f"settlement of kind {kind} by receipt")
    invisible_ms, suspend = settlement.invisible_ms, settlement.suspend
    outcome = Invisible(invisible_ms, suspend=suspend)
    return SettleByReceipt(settlement.receipt, ranges, outcome, invisible_ms, suspend, _reason_of(settlement))


def _reason_of(settlement: consumer_pb2.Settlement) -> DeadLetterReason:
    error, text = settlement.reason.error, settlement.reason.text
    returned = settlement.reason.returned or settlement.kind != consumer_pb2.DEAD_LETTER
    return DeadLetterReason(EXCEPTION if error else RETURNED if returned else EXPLICIT, error, text)


def _ranges_of(numbers: Sequence[int]) -> list[range]:
    """The ranges of a settlement, cut into parts of one step."""
    if len(numbers) % 2 or min(numbers, default=0) < 0:
        raise TroveError(errors.REQUEST_ILLEGAL, "ranges are pairs of a queue offset and a count")
    return [
        range(begin, min(begin + SETTLED_STEP, first + count))
        for first, count in zip(numbers[::2], numbers[1::2], strict=True)
        for begin in range(first, first + count, SETTLED_STEP)
    ]


# --- replies --------------------------------------------------------------------------------------------
JOINED: Final = consumer_pb2.ConsumeReply(joined=True).SerializeToString()
STOPPED: Final = consumer_pb2.ConsumeReply(stopped=True).SerializeToString()


class SettlementResults:
    """The results of the settlements of one frame, in their order."""

    __slots__ = ("_reply",)

    def __init__(self) -> None:
        self._reply: Final = consumer_pb2.ConsumeReply()

    def add(self, settlement: consumer_pb2.Settlement) -> None:
        """Adds the result of the next settlement. It is a success as long as nothing else is noted."""
        self._reply.results.add(settlement_id=settlement.settlement_id)

    def refuse(self, index: int, offset: int, error: TroveError) -> None:
        """Settlement `index` has not settled the message at this queue offset."""
        self._reply.results[index].refused.add(offset=offset, error=error_to_wire(error))

    def fail(self, index: int, error: TroveError) -> None:
        """Settlement `index` has failed, or is not durable."""
        self._reply.results[index].error.CopyFrom(error_to_wire(error))

    def set_handle(self, index: int, handle: str) -> None:
        """By this handle the message of settlement `index` is settled from now on."""
        self._reply.results[index].handle = handle

    @property
    def symbol(self) -> str:
        """The symbol of the first refusal, or OK."""
        for result in self._reply.results:
            if result.HasField("error"):
                return result.error.symbol
            if result.refused:
                return result.refused[0].error.symbol
        return "OK"

    def serialise(self) -> bytes:
        """The reply."""
        return self._reply.SerializeToString()


def settings_reply(settings: SubscriptionGroup) -> bytes:
    """The settings of the stream's group."""
    return consumer_pb2.ConsumeReply(settings=settings_of(settings)).SerializeToString()


def ended_reply(error: TroveError) -> bytes:
    """No more batches come."""
    return consumer_pb2.ConsumeReply(ended=error_to_wire(error)).SerializeToString()


def void_reply(batch: int) -> bytes:
    """Deliveries of batches up to this one may be void."""
    return consumer_pb2.ConsumeReply(void_batch=batch).SerializeToString()


def batch_reply(batch: int, runs: Sequence[DeliveredRun], size: int) -> bytes:
    """The batch, made with one copy of the records, of which there are `size` bytes."""
    head = consumer_pb2.ConsumeReply(batch=batch)
    for run in runs:
        head.runs.add(
            queue_id=run.queue_id,
            first_offset=run.first_offset,
            count=len(run.records),
            attempt=run.attempt,
            receipt=run.receipt,
        )
    return write_with_records(head, (piece for run in runs for piece in run.pieces), size)
