"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: the end of a delivery.

Push consumers repeat a failed call every second without end, except after INVALID_RECEIPT_HANDLE. So a
permanent fault (a deleted group or topic) is reported as one of the handle.
"""

from __future__ import annotations

from typing import Final

from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.core.usual_acknowledgements import UsualAcknowledgements
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import duration_ms
from trovemq_broker.server.wire.statuses import OK_SIZED, OK_STATUS, Context, status_of
from trovemq_daemon.callback_handlers import Answer
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.varints import write_varint
from trovemq_store.engine.steps import Steps, finished

ENTRIES_MAX: Final = 4_096  # of one AckMessage
ENTRIES_STEP: Final = 512  # the most entries that are settled in one step


def reply_of_one(message_id: str, receipt_handle: str) -> bytes:
    """The serialised AckMessageResponse to one message that is consumed:

    | bytes | field |
    | --- | --- |
    | 0x0a, size, Status | status: OK |
    | 0x12, size, the entry: | entries |
    | 0x0a, size, text | message_id; left out if it is empty |
    | 0x12, size, text | receipt_handle |
    | 0x1a, size, Status | status: OK |
    """
    assert receipt_handle, "an empty handle names no message"
    text, handle = message_id.encode(), receipt_handle.encode()
    named = b"\x0a%b%b" % (write_varint(len(text)), text) if text else b""
    entry = b"%b\x12%b%b\x1a%b" % (named, write_varint(len(handle)), handle, OK_SIZED)
    return b"\x0a%b\x12%b%b" % (OK_SIZED, write_varint(len(entry)), entry)


class Acknowledger:
    def __init__(self, parts: RocketmqParts) -> None:
        self._parts = parts
        self.usual = UsualAcknowledgements(parts, self.wake)

    async def acknowledge(
        self, request: service_pb2.AckMessageRequest, _context: Context
    ) -> service_pb2.AckMessageResponse:
        """AckMessage: one result per entry, in order."""
        return await self._parts.turns.run_from_now(self._acknowledged(request))

    def begin_acknowledge(
        self, request: service_pb2.AckMessageRequest, _context: Context, answer: Answer
    ) -> bool:
        """As acknowledge, without a task, for entries that take one step: it never waits."""
        count = len(request.entries)
        if count > ENTRIES_STEP:
            return False
        answer(self._acknowledged_one(request) if count == 1 else finished(self._acknowledged(request)))
        return True

    def _acknowledged_one(
        self, request: service_pb2.AckMessageRequest
    ) -> service_pb2.AckMessageResponse | bytes:
        """As _acknowledged, for the usual request."""
        group, topic = group_name(request.group), topic_to_read(request.topic)
        (entry,), delivery = request.entries, self._parts.delivery
        handle = entry.receipt_handle
        (error,) = delivery.acknowledge_many(group, topic, (handle,), self._parts.clock_ms())
        self.wake(group, topic)
        if error is None:
            return reply_of_one(entry.message_id, handle)
        response = service_pb2.AckMessageResponse(status=status_of(error))
        response.entries.add(message_id=entry.message_id, receipt_handle=handle, status=response.status)
        return response

    def _acknowledged(self, request: service_pb2.AckMessageRequest) -> Steps[service_pb2.AckMessageResponse]:
        entries = request.entries
        if not 1 <= len(entries) <= ENTRIES_MAX:
            raise TroveError(
                errors.REQUEST_ILLEGAL, f"{len(entries)} entries; there may be 1 to {ENTRIES_MAX}"
            )
        group, topic = group_name(request.group), topic_to_read(request.topic)
        response = service_pb2.AckMessageResponse()
        status, codes = OK_STATUS, set()
        for begin in range(0, len(entries), ENTRIES_STEP):
            some = entries[begin : begin + ENTRIES_STEP]
            handles = [entry.receipt_handle for entry in some]
            results = self._parts.delivery.acknowledge_many(group, topic, handles, self._parts.clock_ms())
            for entry, error in zip(some, results, strict=True):
                status = OK_STATUS if error is None else status_of(error)
                codes.add(status.code)
                result = response.entries.add()
                result.message_id = entry.message_id
                result.receipt_handle = entry.receipt_handle
                result.status.CopyFrom(status)
            if begin + ENTRIES_STEP < len(entries):
                yield
        if len(codes) == 1:
            response.status.CopyFrom(status)
        else:
            response.status.code = v2.MULTIPLE_RESULTS
        self.wake(group, topic)
        return response

    async def change_invisible(
        self, request: service_pb2.ChangeInvisibleDurationRequest, _context: Context
    ) -> service_pb2.ChangeInvisibleDurationResponse:
        """ChangeInvisibleDuration: the message is visible again after that time. The reply has its new
        handle.

        A message that would be visible at once, and was delivered as often as its group allows, becomes a
        dead letter before the reply is sent, even if the group receives no more.
        """
        group, topic = group_name(request.group), topic_to_read(request.topic)
        invisible_ms = duration_ms(request.invisible_duration)
        if not 0 <= invisible_ms <= self._parts.settings.invisible_max_ms:
            raise TroveError(
                errors.INVISIBLE_DURATION_ILLEGAL,
                f"an invisible duration of {invisible_ms} ms is not 0 to"
                f" {self._parts.settings.invisible_max_ms}",
            )
        handle = request.receipt_handle
        if invisible_ms == 0 and not request.suspend and self.exhausted(group, topic, handle):
            await self._dead_lettered(group, topic)
            return service_pb2.ChangeInvisibleDurationResponse(status=OK_STATUS, receipt_handle=handle)
        try:
            handle = self._parts.delivery.change_invisible(
                group,
                topic,
                handle,
                invisible_ms,
                self._parts.clock_ms(),
                suspend=request.suspend,
            )
        except TroveError as error:
            if error.spec is not errors.LIMIT_EXCEEDED:
                raise
            # nothing has changed: the client tries again, with the handle in this reply
            return service_pb2.ChangeInvisibleDurationResponse(status=status_of(error), receipt_handle=handle)
        if invisible_ms == 0:
            self._parts.waits.wake((group, topic))
        return service_pb2.ChangeInvisibleDurationResponse(status=OK_STATUS, receipt_handle=handle)

    async def dead_letter(
        self, request: service_pb2.ForwardMessageToDeadLetterQueueRequest, _context: Context
    ) -> service_pb2.ForwardMessageToDeadLetterQueueResponse:
        """ForwardMessageToDeadLetterQueue: the message is copied to `%DLQ%group`, and consumed.

        The reply is sent when the copy is as durable as an acknowledged message, and visible.
        """
        parts = self._parts
        group, topic = group_name(request.group), topic_to_read(request.topic)
        parts.delivery.dead_letter(group, topic, request.receipt_handle, parts.clock_ms())
        await self._dead_lettered(group, topic)
        return service_pb2.ForwardMessageToDeadLetterQueueResponse(status=OK_STATUS)

    def exhausted(self, group: str, topic: str, handle: str) -> bool:
        """Makes the message a dead letter if it had its last attempt. Returns whether it is one.

        False also if the copy is refused: the next receive tries again.
        """
        parts = self._parts
        settings = parts.groups.get(group)
        if settings is None:
            return False
        try:
            return parts.delivery.dead_letter(group, topic, handle, parts.clock_ms(), settings.max_attempts)
        except TroveError as error:
            if error.spec is errors.RECEIPT_HANDLE_ILLEGAL:
                raise
            return False

    async def _dead_lettered(self, group: str, topic: str) -> None:
        """Returns when the copy is durable."""
        self.wake(group, topic)
        await self._parts.group_commit.acknowledgeable(self._parts.store.end_offset)

    def wake(self, group: str, topic: str) -> None:
        """Wakes receives for messages that waited for those which are now consumed."""
        waits = self._parts.waits
        if waits.any_for((group, topic)) and self._parts.delivery.next_visible_ms(group, topic) == 0:
            waits.wake((group, topic))
