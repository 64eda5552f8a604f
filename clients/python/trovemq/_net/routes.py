"""The client's view of the cluster: which broker has which queues. State only, no calls.

A slot is one queue on one broker. A topic's slots are ordered by queue id, then by broker name, so that all
clients with the same routes map an ordering key to the same queue.

The queues among which the message groups of a FIFO topic choose do not change because a broker dies, drains
or joins:

| the routes have     | the queues are                                                                       |
|---------------------|--------------------------------------------------------------------------------------|
| a placement         | all that it names, whichever brokers are live; ordered by broker, then by queue id   |
| none (each broker's | those of the live brokers that do not drain, and of those that left the routes since |
| configuration is    | this client started, unless they were drained before, or nameservers have forgotten  |
| its own)            | them (trovemq broker remove). A drain moves message groups: nothing else could       |

A send to a broker that is away waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from trovemq.models.cluster import NO_PLACEMENT, BrokerInfo, BrokerRoute, ClusterState, TopicRoute
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

LOST_BROKERS_MAX = 1024
FIFO = "FIFO"  # a topic whose message groups have an order
NORMAL = "NORMAL"
QUEUE_ID_MAX = 2**31 - 1  # an int on the wire and on disk


class Slot(NamedTuple):
    """One queue on one broker."""

    broker: str
    queue_id: int


class RouteTable:
    """The newest routes, with the brokers that left them since this client started.

    Attributes:
        version: Rises with each change. A caller that keeps an answer of the routes looks it up again with
            another version.
    """

    def __init__(self) -> None:
        self.version = 0
        self.state = ClusterState(())
        self._brokers: dict[str, BrokerInfo] = {}
        self._entries: dict[str, tuple[BrokerRoute, dict[str, TopicRoute]]] = {}
        self.body_size_max: int | None = None
        """The lowest limit of all live brokers, in bytes; None if there is no broker."""
        self.lost: dict[str, frozenset[str]] = {}  # broker name -> its topics when it left
        self._slots: dict[str, tuple[Slot, ...]] = {}
        self._writable_slots: dict[str, tuple[Slot, ...]] = {}
        self._kept_slots: dict[str, tuple[Slot, ...]] = {}
        self._fifo: dict[str, bool] = {}
        self._departed: dict[str, BrokerRoute] = {}
        """The brokers that left undrained, as they were: each one's last route."""
        self._last_placements: dict[str, Mapping[str, int]] = {}
        self._last_slots: dict[str, tuple[Slot, ...]] = {}
        self._listeners: list[Callable[[], None]] = []

    def apply(self, state: ClusterState) -> None:
        """Replaces the routes and notifies the listeners."""
        names = {route.broker.name for route in state.brokers}
        for route in self.state.brokers:
            if route.broker.name not in names and len(self.lost) < LOST_BROKERS_MAX:
                self.lost[route.broker.name] = frozenset(topic.topic for topic in route.topics)
                if not route.broker.draining:
                    self._departed[route.broker.name] = route
        for name in names:
            self.lost.pop(name, None)
            self._departed.pop(name, None)
        lost = {one.name for one in state.lost}
        for one in self.state.lost:
            if one.name not in lost:
                self._departed.pop(one.name, None)  # the nameservers have forgotten it
        for name in state.removed:
            self.lost.pop(name, None)
            self._departed.pop(name, None)
        self.state = state
        self._brokers = {route.broker.name: route.broker for route in state.brokers}
        kept = self._brokers.keys() | self._departed.keys()
        self._entries = {name: known for name, known in self._entries.items() if name in kept}
        self.body_size_max = min((broker.body_size_max for broker in self._brokers.values()), default=None)
        self._last_slots.update(self._slots)
        self._slots.clear()
        self._writable_slots.clear()
        self._kept_slots.clear()
        self._fifo.clear()
        self.version += 1
        for listener in list(self._listeners):
            listener()

    def slots(self, topic: str) -> tuple[Slot, ...]:
        """The topic's queues; the last known ones if no live broker has any; () if none were ever known."""
        slots = self._slots.get(topic)
        if slots is None:
            slots = self._live_slots(topic) or self._last_slots.get(topic, ())
            if slots:
                self._slots[topic] = slots
        return slots

    def writable_slots(self, topic: str) -> tuple[Slot, ...]:
        """The queues for new messages that any queue takes. Queues of draining brokers are among them only if
        no other broker has the topic."""
        slots = self._writable_slots.get(topic)
        if slots is None:
            known = self.slots(topic)
            placed = tuple(slot for slot in known if self._takes_messages(topic, slot)) or known
            slots = tuple(slot for slot in placed if not self._is_draining(slot.broker)) or placed
            if slots:
                self._writable_slots[topic] = slots
        return slots

    def _takes_messages(self, topic: str, slot: Slot) -> bool:
        """Whether the placement in its broker's route, if any, has the queue."""
        route = self.state.broker(slot.broker) or self._departed.get(slot.broker)
        entry = None if route is None else self._entry(route, topic)
        placement = NO_PLACEMENT if entry is None else entry.placement
        return not placement or slot.queue_id < placement.get(slot.broker, 0)

    def kept_slots(self, topic: str) -> tuple[Slot, ...]:
        """The queues for new messages that belong to one queue or broker: those of brokers that are away are
        among them. See the table above."""
        slots = self._kept_slots.get(topic)
        if slots is None:
            placement = self.placement(topic)
            if placement:
                slots = tuple(
                    Slot(broker, number)
                    for broker in sorted(placement)
                    for number in range(placement[broker])
                )
            else:
                departed = [
                    slot for route in self._departed.values() for slot in self._slots_on(route, topic)
                ]
                placed = [slot for slot in departed if self._takes_messages(topic, slot)]
                slots = tuple(sorted({*self.writable_slots(topic), *placed}, key=_by_queue))
            if slots:
                self._kept_slots[topic] = slots
        return slots

    def ordered_slots(self, topic: str) -> tuple[Slot, ...]:
        """The queues among which ordering keys and message groups choose: of a FIFO topic the kept ones."""
        slots = self.fifo_slots(topic)
        return self.writable_slots(topic) if slots is None else slots

    def fifo_slots(self, topic: str) -> tuple[Slot, ...] | None:
        """The same of a FIFO topic; None for another one."""
        fifo = self._fifo.get(topic)
        if fifo is None:
            fifo = self._fifo[topic] = self.is_fifo(topic)
        return self.kept_slots(topic) if fifo else None

    def placement(self, topic: str) -> Mapping[str, int]:
        """The queues of a FIFO topic by broker: as most of the live brokers have it, or as the last one had;
        nothing if none has."""
        entries = (self._entry(route, topic) for route in self.state.brokers)
        known = [one.placement for one in entries if one is not None and one.message_type == FIFO]
        if any(known):
            best = max(filter(None, known), key=lambda one: (known.count(one), sorted(one.items())))
            self._last_placements[topic] = best
        elif known:
            self._last_placements.pop(topic, None)
        return self._last_placements.get(topic, NO_PLACEMENT)

    def _is_draining(self, name: str) -> bool:
        broker = self._brokers.get(name)
        return broker is not None and broker.draining

    def is_fifo(self, topic: str) -> bool:
        """Whether a broker has the topic with type FIFO, a live one or one that left."""
        if topic in self._last_placements:
            return True
        entries = (self._entry(route, topic) for route in (*self.state.brokers, *self._departed.values()))
        return any(entry is not None and entry.message_type == FIFO for entry in entries)

    def is_normal(self, topic: str) -> bool:
        """Whether the topic is known, and is of type NORMAL on every live broker."""
        found = [entry.message_type for route in self.state.brokers if (entry := self._entry(route, topic))]
        return bool(found) and all(kind == NORMAL for kind in found)

    def _entry(self, route: BrokerRoute, topic: str) -> TopicRoute | None:
        """The broker's entry of the topic; it costs the same however many topics there are."""
        known = self._entries.get(route.broker.name)
        if known is None or known[0] is not route:
            known = route, {entry.topic: entry for entry in route.topics}
            self._entries[route.broker.name] = known
        return known[1].get(topic)

    def queue_brokers(self, topic: str, queue_id: int) -> list[str]:
        """Names of the brokers that have this queue for writing; of a FIFO topic also those that are away. If
        no live broker has the topic, those that had it last."""
        if self.is_fifo(topic):
            return [slot.broker for slot in self.kept_slots(topic) if slot.queue_id == queue_id]
        # Sorted by queue, and every broker has the queues 0 .. n-1: the search may end early.
        names = []
        for slot in self.writable_slots(topic):
            if slot.queue_id == queue_id:
                names.append(slot.broker)
            elif slot.queue_id > queue_id:
                break
        return names

    def _live_slots(self, topic: str) -> tuple[Slot, ...]:
        found = [slot for route in self.state.brokers for slot in self._slots_on(route, topic)]
        return tuple(sorted(found, key=_by_queue))

    def _slots_on(self, route: BrokerRoute, topic: str) -> list[Slot]:
        entry = self._entry(route, topic)
        count = 0 if entry is None else entry.queue_count
        return [Slot(route.broker.name, queue_id) for queue_id in range(count)]

    def broker(self, name: str) -> BrokerInfo:
        """The live broker of that name. Raises TroveError BROKER_NOT_FOUND."""
        broker = self._brokers.get(name)
        if broker is None:
            self.check_refused()
            names = ", ".join(sorted(self._brokers)) or "none"
            raise TroveError(
                errors.BROKER_NOT_FOUND, f"broker {name} is not in the routes (live: {names})", broker=name
            )
        return broker

    def find(self, name: str) -> BrokerInfo | None:
        """The live broker of that name; None if there is none."""
        return self._brokers.get(name)

    def brokers(self, name: str | None = None) -> list[BrokerInfo]:
        """Every live broker by name, or the named one. Raises TroveError BROKER_NOT_FOUND."""
        if name is not None:
            return [self.broker(name)]
        found = sorted(self._brokers.values(), key=lambda broker: broker.name)
        if not found:
            self.check_refused()
            raise TroveError(errors.BROKER_NOT_FOUND, "no broker is in the routes")
        return found

    def check_refused(self) -> None:
        """Raises TroveError NOT_LEADER if no broker is in the routes because each server is a node that does
        not lead its replica group."""
        refusal = self.state.refusal
        if refusal is not None:
            raise TroveError(refusal.spec, refusal.message, **refusal.fields)

    async def leader_found(self, timeout_seconds: float) -> None:
        """Waits while each server is a node that does not lead; returns after the time-out, too."""
        await self.wait_until(lambda: self.state.refusal is None, timeout_seconds)

    def brokers_of(self, topic: str, name: str | None = None) -> list[BrokerInfo]:
        """The live brokers that have the topic; all live brokers if it is not in the routes.

        System topics, for example, are not in the routes but can be read. Raises TroveError BROKER_NOT_FOUND.
        """
        if name is not None:
            return [self.broker(name)]
        having = [broker for broker in self.brokers() if self._has(broker.name, topic)]
        return having or self.brokers()

    def broker_of_queue(self, topic: str, queue_id: int, name: str | None = None) -> BrokerInfo:
        """The one broker that has that queue.

        Raises:
            TroveError: BROKER_AMBIGUOUS if several have it and none is named; BROKER_NOT_FOUND;
                QUEUE_NOT_FOUND for an impossible queue id.
        """
        if not 0 <= queue_id <= QUEUE_ID_MAX:
            raise TroveError(
                errors.QUEUE_NOT_FOUND, f"no queue of {topic} has the number {queue_id}", queue_id=queue_id
            )
        if name is not None:
            return self.broker(name)
        having = [s.broker for s in self._live_slots(topic) if s.queue_id == queue_id]
        candidates = [self.broker(n) for n in having] or self.brokers_of(topic)
        if len(candidates) > 1:
            names = ", ".join(broker.name for broker in candidates)
            raise TroveError(
                errors.BROKER_AMBIGUOUS, f"queue {queue_id} of {topic} may be on {names}", brokers=names
            )
        return candidates[0]

    def lost_brokers_of(self, topic: str) -> list[str]:
        """Brokers that had the topic and left the routes since this client started."""
        return sorted(name for name, topics in self.lost.items() if topic in topics)

    def _has(self, broker: str, topic: str) -> bool:
        route = self.state.broker(broker)
        return route is not None and self._entry(route, topic) is not None

    def has_topic(self, topic: str, broker: str) -> bool:
        """Whether the routes say that the broker has the topic."""
        return self._has(broker, topic)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` once after each change, however often it was given, until `unlisten`."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Ends `listen`; has no effect if it was not called."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """Waits for routes that meet the condition; False if none arrived in time."""
        if condition():
            return True
        changed = asyncio.Event()
        self._listeners.append(changed.set)
        try:
            async with asyncio.timeout(timeout_seconds):
                while not condition():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            self._listeners.remove(changed.set)
        return True


def _by_queue(slot: Slot) -> tuple[int, str]:
    return slot.queue_id, slot.broker
