"""A store with its consumer model in memory, and a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest

from tests.support.delivery import LEASE_MS, ROOMY
from tests.support.engine import BORN_HOST, NOW_MS, flush, send
from tests.support.settling import acknowledge, change_invisible
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.filters.filter import TAKE_ALL, Filter, parse_filter
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.track.copies import Location
from trovemq_broker.track.diagnosis import ConsumptionStatus, Members
from trovemq_broker.track.message_tracker import Limits, MessageTrack, MessageTracker, TrackedEvents
from trovemq_proto.positions import ANY_QUEUE, EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.subscription_groups import SubscriptionGroup

SETTINGS = ConsumerSettings(new_group_start="begin", transaction_check_max=2)
Result = TypeVar("Result")


def run(steps: Generator[None, None, Result]) -> Result:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result


@dataclass
class Member:
    """One connected consumer: its subscriptions."""

    topic: str = "orders"
    expression: str = "*"


class World:
    """One broker without its network. Groups have the members that the test says."""

    def __init__(self, settings: StoreSettings = ROOMY, files: MemoryFileSystem | None = None) -> None:
        self.files = files or MemoryFileSystem()
        self.now_ms = NOW_MS
        self.members: dict[str, list[Member]] = {}
        self.limits = Limits()
        self.store_settings = settings
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(self.files, self.store_settings, self.now_ms, process_id=3)
        if self.store.topics.get("orders") is None:
            self.store.topics.create("orders", queue_count=1)
        self.model = ConsumerState.open(self.store, self.files, SETTINGS, self.now_ms)
        self.model.on_append = self.see

    def see(self) -> None:
        self.model.on_messages_available(self.store.dispatch())

    def stop(self) -> None:
        """A clean stop: pending messages become retry messages; then a start."""
        self.model.export_to_rocketmq(self.now_ms)
        flush(self.store)
        self.store.close(self.now_ms)
        self.open()

    # --- clients ---------------------------------------------------------------------------------------
    def send(
        self,
        body: str,
        *,
        key: str = "",
        group: str = "",
        tag: str = "",
        topic: str = "orders",
        priority: int | None = None,
    ) -> int:
        properties = {"__SHARDINGKEY": group} if group else {}
        if priority is not None:
            properties["_SYS_MSG_PRIORITY_"] = str(priority)
        result = send(
            self.store,
            body.encode(),
            self.now_ms,
            topic=topic,
            unique_key=key or f"id-{body}",
            tag=tag,
            properties=properties,
        )
        self.model.on_messages_available([(topic, QueueId(0))])
        return result.first_queue_offset

    def record(self, body: str, **properties: str) -> NewRecord:
        named = {"UNIQ_KEY": f"id-{body}", **properties}
        return NewRecord("orders", QueueId(0), body.encode(), named, EpochMs(self.now_ms - 5), BORN_HOST)

    def schedule(self, body: str, after_ms: int) -> AppendResult:
        result = self.model.timers.schedule(self.record(body), self.now_ms + after_ms, self.now_ms)
        self.see()
        return result

    def receive(self, group: str = "workers", **named: Any) -> list[Delivered]:
        self.members.setdefault(group, [Member()])
        known = self.model.groups.get(group) or SubscriptionGroup(group)
        wanted: Filter = named.pop("filter", TAKE_ALL)
        request = ReceiveRequest(
            group=named.pop("settings", known),
            topic=named.pop("topic", "orders"),
            queue_id=ANY_QUEUE,
            filter=wanted,
            count_max=named.pop("count", 32),
            invisible_ms=LEASE_MS,
            now_ms=self.now_ms,
            client_id=named.pop("client_id", f"{group}-1"),
            **named,
        )
        return self.model.delivery.receive(request)

    def ack(self, *delivered: Delivered, group: str = "workers", topic: str = "orders") -> None:
        for one in delivered:
            acknowledge(self.model.delivery, group, topic, one.receipt_handle, self.now_ms)

    def return_message(self, one: Delivered, after_ms: int, group: str = "workers") -> None:
        change_invisible(self.model.delivery, group, "orders", one.receipt_handle, after_ms, self.now_ms)

    # --- the question ------------------------------------------------------------------------------------
    def _members_of(self, group: str, topic: str) -> Members:
        members = self.members.get(group, [])
        wanting = [member for member in members if member.topic == topic]
        expression = wanting[-1].expression if wanting else ""
        filters = [parse_filter("tag", expression)] if expression else []
        return Members(len(members), len(wanting), expression, filters)

    def _subscribed(self, topic: str) -> list[str]:
        return [group for group, members in self.members.items() if any(m.topic == topic for m in members)]

    def track_of(
        self, identifier: str | Location, topic: str = "", events_end: QueueOffset | None = None
    ) -> MessageTrack:
        biographer = MessageTracker(self.store, self.model, self._members_of, self._subscribed, self.limits)
        return run(biographer.steps(identifier, topic, lambda: self.now_ms, events_end))

    def story(self, body: str) -> TrackedEvents:
        """The one life of the message that was sent with that body."""
        found = self.track_of(f"id-{body}")
        (life,) = found.messages
        return life

    def status(self, body: str, group: str = "workers") -> ConsumptionStatus:
        (found,) = [one for one in self.story(body).statuses if one.group == group]
        return found

    def happenings(self, body: str, group: str | None = None) -> list[str]:
        """The events, in order; of one group, or all."""
        return [event.kind for event in self.story(body).events if group is None or event.group == group]


@pytest.fixture
def world() -> World:
    return World()


def orderly(world: World, name: str = "workers") -> SubscriptionGroup:
    """An orderly group, in the table."""
    group = SubscriptionGroup(name, orderly=True)
    change = world.model.groups.begin_create(group, now_ms=world.now_ms)
    change.run()
    world.model.groups.finish(change)
    return group


def with_limits(world: World, **values: int) -> None:
    world.limits = replace(world.limits, **values)


def reasons(statuses: Sequence[ConsumptionStatus]) -> dict[str, str]:
    return {status.group: status.reason for status in statuses}
