"""Messages that wait for their retry count as lag, wherever they wait: in flight, delayed, in a retry
topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import ROOMY
from tests.support.engine import NOW_MS, send
from tests.support.settling import acknowledge, change_invisible
from tests.unit.delivery.test_rocketmq_import_of_wheel import store_of_rocketmq
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_broker.groups.lag.filtered import GroupLags
from trovemq_broker.groups.lag.stored import lag_steps
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import finished
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = pytest.mark.usefixtures("small_timer_wheel")

SETTINGS = ConsumerSettings(new_group_start="begin", timer_log_file_size=1_000)
STORE_SETTINGS = replace(ROOMY, flush_mode="async")
WORKERS = SubscriptionGroup("workers")


class Run:
    """One run of a broker; `now_ms` is its clock."""

    def __init__(self, files: MemoryFileSystem, now_ms: EpochMs) -> None:
        self.files, self.now_ms = files, now_ms
        self.store = MessageStore.open(files, STORE_SETTINGS, now_ms, process_id=7)
        self.model = ConsumerState.open(self.store, files, SETTINGS, now_ms)

    def receive(self) -> list[Delivered]:
        request = ReceiveRequest(group=WORKERS, topic="orders", invisible_ms=30_000, now_ms=self.now_ms)
        return self.model.delivery.receive(request)

    def return_message(self, one: Delivered, after_ms: int) -> None:
        change_invisible(self.model.delivery, "workers", "orders", one.receipt_handle, after_ms, self.now_ms)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        while self.model.timers.deliver_due(self.now_ms):
            self.store.dispatch()
            self.model.timers.catch_up()

    def lags(self) -> tuple[int, int, int]:
        """(the group's lag, the metric, in flight)."""
        timers, delivery = self.model.timers, self.model.delivery
        steps = GroupLags(self.store, delivery.progress, lambda *_: [], timers.pending_of).steps(
            "workers", ["orders"], self.now_ms
        )
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                rows = stop.value
                break
        metric = finished(lag_steps(self.store, 100, timers.pending_of))
        of_group = sum(lag.messages for (group, _), lag in metric.items() if group == "workers")
        return sum(row.lag for row in rows), of_group, sum(row.position.in_flight for row in rows)

    def restart(self, ms: int = 1_000) -> Run:
        """A clean stop, and a later start."""
        self.model.export_to_rocketmq(self.now_ms)
        self.store.close(self.now_ms)
        return Run(self.files, self.now_ms + ms)


def run_with(count: int) -> Run:
    files = MemoryFileSystem()
    run = Run(files, NOW_MS)
    run.store.topics.create("orders", 1)
    for number in range(count):
        send(run.store, b"%d" % number)
    run.store.dispatch()
    return run


def test_lag_fell_to_0_at_a_clean_restart_while_a_retry_was_waited_for() -> None:
    run = run_with(1)
    (one,) = run.receive()
    run.return_message(one, 10_000)
    assert run.lags() == (1, 1, 1)
    run = run.restart()
    assert run.lags() == (1, 1, 1), "it is a delayed message now"
    run = run.restart()
    assert run.lags() == (1, 1, 1)
    run.pass_time(20_000)
    assert run.lags() == (1, 1, 0), "in the retry topic, of which the group has read nothing"
    (one,) = run.receive()
    assert (one.attempt, run.lags()) == (2, (1, 1, 1))
    acknowledge(run.model.delivery, "workers", "orders", one.receipt_handle, run.now_ms)
    assert run.lags() == (0, 0, 0)


def test_lag_stays_what_it_was_when_a_stop_makes_retries_at_once() -> None:
    run = run_with(3)
    first, *_ = run.receive()
    acknowledge(run.model.delivery, "workers", "orders", first.receipt_handle, run.now_ms)
    assert run.lags() == (2, 2, 2)
    run.pass_time(40_000)  # their leases are over
    assert run.lags() == (2, 2, 0)
    run = run.restart()
    assert run.lags() == (2, 2, 0)


def test_what_rocketmq_left_to_be_revived_is_lag() -> None:
    run = Run(store_of_rocketmq(), NOW_MS)
    assert run.lags() == (3, 3, 3)
    run = run.restart()
    assert run.lags() == (3, 3, 3)


def test_messages_that_were_returned_counted_as_in_flight() -> None:
    run = run_with(2)
    for one in run.receive():
        run.return_message(one, 0)
    assert run.lags() == (2, 2, 0)
