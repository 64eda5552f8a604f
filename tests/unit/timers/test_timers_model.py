"""Any course of sends, recalls, clock steps, stops and crashes: never early, exactly once, and never a
recalled message."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.engine import NOW_MS
from tests.unit.timers.engine import Broker
from trovemq_broker.timers.timers import TimersState
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId

delays = st.one_of(st.integers(1, 3_000), st.integers(1, 20_000_000), st.sampled_from([1, 1_000, 3_600_000]))


class TimersModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.broker = Broker()
        self.now_ms = NOW_MS
        self.due: dict[bytes, int] = {}
        self.recalled: set[bytes] = set()
        self.delivered_at: dict[bytes, int] = {}
        self.state: tuple[TimersState, int] | None = None

    @rule(delay_ms=delays, queue_id=st.integers(0, 3))
    def schedule(self, delay_ms: int, queue_id: QueueId) -> None:
        body = b"%d" % len(self.due)
        self.due[body] = self.now_ms + delay_ms
        self.broker.schedule(body, EpochMs(self.due[body]), self.now_ms, queue_id=queue_id)

    @precondition(lambda self: self.due)
    @rule(which=st.integers(0, 1_000))
    def recall(self, which: int) -> None:
        body = sorted(self.due)[which % len(self.due)]
        deliver_ms = self.due[body]
        may = deliver_ms > self.now_ms and (body not in self.delivered_at or body in self.recalled)
        refused = ""
        try:
            self.broker.timers.recall("orders", EpochMs(deliver_ms), f"01{body.hex():0>30}", self.now_ms)
        except TroveError as error:
            refused = error.spec.symbol
        self.broker.dispatch()
        assert refused in ("", "RECALL_HANDLE_ILLEGAL")
        assert not refused or not may
        if not refused and body not in self.delivered_at:
            self.recalled.add(body)

    @rule(step_ms=st.one_of(st.integers(1, 5_000), st.integers(-10_000_000, 20_000_000)))
    def move_clock(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule()
    def deliver(self) -> None:
        self.broker.deliver(self.now_ms)
        for body in self.broker.bodies():
            assert body in self.delivered_at or self.due[body] <= self.now_ms, "never early"
            self.delivered_at.setdefault(body, self.now_ms)
        for body, deliver_ms in self.due.items():
            missing = body not in self.delivered_at and body not in self.recalled
            assert not missing or deliver_ms > self.now_ms, "nothing that is due stays"

    @rule()
    def flush_events(self) -> None:
        self.broker.events.flush(self.now_ms)
        self.broker.dispatch()

    @rule(old_snapshot=st.booleans())
    def stop_and_start(self, old_snapshot: bool) -> None:
        if not old_snapshot or self.state is None:
            self.broker.events.flush(self.now_ms)
            self.broker.dispatch()
            self.state = (self.broker.timers.snapshot(), self.broker.events.next_offset)
        self.broker.stop(self.now_ms)
        self.broker = Broker(self.broker.files, state=self.state[0], events_from=self.state[1])

    @rule()
    def carry(self) -> None:
        self.broker.timers.reappend_live_records_before(
            PhysicalOffset(self.broker.store.end_offset // 2), self.now_ms
        )
        self.broker.dispatch()

    @rule(with_snapshot=st.booleans())
    def crash(self, with_snapshot: bool) -> None:
        files = self.broker.kill()
        state = self.state if with_snapshot else None
        if state is None:
            self.broker = Broker(files)
        else:
            self.broker = Broker(files, state=state[0], events_from=state[1])

    @invariant()
    def nothing_twice_and_nothing_recalled(self) -> None:
        counts = Counter(self.broker.bodies())
        assert not counts.keys() & self.recalled
        assert set(counts.values()) <= {1}

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        self.now_ms = EpochMs(max([self.now_ms, *self.due.values()]) + 1)
        self.deliver()
        assert set(self.broker.bodies()) == set(self.due) - self.recalled
        assert self.broker.timers.pending_count == 0


TestTimers = TimersModel.TestCase
TestTimers.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
