"""Settlements of a Consume stream that name one message by its receipt handle.

| kind        | effect                                                                                       |
|-------------|----------------------------------------------------------------------------------------------|
| ACKNOWLEDGE | the message is consumed                                                                      |
| RETURN      | it is delivered again after the time. At once, without `suspend` and after its last attempt: |
|             | as DEAD_LETTER                                                                               |
| EXTEND      | as RETURN with the time; the result has the new handle, by which it is settled until then    |
| DEAD_LETTER | it is copied to the group's dead letters, and consumed                                       |

A handle counts as long as its lease lasts, as in RocketMQ's protocol. To repeat an acknowledgement or a dead
letter changes nothing.
"""

from __future__ import annotations

from trovemq_broker.groups.members.receive_waits import GroupTopicKey
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.wire.consumers import Settlement, SettlementKind, SettlementResult
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


def settle_by_handle(
    parts: RocketmqParts,
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
    delivery, now_ms, handle = parts.delivery, parts.clock_ms(), settlement.handle
    kind, invisible_ms = settlement.kind, settlement.invisible_ms
    if kind == SettlementKind.ACKNOWLEDGE:
        delivery.acknowledge(*pair, handle, now_ms)
        return False
    if kind == SettlementKind.DEAD_LETTER:
        return delivery.dead_letter(*pair, handle, now_ms)
    if kind not in (SettlementKind.RETURN, SettlementKind.EXTEND):
        raise TroveError(errors.REQUEST_ILLEGAL, f"settlement of kind {kind}")
    suspend = kind == SettlementKind.RETURN and settlement.suspend
    if not (invisible_ms or suspend) and acknowledger.exhausted(*pair, handle):
        return True
    new_handle = delivery.change_invisible(*pair, handle, invisible_ms, now_ms, suspend=suspend)
    if kind == SettlementKind.EXTEND:
        result.handle = new_handle
    if not invisible_ms:
        parts.waits.wake(pair)
    return False
