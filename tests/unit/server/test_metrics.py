"""The /metrics page, read by Prometheus' own parser; each name is on the page about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.config_figures import FakeFigures, FakeStatus
from tests.support.engine import NOW_MS, append, record, send
from tests.support.metrics_bench import Bench
from tests.support.services_here import security_on
from trovemq_broker.cluster.call_forwarding import CallForwarder
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Endpoints
from trovemq_broker.cluster.config_metrics import ConfigCollector
from trovemq_broker.cluster.registration import registration_channels
from trovemq_broker.cluster.remoting_relay import RelaysCollector, RemotingRelay
from trovemq_broker.cluster.route_metrics import ForwardsCollector, RoutesCollector
from trovemq_broker.daemon.replica.election_figures import ElectionFigures
from trovemq_broker.daemon.replica.operations import ReplicaCollector, RoleFigures
from trovemq_broker.daemon.security import AccessCollector
from trovemq_broker.groups.lag.stored import lag_steps
from trovemq_broker.replication.status import NodeStatus
from trovemq_broker.server.access.gate import Gate
from trovemq_broker.server.monitoring.traffic import MESSAGE_SIZE_BUCKETS
from trovemq_daemon.exposition import text_of
from trovemq_daemon.limits import ConnectionLimit
from trovemq_daemon.metrics import RPC_LATENCY_BUCKETS_MS
from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits
from trovemq_daemon.transport_budget import TransportBudget
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_rpc.metrics import Metrics as Transport
from trovemq_store.engine.steps import finished
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.damage_counts import DamageCounts

PAGE = Path(__file__).resolve().parents[3] / "docs" / "statistics.md"


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.now_ms = NOW_MS + 5_000
    yield made
    made.close()


@pytest.mark.asyncio
async def test_sizes_of_messages_are_exact_also_within_a_batch(bench: Bench) -> None:
    sizes = [100, 1_100, 1_100, 5_000]
    result = append(bench.store, *(record(bytes(size)) for size in sizes))
    traffic = bench.parts.traffic
    traffic.appended("orders", result.record_count, result.bytes_written, result.positions)
    of_topic = {"topic": "orders", "message_type": "NORMAL", "is_system": "false"}
    counts = [
        bench.value("rocketmq_message_size_bucket", le=str(float(le)), **of_topic)
        for le in MESSAGE_SIZE_BUCKETS
    ]
    assert counts == [1, 3, 4, 4, 4, 4]
    assert bench.value("rocketmq_message_size_sum", **of_topic) == result.bytes_written
    traffic.appended("orders", 1, 2_000, result.positions[:1])
    assert bench.value("rocketmq_message_size_count", **of_topic) == 5
    traffic.forget("orders")
    assert "rocketmq_message_size_count" not in text_of(bench.registry).decode()


@pytest.mark.asyncio
async def test_a_second_scrape_shows_what_has_changed_since_the_first(bench: Bench) -> None:
    """Labels and numbers, also those of a topic that was deleted and created with another type."""
    traffic, topics = bench.parts.traffic, bench.store.topics
    name, found = "rocketmq_messages_in_total", []
    for message_type in ("NORMAL", "FIFO"):
        topics.create("again", queue_count=1, message_type=message_type)
        for _ in range(2):
            traffic.appended("again", 1, 100)
            found.append(bench.value(name, topic="again", message_type=message_type))
        topics.delete("again")
        traffic.forget("again")
        assert bench.values(name, topic="again") == []
    assert found == [1, 2, 1, 2]


@pytest.mark.asyncio
async def test_latencies_of_calls_and_frames(bench: Bench) -> None:
    for elapsed_ms in (0.2, 0.5, 0.7, 20_000):
        bench.rpc.observe("Fetch", "OK", elapsed_ms)
    bench.rpc.observe("Fetch", "TOPIC_NOT_FOUND", 1, is_long_polling=True)
    labels = {"request_code": "Fetch", "response_code": "OK", "result": "success", "is_long_polling": "false"}
    bounds = [str(float(bound)) for bound in RPC_LATENCY_BUCKETS_MS]
    assert [bench.value("rocketmq_rpc_latency_bucket", le=le, **labels) for le in bounds] == [2, *[3] * 10]
    assert bench.value("rocketmq_rpc_latency_bucket", le="+Inf", **labels) == 4
    assert bench.value("rocketmq_rpc_latency_count", result="failed", is_long_polling="true") == 1


@pytest.mark.asyncio
async def test_lag_in_messages_and_in_time(bench: Bench) -> None:
    for number in range(5):
        send(bench.store, b"x", now_ms=NOW_MS + 1_000 * number)
    send(bench.store, b"x", now_ms=NOW_MS + 4_000, queue_id=1)
    labels = {"consumer_group": "g", "topic": "orders", "node_id": "broker-a", "is_retry": "false"}
    bench.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(3))
    bench.store.offsets.commit("g", "orders", QueueId(1), QueueOffset(0))
    bench.store.offsets.commit("g", "orders", QueueId(2), QueueOffset(0))
    assert bench.value("rocketmq_consumer_lag_messages", **labels) == 3
    assert bench.value("rocketmq_consumer_lag_latency", **labels) == 2_000
    bench.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(5))
    bench.store.offsets.commit("g", "orders", QueueId(1), QueueOffset(1))
    assert bench.value("rocketmq_consumer_lag_messages", **labels) == 0
    assert bench.value("rocketmq_consumer_lag_latency", **labels) == 0
    bench.store.offsets.commit("other", "orders", QueueId(0), QueueOffset(0))
    assert len(finished(lag_steps(bench.store, 1, lambda _: 0))) == 1
    assert bench.value("rocketmq_storage_message_reserve_time") == 5_000


@pytest.mark.asyncio
async def test_every_figure_stands_on_the_page(bench: Bench) -> None:
    bench.rpc.observe("Send", "OK", 1)
    bench.rpc.replies = replies = ReplyBudget(ReplyLimits())
    bench.rpc.add_transport(Transport(), TransportBudget(replies.budget, 1 << 20), ConnectionLimit())
    gate = Gate(authorization=True, cluster="C", clock_ms=lambda: NOW_MS)
    bench.registry.register(AccessCollector(gate, security_on(MemoryFileSystem())))
    routes = ClusterRoutes(lambda: 0.0)
    bench.registry.register(RoutesCollector(routes, list))
    calls = CallForwarder(routes, Endpoints(routes, registration_channels()), None)
    bench.registry.register(ForwardsCollector(calls))
    bench.registry.register(RelaysCollector(RemotingRelay(lambda: None)))
    bench.registry.register(ConfigCollector(FakeFigures(FakeStatus("alone"))))
    figures = RoleFigures(DamageCounts())
    bench.registry.register(ReplicaCollector(lambda: NodeStatus(group="g", node="a"), lambda: figures))
    elections = ElectionFigures("g")
    elections.called("Range", 0.001, answered=True)
    elections.led(1, "failover")
    bench.registry.register(elections)
    families = text_string_to_metric_families(text_of(bench.registry).decode())
    ours = {family.name for family in families if family.name.startswith(("rocketmq_", "trovemq_"))}
    page = PAGE.read_text(encoding="utf-8")
    described = re.findall(r"^\| `(\w+)`", page, re.MULTILINE)
    assert len(described) == len(set(described)), "each once"
    shown = {re.sub("_total$", "", name) for name in described if name.startswith(("rocketmq_", "trovemq_"))}
    assert shown == ours
    counters = {name for name in described if not name.startswith(("rocketmq_", "trovemq_"))}
    assert counters == set(bench.statistics.counters())
