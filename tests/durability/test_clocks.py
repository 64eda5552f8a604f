"""R13: the engine under clocks that jump, stop, go back, and reach years it was not written in.

A scenario is a list of times that the broker's clock shows, one after another. At each of them messages are
sent, timers set and delivered, transactions opened and checked, messages received; then it all must hold.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pytest

from tests.support import settling
from tests.support.engine import NOW_MS, SMALL, append, flush, read_queue, record
from tests.support.trials import Trials
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.groups.lag.backlog import backlog_steps
from trovemq_broker.groups.lag.filtered import GroupLags
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.timers import rocketmq_files
from trovemq_broker.transactions.records import GIVEN_UP_TOPIC
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.engine.steps import finished
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.retention import ClosedSegment, DiskUse, RetentionPolicy, decide
from trovemq_store.log.segment_age import closed_segments
from trovemq_store.topics.subscription_groups import SubscriptionGroup

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
LEASE_MS: Final = 60_000
CHECK_AFTER_MS: Final = 6_000
SETTINGS: Final = replace(
    SMALL,
    commit_log_file_size=1 << 16,
    index_item_count=48,
    consume_queue_file_size=4_000,
    flush_mode="sync",
    undispatched_bytes_max=1 << 22,
)
CONSUMERS: Final = ConsumerSettings(
    new_group_start="begin", transaction_timeout_ms=CHECK_AFTER_MS, timer_log_file_size=52 * 64
)
WORKERS: Final = SubscriptionGroup("workers")
STEADY: Final = [10] * 20
QUIET_MS: Final = 400 * DAY_MS
"""Time for which the clock is right at the end: everything that waits has come by then."""


def ms(year: int, month: int = 1, day: int = 1, hour: int = 0, minute: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp() * 1000)


def jumps(source: random.Random, count: int, longest_ms: int) -> list[int]:
    return [source.randint(-longest_ms, longest_ms) for _ in range(count)]


Scenario = tuple[str, int, list[int]]


def scenarios() -> list[Scenario]:
    """(name, the first time, how far each next one lies from the one before)."""
    chance = random.Random("clocks")
    return [
        ("an hour back", NOW_MS, [*STEADY, -HOUR_MS, *STEADY]),
        ("an hour ahead", NOW_MS, [*STEADY, HOUR_MS, *STEADY]),
        ("it stands still", NOW_MS, [0] * 40),
        ("it stands still after an hour back", NOW_MS, [*STEADY, -HOUR_MS, *[0] * 20]),
        ("a second back, again and again", NOW_MS, [10, 10, -1_000] * 15),
        ("100 jumps of up to a second", NOW_MS, jumps(chance, 100, 1_000)),
        ("100 jumps of up to an hour", NOW_MS, jumps(chance, 100, HOUR_MS)),
        ("100 jumps of up to a day", NOW_MS, jumps(chance, 100, DAY_MS)),
        ("a month ahead and back", NOW_MS, [*STEADY, 30 * DAY_MS, *STEADY, -30 * DAY_MS, *STEADY]),
        ("ten years ahead", NOW_MS, [*STEADY, 3_653 * DAY_MS, *STEADY]),
        ("ten years back", NOW_MS, [*STEADY, -3_653 * DAY_MS, *STEADY]),
        ("over the end of 32-bit seconds", ms(2038, 1, 19, 3, 14) - 5_000, [1_000] * 40),
        ("over the end of unsigned 32-bit seconds", ms(2106, 2, 7, 6, 28) - 5_000, [1_000] * 40),
        ("the year 2100, which has no leap day", ms(2100, 2, 28, 23, 59), [HOUR_MS // 4] * 30),
        ("summer time begins", ms(2026, 3, 29, 0, 59), [HOUR_MS // 12] * 30),
        ("summer time ends, and local time comes twice", ms(2026, 10, 25, 0, 30), [HOUR_MS // 12] * 30),
        ("a leap second, smeared and stepped", ms(2016, 12, 31, 23, 59), [*[5_000] * 12, -1_000, *STEADY]),
        ("the clock was never set", 0, [*[0] * 5, *STEADY, ms(2024), *STEADY]),
        ("before the epoch", -DAY_MS, [*STEADY, DAY_MS, *STEADY, ms(2024), *STEADY]),
        ("back to the epoch while it runs", NOW_MS, [*STEADY, -NOW_MS, *STEADY, NOW_MS + HOUR_MS, *STEADY]),
    ]


@dataclass
class Timer:
    due_ms: int
    set_at_ms: int


class Run:
    """One engine under one clock; `now_ms` is the clock's time."""

    def __init__(self, start_ms: int) -> None:
        self.files = MemoryFileSystem()
        self.now_ms = start_ms
        self.store = MessageStore.open(self.files, SETTINGS, EpochMs(start_ms))
        self.model = ConsumerState.open(self.store, self.files, CONSUMERS, EpochMs(start_ms))
        for topic in ("orders", "tasks", "later", "deals"):
            self.store.topics.create(topic, queue_count=1)
        self.times: list[int] = []
        self.count = 0
        self.sent: set[bytes] = set()
        self.timers: dict[bytes, Timer] = {}
        self.arrived: dict[bytes, int] = {}
        self.leases: dict[bytes, int] = {}
        self.settled: set[bytes] = set()
        self.opened: dict[str, int] = {}
        self.asked: Counter[str] = Counter()

    def body(self, kind: str) -> bytes:
        self.count += 1
        return f"{kind}{self.count:05d}".encode()

    def send(self, topic: str) -> None:
        body = self.body(topic[0])
        one = record(
            body,
            topic=topic,
            keys="key",
            unique_key=body.decode(),
            append_property_crc=SETTINGS.append_property_crc,
        )
        result = append(self.store, one, topic=topic, now_ms=EpochMs(self.now_ms))
        self.times.append(result.store_timestamp)
        if topic == "tasks":
            self.sent.add(body)

    def schedule(self, delay_ms: int) -> None:
        body = self.body("t")
        due_ms = self.now_ms + delay_ms
        one = NewRecord("later", QueueId(0), body, {"UNIQ_KEY": body.decode()}, EpochMs(self.now_ms))
        if due_ms <= 0:
            with pytest.raises(TroveError, match="DELIVERY_TIME_ILLEGAL"):
                self.model.timers.schedule(one, EpochMs(due_ms), EpochMs(self.now_ms))
            return
        self.model.timers.schedule(one, EpochMs(due_ms), EpochMs(self.now_ms))
        self.timers[body] = Timer(due_ms, self.now_ms)

    def prepare(self) -> None:
        body = self.body("d")
        self.model.transactions.prepare(
            NewRecord("deals", QueueId(0), body, {"UNIQ_KEY": body.decode()}, EpochMs(self.now_ms)),
            EpochMs(self.now_ms),
        )
        self.opened[body.decode()] = self.now_ms

    def sync(self) -> None:
        self.model.events.flush(EpochMs(self.now_ms))
        flush(self.store)
        self.store.dispatch()
        self.model.timers.catch_up()
        self.model.transactions.catch_up()

    def deliver(self) -> None:
        """Timers that the clock says are due."""
        before = len(read_queue(self.store, "later"))
        for _ in range(1_000):
            if not self.model.timers.deliver_due(EpochMs(self.now_ms)):
                break
        self.sync()
        for message in read_queue(self.store, "later")[before:]:
            timer = self.timers[message.body]
            assert self.now_ms >= timer.due_ms, "no timer is early by the clock that delivers it"
            assert message.body not in self.arrived, "each comes once"
            self.arrived[message.body] = self.now_ms

    def receive(self, *, acknowledge: bool) -> int:
        request = ReceiveRequest(
            group=WORKERS, topic="tasks", count_max=32, invisible_ms=LEASE_MS, now_ms=EpochMs(self.now_ms)
        )
        delivered = self.model.delivery.receive(request)
        for one in delivered:
            body = decode_message(one.record).body
            assert body not in self.settled, "an acknowledged message does not come back"
            assert self.leases.get(body, self.now_ms) <= self.now_ms, "a lease holds until its time"
            self.leases[body] = self.now_ms + LEASE_MS
            if acknowledge:
                settling.acknowledge(
                    self.model.delivery, "workers", "tasks", one.receipt_handle, EpochMs(self.now_ms)
                )
                self.settled.add(body)
        self.sync()
        return len(delivered)

    def check_transactions(self) -> None:
        for asked in self.model.transactions.due_checks(EpochMs(self.now_ms)):
            assert self.now_ms >= self.opened[asked.transaction_id] + CHECK_AFTER_MS, "no check is early"
            self.asked[asked.transaction_id] += 1

    def step(self, number: int) -> None:
        self.send("orders")
        self.send("tasks")
        self.schedule((50, 500, 5_000, HOUR_MS)[number % 4])
        if number % 5 == 0:
            self.prepare()
        self.sync()
        self.deliver()
        self.receive(acknowledge=number % 3 == 0)
        self.check_transactions()
        self.store.flush_projections()

    def restart(self, *, killed: bool, clock_step_ms: int = 0) -> None:
        """A kill or a clean stop; the clock may be set while nothing runs."""
        if killed:
            self.files = self.files.after_process_kill()
        else:
            self.model.export_to_rocketmq(EpochMs(self.now_ms))
            self.store.close(EpochMs(self.now_ms))
            self.leases.clear()  # messages in flight become retry messages with their own times
        self.now_ms += clock_step_ms
        self.store = MessageStore.open(self.files, SETTINGS, EpochMs(self.now_ms))
        self.model = ConsumerState.open(self.store, self.files, CONSUMERS, EpochMs(self.now_ms))

    # --- invariants -------------------------------------------------------------------------------
    def check_store_times(self) -> None:
        assert self.times == sorted(self.times), "store times never go back"
        stored = [message.store_timestamp for message in read_queue(self.store, "orders")]
        assert stored == sorted(stored)
        for index, time in enumerate(stored):
            first = stored.index(time)
            assert search_offset(self.store, "orders", QueueId(0), time) == first, (index, time)

    def check_index_names(self) -> None:
        assert self.store.key_index is not None
        names = [int(name) for name in self.store.key_index.file_names]
        assert names == sorted(set(names)), "names of index files are unique, and rise"
        assert len(names) >= 2, "several were made"

    def drain(self) -> None:
        """The clock stands right long enough: everything that is pending has come."""
        self.now_ms = max(self.now_ms, self.store.last_store_timestamp, *self.times) + QUIET_MS
        self.deliver()
        assert set(self.arrived) == set(self.timers), "every timer is delivered"
        for _ in range(40):
            self.deliver()
            if not self.receive(acknowledge=True):
                break
            self.now_ms += 2 * HOUR_MS
        assert self.settled == self.sent, "every message is received at last"
        given_up = {message.body.decode() for message in read_queue(self.store, GIVEN_UP_TOPIC)}
        for transaction_id in given_up:
            assert self.asked[transaction_id] >= CONSUMERS.transaction_check_max, "asked often enough"
        for transaction_id in self.opened.keys() - given_up:
            self.model.transactions.end(transaction_id, "deals", True, EpochMs(self.now_ms))
        self.sync()
        committed = {message.body.decode() for message in read_queue(self.store, "deals")}
        assert committed == self.opened.keys() - given_up


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_what_clocks_do(part: int, trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq_files, "WHEEL_SLOTS", 4_096)  # two weeks of slots are 38 MB to copy
    all_of_them = scenarios()
    assert len(all_of_them) == 20
    for number in trials.numbers(len(all_of_them), default=len(all_of_them), part=part, parts=2):
        with trials.one(number):
            run_scenario(all_of_them[number], number)
        trials.count("R13", "clock scenarios")


