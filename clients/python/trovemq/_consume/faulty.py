"""Receiving for a group with injected faults; see `trovemq.faults`.

| fault        | made by                                                                                  |
|--------------|------------------------------------------------------------------------------------------|
| delays       | the message waits here before it goes to the inbox, and its message group after it       |
| reorderings  | the same, until a message has arrived that may overtake it                               |
| disconnects  | the message is returned before the program has it                                        |
| redeliveries | instead of the acknowledgement, the message is returned: the broker delivers it again    |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from trovemq._consume.first_contact import FirstContact
from trovemq._consume.group_subscription import GroupSubscription
from trovemq._consume.grouped import GroupConsumer
from trovemq._consume.inbox import Inbox
from trovemq._net.connections import ConnectionPool
from trovemq.faults import Faults
from trovemq.received import ReceivedMessage

if TYPE_CHECKING:
    from trovemq._consume.streamed import StreamedBatch

_log = logging.getLogger("trovemq.faults")

FAULTY_ATTEMPTS_MAX: Final = 3  # of one message; the next one succeeds

_Lane = tuple[str, int, object]


class FaultyConsumer(GroupConsumer):
    """A GroupConsumer with faults between it and the program."""

    def __init__(
        self,
        pool: ConnectionPool,
        subscription: GroupSubscription,
        inbox: Inbox,
        contact: FirstContact | None,
        faults: Faults,
    ) -> None:
        super().__init__(pool, subscription, inbox, contact)
        self._faults = faults
        self._late: dict[_Lane, list[ReceivedMessage]] = {}
        self._overtaken: dict[_Lane, asyncio.TimerHandle] = {}  # they wait for the next message
        self._broken: dict[_Lane, int] = {}  # the poll whose connection failed for this lane

    def put_all(self, messages: Sequence[ReceivedMessage]) -> None:
        """Puts the messages one by one, each perhaps with a fault."""
        for message in messages:
            self.put(message)

    def put_batch(self, batch: StreamedBatch) -> None:
        """The same for a batch of a stream."""
        for message in batch:
            self.put(message)

    def put(self, message: ReceivedMessage) -> None:
        """Delays or returns the message, if the faults require it."""
        place, lane = _place(message), self._lane(message)
        if self._may_fail(message) and self._faults.strikes("disconnects", *place):
            _log.info("fault: the connection breaks at %s", place)
            self._broken[lane] = message.poll
            message.settled = True
            self.return_message(message, 0, tried=True)
        elif self._broken.get(lane) == message.poll:  # after it in the order of its lane
            self.release(message)
        elif lane in self._late:
            self._late[lane].append(message)
        elif self._faults.strikes("delays", *place):
            delay_ms = self._faults.delay_ms * self._faults.draw("delay_ms", *place)
            _log.info("fault: %s comes %.0f ms late", place, delay_ms)
            self._deliver_late(lane, message, delay_ms)
        elif self._faults.strikes("reorderings", *place):
            _log.info("fault: %s comes after the next one", place)
            self._overtaken[lane] = self._deliver_late(lane, message, self._faults.delay_ms)
        else:
            super().put(message)
            while self._overtaken:
                lane, timer = self._overtaken.popitem()
                timer.cancel()
                self._deliver(lane)

    def acknowledge(self, message: ReceivedMessage, *, urgent: bool) -> asyncio.Future[None]:
        """Loses the acknowledgement, if the faults require it."""
        place = _place(message)
        if self._may_fail(message) and self._faults.strikes("redeliveries", *place):
            _log.info("fault: the acknowledgement of %s is lost", place)
            return self.return_message(message, 0, tried=True)
        return super().acknowledge(message, urgent=urgent)

    def consumed(self, message: ReceivedMessage) -> bool:
        """Acknowledges without waiting for the result. Returns whether too many have no result yet."""
        self.acknowledge(message, urgent=False)
        return self.at_capacity

    def consumed_all(self, messages: Sequence[ReceivedMessage]) -> None:
        """The same for several messages."""
        for message in messages:
            self.consumed(message)

    def on_result(self, message: ReceivedMessage, *, done: bool, failure: BaseException | None) -> None:
        """In an orderly group, late messages are returned, too, if they come after one that is delivered
        again."""
        super().on_result(message, done=done, failure=failure)
        if self.orderly and (failure is not None or not done):
            lane = self._lane(message)
            self._broken[lane] = message.poll
            for late in self._late.pop(lane, ()):
                self.release(late)

    async def close(self) -> None:
        """Returns late messages with the others."""
        for lane in list(self._late):
            self._deliver(lane)
        await super().close()

    def _lane(self, message: ReceivedMessage) -> _Lane:
        """The messages that none of the others overtakes."""
        kept_order = message.message_group if self.orderly else message.queue_offset
        return message.broker, message.queue_id, kept_order

    def _deliver_late(self, lane: _Lane, message: ReceivedMessage, delay_ms: float) -> asyncio.TimerHandle:
        self._late[lane] = [message]
        return asyncio.get_running_loop().call_later(delay_ms / 1000, self._deliver, lane)

    def _deliver(self, lane: _Lane) -> None:
        self._overtaken.pop(lane, None)
        for message in self._late.pop(lane, ()):
            super().put(message)

    def _may_fail(self, message: ReceivedMessage) -> bool:
        """Whether a fault is possible: it costs an attempt, and must not make a dead letter."""
        return message.attempt < min(self.attempts_max(message), FAULTY_ATTEMPTS_MAX + 1)


def _place(message: ReceivedMessage) -> tuple[str, int, int, int]:
    return message.topic, message.queue_id, message.queue_offset, message.attempt
