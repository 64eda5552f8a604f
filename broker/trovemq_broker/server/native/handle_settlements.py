"""Settlements of a Consume stream that name one message by its receipt handle.

| kind        | effect                                                                                       |
|-------------|----------------------------------------------------------------------------------------------|
| ACKNOWLEDGE | the message is consumed                                                                      |
| RETURN      | it is delivered again after the time. Without `suspend` and after its last attempt: as       |
|             | DEAD_LETTER, at once                                                                         |
| EXTEND      | as RETURN with the time; the result has the new handle, by which it is settled until then.   |
|             | Without a time and after its last attempt it becomes a dead letter, and keeps the old one    |
| DEAD_LETTER | it is copied to the group's dead letters, and consumed                                       |

A handle counts as long as its lease lasts, as in RocketMQ's protocol. To repeat an acknowledgement or a dead
letter changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from trovemq_broker.groups.delivery.lease_resolvers import Handles
from trovemq_broker.groups.delivery.settlements import ACKNOWLEDGED, DeadLettered, Invisible, Outcome
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.wire.consume_frames import SettleByHandle, SettlementKind
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class SettledByHandle(NamedTuple):
    """`handle`: of an extension, by which the message is settled from now on, else ""; `is_dead_letter`:
    whether it is a dead letter now, whose copy is to become durable."""

    handle: str = ""
    is_dead_letter: bool = False


def settle_by_handle(
    core: BrokerCore, acknowledger: Acknowledger, pair: GroupTopicKey, settlement: SettleByHandle
) -> SettledByHandle:
    """Settles the message. Raises TroveError RECEIPT_HANDLE_ILLEGAL, INVISIBLE_DURATION_ILLEGAL,
    LIMIT_EXCEEDED, REQUEST_ILLEGAL; and for a dead letter those of an append."""
    kind, invisible_ms = settlement.kind, settlement.invisible_ms
    named = Handles((settlement.handle.encode(),))
    if kind == SettlementKind.ACKNOWLEDGE:
        outcome: Outcome = ACKNOWLEDGED
    elif kind == SettlementKind.DEAD_LETTER:
        outcome = DeadLettered(reason=settlement.reason)
    elif kind in (SettlementKind.RETURN, SettlementKind.EXTEND):
        suspend = kind == SettlementKind.RETURN and settlement.suspend
        ends = not suspend and (kind == SettlementKind.RETURN or not invisible_ms)
        if ends and acknowledger.exhausted(*pair, named, settlement.reason):
            # the handle stays valid, as ChangeInvisibleDuration's does
            handle = settlement.handle if kind == SettlementKind.EXTEND else ""
            return SettledByHandle(handle, is_dead_letter=True)
        outcome = Invisible(invisible_ms, suspend=suspend, extend=kind == SettlementKind.EXTEND)
    else:
        raise TroveError(errors.REQUEST_ILLEGAL, f"settlement of kind {kind}")
    results = core.delivery.settle(*pair, named, outcome, core.clock_ms())
    results.require()
    if isinstance(outcome, Invisible) and not invisible_ms:
        core.waits.wake(pair)
    handle = results.handles[0] if kind == SettlementKind.EXTEND else ""
    return SettledByHandle(handle, is_dead_letter=kind == SettlementKind.DEAD_LETTER)
