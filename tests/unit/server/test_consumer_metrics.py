"""/metrics and the statistics of groups, delayed messages, transactions and connected clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, send
from tests.support.metrics_bench import Bench
from tests.support.settling import acknowledge, dead_letter
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_broker.maintenance import consumer_tasks
from trovemq_broker.server.core.clients import ClientDescription
from trovemq_broker.server.wire.client_commands import ClientCommand
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = pytest.mark.asyncio
LEASE_MS = 10_000
ONCE_AGAIN = SubscriptionGroup("workers", retry_max=1)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def receive(bench: Bench, count: int = 32, group: SubscriptionGroup = ONCE_AGAIN) -> list[Delivered]:
    return bench.parts.model.delivery.receive(
        ReceiveRequest(
            group=group, topic="orders", count_max=count, invisible_ms=LEASE_MS, now_ms=bench.now_ms
        )
    )


async def test_messages_of_a_group_from_ready_to_dead_letter(bench: Bench) -> None:
    receive(bench)
    for number in range(5):
        send(bench.store, b"x", now_ms=NOW_MS + 1_000 * number)
    of_group = {"consumer_group": "workers", "topic": "orders", "is_retry": "false", "is_system": "false"}

    def figures() -> tuple[float, ...]:
        names = ("consumer_ready_messages", "consumer_inflight_messages", "consumer_queueing_latency")
        totals = ("pop_revive_retry_messages_total", "send_to_dlq_messages_total")
        return tuple(bench.value(f"rocketmq_{name}", **of_group) for name in (*names, *totals))

    bench.now_ms = NOW_MS + 5_000
    assert figures() == (5, 0, 5_000, 0, 0)
    receive(bench, 2)
    assert figures() == (3, 2, 3_000, 0, 0)
    bench.now_ms += LEASE_MS
    first, second = receive(bench, 2)
    assert (first.attempt, second.attempt) == (2, 2)
    assert figures() == (3, 2, 3_000 + LEASE_MS, 2, 0)
    delivery = bench.parts.model.delivery
    dead_letter(delivery, "workers", "orders", first.receipt_handle, bench.now_ms)
    assert figures()[3:] == (2, 1)
    bench.now_ms += LEASE_MS
    new = receive(bench)
    assert figures() == (0, 3, 0, 2, 2), "its attempts were over"
    for one in new:
        acknowledge(delivery, "workers", "orders", one.receipt_handle, bench.now_ms)
    assert figures() == (0, 0, 0, 2, 2)
    names = ("ready_messages", "inflight_messages", "redelivered_messages", "dead_letters")
    assert [bench.counter(name) for name in names] == [0, 0, 2, 2]


async def test_a_deleted_topic_takes_the_figures_of_its_groups_with_it(bench: Bench) -> None:
    send(bench.store, b"x")
    receive(bench)
    assert bench.values("rocketmq_consumer_ready_messages", topic="orders")
    bench.parts.model.delivery.forget_topic("orders", NOW_MS)
    for name in ("consumer_ready_messages", "send_to_dlq_messages_total"):
        assert not bench.values(f"rocketmq_{name}", topic="orders")


async def test_events_and_receives_that_wait(bench: Bench) -> None:
    written = bench.counter("events")
    receive(bench)
    pending = bench.counter("events_pending")
    assert pending == bench.value("trovemq_events_pending") > 0
    bench.parts.model.events.flush(NOW_MS)
    assert bench.value("trovemq_events_pending") == 0
    assert bench.value("trovemq_events_total") == bench.counter("events") == written + pending
    assert bench.value("rocketmq_processor_watermark", processor="receive") == 0
    with bench.parts.waits.enter("workers", "orders"):
        assert bench.value("rocketmq_processor_watermark", processor="receive") == 1
        assert bench.counter("receives_waiting") == 1


# --- delayed messages and transactions ----------------------------------------------------------------
def message(unique_key: str, topic: str = "orders") -> NewRecord:
    return NewRecord(topic, QueueId(0), b"body", {"UNIQ_KEY": unique_key}, born_timestamp=NOW_MS)


async def test_delayed_messages(bench: Bench) -> None:
    timers = bench.parts.model.timers
    for number in range(3):
        timers.schedule(message(f"U{number}"), NOW_MS + 1_000 * (number + 1), NOW_MS)
    bench.dispatch()
    assert bench.value("rocketmq_timing_messages", topic="orders") == bench.counter("timers_pending") == 3
    timers.recall("orders", NOW_MS + 3_000, "U2", NOW_MS)
    bench.now_ms = NOW_MS + 1_250
    assert bench.value("rocketmq_timer_dequeue_latency") == bench.counter("timer_behind_ms") == 250
    timers.deliver_due(bench.now_ms)
    assert bench.value("rocketmq_timer_dequeue_latency") == 0
    assert bench.value("rocketmq_timing_messages", topic="orders") == 1
    assert (
        bench.value("rocketmq_timer_enqueue_total", topic="orders") == bench.counter("timers_enqueued") == 3
    )
    assert (
        bench.value("rocketmq_timer_dequeue_total", topic="orders") == bench.counter("timers_dequeued") == 1
    )
    assert bench.value("trovemq_timers_recalled_total") == bench.counter("timers_recalled") == 1
    timers.deliver_due(NOW_MS + 5_000)
    assert bench.value("rocketmq_timing_messages", topic="orders") == 0, "a topic that has none is shown"


async def test_how_late_a_delayed_message_was(bench: Bench) -> None:
    bench.parts.timer_task.lateness_max_ms = 40
    assert bench.value("trovemq_timer_lateness_max_ms") == bench.counter("timer_lateness_max_ms") == 40


async def test_transactions_by_how_they_end(bench: Bench) -> None:
    transactions, settings = bench.parts.model.transactions, bench.parts.model.settings
    for number in range(5):
        transactions.prepare(message(f"U{number}"), NOW_MS)
    assert bench.value("rocketmq_half_messages", topic="orders") == bench.counter("half_messages") == 5
    for number, commit in enumerate((True, True, True, False)):
        transactions.end(f"U{number}", "orders", commit, NOW_MS)
    assert bench.value("rocketmq_half_messages", topic="orders") == 1
    commits = bench.value("rocketmq_commit_messages_total", topic="orders")
    assert commits == bench.counter("transactions_committed") == 3
    rollbacks = bench.value("rocketmq_rollback_messages_total", topic="orders")
    assert rollbacks == bench.counter("transactions_rolled_back") == 1
    for _ in range(settings.transaction_check_max + 1):
        assert bench.counter("transactions_given_up") == 0
        bench.now_ms += settings.transaction_timeout_ms + settings.transaction_check_interval_ms
        transactions.due_checks(bench.now_ms)
    assert bench.value("trovemq_transactions_given_up_total") == bench.counter("transactions_given_up") == 1
    assert bench.counter("half_messages") == 0
    assert not bench.values("rocketmq_half_messages"), "no entry is kept for a topic without any"
    transactions.forget_topic("orders")
    assert not bench.values("rocketmq_commit_messages_total")


async def test_a_commit_that_is_refused_is_not_counted(bench: Bench) -> None:
    with pytest.raises(TroveError):
        bench.parts.model.transactions.end("nobody", "orders", True, NOW_MS)
    assert bench.counter("transactions_committed") == 0


async def test_snapshots_that_cannot_be_saved(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    model, group_commit = bench.parts.model, bench.parts.group_commit
    failed = asyncio.Event()

    def refuse(_now_ms: EpochMs) -> None:
        if model.snapshot_failures == 2:
            failed.set()
        raise TroveError(errors.DISK_FULL, "no space")

    monkeypatch.setattr(model, "begin_snapshot", refuse)
    monkeypatch.setattr(consumer_tasks, "SNAPSHOT_POLL_S", 0)
    task = asyncio.create_task(
        consumer_tasks.save_snapshots(model, group_commit.durable, lambda: bench.now_ms)
    )
    await failed.wait()
    assert bench.value("trovemq_snapshot_failures_total") == bench.counter("snapshot_failures") >= 2
    task.cancel()


# --- clients ------------------------------------------------------------------------------------------
class Stream:
    def send(self, command: ClientCommand) -> None: ...

    def may_be_asked(self, topic: str) -> bool:
        return True

    def close(self) -> None: ...


async def test_connections_by_what_clients_say_of_themselves(bench: Bench) -> None:
    clients = bench.parts.registry
    producer = ClientDescription(client_type=ClientType.PRODUCER, language="JAVA", version="5.0.7")
    simple = ClientDescription(
        client_type=ClientType.SIMPLE_CONSUMER, group="g", language="GOLANG", version="V5.1"
    )
    push = replace(simple, client_type=ClientType.PUSH_CONSUMER)
    descriptions = [producer, producer, simple, push, push, replace(push, language="", version="")]
    for number, description in enumerate(descriptions):
        clients.settle(f"c{number}", description, NOW_MS)
    clients.attach("c0", Stream())
    java = {"language": "java", "version": "5.0.7", "protocol_type": "grpc"}
    assert bench.value("rocketmq_producer_connections", **java) == 2
    golang = {"language": "golang", "version": "v5.1", "consumer_group": "g", "is_system": "false"}
    assert bench.value("rocketmq_consumer_connections", consume_mode="pull", **golang) == 1
    assert bench.value("rocketmq_consumer_connections", consume_mode="push", **golang) == 2
    assert bench.value("rocketmq_consumer_connections", language="unknown", version="unknown") == 1
    assert bench.value("trovemq_clients") == bench.counter("clients") == 6
    assert (bench.counter("producers"), bench.counter("consumers")) == (2, 4)
    assert bench.value("trovemq_telemetry_streams") == bench.counter("telemetry_streams") == 1
    clients.terminate("c0", NOW_MS)
    assert bench.value("rocketmq_producer_connections", **java) == 1
    assert bench.value("trovemq_telemetry_streams") == 0


async def test_a_client_is_forgotten_after_the_time_that_is_set() -> None:
    bench = Bench(BrokerSettings(client_expiry_ms=5_000))
    clients = bench.parts.registry
    clients.settle("c", ClientDescription(client_type=ClientType.PRODUCER), NOW_MS)
    clients.attach("c", Stream())
    assert clients.expire(NOW_MS + 5_000) == []
    assert clients.expire(NOW_MS + 5_001) == ["c"]
    assert bench.value("trovemq_clients") == 0
    bench.close()


async def test_a_name_that_a_client_made_up_does_not_break_the_page(bench: Bench) -> None:
    evil = ClientDescription(client_type=ClientType.PRODUCER, language='a"} 1\nx{b="', version="\\")
    bench.parts.registry.settle("c", evil, NOW_MS)
    assert bench.value("rocketmq_producer_connections", language=evil.language, version="\\") == 1
