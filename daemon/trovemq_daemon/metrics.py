"""A Prometheus registry of one daemon, and the metrics that both daemons have."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from trovemq_daemon.limits import ConnectionLimit
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_daemon.slow_requests import SlowRequests
from trovemq_daemon.transport_budget import TransportBudget
from trovemq_rpc.metrics import Metrics as Transport

RPC_LATENCY_BUCKETS_MS: Final = (0.5, 1, 3, 5, 10, 30, 100, 500, 1_000, 3_000, 10_000)


def new_registry(version: str) -> CollectorRegistry:
    """A registry with metrics of process, platform and garbage collector, and `trovemq_build_info`."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Gauge("trovemq_build_info", "Always 1; the version is the label.", ["version"], registry=registry)
    build.labels(version=version).set(1)
    return registry


class Buckets:
    """A histogram of plain numbers: to count a value costs a bisection and an addition."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper ends, inclusive and ascending; one more bucket counts larger values."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    @property
    def count(self) -> int:
        """How many values were added."""
        return sum(self.counts)

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def add_alike(self, count: int, total: float) -> None:
        """Adds `count` equal values, by their sum."""
        self.counts[bisect_left(self.bounds, total / count)] += count
        self.total += total

    def add_counts(self, counts: Sequence[int], total: float) -> None:
        """Adds many values: how many of them are in each bucket, and their sum."""
        for i, count in enumerate(counts):
            if count:
                self.counts[i] += count
        self.total += total

    def cumulative(self) -> list[tuple[str, float]]:
        """The form of Prometheus: (upper end, number of values up to it)."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class RpcMetrics(Collector):
    """`rocketmq_rpc_latency` (ms) with RocketMQ's labels, and the number of open streams.

    A stream of frames is not timed as a whole: the code that serves the frames calls `observe` for each of
    them.
    """

    def __init__(self, registry: CollectorRegistry, *, cluster: str, node_type: str, node_id: str) -> None:
        self._node = {"cluster": cluster, "node_type": node_type, "node_id": node_id}
        self._latencies: dict[tuple[str, str, str, bool], Buckets] = {}
        self._streams: Counter[str] = Counter()
        self.replies: ReplyBudget | None = None
        self.slow: Final = SlowRequests()
        self._transport: Transport | None = None
        self._budget: TransportBudget | None = None
        self._connections = ConnectionLimit()
        registry.register(self)

    def add_transport(
        self, transport: Transport, budget: TransportBudget, connections: ConnectionLimit
    ) -> None:
        """Adds the metrics of `trovemq_rpc`; grpcio has none of them."""
        self._transport, self._budget, self._connections = transport, budget, connections

    def observe(
        self,
        method: str,
        response: str,
        elapsed_ms: float,
        *,
        is_long_polling: bool = False,
        count: int = 1,
        protocol: str = "grpc",
    ) -> None:
        """Counts one answered request, or `count` that took the same time. `response`: OK or the symbol of an
        error."""
        key = (protocol, method, response, is_long_polling)
        buckets = self._latencies.get(key)
        if buckets is None:
            buckets = self._latencies[key] = Buckets(RPC_LATENCY_BUCKETS_MS)
        buckets.add(elapsed_ms, count)

    def stream_opened(self, method: str) -> None:
        self._streams[method] += 1

    def stream_closed(self, method: str) -> None:
        self._streams[method] -= 1

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise registering would collect

    def collect(self) -> Iterator[Metric]:
        labels = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")
        latency = HistogramMetricFamily(
            "rocketmq_rpc_latency",
            "Time that a request took, in milliseconds.",
            labels=(*self._node, *labels),
        )
        for (protocol, method, response, polling), buckets in self._latencies.items():
            result = "success" if response == "OK" else "failed"
            values = (protocol, method, response, str(polling).lower(), result)
            latency.add_metric((*self._node.values(), *values), buckets.cumulative(), buckets.total)
        yield latency
        streams = GaugeMetricFamily(
            "trovemq_open_streams", "Streams now open, by method.", labels=(*self._node, "request_code")
        )
        for method, count in self._streams.items():
            streams.add_metric((*self._node.values(), method), count)
        yield streams
        slow = CounterMetricFamily(
            "trovemq_slow_requests",
            "Requests that took slow_request_ms or longer.",
            labels=(*self._node, "request_code"),
        )
        for method, count in self.slow.counts.items():
            slow.add_metric((*self._node.values(), method), count)
        yield slow
        if self.replies is not None:
            yield from self._of_replies(self.replies)
        if self._transport is not None and self._budget is not None:
            yield from self._of_transport(self._transport, self._budget)

    def _of_transport(self, transport: Transport, budget: TransportBudget) -> Iterator[Metric]:
        for name, what, value in (
            ("trovemq_connections", "Connections now open.", transport.connections),
            ("trovemq_connections_max", "The most that are accepted.", self._connections.limit),
            ("trovemq_request_bytes", "Bytes of requests received and not read.", budget.request_bytes),
        ):
            gauge = GaugeMetricFamily(name, what, labels=tuple(self._node))
            gauge.add_metric(tuple(self._node.values()), value)
            yield gauge
        for name, what, value in (
            ("trovemq_connections_opened", "Connections opened.", transport.connections_opened),
            (
                "trovemq_connections_above_limit",
                "Connections refused because of the limit.",
                self._connections.refused,
            ),
            (
                "trovemq_connections_not_accepted",
                "Connections that waited, or were lost, because no descriptor was free.",
                transport.accepts_failed,
            ),
            (
                "trovemq_connections_refused",
                "Connections of another protocol, or whose TLS failed.",
                transport.refused_connections,
            ),
            (
                "trovemq_keepalive_timeouts",
                "Connections whose peer did not answer.",
                transport.keepalive_timeouts,
            ),
            ("trovemq_calls_refused", "Calls above the limit of open calls.", transport.calls_refused),
            ("trovemq_calls_stalled", "Calls whose request stopped before its end.", transport.calls_stalled),
            (
                "trovemq_window_stalls",
                "Replies that waited for their client's window.",
                transport.window_stalls,
            ),
        ):
            yield self._counter(name, what, value)
        for name, what, counts in (
            ("trovemq_connections_ended", "GOAWAYs sent, by code.", transport.goaways_sent),
            ("trovemq_streams_reset", "Streams that clients reset, by code.", transport.resets_received),
        ):
            family = CounterMetricFamily(name, what, labels=(*self._node, "code"))
            for code, count in counts.items():
                family.add_metric((*self._node.values(), code), count)
            yield family

    def _counter(self, name: str, what: str, value: float) -> CounterMetricFamily:
        counter = CounterMetricFamily(name, what, labels=tuple(self._node))
        counter.add_metric(tuple(self._node.values()), value)
        return counter

    def _of_replies(self, replies: ReplyBudget) -> Iterator[Metric]:
        budget = replies.budget
        for name, what, value in (
            ("trovemq_reply_bytes", "Bytes of replies that are ready and not read.", budget.used),
            ("trovemq_reply_bytes_peak", "The most bytes of unread replies at any time.", budget.used_max),
            ("trovemq_reply_connections", "Connections that have unread replies.", budget.peer_count),
        ):
            gauge = GaugeMetricFamily(name, what, labels=tuple(self._node))
            gauge.add_metric(tuple(self._node.values()), value)
            yield gauge
        unread = replies.ended_count + (self._transport.calls_unread if self._transport is not None else 0)
        for name, what, value in (
            ("trovemq_reply_waits", "Replies that waited for space before they were made.", budget.waits),
            (
                "trovemq_reply_refusals",
                "Calls refused without space for their reply.",
                replies.refused_count,
            ),
            ("trovemq_reply_unread", "Calls that ended because their reply was not read.", unread),
        ):
            yield self._counter(name, what, value)
