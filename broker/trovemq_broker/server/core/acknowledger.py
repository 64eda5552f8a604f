"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: the end of a delivery.

Push consumers repeat a failed call every second without end, except after INVALID_RECEIPT_HANDLE. So a
permanent fault (a deleted group or topic) is reported as one of the handle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, Protocol, TypeAlias

from trovemq_broker.groups.delivery.lease_resolvers import Handles, Leases, Refusals
from trovemq_broker.groups.delivery.settlements import (
    ACKNOWLEDGED,
    DeadLettered,
    Invisible,
    Outcome,
    Results,
)
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.other_brokers import NO_OTHERS, OtherBrokers
from trovemq_broker.server.wire.acknowledgements import (
    Acknowledge,
    acknowledge_of,
    acknowledge_reply,
    consumed_reply,
    read_acknowledge,
)
from trovemq_broker.server.wire.conversion import converted
from trovemq_broker.server.wire.delivery_ends import (
    DeadLetter,
    InvisibleChange,
    InvisibleResult,
    dead_letter,
    dead_letter_reply,
    invisible_change,
    invisible_reply,
)
from trovemq_broker.server.wire.statuses import Context, check_client_id, request_of
from trovemq_daemon.calls import Call
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.dead_letter_reason import RETURNED, DeadLetterReason
from trovemq_store.engine.steps import Steps
from trovemq_store.events.receipt_handle import broker_of_handle

ENTRIES_STEP: Final = 512  # the most entries of a call that are settled in one step
MAKERS_NAMED_MAX: Final = 4
UNKNOWN_HANDLES_MAX: Final = 32
_RETURNED: Final = DeadLetterReason(RETURNED)
_Received: TypeAlias = tuple[Call, Acknowledge]
Makers: TypeAlias = dict[str, list[int]]
"""Places of entries, by broker."""


class Elsewhere(Protocol):
    """Acknowledges messages at the broker that delivered them."""

    async def __call__(
        self, broker: str, call: Call, places: Sequence[int], count: int
    ) -> Mapping[int, TroveError]:
        """The refusals of the call's entries at these places; `count`: how many it has. Raises TroveError if
        none was acknowledged."""
        ...


