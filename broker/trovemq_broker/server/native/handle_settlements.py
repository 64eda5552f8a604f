"""Settlements of a Consume stream that name one message by its receipt handle.

| kind        | effect                                                                                       |
|-------------|----------------------------------------------------------------------------------------------|
| ACKNOWLEDGE | the message is consumed                                                                      |
| RETURN      | it is delivered again after the time. At once, without `suspend` and after its last attempt: |
|             | as DEAD_LETTER                                                                               |
| EXTEND      | as RETURN with the time; the result has the new handle, by which it is settled until then.   |
|             | A message that becomes a dead letter keeps the old one                                       |
| DEAD_LETTER | it is copied to the group's dead letters, and consumed                                       |

A handle counts as long as its lease lasts, as in RocketMQ's protocol. To repeat an acknowledgement or a dead
letter changes nothing.
"""

from __future__ import annotations

from trovemq_broker.groups.delivery.lease_resolvers import Handles
from trovemq_broker.groups.delivery.settlements import ACKNOWLEDGED, DeadLettered, Invisible, Outcome
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.wire.consumers import Settlement, SettlementKind, SettlementResult
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


def settle_by_handle(
    parts: BrokerCore,
    acknowledger: Acknowledger,
    pair: GroupTopicKey,
    settlement: Settlement,
    result: SettlementResult,
) -> bool:
    """Settles the message. Returns whether it is a dead letter now, whose copy is to become durable. Raises
    TroveError RECEIPT_HANDLE_ILLEGAL, INVISIBLE_DURATION_ILLEGAL, LIMIT_EXCEEDED, REQUEST_ILLEGAL; and as an
    append, for a dead letter."""
    if settlement.receipt or settlement.ranges:
        raise TroveError(errors.REQUEST_ILLEGAL, "a settlement is by receipt or by handle, not both")
    kind, invisible_ms = settlement.kind, settlement.invisible_ms
    named = Handles((settlement.handle.encode(),))
    if kind == SettlementKind.ACKNOWLEDGE:
        outcome: Outcome = ACKNOWLEDGED
    elif kind == SettlementKind.DEAD_LETTER:
        outcome = DeadLettered()
    elif kind in (SettlementKind.RETURN, SettlementKind.EXTEND):
        suspend = kind == SettlementKind.RETURN and settlement.suspend
        if not (invisible_ms or suspend) and acknowledger.exhausted(*pair, named):
            if kind == SettlementKind.EXTEND:
                result.handle = settlement.handle  # it stays valid, as ChangeInvisibleDuration's does
            return True
        outcome = Invisible(invisible_ms, suspend=suspend)
    else:
        raise TroveError(errors.REQUEST_ILLEGAL, f"settlement of kind {kind}")
    results = parts.delivery.settle(*pair, named, outcome, parts.clock_ms())
    results.require()
    if kind == SettlementKind.EXTEND:
        result.handle = results.handles[0]
    if isinstance(outcome, Invisible) and not invisible_ms:
        parts.waits.wake(pair)
    return kind == SettlementKind.DEAD_LETTER
