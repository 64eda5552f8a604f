"""The settlements of a Consume stream: of ranges of messages under a receipt, and of single ones by handle.

A frame's settlements are applied in their order, in steps. A settlement by receipt counts until the
message is delivered again, also after its lease; one by handle while the lease lasts (handle_settlements.py).

| kind        | effect by receipt                                                                            |
|-------------|----------------------------------------------------------------------------------------------|
| ACKNOWLEDGE | the messages are consumed                                                                    |
| RETURN      | they are delivered again after the time. Without `suspend` and after the last attempt of a   |
|             | message: it becomes a dead letter at once                                                    |
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from trovemq_broker.groups.delivery.lease_resolvers import ReceiptRange, Refusals
from trovemq_broker.groups.delivery.settlements import ACKNOWLEDGED, Outcome
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.native.handle_settlements import settle_by_handle
from trovemq_broker.server.wire.consume_frames import (
    SETTLED_STEP,
    SettleByHandle,
    SettleByReceipt,
    SettlementResults,
    read_settlement,
    settled_count,
)
from trovemq_broker.server.wire.native_calls import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.steps import Steps

SETTLED_MAX: Final = 4_096
"""The most messages in the settlements of one frame, and the most settlements."""


class _SettlingStep(NamedTuple):
    """The result of one step of a settlement."""

    refused: Refusals | None = None
    """By queue offset."""
    is_dead_letter: bool = False
    """A message became a dead letter."""


def checked_count(settlements: Sequence[Request]) -> int:
    """The number of messages, or of settlements if that is larger. Raises TroveError LIMIT_EXCEEDED."""
    count = settled_count(settlements)
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

    async def settle(self, settlements: Sequence[Request]) -> SettlementResults:
        """Settles a frame's messages. Returns the results when dead letters are as durable as acknowledged
        messages; later frames wait for that, too."""
        results = SettlementResults()
        appended: list[int] = []
        await self._core.turns.run_from_now(self._steps(settlements, results, appended))
        self._acknowledger.wake(*self._pair)
        if appended:
            await self._durable(results, appended)
        return results

    def _steps(
        self, settlements: Sequence[Request], results: SettlementResults, appended: list[int]
    ) -> Steps[None]:
        """Adds each settlement's result, and its index to `appended` if it made dead letters."""
        for index, unread in enumerate(settlements):
            results.add(unread)
            try:
                settlement = read_settlement(unread)
                if isinstance(settlement, SettleByHandle):
                    settled = settle_by_handle(self._core, self._acknowledger, self._pair, settlement)
                    if settled.handle:
                        results.set_handle(index, settled.handle)
                    if settled.is_dead_letter:
                        appended.append(index)
                    yield
                    continue
                for step in self._steps_of(settlement):
                    for offset, error in (step.refused or {}).items():
                        results.refuse(index, offset, error)
                    if step.is_dead_letter and (not appended or appended[-1] != index):
                        appended.append(index)
                    yield
            except TroveError as error:
                results.fail(index, error)
            if not (index + 1) % SETTLED_STEP:
                yield

    async def _durable(self, results: SettlementResults, appended: Sequence[int]) -> None:
        """Returns when the dead letters of these settlements are durable; adds an error to all of them if
        that fails."""
        try:
            await self._core.group_commit.acknowledgeable(self._core.store.end_offset)
        except TroveError as error:
            for index in appended:
                results.fail(index, error)

    def _steps_of(self, settlement: SettleByReceipt) -> Iterator[_SettlingStep]:
        outcome = settlement.outcome
        for offsets in settlement.ranges:
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
        self, settlement: SettleByReceipt, offsets: range
    ) -> Generator[_SettlingStep, None, list[range]]:
        """Makes messages that were returned after their last attempt dead letters. Returns the ranges of the
        others."""
        if settlement.suspend:
            return [offsets]
        exhausted, rest = self._acknowledger.exhausted, []
        for offset in offsets:
            message = range(offset, offset + 1)
            with suppress(TroveError):  # the change reports it
                if exhausted(*self._pair, ReceiptRange(settlement.receipt, message), settlement.reason):
                    yield _SettlingStep(is_dead_letter=True)
                    continue
            rest.append(message)
        return rest
