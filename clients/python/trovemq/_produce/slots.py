"""Chooses the queue of a message, and looks up where the queue is."""

from __future__ import annotations

import logging
import secrets
from hashlib import blake2b

from trovemq._net.connections import ConnectionPool
from trovemq._net.routes import Slot
from trovemq._produce.queue_routes import QueueRoute, RecordForm
from trovemq.models.cluster import BrokerInfo
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE
from trovemq_proto.records.hashes import group_queue

_log = logging.getLogger(__name__)

# For a topic in no route the broker decides whether it exists (autoCreateTopicEnable).
UNKNOWN = Slot("", 0)
QUEUES_KNOWN_MAX = 1_024
"""The most queues of a topic whose routes are kept."""


class SlotChooser:
    """Chooses among the queues of one topic.

    Args:
        pool: The routes, and the brokers that could not be reached recently.
        topic: The topic.
    """

    def __init__(self, pool: ConnectionPool, topic: str) -> None:
        self._pool = pool
        self.topic = topic
        self._turn = secrets.randbelow(1 << 16)  # many producers shall not begin at one queue
        # The attributes below are of this version of the routes.
        self._version = -1
        self._slots: tuple[Slot, ...] = ()
        self._numbered: dict[int, Slot] = {}  # the queues whose number is that of one queue only
        self._queue_routes: dict[Slot, QueueRoute] = {}
        self._warned = False

    def note_message_group(self) -> None:
        """A message has a message group. Logs a warning, once, if the topic does not keep the order of those.

        The messages of a group share a queue all the same; but where it lies changes when brokers come and
        go."""
        if not self._warned and self._pool.routes.is_normal(self.topic):
            self._warned = True
            _log.warning(
                "topic %s is of type NORMAL, which keeps no order of message groups while brokers come and"
                " go: create it with --type FIFO, or leave message_group out",
                self.topic,
            )

    def _renew(self) -> None:
        """Forgets the answers of earlier routes."""
        routes = self._pool.routes
        self._version = routes.version
        self._slots = routes.writable_slots(self.topic)
        self._numbered.clear()
        self._queue_routes.clear()

    def next(self) -> Slot:
        """The next queue in turn; queues of unreachable brokers are skipped."""
        pool = self._pool
        if self._version != pool.routes.version:
            self._renew()
        slots = self._slots or (UNKNOWN,)
        self._turn += 1
        slot = slots[self._turn % len(slots)]
        if not pool.suspect_until:  # and all of them are live, or none
            return slot
        for i in range(len(slots)):
            other = slots[(self._turn + i) % len(slots)]
            if self._healthy(other):
                self._turn += i
                return other
        return slot

    def of_key(self, ordering_key: str) -> Slot:
        """The queue of an ordering key or message group. It stays the same as long as the topic's queues do;
        of a FIFO topic also while its broker is away or drains."""
        slots = self._pool.routes.ordered_slots(self.topic) or (UNKNOWN,)
        return slots[group_queue(ordering_key, len(slots))]

    def home(self, message_id: str) -> Slot | None:
        """The broker of a message that the caller has named, with ANY_QUEUE; None if no route has the topic.
        A broker recognises only its own messages: so this one stays while it is away, too. Where a broker is
        new, only its share of the keys moves, to it."""
        brokers = {slot.broker for slot in self._pool.routes.kept_slots(self.topic)}
        if not brokers:
            return None
        key = message_id.encode()
        return Slot(max(brokers, key=lambda name: (_weight(name.encode(), key), name)), ANY_QUEUE)

    def queue_of(self, slot: Slot) -> Slot:
        """The slot, or the next queue in turn of its broker for ANY_QUEUE."""
        if slot.queue_id != ANY_QUEUE:
            return slot
        kept = self._pool.routes.kept_slots(self.topic)
        slots = [one for one in kept if one.broker == slot.broker]
        self._turn += 1
        return slots[self._turn % len(slots)] if slots else Slot(slot.broker, 0)

    def of_queue(self, queue_id: int, broker: str | None) -> Slot:
        """That queue. Raises TroveError BROKER_AMBIGUOUS, BROKER_NOT_FOUND."""
        if self._version != self._pool.routes.version:
            self._renew()
        if broker is None:
            slot = self._numbered.get(queue_id)
            if slot is not None:
                return slot
        known = self._pool.routes.queue_brokers(self.topic, queue_id)
        if broker is None and len(known) == 1:
            slot = self._numbered[queue_id] = Slot(known[0], queue_id)
            return slot
        if broker is None and len(known) > 1:  # one of them may be away
            names = ", ".join(known)
            text = f"queue {queue_id} of {self.topic} may be on {names}"
            raise TroveError(errors.BROKER_AMBIGUOUS, text, brokers=names)
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

    def route(self, slot: Slot) -> QueueRoute:
        """Where the queue is now. Raises TroveError BROKER_NOT_FOUND, TLS_FAILED, CLIENT_CLOSED."""
        if self._version != self._pool.routes.version:
            self._renew()
        route = self._queue_routes.get(slot)
        if route is None:
            if len(self._queue_routes) >= QUEUES_KNOWN_MAX:
                self._queue_routes.clear()
            broker = self.broker(slot)
            form = RecordForm.of(broker, self._pool.connection(broker).address)
            route = QueueRoute(self._version, slot, broker, self._pool.stream(broker), form)
            self._queue_routes[slot] = route
        return route

    def find_route(self, slot: Slot) -> QueueRoute | None:
        """The same; None if there is none."""
        if self._version == self._pool.routes.version:
            route = self._queue_routes.get(slot)
            if route is not None:
                return route
        try:
            return self.route(slot)
        except TroveError:
            return None

    def _healthy(self, slot: Slot) -> bool:
        broker = self._pool.routes.find(slot.broker)
        return broker is not None and not self._pool.suspect(broker)


def _weight(broker: bytes, message_id: bytes) -> bytes:
    """The broker with the highest one gets the key."""
    return blake2b(b"%d %b%b" % (len(broker), broker, message_id), digest_size=8).digest()
