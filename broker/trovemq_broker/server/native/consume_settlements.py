"""The settlements of a Consume stream: of ranges of messages under a receipt, and of single ones by handle.

A frame's settlements are applied in their order, in steps. A settlement by receipt counts until the
message is delivered again, also after its lease; one by handle while the lease lasts (handle_settlements.py).

| kind        | effect by receipt                                                                            |
|-------------|----------------------------------------------------------------------------------------------|
| ACKNOWLEDGE | the messages are consumed                                                                    |
| RETURN      | they are delivered again after the time. At once, without `suspend` and after the last       |
|             | attempt of a message: it becomes a dead letter                                               |
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from trovemq_broker.groups.delivery.lease_resolvers import ReceiptRange, Refusals
from trovemq_broker.groups.delivery.settlements import ACKNOWLEDGED, Invisible, Outcome
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.native.handle_settlements import settle_by_handle
from trovemq_broker.server.wire.consumers import ConsumeReply, Settlement, SettlementKind, SettlementResult
from trovemq_daemon.handler_guard import error_to_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.steps import Steps

SETTLED_MAX: Final = 4_096
"""The most messages in the settlements of one frame, and the most settlements."""
SETTLED_STEP: Final = 512
"""How many messages one step settles."""


class _SettlingStep(NamedTuple):
    """The result of one step of a settlement."""

    refused: Refusals | None = None
    """By queue offset."""
    is_dead_letter: bool = False
    """A message became a dead letter."""


def settled_count(settlements: Sequence[Settlement]) -> int:
    """The number of messages, or of settlements if that is larger. Raises TroveError LIMIT_EXCEEDED."""
    count = max(sum(map(_message_count, settlements)), len(settlements))
    if count > SETTLED_MAX:
        raise TroveError(errors.LIMIT_EXCEEDED, f"a frame settles at most {SETTLED_MAX} messages")
    return count


class Settling:
    """The settlements of one stream."""

    def __init__(
        self, core: BrokerCore, acknowledger: Acknowledger, pair: GroupTopicKey, client_id: str
    ) -> None:
        self._core = core
        self._acknowledger = acknowledger
        self._pair = pair
        self._client_id = client_id

    async def settle(self, settlements: Sequence[Settlement]) -> ConsumeReply:
        """Settles a frame's messages. Returns the results when dead letters are as durable as acknowledged
        messages; later frames wait for that, too."""
        reply = ConsumeReply()
        appended: list[SettlementResult] = []
        await self._core.turns.run_from_now(self._steps(settlements, reply, appended))
        self._acknowledger.wake(*self._pair)
        if appended:
            await self._durable(appended)
        return reply

    def _steps(
        self, settlements: Sequence[Settlement], reply: ConsumeReply, appended: list[SettlementResult]
    ) -> Steps[None]:
        """Adds each settlement's result to the reply, and to `appended` if it made dead letters."""
        for number, settlement in enumerate(settlements, 1):
            result = reply.results.add(settlement_id=settlement.settlement_id)
            try:
                if settlement.handle:
                    if settle_by_handle(self._core, self._acknowledger, self._pair, settlement, result):
                        appended.append(result)
                    yield
                    continue
                for step in self._steps_of(settlement):
                    for offset, error in (step.refused or {}).items():
                        result.refused.add(offset=offset, error=error_to_wire(error))
                    if step.is_dead_letter and (not appended or appended[-1] is not result):
                        appended.append(result)
                    yield
            except TroveError as error:
                result.error.CopyFrom(error_to_wire(error))
            if not number % SETTLED_STEP:
                yield

    async def _durable(self, results: Sequence[SettlementResult]) -> None:
        """Returns when the dead letters of these results are durable; adds an error to all of them if that
        fails."""
        try:
            await self._core.group_commit.acknowledgeable(self._core.store.end_offset)
        except TroveError as error:
            for result in results:
                result.error.CopyFrom(error_to_wire(error))

    def _steps_of(self, settlement: Settlement) -> Iterator[_SettlingStep]:
        for offsets in _ranges_of(settlement):
            outcome = _outcome_of(settlement)
            if outcome is ACKNOWLEDGED:
                yield self._settle_run(settlement.receipt, offsets, outcome)
                continue
            rest = yield from self._without_dead_letters(settlement, offsets)
            for some in rest:
                yield self._settle_run(settlement.receipt, some, outcome)
            if not settlement.invisible_ms:
                self._core.waits.wake(self._pair)

    def _settle_run(self, receipt: str, offsets: range, outcome: Outcome) -> _SettlingStep:
        """Late settlements of this client count. Raises TroveError if the whole range is refused."""
        core, named = self._core, ReceiptRange(receipt, offsets, self._client_id)
        results = core.delivery.settle(*self._pair, named, outcome, core.clock_ms())
        return _SettlingStep(results.refused)

    def _without_dead_letters(
        self, settlement: Settlement, offsets: range
    ) -> Generator[_SettlingStep, None, list[range]]:
        """Makes messages that were returned without a delay after their last attempt dead letters. Returns
        the ranges of the others."""
        if settlement.invisible_ms or settlement.suspend:
            return [offsets]
        exhausted, rest = self._acknowledger.exhausted, []
        for offset in offsets:
            message = range(offset, offset + 1)
            with suppress(TroveError):  # the change reports it
                if exhausted(*self._pair, ReceiptRange(settlement.receipt, message)):
                    yield _SettlingStep(is_dead_letter=True)
                    continue
            rest.append(message)
        return rest


def symbol_of(reply: ConsumeReply) -> str:
    """The response under which the metrics count the frame: its first refusal, or OK."""
    for result in reply.results:
        if result.HasField("error"):
            return result.error.symbol
        if result.refused:
            return result.refused[0].error.symbol
    return "OK"


def _outcome_of(settlement: Settlement) -> Outcome:
    if settlement.kind == SettlementKind.ACKNOWLEDGE:
        return ACKNOWLEDGED
    if settlement.kind == SettlementKind.RETURN:
        return Invisible(settlement.invisible_ms, suspend=settlement.suspend)
    raise TroveError(errors.REQUEST_ILLEGAL, f"settlement of kind {settlement.kind} by receipt")


def _message_count(settlement: Settlement) -> int:
    return sum(map(abs, settlement.ranges[1::2]))


def _ranges_of(settlement: Settlement) -> list[range]:
    """The settlement's ranges, cut into parts of one step."""
    ranges = settlement.ranges
    if len(ranges) % 2 or min(ranges, default=0) < 0:
        raise TroveError(errors.REQUEST_ILLEGAL, "ranges are pairs of a queue offset and a count")
    return [
        range(begin, min(begin + SETTLED_STEP, first + count))
        for first, count in zip(ranges[::2], ranges[1::2], strict=True)
        for begin in range(first, first + count, SETTLED_STEP)
    ]