def run_scenario(scenario: Scenario, number: int) -> None:
    name, start_ms, steps = scenario
    run = Run(start_ms)
    for index, step_ms in enumerate(steps):
        run.now_ms += step_ms
        run.step(index)
        if index == len(steps) // 2:
            run.restart(killed=number % 2 == 1)
    run.check_store_times()
    run.check_index_names()
    run.drain()
    run.check_store_times()
    assert run.count > 0, name


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("back_ms", [1_000, HOUR_MS, 3_653 * DAY_MS, NOW_MS, NOW_MS + DAY_MS])
def test_a_clock_that_is_set_back_between_stop_and_start(
    back_ms: int, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store times stay where they were until the clock reaches them. Messages in flight at a kill, and timers
    that wait, come by the clock: later by as much as it went back, and each once."""
    monkeypatch.setattr(rocketmq_files, "WHEEL_SLOTS", 4_096)
    run = Run(NOW_MS)
    for index in range(20):
        run.now_ms += 10
        run.step(index)
    last_ms = run.store.last_store_timestamp
    run.restart(killed=killed, clock_step_ms=-back_ms)
    assert run.store.last_store_timestamp >= last_ms
    for index in range(20):
        run.now_ms += 10
        run.step(index)
    run.check_store_times()
    assert set(run.times[-20:]) == {run.store.last_store_timestamp}, "they stand still, and do not go back"
    check_ages(run)
    run.restart(killed=killed)
    run.drain()
    run.check_store_times()


def check_ages(run: Run) -> None:
    """None that is shown is below 0, and nothing is old enough to go."""
    states = run.model.delivery.group_topics.states()
    for standing in finished(backlog_steps(run.store, states, EpochMs(run.now_ms), 100)).values():
        assert standing.ready >= 0
        assert standing.in_flight >= 0
    for topic in ("orders", "tasks"):
        progress, delayed = run.model.delivery.progress, run.model.timers.pending_of
        lags = GroupLags(run.store, progress, lambda group, topic: (), delayed)
        assert all(
            lag.lag_ms >= 0 and lag.lag >= 0
            for lag in finished(lags.steps("workers", [topic], EpochMs(run.now_ms)))
        )
    policy = RetentionPolicy(hours=frozenset(range(24)))
    closed = closed_segments(run.store.files, run.store.closed_segments())
    hour, disk = 4, DiskUse(1_000, 900)
    assert (
        decide(closed, policy, disk, min_offset=LOG_ORIGIN, hour=hour, now_ms=EpochMs(run.now_ms)).count == 0
    )


def test_a_clock_ten_years_ahead_lets_retention_remove_what_is_old_by_it() -> None:
    """As RocketMQ's: age is by the clock, so everything closed is old. Pending messages are carried first,
    the last segment stays, and no more than deleteFileBatchMax segments go in one run (10 s)."""
    policy = RetentionPolicy(hours=frozenset(range(24)))
    closed = [
        ClosedSegment(PhysicalOffset(at * 100), PhysicalOffset(at * 100 + 100), NOW_MS) for at in range(50)
    ]
    disk = DiskUse(1_000, 900)
    decision = decide(closed, policy, disk, min_offset=LOG_ORIGIN, hour=4, now_ms=NOW_MS + 3_653 * DAY_MS)
    assert decision.count == policy.files_max
    assert decide(closed, policy, disk, min_offset=LOG_ORIGIN, hour=4, now_ms=NOW_MS).count == 0


@pytest.mark.parametrize("now_ms", [0, -DAY_MS, NOW_MS - 3_653 * DAY_MS])
def test_a_clock_that_is_behind_lets_nothing_go_by_age(now_ms: EpochMs) -> None:
    policy = RetentionPolicy(hours=frozenset(range(24)))
    closed = [
        ClosedSegment(PhysicalOffset(at * 100), PhysicalOffset(at * 100 + 100), NOW_MS) for at in range(50)
    ]
    decision = decide(closed, policy, DiskUse(1_000, 900), min_offset=LOG_ORIGIN, hour=4, now_ms=now_ms)
    assert decision.count == 0
