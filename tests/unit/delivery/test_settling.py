"""One settle() against the functions that it replaced: same results, events, state and next visible time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.delivery import LEASE_MS, Engine
from tests.support.settling import (
    acknowledge_all,
    acknowledge_range,
    change_invisible,
    change_range,
    confirm_range,
    dead_letter,
    release_handles,
    release_range,
)
from tests.support.trials import SOAK
from tests.unit.delivery.old_settling import OldSettling
from trovemq_broker.groups.delivery import dead_letters
from trovemq_broker.groups.delivery.lease_rows import BLOCK_BITS, BLOCK_SIZE, ROW_DTYPE
from trovemq_broker.groups.delivery.request import DeliveredRun, messages_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.topics.subscription_groups import SubscriptionGroup

QUEUES = 2
ENDED = 1 << 31  # of a packed lease's attempt
GROUPS = {
    "workers": SubscriptionGroup("workers", retry_max=2),
    "strict": SubscriptionGroup("strict", orderly=True, retry_max=2),
}
SELECTION = st.lists(st.integers(0, 40), min_size=1, max_size=8)


def outcome_of(call: Callable[[], Any]) -> Any:
    """The result; of an error, its symbol and text."""
    try:
        result = call()
    except TroveError as error:
        return error.spec.symbol, error.message
    if not isinstance(result, list):
        return result
    return [comparable(one) for one in result]


def comparable(one: Any) -> Any:
    if isinstance(one, TroveError):
        return one.spec.symbol, one.message
    if isinstance(one, tuple):
        return tuple(comparable(part) for part in one)
    return one


def recorded(engine: Engine) -> list[Event]:
    """The events that the engine adds from now on."""
    events, add = [], engine.events.add

    def record(event: Event) -> None:
        events.append(event)
        add(event)

    engine.events.add = record  # type: ignore[method-assign]
    return events


def messages_of_events(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """The events of each message, in the order of the messages: one range or several ones say the same."""
    found: list[tuple[Any, ...]] = []
    for event in events:
        if event.kind is EventKind.ACKNOWLEDGED:
            for offset in range(event.offset, event.offset + event.count):
                place = (event.group, event.topic, event.queue_id, offset)
                found.append((*place, event.kind, event.lease, event.attempt))
        else:
            place = (event.group, event.topic, event.queue_id, event.offset)
            found.append((*place, event.kind, event.count, event.until, event.attempt, event.lease))
    return sorted(found)


def state_of(engine: Engine) -> list[tuple[Any, ...]]:
    """Each queue, with its open messages; it makes no difference which leases are packed."""
    found: list[tuple[Any, ...]] = []
    for queue in engine.delivery.snapshot().queues:
        leases: list[tuple[Any, ...]] = [
            (lease.number, lease.attempt, lease.until_ms, lease.client_id, lease.ended, offset)
            for lease in queue.leases
            for run in lease.runs
            for offset in range(*run)
        ]
        for row in np.frombuffer(b"".join(queue.packed), ROW_DTYPE):
            attempt, block = int(row["attempt"]), int(row["block"]) << BLOCK_BITS
            lease = (int(row["number"]), attempt & ~ENDED, int(row["until"]))
            client = queue.packed_clients[row["client"]]
            offsets = (block + bit for bit in range(BLOCK_SIZE) if int(row["mask"]) >> bit & 1)
            leases += [(*lease, client, bool(attempt & ENDED), offset) for offset in offsets]
        names = (queue.group, queue.topic, queue.queue_id)
        offsets_of_queue = (queue.committed, queue.next_offset, queue.next_lease, queue.ended_lease)
        rest = (queue.held, queue.cursors, queue.waiting_from, queue.waiting_count)
        found.append((*names, *offsets_of_queue, sorted(leases), *rest))
    return found


def bodies_of(engine: Engine, topic: str) -> list[tuple[bytes, str | None]]:
    return [(one.body, one.properties.get("DLQ_ORIGIN_MESSAGE_ID")) for one in engine.messages(topic)]


class Twins(RuleBasedStateMachine):
    """Two engines get the same calls: one settles by one function, the other by the old ones."""

    @initialize(loose_max=st.sampled_from([2, 16_384]))
    def start(self, loose_max: int) -> None:
        self.engines = [Engine(queue_count=QUEUES) for _ in range(2)]
        for engine in self.engines:
            for group in GROUPS.values():
                engine.groups.create(group)
        self.events = [recorded(engine) for engine in self.engines]
        self.loose_max = loose_max
        self.sent = 0
        self.handles: list[tuple[str, str]] = []
        self.runs: list[tuple[str, str, range]] = []

    @property
    def new(self) -> Engine:
        return self.engines[0]

    @property
    def old(self) -> OldSettling:
        return OldSettling(self.engines[1].delivery)

    def check(self, new: Callable[[], Any], old: Callable[[], Any]) -> Any:
        found = outcome_of(new)
        assert found == outcome_of(old)
        return found

    # --- the same for both ---------------------------------------------------------------------------
    @rule(keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=6), queue_id=st.integers(0, QUEUES - 1))
    def send(self, keys: list[str], queue_id: int) -> None:
        for key in keys:
            for engine in self.engines:
                engine.send(f"{self.sent}", queue_id=QueueId(queue_id), key=key)
            self.sent += 1

    @rule(group=st.sampled_from(list(GROUPS)), count=st.sampled_from([1, 3, 32]))
    def receive(self, group: str, count: int) -> None:
        got: list[list[DeliveredRun]] = [engine.receive_runs(group, count=count) for engine in self.engines]
        runs = [(one.receipt, one.offsets, one.attempt) for one in got[0]]
        assert runs == [(one.receipt, one.offsets, one.attempt) for one in got[1]]
        self.handles += [(group, one.receipt_handle) for one in messages_of(got[0])]
        self.runs += [(group, one.receipt, one.offsets) for one in got[0]]
        for engine in self.engines:
            for state in engine.delivery.group_topics.states():
                state.open.limit(self.loose_max)

    @rule(after_ms=st.sampled_from([1, LEASE_MS // 2, LEASE_MS, 3 * LEASE_MS]))
    def wait(self, after_ms: int) -> None:
        due = []
        for engine in self.engines:
            engine.now_ms += after_ms
            due.append(engine.delivery.due_pairs(engine.now_ms))
            engine.delivery.make_dead_letters(engine.now_ms)
        assert due[0] == due[1]

    @rule(group=st.sampled_from(list(GROUPS)))
    def reset(self, group: str) -> None:
        for engine in self.engines:
            engine.delivery.reset(group, "orders", {QueueId(0): 0}, engine.now_ms)

    @rule(group=st.sampled_from(list(GROUPS)))
    def forget_group(self, group: str) -> None:
        for engine in self.engines:
            engine.delivery.forget_group(group, engine.now_ms)

    @rule()
    def restart(self) -> None:
        for engine in self.engines:
            engine.restart()
        self.events = [recorded(engine) for engine in self.engines]

    @rule()
    def crash(self) -> None:
        for engine in self.engines:
            engine.crash(flushed=True)
        self.events = [recorded(engine) for engine in self.engines]

    # --- settled by both ------------------------------------------------------------------------------
    def _chosen(self, group: str, chosen: Sequence[int]) -> list[str]:
        """Handles of the group, some of another one, some of them twice; one is malformed."""
        self._deliver_some(group)
        known = [handle for name, handle in self.handles[-12:] if name == group or handle.endswith("0")]
        return [known[number % len(known)] if number < 40 and known else "junk" for number in chosen]

    def _deliver_some(self, group: str) -> None:
        """So that there is something to settle."""
        pair = self.new.delivery.group_topics.get(group, "orders")
        if group in GROUPS and (pair is None or not any(len(state.open) for state in pair.queues)):
            self.send(list("abca"), 0)
            self.receive(group, 32)

    def _run(self, group: str, number: int) -> tuple[str, range]:
        self._deliver_some(group)
        known = [run[1:] for run in self.runs[-4:] if run[0] == group]
        return known[number % len(known)] if known else ("junk", range(3))

    @rule(group=st.sampled_from([*GROUPS, "nobody"]), chosen=SELECTION, gathered=st.booleans())
    def acknowledge(self, group: str, chosen: list[int], gathered: bool) -> None:
        handles = self._chosen(group, chosen)
        with self.new.delivery.gathering() if gathered else nullcontext():
            found = outcome_of(
                lambda: acknowledge_all(self.new.delivery, group, "orders", handles, self.new.now_ms)
            )
        with self.engines[1].delivery.gathering() if gathered else nullcontext():
            expected = outcome_of(
                lambda: self.old.acknowledge_many(group, "orders", handles, self.new.now_ms)
            )
        assert found == expected

    @rule(group=st.sampled_from([*GROUPS, "nobody"]), chosen=SELECTION)
    def acknowledge_calls_of_one_turn(self, group: str, chosen: list[int]) -> None:
        """As the server did: all in any order, then each of the rest alone."""
        handles = self._chosen(group, chosen)
        with self.new.delivery.gathering():
            found = acknowledge_all(self.new.delivery, group, "orders", handles, self.new.now_ms)
        old, now_ms = self.old, self.new.now_ms
        expected: list[TroveError | None] = []
        with self.engines[1].delivery.gathering():
            done = old.acknowledge_mixed(group, "orders", [one.encode() for one in handles], now_ms)
            for handle, is_done in zip(handles, done, strict=True):
                expected += [None] if is_done else old.acknowledge_many(group, "orders", [handle], now_ms)
        assert [comparable(one) for one in found] == [comparable(one) for one in expected]

    @rule(
        group=st.sampled_from(list(GROUPS)), number=st.integers(0, 9), client=st.sampled_from(["", "client"])
    )
    def acknowledge_a_range(self, group: str, number: int, client: str) -> None:
        run, now_ms = self._run(group, number), self.new.now_ms
        self.check(
            lambda: acknowledge_range(self.new.delivery, group, "orders", *run, now_ms, client),
            lambda: self.old.acknowledge_run(group, "orders", *run, now_ms, client),
        )

    @rule(
        group=st.sampled_from(list(GROUPS)),
        number=st.integers(0, 9),
        after_ms=st.sampled_from([-1, 0, 1, LEASE_MS]),
        suspend=st.booleans(),
        client=st.sampled_from(["", "client"]),
    )
    def change_a_range(self, group: str, number: int, after_ms: int, suspend: bool, client: str) -> None:
        args = (group, "orders", *self._run(group, number), after_ms, self.new.now_ms)
        late: dict[str, Any] = {"suspend": suspend, "client_id": client}
        self.check(
            lambda: change_range(self.new.delivery, *args, **late),
            lambda: self.old.change_run(*args, **late),
        )

    @rule(
        group=st.sampled_from(list(GROUPS)),
        number=st.integers(0, 40),
        after_ms=st.sampled_from([0, 1, LEASE_MS]),
        suspend=st.booleans(),
    )
    def change(self, group: str, number: int, after_ms: int, suspend: bool) -> None:
        (handle,) = self._chosen(group, [number])
        args = (group, "orders", handle, after_ms, self.new.now_ms)
        found = self.check(
            lambda: change_invisible(self.new.delivery, *args, suspend=suspend),
            lambda: self.old.change_invisible(*args, suspend=suspend),
        )
        if isinstance(found, str):
            self.handles.append((group, found))

    @rule(
        group=st.sampled_from(list(GROUPS)),
        number=st.integers(0, 40),
        attempts_min=st.integers(0, 3),
        full=st.booleans(),
    )
    def send_to_dead_letters(self, group: str, number: int, attempts_min: int, full: bool) -> None:
        (handle,) = self._chosen(group, [number])
        args = (group, "orders", handle, self.new.now_ms, attempts_min)
        with pytest.MonkeyPatch.context() as disk:
            if full:
                disk.setattr(dead_letters, "copy_to_dead_letters", refused)
            self.check(lambda: dead_letter(self.new.delivery, *args), lambda: self.old.dead_letter(*args))

    @rule(group=st.sampled_from(list(GROUPS)), chosen=SELECTION, counted=st.booleans())
    def release(self, group: str, chosen: list[int], counted: bool) -> None:
        handles, now_ms = self._chosen(group, chosen), self.new.now_ms
        self.check(
            lambda: release_handles(self.new.delivery, group, "orders", handles, now_ms, counted=counted),
            lambda: self.old.release_handles(group, "orders", handles, now_ms, counted=counted),
        )

    @rule(group=st.sampled_from(list(GROUPS)), number=st.integers(0, 9), counted=st.booleans())
    def release_a_range(self, group: str, number: int, counted: bool) -> None:
        args = (group, "orders", *self._run(group, number), self.new.now_ms)
        outcome_of(lambda: release_range(self.new.delivery, *args, counted=counted))
        self.old.release_run(*args, counted=counted)

    @rule(group=st.sampled_from(list(GROUPS)), number=st.integers(0, 9))
    def confirm_a_range(self, group: str, number: int) -> None:
        args = (group, "orders", *self._run(group, number), self.new.now_ms)
        outcome_of(lambda: confirm_range(self.new.delivery, *args))
        self.old.confirm_run(*args)

    @invariant()
    def both_are_the_same(self) -> None:
        if not hasattr(self, "engines"):
            return
        first, second = self.engines
        assert state_of(first) == state_of(second)
        assert messages_of_events(self.events[0]) == messages_of_events(self.events[1])
        for group in GROUPS:
            times = [engine.delivery.next_visible_ms(group, "orders") for engine in self.engines]
            assert times[0] == times[1]
            assert bodies_of(first, f"%DLQ%{group}") == bodies_of(second, f"%DLQ%{group}")


def refused(*_: Any) -> None:
    raise TroveError(errors.DISK_FULL)


TestSettling = Twins.TestCase
TestSettling.settings = settings(max_examples=100 if SOAK else 20, stateful_step_count=30, deadline=None)


def test_a_handle_was_refused_that_came_after_its_message_was_settled() -> None:
    """Two leases name one message in one call: their handles count in the order in which they came."""
    engine = Engine()
    for body in ("m0", "m1"):
        engine.send(body)
    first, second = engine.receive()
    again = change_invisible(
        engine.delivery, "workers", "orders", first.receipt_handle, LEASE_MS, engine.now_ms
    )
    handles = [second.receipt_handle, again, first.receipt_handle]
    assert acknowledge_all(engine.delivery, "workers", "orders", handles, engine.now_ms) == [None] * 3
    assert engine.committed() == 2
