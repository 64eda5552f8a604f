"""Random histories of two groups: statuses and timelines agree with a plain model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.delivery import LEASE_MS
from trovemq_broker.filters.filter import TAKE_ALL, Filter, parse_filter
from trovemq_broker.groups.delivery.request import Delivered
from trovemq_proto.positions import EpochMs
from trovemq_store.topics.subscription_groups import SubscriptionGroup

from .conftest import Member, World

RETRY_MAX = 2
GROUPS = {"all": "*", "paid": "paid"}
FILTERS: dict[str, Filter] = {"all": TAKE_ALL, "paid": parse_filter("tag", "paid")}


@dataclass
class Stands:
    """One message with one group, as the model has it."""

    reason: str = "new"
    attempt: int = 0
    until_ms: EpochMs = EpochMs(0)
    handle: Delivered | None = None


@dataclass
class GroupState:
    """A group's state in the model."""

    read_to: int = 0
    messages: list[Stands] = field(default_factory=list)


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.tags: list[str] = []
        self.groups = {name: GroupState() for name in GROUPS}
        for name, expression in GROUPS.items():
            self.world.members[name] = [Member(expression=expression)]

    def _end_leases(self) -> None:
        for group in self.groups.values():
            for one in group.messages:
                if one.reason in ("in-flight", "returned") and one.until_ms <= self.world.now_ms:
                    one.reason, one.handle = "ready", None

    @rule(tag=st.sampled_from(["paid", "void"]))
    def send(self, tag: str) -> None:
        self.world.send(str(len(self.tags)), tag=tag)
        self.tags.append(tag)
        for group in self.groups.values():
            group.messages.append(Stands())

    @rule(name=st.sampled_from(sorted(GROUPS)), count=st.integers(1, 3))
    def receive(self, name: str, count: int) -> None:
        self._end_leases()
        config = SubscriptionGroup(name, retry_max=RETRY_MAX)
        group = self.groups[name]
        found = self.world.receive(name, settings=config, filter=FILTERS[name], count=count)
        for one in found:
            stands = group.messages[one.queue_offset]
            stands.reason, stands.attempt, stands.handle = "in-flight", stands.attempt + 1, one
            stands.until_ms = self.world.now_ms + LEASE_MS
            assert stands.attempt == one.attempt
        got: list[int] = [one.queue_offset for one in found]
        for offset, stands in enumerate(group.messages):
            if (
                stands.reason == "ready"
                and stands.attempt > RETRY_MAX
                and self._came_to(group, offset, got, count)
            ):
                stands.reason = "dead"
        self._advance(name, group, got, count)

    def _came_to(self, group: GroupState, offset: int, got: list[int], count: int) -> bool:
        """Messages that are ready are looked at in order, before new ones, until the batch is full."""
        ready = [at for at in got if at < offset and group.messages[at].attempt > 1]
        return len(ready) < count

    def _advance(self, name: str, group: GroupState, got: list[int], count: int) -> None:
        """New messages that the filter does not take are skipped, up to where the batch was full."""
        end = max([at + 1 for at in got if at >= group.read_to], default=group.read_to)
        again = sum(at < group.read_to for at in got)
        if len(got) < count:
            end = len(group.messages)
        elif again < count:
            while end < len(group.messages) and name == "paid" and self.tags[end] != "paid":
                end += 1
        for at in range(group.read_to, end):
            if group.messages[at].reason == "new":
                group.messages[at].reason = "filtered-out"
        group.read_to = max(group.read_to, end)

    @rule(name=st.sampled_from(sorted(GROUPS)), which=st.integers(0, 7), how=st.sampled_from(["ack", "back"]))
    def settle(self, name: str, which: int, how: str) -> None:
        self._end_leases()
        out = [one for one in self.groups[name].messages if one.handle is not None]
        if not out:
            return
        one = out[which % len(out)]
        assert one.handle is not None
        if how == "ack":
            self.world.ack(one.handle, group=name)
            one.reason = "acknowledged"
        else:
            self.world.return_message(one.handle, 3_000, group=name)
            one.reason, one.until_ms = "returned", self.world.now_ms + 3_000
        one.handle = None

    @rule(ms=st.sampled_from([1_000, 5_000, LEASE_MS]))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms

    @rule()
    def events_reach_the_log(self) -> None:
        self.world.model.events.flush(self.world.now_ms)
        self.world.see()

    @invariant()
    def verdicts_agree(self) -> None:
        self._end_leases()
        for offset in range(len(self.tags)):
            statuses = {one.group: one for one in self.world.story(str(offset)).statuses}
            for name, group in self.groups.items():
                stands, status = group.messages[offset], statuses[name]
                expected = stands.reason
                if expected == "new":
                    wanted = name == "all" or self.tags[offset] == "paid"
                    expected = "not-reached" if wanted else "filtered-out"
                assert status.reason == expected, (name, offset, stands)
                if expected == "not-reached":
                    between = self.tags[group.read_to : offset]
                    assert status.ahead == sum(name == "all" or tag == "paid" for tag in between)
                if expected in ("in-flight", "returned"):
                    assert (status.until_ms, status.attempt) == (stands.until_ms, stands.attempt)

    @invariant()
    def timelines_agree(self) -> None:
        for offset in range(len(self.tags)):
            events = self.world.story(str(offset)).events
            assert [event.time_ms for event in events] == sorted(event.time_ms for event in events)
            for name, group in self.groups.items():
                kinds = [event.kind.value for event in events if event.group == name]
                stands = group.messages[offset]
                assert kinds.count("delivered") == stands.attempt
                assert ("acknowledged" in kinds) == (stands.reason == "acknowledged")
                assert ("dead-lettered" in kinds) == (stands.reason == "dead")


TestHistory = pytest.mark.slow(History.TestCase)
TestHistory.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
