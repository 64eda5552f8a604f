"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: the end of a delivery.

Push consumers repeat a failed call every second without end, except after INVALID_RECEIPT_HANDLE. So a
permanent fault (a deleted group or topic) is reported as one of the handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trovemq_broker.groups.delivery.lease_resolvers import Handles, Leases, Refusals
from trovemq_broker.groups.delivery.settlements import ACKNOWLEDGED, DeadLettered, Invisible, Results
from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.wire.acknowledgements import (
    Acknowledge,
    acknowledge_of,
    acknowledge_reply,
    read_acknowledge,
    serialised_reply,
)
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import duration_ms
from trovemq_broker.server.wire.statuses import OK_STATUS, Context, client_id_of, status_of
from trovemq_daemon.callback_handlers import Answer
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.engine.steps import Steps, finished

ENTRIES_STEP: Final = 512  # the most entries that are settled in one step


class Acknowledger:
    def __init__(self, parts: RocketmqParts) -> None:
        self._parts = parts
        self.usual = TurnOfAcknowledgements(self)

    async def acknowledge(
        self, request: service_pb2.AckMessageRequest, _context: Context
    ) -> service_pb2.AckMessageResponse:
        """AckMessage: one result per entry, in order."""
        command = acknowledge_of(request)
        return acknowledge_reply(command, await self._parts.turns.run_from_now(self._settle_all(command)))

    def begin_acknowledge(
        self, request: service_pb2.AckMessageRequest, _context: Context, answer: Answer
    ) -> bool:
        """Answers a request whose entries take one step. False: it is left to acknowledge()."""
        if len(request.entries) > ENTRIES_STEP:
            return False
        command = acknowledge_of(request)
        answer(serialised_reply(command, finished(self._settle_all(command))))
        return True

    def _settle_all(self, command: Acknowledge) -> Steps[Refusals]:
        """Acknowledges the messages, at most ENTRIES_STEP in a step. The refusals, by index."""
        refused: Refusals = {}
        for begin in range(0, len(command.handles), ENTRIES_STEP):
            if begin:
                yield
            handles = command.handles[begin : begin + ENTRIES_STEP]
            results = self.settle(command.group, command.topic, handles)
            refused.update((begin + place, error) for place, error in results.refused.items())
        self.wake(command.group, command.topic)
        return refused

    def settle(self, group: str, topic: str, handles: Sequence[bytes]) -> Results:
        """The messages of these receipt handles are consumed."""
        parts = self._parts
        return parts.delivery.settle(group, topic, Handles(handles), ACKNOWLEDGED, parts.clock_ms())

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
        named = Handles((handle.encode(),))
        if invisible_ms == 0 and not request.suspend and self.exhausted(group, topic, named):
            await self._dead_lettered(group, topic)
            return service_pb2.ChangeInvisibleDurationResponse(status=OK_STATUS, receipt_handle=handle)
        try:
            outcome = Invisible(invisible_ms, suspend=request.suspend)
            results = self._parts.delivery.settle(group, topic, named, outcome, self._parts.clock_ms())
            results.require()
        except TroveError as error:
            if error.spec is not errors.LIMIT_EXCEEDED:
                raise
            # nothing has changed: the client tries again, with the handle in this reply
            return service_pb2.ChangeInvisibleDurationResponse(status=status_of(error), receipt_handle=handle)
        if invisible_ms == 0:
            self._parts.waits.wake((group, topic))
        return service_pb2.ChangeInvisibleDurationResponse(
            status=OK_STATUS, receipt_handle=results.handles[0]
        )

    async def dead_letter(
        self, request: service_pb2.ForwardMessageToDeadLetterQueueRequest, _context: Context
    ) -> service_pb2.ForwardMessageToDeadLetterQueueResponse:
        """ForwardMessageToDeadLetterQueue: the message is copied to `%DLQ%group`, and consumed.

        The reply is sent when the copy is as durable as an acknowledged message, and visible.
        """
        parts = self._parts
        group, topic = group_name(request.group), topic_to_read(request.topic)
        named = Handles((request.receipt_handle.encode(),))
        parts.delivery.settle(group, topic, named, DeadLettered(), parts.clock_ms()).require()
        await self._dead_lettered(group, topic)
        return service_pb2.ForwardMessageToDeadLetterQueueResponse(status=OK_STATUS)

    def exhausted(self, group: str, topic: str, message: Leases) -> bool:
        """Makes the message a dead letter if it had its last attempt. Returns whether it is one.

        False also if the copy is refused: the next receive tries again. TroveError RECEIPT_HANDLE_ILLEGAL.
        """
        parts = self._parts
        settings = parts.groups.get(group)
        if settings is None:
            return False
        outcome = DeadLettered(settings.max_attempts)
        results = parts.delivery.settle(group, topic, message, outcome, parts.clock_ms())
        for error in results.refused.values():
            if error.spec is errors.RECEIPT_HANDLE_ILLEGAL:
                raise error
        return not results.refused and not results.attempts_remaining

    async def _dead_lettered(self, group: str, topic: str) -> None:
        """Returns when the copy is durable."""
        self.wake(group, topic)
        await self._parts.group_commit.acknowledgeable(self._parts.store.end_offset)

    def wake(self, group: str, topic: str) -> None:
        """Wakes receives for messages that waited for those which are now consumed."""
        waits = self._parts.waits
        if waits.any_for((group, topic)) and self._parts.delivery.next_visible_ms(group, topic) == 0:
            waits.wake((group, topic))


class TurnOfAcknowledgements:
    """Acknowledgements that arrive in one iteration of the event loop: those of a group and topic are settled
    together."""

    def __init__(self, acknowledger: Acknowledger) -> None:
        self._acknowledger = acknowledger

    def answer(self, calls: Sequence[Any]) -> list[bytes | None]:
        """The replies to calls of one message that is consumed now; None for any other call: nothing was done
        for it."""
        replies: list[bytes | None] = [None] * len(calls)
        found: dict[tuple[str, str], list[tuple[int, Acknowledge]]] = {}
        for place, call in enumerate(calls):
            command = read_acknowledge(call.keep())
            if command is None or not _has_client_id(call):
                break  # it may name messages that later calls name, too: it comes before these
            found.setdefault((command.group, command.topic), []).append((place, command))
        for (group, topic), commands in found.items():
            handles = [command.handles[0] for _, command in commands]
            refused = self._acknowledger.settle(group, topic, handles).refused
            for number, (place, command) in enumerate(commands):
                if number not in refused:
                    reply = serialised_reply(command, {})
                    replies[place] = reply if isinstance(reply, bytes) else reply.SerializeToString()
            self._acknowledger.wake(group, topic)
        return replies


def _has_client_id(call: Any) -> bool:
    try:
        client_id_of(call)
    except TroveError:
        return False
    return True
