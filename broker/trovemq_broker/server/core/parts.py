"""The parts that all handlers of RocketMQ's protocol share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.fetch.long_poll import LongPolls
from trovemq_broker.fetch.offsets import OffsetKeeper
from trovemq_broker.fetch.pull import Puller as QueuePuller
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.members.receive_waits import ReceiveWaits
from trovemq_broker.produce.accumulator import Accumulator
from trovemq_broker.produce.append import Appender
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.server.core.clients import ClientRegistry
from trovemq_broker.server.core.commands import ClientCommands
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.timers.timers import Timers
from trovemq_broker.transactions.transactions import Transactions
from trovemq_daemon.addresses import Address
from trovemq_daemon.logging import LogLevel
from trovemq_daemon.turns import Turns
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.topics.subscription_groups import SubscriptionGroups

if TYPE_CHECKING:
    from trovemq_broker.server.monitoring.tracing import BrokerTracing


def always() -> bool:
    """Yes."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketmqParts:
    """The parts. For use on the event loop only.

    `search`: (topic, queue id, epoch ms) -> queue offset; `offsets` must call delivery for the offsets that
    it sets (its `moved`); `next_message_id` makes the id of a message that was sent without one; `broker`:
    the name in recall handles. The native group service shares `registry` and `commands`, the code that wakes
    receives shares `waits`. `offers_writes`: routes may offer queues for writing.
    """

    store: MessageStore
    groups: SubscriptionGroups
    delivery: Delivery
    timers: Timers
    transactions: Transactions
    settings: ConsumerSettings
    appender: Appender
    accumulator: Accumulator
    group_commit: GroupCommit
    puller: QueuePuller
    long_polls: LongPolls
    waits: ReceiveWaits
    offsets: OffsetKeeper
    search: Callable[[str, QueueId, EpochMs], QueueOffset]
    registry: ClientRegistry
    commands: ClientCommands
    traffic: Traffic
    turns: Turns
    broker: str
    advertised: Address
    version: str
    clock_ms: Callable[[], EpochMs]
    next_message_id: Callable[[], str]
    set_log_level: Callable[[LogLevel], None]
    offers_writes: Callable[[], bool] = always
    tracing: BrokerTracing | None = None
