"""Receiving by priority against a plain model, a sorted list: random sends, receives, acknowledgements,
changes, time, restarts by snapshot and by replay, and crashes that take the tail of the events."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.delivery import LEASE_MS, ROOMY, Engine
from tests.support.engine import flush, send
from tests.support.settling import acknowledge, change_invisible
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery import priority_order
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import decode_message
from trovemq_store.topics.subscription_groups import SubscriptionGroup

SMALL_FILES = replace(ROOMY, commit_log_file_size=1 << 16, consume_queue_file_size=400)
GROUPS = ("one", "two")
ATTEMPTS_MAX = 3
IN_FLIGHT_MAX = 12
PRIORITIES = st.sampled_from([None, 0, 1, 4, 8, 9, 9])


@dataclass
class State:
    """One message and one group."""

    attempt: int = 0
    until_ms: EpochMs = EpochMs(0)
    handle: str = ""
    done: bool = False


class Model:
    """Of one group: its pending messages, and for how long each priority was skipped."""

    def __init__(self, starvation_max: int) -> None:
        self.starvation_max = starvation_max
        self.states: dict[int, State] = {}
        self.was_skipped = dict.fromkeys(range(10), 0)

    def of(self, offset: int) -> State:
        return self.states.setdefault(offset, State())

    def in_flight(self) -> int:
        return sum(1 for state in self.states.values() if state.attempt and not state.done)

    def next(self, priorities: list[int], now_ms: EpochMs, new_allowed: bool) -> int | None:
        """The offset that must be delivered now."""
        visible = [
            (-priority, offset)
            for offset, priority in enumerate(priorities)
            if not self.of(offset).done
            and self.of(offset).until_ms <= now_ms
            and (new_allowed or self.of(offset).attempt)
        ]
        if not visible:
            return None
        waiting = sorted(visible)
        if self.starvation_max:
            longest = max({-key for key, _ in waiting}, key=lambda p: (self.was_skipped[p], p))
            if self.was_skipped[longest] >= self.starvation_max:
                return next(offset for key, offset in waiting if key == -longest)
        return waiting[0][1]

    def delivered(self, priorities: list[int], offset: int, visible: set[int]) -> None:
        """Counts; `visible`: priorities of the waiting messages."""
        for priority in range(10):
            waits = priority in visible and priority != priorities[offset]
            self.was_skipped[priority] = self.was_skipped[priority] + 1 if waits else 0


class PriorityMachine(RuleBasedStateMachine):
    @initialize(starvation_max=st.sampled_from([0, 1, 2, 5]), trees=st.booleans())
    def start(self, starvation_max: int, trees: bool) -> None:
        self.patches = pytest.MonkeyPatch()  # small steps, so that few messages need many
        self.patches.setattr(priority_order, "CHUNK_MAX", 2)
        self.patches.setattr(priority_order, "_TRIM_MIN", 1)
        consumers = ConsumerSettings(
            new_group_start="begin", priority_starvation_max=starvation_max, in_flight_max=IN_FLIGHT_MAX
        )
        self.engine = Engine(consumers, store_settings=replace(SMALL_FILES, tree_index_enable=trees))
        self.engine.store.topics.alter("orders", options={"order": "priority"})
        for group in GROUPS:
            self.engine.groups.create(SubscriptionGroup(group, retry_max=ATTEMPTS_MAX - 1))
        self.priorities: list[int] = []
        self.models = {group: Model(starvation_max) for group in GROUPS}
        self.flushed = deepcopy(self.models)
        self.stored = dict.fromkeys(GROUPS, 0)
        self.letters = dict.fromkeys(GROUPS, 0)

    # --- users' steps --------------------------------------------------------------------------------
    @rule(priorities=st.lists(PRIORITIES, min_size=1, max_size=12))
    def send(self, priorities: list[int | None]) -> None:
        for priority in priorities:
            properties = {} if priority is None else {"_SYS_MSG_PRIORITY_": str(priority)}
            body = str(len(self.priorities)).encode()
            result = send(self.engine.store, body, self.engine.now_ms, properties=properties)
            assert result.first_queue_offset == len(self.priorities)
            self.priorities.append(4 if priority is None else priority)

    @rule(group=st.sampled_from(GROUPS), count=st.sampled_from([1, 2, 5, 32]))
    def receive(self, group: str, count: int) -> None:
        """Message by message, by the model."""
        model, now_ms = self.models[group], self.engine.now_ms
        before = deepcopy(model)
        got = self.engine.receive(group, count=count)
        dead = self._dead_letters(group)
        new_count_max = IN_FLIGHT_MAX - before.in_flight()
        for one in got:
            while (expected := model.next(self.priorities, now_ms, new_count_max > 0)) in dead:
                model.of(expected).done = True  # it went to the dead letters when it was next
            assert one.queue_offset == expected
            state = model.of(one.queue_offset)
            assert one.attempt == state.attempt + 1 <= ATTEMPTS_MAX
            assert decode_message(one.record).body == str(one.queue_offset).encode()
            new_count_max -= state.attempt == 0
            state.attempt, state.until_ms, state.handle = (
                one.attempt,
                one.until_ms,
                one.receipt_handle,
            )
            model.delivered(self.priorities, one.queue_offset, self._waiting(model))
        for offset in dead:
            model.of(offset).done = True
        if len(got) < count:
            assert model.next(self.priorities, now_ms, new_count_max > 0) is None

    def _waiting(self, model: Model) -> set[int]:
        now_ms = self.engine.now_ms
        return {
            priority
            for offset, priority in enumerate(self.priorities)
            if not model.of(offset).done and model.of(offset).until_ms <= now_ms
        }

    def _dead_letters(self, group: str) -> set[int]:
        letters = self.engine.messages(f"%DLQ%{group}")[self.letters[group] :]
        self.letters[group] += len(letters)
        found = {int(letter.body) for letter in letters}
        for offset in found:
            state = self.models[group].of(offset)
            assert not state.done
            assert state.attempt == ATTEMPTS_MAX
        return found

    def _open(self, group: str) -> list[int]:
        model = self.models[group]
        return sorted(
            offset
            for offset, state in model.states.items()
            if not state.done and state.until_ms > self.engine.now_ms
        )

    def _some_open(self, group: str) -> list[int]:
        """_open(), after a send and a receive where they are needed for that."""
        if not self._open(group):
            self.send([9, 0, 4])
            self.receive(group, 32)
        return self._open(group)

    @rule(group=st.sampled_from(GROUPS), data=st.data())
    def acknowledge(self, group: str, data: st.DataObject) -> None:
        if not (places := self._some_open(group)):
            return
        for offset in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=6, unique=True)):
            state = self.models[group].of(offset)
            acknowledge(self.engine.delivery, group, "orders", state.handle, self.engine.now_ms)
            state.done = True

    @rule(group=st.sampled_from(GROUPS), after_ms=st.sampled_from([0, 1, 3_000]), data=st.data())
    def change(self, group: str, after_ms: int, data: st.DataObject) -> None:
        if not (places := self._some_open(group)):
            return
        state, now_ms = self.models[group].of(data.draw(st.sampled_from(places))), self.engine.now_ms
        state.handle = change_invisible(self.engine.delivery, group, "orders", state.handle, after_ms, now_ms)
        state.until_ms = now_ms + after_ms

    @rule(by_ms=st.sampled_from([1, 2_999, LEASE_MS]))
    def time_goes_on(self, by_ms: int) -> None:
        self.engine.now_ms += by_ms

    # --- the broker's steps --------------------------------------------------------------------------------
    @rule()
    def flush_events(self) -> None:
        self.engine.events.flush(self.engine.now_ms)
        self.flushed = deepcopy(self.models)

    @rule()
    def store_offsets(self) -> None:
        flush(self.engine.store)
        self.engine.store.offsets.persist()
        for group in GROUPS:
            self.stored[group] = self.engine.committed(group) or 0

    @rule()
    def the_trees_catch_up(self) -> None:
        flush(self.engine.store)
        self.engine.store.catch_up_trees()

    @rule()
    def the_topic_is_of_another_order_for_a_while(self) -> None:
        """Nothing is received meanwhile; the trees' entries of it have a hole."""
        self.engine.store.topics.alter("orders", options={"order": "log"})
        self.send([9, 0, None])
        self.the_trees_catch_up()
        self.engine.store.topics.alter("orders", options={"order": "priority"})

    @rule(flushed=st.booleans())
    def crash(self, flushed: bool) -> None:
        """Unflushed events are forgotten, except where the stored offsets cover them."""
        if flushed:
            self.flush_events()
        self.engine.crash()
        self.models = deepcopy(self.flushed)
        for group, model in self.models.items():
            for offset in range(self.stored[group]):
                model.of(offset).done = True
        self._begin_counts()
        self.flushed = deepcopy(self.models)

    @rule()
    def restart(self) -> None:
        self.engine.restart()
        self._begin_counts()
        self.flush_events()
        self.store_offsets()

    @rule()
    def export_to_rocketmq(self) -> None:
        self.engine.export_to_rocketmq()
        self._begin_counts()
        self.flush_events()
        self.store_offsets()

    def _begin_counts(self) -> None:
        for model in self.models.values():
            model.was_skipped = dict.fromkeys(range(10), 0)

    # --- invariants -----------------------------------------------------------------------------------
    @invariant()
    def the_committed_offset_never_passes_an_outstanding_message(self) -> None:
        for group in GROUPS:
            done = [self.models[group].of(offset).done for offset in range(len(self.priorities))]
            first = done.index(False) if False in done else len(done)
            assert (self.engine.committed(group) or 0) <= first

    @invariant()
    def what_is_reported_is_what_the_model_has(self) -> None:
        for group in GROUPS:
            for row in self.engine.delivery.progress(group, "orders", self.engine.now_ms):
                model = self.models[group]
                assert row.in_flight_count == model.in_flight()
                if self.engine.delivery.group_topics.get(group, "orders") is None:
                    continue
                waiting = sum(
                    1
                    for offset in range(len(self.priorities))
                    if not model.of(offset).done and not model.of(offset).attempt
                )
                assert row.held_count + len(self.priorities) - row.next_offset == waiting

    def teardown(self) -> None:
        """Everything is delivered in the end: consumed, or a dead letter."""
        if not hasattr(self, "engine"):
            return
        try:
            self._consume_all()
        finally:
            self.patches.undo()

    def _consume_all(self) -> None:
        for group in GROUPS:
            for _ in range(len(self.priorities) * ATTEMPTS_MAX + 4):
                self.receive(group, 32)
                for offset in self._open(group):
                    state = self.models[group].of(offset)
                    acknowledge(self.engine.delivery, group, "orders", state.handle, self.engine.now_ms)
                    state.done = True
            assert all(self.models[group].of(offset).done for offset in range(len(self.priorities)))
            assert (self.engine.committed(group) or 0) == len(self.priorities)


TestPriorityModel = pytest.mark.slow(PriorityMachine.TestCase)
TestPriorityModel.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
