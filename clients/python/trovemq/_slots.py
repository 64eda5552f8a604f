"""Chooses the queue of a message."""

from __future__ import annotations

import random

from trovemq._connections import ConnectionPool
from trovemq._routes import Slot
from trovemq.model import BrokerInfo
from trovemq_proto.records.hashes import group_queue

# For a topic in no route the broker decides whether it exists (autoCreateTopicEnable).
UNKNOWN = Slot("", 0)


class SlotChooser:
    """Chooses among the queues of one topic.

    Args:
        pool: The routes, and the brokers that could not be reached recently.
        topic: The topic.
    """

    def __init__(self, pool: ConnectionPool, topic: str) -> None:
        self._pool = pool
        self.topic = topic
        self._turn = random.randrange(1 << 16)  # noqa: S311  many producers shall not begin at one queue

    def next(self) -> Slot:
        """The next queue in turn; queues of unreachable brokers are skipped."""
        slots = self._pool.routes.writable_slots(self.topic) or (UNKNOWN,)
        self._turn += 1
        for i in range(len(slots)):
            slot = slots[(self._turn + i) % len(slots)]
            if self._healthy(slot):
                self._turn += i
                return slot
        return slots[self._turn % len(slots)]

    def of_key(self, ordering_key: str) -> Slot:
        """The queue of an ordering key or message group. It stays the same as long as the topic's queues do,
        and it is the one that a broker chooses for a RocketMQ client's message group."""
        slots = self._pool.routes.writable_slots(self.topic) or (UNKNOWN,)
        return slots[group_queue(ordering_key, len(slots))]

    def of_queue(self, queue_id: int, broker: str | None) -> Slot:
        """That queue. Raises TroveError BROKER_AMBIGUOUS, BROKER_NOT_FOUND."""
        known = self._pool.routes.queue_brokers(self.topic, queue_id)
        if broker is None and len(known) == 1:
            return Slot(known[0], queue_id)
        return Slot(self._pool.routes.broker_of_queue(self.topic, queue_id, broker).name, queue_id)

    def of_broker(self, broker: str) -> Slot:
        """The next queue in turn of one broker. Raises TroveError BROKER_NOT_FOUND."""
        self._pool.routes.broker(broker)
        slots = [slot for slot in self._pool.routes.slots(self.topic) if slot.broker == broker]
        self._turn += 1
        return slots[self._turn % len(slots)] if slots else Slot(broker, 0)

    def broker(self, slot: Slot) -> BrokerInfo:
        """The live broker of a slot; any broker if no route has the topic. Raises TroveError
        BROKER_NOT_FOUND."""
        if slot.broker == "":
            return self._pool.routes.brokers()[0]
        return self._pool.routes.broker(slot.broker)

    def _healthy(self, slot: Slot) -> bool:
        broker = self._pool.routes.find(slot.broker)
        return broker is not None and not self._pool.suspect(broker)