class Acknowledger:
    """`others`: the cluster's other brokers. The refusal of a handle that one of them made names it.
    `elsewhere`: forwards the acknowledgement of such handles; None: they are refused."""

    def __init__(
        self, core: BrokerCore, others: OtherBrokers = NO_OTHERS, elsewhere: Elsewhere | None = None
    ) -> None:
        self._core = core
        self._others = others
        self._elsewhere = elsewhere

    def on_calls(self, calls: Sequence[Call]) -> None:
        """AckMessage: one result per entry, in order. The messages of a group and topic are settled
        together."""
        found: dict[tuple[str, str], list[_Received]] = {}
        head = None
        with self._core.delivery.gathering():
            for call in calls:
                try:
                    head = check_client_id(call.context, head)
                    command = read_acknowledge(call.keep()) or acknowledge_of(request_of(call))
                    if len(command.handles) <= ENTRIES_STEP:
                        found.setdefault(command.names, []).append((call, command))
                    else:
                        call.run(self._acknowledge_in_task(call, command))
                except Exception as error:
                    call.answer(error)
            for (group, topic), received in found.items():
                self._acknowledge(group, topic, received)

    def _acknowledge(self, group: str, topic: str, received: Sequence[_Received]) -> None:
        """Answers the calls of one group and topic."""
        handles = [handle for _, one in received for handle in one.handles]
        try:
            refused = self.settle(group, topic, handles).refused
            self.wake(group, topic)
        except Exception as error:
            if len(received) == 1:
                received[0][0].answer(error)
                return
            for one in received:  # those at fault meet it again, and no others
                self._acknowledge(group, topic, (one,))
            return
        if not refused:
            for call, command in received:
                call.answer(consumed_reply(command))
            return
        begin = 0
        for call, command in received:
            count = len(command.handles)
            own = {place: refused[begin + place] for place in range(count) if begin + place in refused}
            begin += count
            if makers := self._makers(command, own):
                call.run(self._acknowledge_elsewhere(call, command, own, makers))
            else:
                call.answer(acknowledge_reply(command, own) if own else consumed_reply(command))

    async def _acknowledge_in_task(self, call: Call, command: Acknowledge) -> None:
        refused = await self.settle_in_steps(command)
        if makers := self._makers(command, refused):
            await self._acknowledge_elsewhere(call, command, refused, makers)
        else:
            call.answer(acknowledge_reply(command, refused))

    # --- handles of other brokers -------------------------------------------------------------------
    def _makers(self, command: Acknowledge, refused: Refusals) -> Makers:
        """The places of the refused handles, by the other broker that made them. After a few handles that
        no broker made, it looks at no others."""
        makers: Makers = {}
        if self._elsewhere is None:
            return makers
        names, unknown, last = self._others.remembered(), 0, ""
        for place, error in refused.items():
            if error.spec is not errors.RECEIPT_HANDLE_ILLEGAL or unknown >= UNKNOWN_HANDLES_MAX:
                continue
            asked = chain((last,), names) if last else names
            maker = broker_of_handle(command.handles[place], *command.names, asked)
            if maker is None:
                unknown += 1
            else:
                makers.setdefault(maker, []).append(place)
                last = maker
        return makers

    async def _acknowledge_elsewhere(
        self, call: Call, command: Acknowledge, refused: Refusals, makers: Makers
    ) -> None:
        assert self._elsewhere is not None, "makers are asked for with it only"
        found = dict(refused)
        for maker, places in makers.items():
            for place in places:
                del found[place]
            try:
                found.update(await self._elsewhere(maker, call, places, len(command.handles)))
            except TroveError as error:
                found.update(dict.fromkeys(places, error))
        call.answer(acknowledge_reply(command, found) if found else consumed_reply(command))

    async def settle_in_steps(self, command: Acknowledge) -> Refusals:
        """Acknowledges any number of messages. Returns the refusals, by index."""
        return await self._core.turns.run_from_now(self._settle_all(command))

    def _settle_all(self, command: Acknowledge) -> Steps[Refusals]:
        """Acknowledges the messages, at most ENTRIES_STEP in a step. The refusals, by index."""
        refused: Refusals = {}
        group, topic = command.names
        for begin in range(0, len(command.handles), ENTRIES_STEP):
            if begin:
                yield
            handles = command.handles[begin : begin + ENTRIES_STEP]
            results = self.settle(group, topic, handles)
            refused.update((begin + place, error) for place, error in results.refused.items())
        self.wake(group, topic)
        return refused

    def settle(self, group: str, topic: str, handles: Sequence[bytes]) -> Results:
        """The messages of these receipt handles are consumed."""
        return self._settled(group, topic, handles, ACKNOWLEDGED)

    def _settled(self, group: str, topic: str, handles: Sequence[bytes], outcome: Outcome) -> Results:
        core = self._core
        results = core.delivery.settle(group, topic, Handles(handles), outcome, core.clock_ms())
        for place, error in list(results.refused.items())[:MAKERS_NAMED_MAX]:
            results.refused[place] = self._with_maker(error, group, topic, handles[place])
        return results

    def _with_maker(self, error: TroveError, group: str, topic: str, handle: bytes) -> TroveError:
        """The refusal of this handle; it names the broker that made the handle if that is another one."""
        if error.spec is not errors.RECEIPT_HANDLE_ILLEGAL:
            return error
        own = self._core.broker
        maker = broker_of_handle(handle, group, topic, chain((own,), self._others.remembered()))
        if maker is None or maker == own:
            return error
        return TroveError(
            errors.RECEIPT_HANDLE_ILLEGAL,
            f"the receipt handle is of broker {maker}, and this is {self._core.broker}: settle a message at"
            " the broker that delivered it",
            broker=maker,
        )

    @converted(invisible_change, invisible_reply)
    async def change_invisible(self, change: InvisibleChange, _context: Context) -> InvisibleResult:
        """ChangeInvisibleDuration: the message is visible again after that time. The reply has its new
        handle.

        A message that would be visible at once, and was delivered as often as its group allows, becomes a
        dead letter before the reply is sent, even if the group receives no more.
        """
        group, topic, handle, invisible_ms, suspend = change
        if not 0 <= invisible_ms <= self._core.settings.invisible_max_ms:
            raise TroveError(
                errors.INVISIBLE_DURATION_ILLEGAL,
                f"an invisible duration of {invisible_ms} ms is not 0 to"
                f" {self._core.settings.invisible_max_ms}",
            )
        named = Handles((handle.encode(),))
        try:
            if invisible_ms == 0 and not suspend and self.exhausted(group, topic, named):
                await self._dead_lettered(group, topic)
                return InvisibleResult(handle)
        except TroveError as error:
            raise self._with_maker(error, group, topic, handle.encode()) from None
        try:
            outcome = Invisible(invisible_ms, suspend=suspend)
            results = self._settled(group, topic, (handle.encode(),), outcome)
            results.require()
        except TroveError as error:
            if error.spec is not errors.LIMIT_EXCEEDED:
                raise
            # nothing has changed: the client tries again, with the handle in this reply
            return InvisibleResult(handle, error)
        if invisible_ms == 0:
            self._core.waits.wake((group, topic))
        return InvisibleResult(results.handles[0])

    @converted(dead_letter, dead_letter_reply)
    async def dead_letter(self, letter: DeadLetter, _context: Context) -> None:
        """ForwardMessageToDeadLetterQueue: the message is copied to `%DLQ%group`, and consumed.

        The reply is sent when the copy is as durable as an acknowledged message, and visible.
        """
        group, topic, handle = letter
        self._settled(group, topic, (handle.encode(),), DeadLettered()).require()
        await self._dead_lettered(group, topic)

    def exhausted(
        self, group: str, topic: str, message: Leases, reason: DeadLetterReason = _RETURNED
    ) -> bool:
        """Makes the message a dead letter if it had its last attempt. Returns whether it is one.

        False also if the copy is refused: the next receive tries again. TroveError RECEIPT_HANDLE_ILLEGAL.
        """
        core = self._core
        settings = core.groups.get(group)
        if settings is None:
            return False
        outcome = DeadLettered(settings.max_attempts, reason)
        results = core.delivery.settle(group, topic, message, outcome, core.clock_ms())
        for error in results.refused.values():
            if error.spec is errors.RECEIPT_HANDLE_ILLEGAL:
                raise error
        return not results.refused and not results.attempts_remaining

    async def _dead_lettered(self, group: str, topic: str) -> None:
        """Returns when the copy is durable."""
        self.wake(group, topic)
        await self._core.group_commit.acknowledgeable(self._core.store.end_offset)

    def wake(self, group: str, topic: str) -> None:
        """Wakes receives for messages that waited for those which are now consumed."""
        waits = self._core.waits
        if waits.any_for((group, topic)) and self._core.delivery.next_visible_ms(group, topic) == 0:
            waits.wake((group, topic))
