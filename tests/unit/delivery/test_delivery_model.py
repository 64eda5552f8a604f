"""The engine against a plain model of groups' pending messages: random sends, receives, acknowledgements,
changes, time, restarts, and crashes that take the tail of the events."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.delivery import LEASE_MS, ROOMY, Engine
from tests.support.engine import flush
from tests.support.settling import (
    acknowledge,
    acknowledge_all,
    acknowledge_range,
    change_invisible,
    change_range,
)
from tests.support.trials import SOAK
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records import decode_message
from trovemq_store.events.receipt_handle import encode_receipt
from trovemq_store.topics.subscription_groups import SubscriptionGroup

QUEUES = 2
RELEASED = "released"  # in place of a handle
GROUPS = {
    "plain": SubscriptionGroup("plain", retry_max=2),
    "other": SubscriptionGroup("other", retry_max=16),
    "strict": SubscriptionGroup("strict", orderly=True, retry_max=2),
}
SMALL_FILES = replace(ROOMY, commit_log_file_size=1 << 16, consume_queue_file_size=400)


@dataclass
class State:
    """One message and one group: how often it was delivered, until when it is invisible, under which
    handle."""

    attempt: int = 0
    until_ms: int = 0
    handle: str = ""
    done: bool = False


@dataclass
class Model:
    states: dict[tuple[str, int, int], State] = field(default_factory=dict)

    def of(self, group: str, queue_id: int, offset: int) -> State:
        return self.states.setdefault((group, queue_id, offset), State())


class DeliveryMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.engine = Engine(store_settings=SMALL_FILES, queue_count=QUEUES)
        for group in GROUPS.values():
            self.engine.groups.create(group)
        self.keys: list[list[str]] = [[] for _ in range(QUEUES)]
        self.model = Model()
        self.flushed = deepcopy(self.model)
        self.stored: dict[tuple[str, int], int] = {}
        self.letters = dict.fromkeys(GROUPS, 0)
        self.old_handles: list[tuple[str, str]] = []
        self._watch()

    def _watch(self) -> None:
        """As the task that waits for redeliveries."""
        delivery = self.engine.delivery
        due_ms, now_ms = delivery.next_due_ms(), self.engine.now_ms
        self.watched, self.watched_until_ms = delivery, now_ms + 500 if due_ms is None else due_ms
        self.notices: list[bool] = []
        delivery.due_watch.wait(self.watched_until_ms, lambda: self.notices.append(True))

    # --- users' steps --------------------------------------------------------------------------------
    @rule(queue_id=st.integers(0, QUEUES - 1), keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
    def send(self, queue_id: int, keys: list[str]) -> None:
        for key in keys:
            offset = self.engine.send(
                f"{queue_id}-{len(self.keys[queue_id])}", queue_id=QueueId(queue_id), key=key
            )
            assert offset == len(self.keys[queue_id])
            self.keys[queue_id].append(key)

    @rule(group=st.sampled_from(list(GROUPS)), count=st.sampled_from([1, 2, 3, 32]))
    def receive(self, group: str, count: int) -> None:
        seems_empty = self.engine.delivery.seems_empty(group, "orders", self.engine.now_ms)
        got = self.engine.receive(group, count=count)
        assert not (seems_empty and got), "a short look at the queues misses nothing"
        assert len(got) <= count
        now_ms = self.engine.now_ms
        dead = self._dead_letters(group)
        batch: set[tuple[int, int]] = set()
        for one in got:
            state = self.model.of(group, one.queue_id, one.queue_offset)
            assert decode_message(one.record).body == f"{one.queue_id}-{one.queue_offset}".encode()
            assert not state.done, "a consumed message is not delivered again"
            assert state.until_ms <= now_ms, "an invisible message is not delivered"
            assert one.attempt == state.attempt + 1 <= GROUPS[group].max_attempts
            if GROUPS[group].orderly:
                self._check_order(group, one.queue_id, one.queue_offset, batch)
            batch.add((one.queue_id, one.queue_offset))
        for one in got:
            state = self.model.of(group, one.queue_id, one.queue_offset)
            if state.handle:
                self.old_handles.append((group, state.handle))
            state.attempt, state.until_ms, state.handle = (
                one.attempt,
                one.until_ms,
                one.receipt_handle,
            )
        assert got or not self._available(group), "a visible message is delivered"
        if len(got) < count and not self._was_packed(group):
            assert not self._available(group), "a receive takes all that there is"
        assert not (dead & batch)

    def _check_order(self, group: str, queue_id: int, offset: int, batch: set[tuple[int, int]]) -> None:
        for earlier in range(offset):
            if self.keys[queue_id][earlier] == self.keys[queue_id][offset]:
                state = self.model.of(group, queue_id, earlier)
                assert state.done or (queue_id, earlier) in batch, (
                    "an earlier one of the message group is not done"
                )

    def _dead_letters(self, group: str) -> set[tuple[int, int]]:
        """Takes the dead letters that are new into the model."""
        letters = self.engine.messages(f"%DLQ%{group}")[self.letters[group] :]
        self.letters[group] += len(letters)
        found = set()
        for letter in letters:
            queue_id, offset = (int(text) for text in letter.body.decode().split("-"))
            state = self.model.of(group, queue_id, offset)
            assert not state.done
            assert state.until_ms <= self.engine.now_ms
            assert state.attempt == GROUPS[group].max_attempts
            state.done = True
            found.add((queue_id, offset))
        return found

    def _was_packed(self, group: str) -> bool:
        """Leases that begin in a receive may pack others that have ended: the next receive has these."""
        states = self.engine.delivery.group_topics.states()
        return any(state.open.packed.count for state in states if state.group == group)

    def _available(self, group: str) -> list[tuple[int, int]]:
        """The messages that a receive could deliver now."""
        now_ms = self.engine.now_ms
        found = []
        for queue_id, keys in enumerate(self.keys):
            blocked = {
                key
                for offset, key in enumerate(keys)
                if not (state := self.model.of(group, queue_id, offset)).done and state.until_ms > now_ms
            }
            for offset, key in enumerate(keys):
                state = self.model.of(group, queue_id, offset)
                orderly = GROUPS[group].orderly
                if not state.done and state.until_ms <= now_ms and not (orderly and key in blocked):
                    found.append((queue_id, offset))
        return found

    def _open(self, group: str) -> list[tuple[int, int]]:
        """The invisible messages."""
        return sorted(
            (queue_id, offset)
            for (name, queue_id, offset), state in self.model.states.items()
            if name == group and not state.done and state.until_ms > self.engine.now_ms
        )

    def _some_open(self, group: str) -> list[tuple[int, int]]:
        """_open(), after a receive, and a send, where they are needed for that."""
        if not self._open(group):
            if not self._available(group):
                self.send(0, ["a", "b", "a"])
            self.receive(group, 32)
        return self._open(group)

    @rule(group=st.sampled_from(list(GROUPS)), data=st.data())
    def acknowledge(self, group: str, data: st.DataObject) -> None:
        if not (places := self._some_open(group)):
            return
        chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=6, unique=True))
        handles = [self.model.of(group, *place).handle for place in chosen]
        how = data.draw(st.sampled_from(["runs", "a call", "calls", "calls together"]))
        if how == "runs":
            self._acknowledge_runs(group, chosen)
        elif how == "a call":
            results = acknowledge_all(self.engine.delivery, group, "orders", handles, self.engine.now_ms)
            assert results == [None] * len(handles)
        else:
            with self.engine.delivery.gathering() if how == "calls together" else nullcontext():
                for handle in handles:
                    acknowledge(self.engine.delivery, group, "orders", handle, self.engine.now_ms)
        for place in chosen:
            self.model.of(group, *place).done = True

    def _acknowledge_runs(self, group: str, places: list[tuple[int, int]]) -> None:
        """As a stream does: by receipt, neighbours together."""
        for receipt, offsets in self._runs(group, places):
            args = (group, "orders", receipt, offsets, self.engine.now_ms)
            assert acknowledge_range(self.engine.delivery, *args) == []

    def _runs(self, group: str, places: list[tuple[int, int]]) -> list[tuple[str, range]]:
        found: list[tuple[str, range]] = []
        for place in sorted(places):
            head, _, _ = self.model.of(group, *place).handle.rsplit(".", 2)
            pair = self.engine.delivery.group_topics.get(group, "orders")
            assert pair is not None
            receipt, offset = encode_receipt(pair.seed, head), place[1]
            if found and found[-1][0] == receipt and found[-1][1].stop == offset:
                found[-1] = (receipt, range(found[-1][1].start, offset + 1))
            else:
                found.append((receipt, range(offset, offset + 1)))
        return found

    @rule(group=st.sampled_from(list(GROUPS)), data=st.data())
    def release(self, group: str, data: st.DataObject) -> None:
        """Returned at once, by receipt; no attempt is counted."""
        if not (places := self._some_open(group)):
            return
        chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=6, unique=True))
        now_ms = self.engine.now_ms
        for receipt, offsets in self._runs(group, chosen):
            args = (group, "orders", receipt, offsets, 0, now_ms)
            assert change_range(self.engine.delivery, *args, suspend=True) == []
        for place in chosen:
            state = self.model.of(group, *place)
            self.old_handles.append((group, state.handle))
            state.attempt, state.until_ms, state.handle = max(0, state.attempt - 1), now_ms, RELEASED

    @rule(
        group=st.sampled_from(list(GROUPS)), after_ms=st.sampled_from([0, 1, 3_000, 20_000]), data=st.data()
    )
    def change(self, group: str, after_ms: int, data: st.DataObject) -> None:
        if not (places := self._some_open(group)):
            return
        state = self.model.of(group, *data.draw(st.sampled_from(places)))
        self.old_handles.append((group, state.handle))
        now_ms = self.engine.now_ms
        state.handle = change_invisible(self.engine.delivery, group, "orders", state.handle, after_ms, now_ms)
        state.until_ms = now_ms + after_ms

    @rule(group=st.sampled_from(list(GROUPS)), data=st.data())
    def acknowledge_too_late(self, group: str, data: st.DataObject) -> None:
        late = [
            state.handle
            for (name, _, _), state in self.model.states.items()
            if name == group
            and state.handle not in ("", RELEASED)
            and not state.done
            and state.until_ms <= self.engine.now_ms
        ]
        if late:
            with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
                acknowledge(
                    self.engine.delivery,
                    group,
                    "orders",
                    data.draw(st.sampled_from(late)),
                    self.engine.now_ms,
                )

    @rule(group=st.sampled_from(list(GROUPS)), data=st.data())
    def acknowledge_late_on_a_stream(self, group: str, data: st.DataObject) -> None:
        """The member whose lease has ended has done its work: that counts until the next delivery."""
        self._dead_letters(group)
        late = sorted(
            (queue_id, offset)
            for (name, queue_id, offset), state in self.model.states.items()
            if name == group
            and state.handle not in ("", RELEASED)
            and not state.done
            and state.until_ms <= self.engine.now_ms
        )
        if not late:
            return
        place = data.draw(st.sampled_from(late))
        ((receipt, offsets),) = self._runs(group, [place])
        args = (group, "orders", receipt, offsets, self.engine.now_ms)
        (refused,) = acknowledge_range(self.engine.delivery, *args, client_id="another")
        assert refused.error.spec is errors.RECEIPT_HANDLE_ILLEGAL
        assert acknowledge_range(self.engine.delivery, *args, client_id="client") == []
        self.model.of(group, *place).done = True

    @rule(data=st.data())
    def acknowledge_with_an_old_handle(self, data: st.DataObject) -> None:
        """Refused, or without effect where the message is consumed; the invariants say that nothing
        changed."""
        if self.old_handles:
            group, handle = data.draw(st.sampled_from(self.old_handles))
            if handle not in {state.handle for state in self.model.states.values()}:
                with suppress(TroveError):
                    acknowledge(self.engine.delivery, group, "orders", handle, self.engine.now_ms)

    @rule(by_ms=st.sampled_from([1, 2_999, LEASE_MS, 25_000]))
    def time_goes_on(self, by_ms: int) -> None:
        self.engine.now_ms += by_ms

    # --- the broker's steps --------------------------------------------------------------------------------
    @rule()
    def flush_events(self) -> None:
        self.engine.events.flush(self.engine.now_ms)
        self.flushed = deepcopy(self.model)

    @rule()
    def store_offsets(self) -> None:
        flush(self.engine.store)  # no offset is stored beyond the synced part of the log
        self.engine.store.offsets.persist()
        for group in GROUPS:
            for queue_id in range(QUEUES):
                self.stored[group, queue_id] = self.engine.committed(group, queue_id=QueueId(queue_id)) or 0

    @rule(flushed=st.booleans())
    def crash(self, flushed: bool) -> None:
        """Unflushed events are forgotten, except where the stored offsets cover them."""
        if flushed:
            self.flush_events()
        handles = [(key[0], state.handle) for key, state in self.model.states.items() if state.handle]
        self.old_handles += handles
        self.engine.crash()
        self.model = deepcopy(self.flushed)
        for (group, queue_id, offset), state in self.model.states.items():
            state.done = state.done or offset < self.stored.get((group, queue_id), 0)
        for (group, queue_id), end in self.stored.items():
            for offset in range(end):
                self.model.of(group, queue_id, offset).done = True
        self.flushed = deepcopy(self.model)

    @rule()
    def restart(self) -> None:
        self.engine.restart()
        self.flush_events()
        self.store_offsets()

    # --- invariants -----------------------------------------------------------------------------------
    @invariant()
    def the_watcher_gets_a_notice_of_an_earlier_time(self) -> None:
        delivery = self.engine.delivery
        due_ms = delivery.next_due_ms()
        if delivery is self.watched and due_ms is not None and due_ms < self.watched_until_ms:
            assert self.notices == [True]
        self._watch()

    @invariant()
    def the_committed_offset_never_passes_an_open_message(self) -> None:
        for group in GROUPS:
            for queue_id, keys in enumerate(self.keys):
                done = [self.model.of(group, queue_id, offset).done for offset in range(len(keys))]
                first = done.index(False) if False in done else len(done)
                assert (self.engine.committed(group, queue_id=QueueId(queue_id)) or 0) <= first

    @invariant()
    def in_flight_is_what_was_handed_out_and_is_not_consumed(self) -> None:
        for group in GROUPS:
            for progress in self.engine.delivery.progress(group, "orders", self.engine.now_ms):
                open_ = [
                    state
                    for (name, queue_id, _), state in self.model.states.items()
                    if (name, queue_id) == (group, progress.queue_id) and state.handle and not state.done
                ]
                assert progress.in_flight_count == len(open_)

    def teardown(self) -> None:
        """Everything is delivered in the end: consumed, or a dead letter."""
        if not hasattr(self, "engine"):
            return
        for group in GROUPS:
            for _ in range(sum(map(len, self.keys)) * 4 + 4):
                self.receive(group, 32)
                for queue_id, offset in self._open(group):
                    state = self.model.of(group, queue_id, offset)
                    acknowledge(self.engine.delivery, group, "orders", state.handle, self.engine.now_ms)
                    state.done = True
            for queue_id, keys in enumerate(self.keys):
                assert all(self.model.of(group, queue_id, offset).done for offset in range(len(keys)))
                assert (self.engine.committed(group, queue_id=QueueId(queue_id)) or 0) == len(keys)


TestDeliveryModel = pytest.mark.slow(DeliveryMachine.TestCase)
TestDeliveryModel.settings = settings(max_examples=20 if SOAK else 12, stateful_step_count=30, deadline=None)
