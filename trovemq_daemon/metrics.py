"""A Prometheus registry of one daemon, and what every daemon of ours reports about itself."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram, disable_created_metrics
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

RPC_LATENCY_BUCKETS_MS: Final = (0.5, 1, 3, 5, 10, 30, 100, 500, 1_000, 3_000, 10_000)


def new_registry(version: str) -> CollectorRegistry:
    """A registry with process, platform and garbage collector figures and `trovemq_build_info`."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Gauge("trovemq_build_info", "Always 1; the version is the label.", ["version"], registry=registry)
    build.labels(version=version).set(1)
    return registry


class RpcMetrics:
    """`rocketmq_rpc_latency` (ms) of unary calls, with RocketMQ's labels, and the number of open streams.

    A call that carries a frame stream is not timed as a whole; whoever serves the frames may call
    `observe` for each of them.
    """

    def __init__(self, registry: CollectorRegistry, *, cluster: str, node_type: str, node_id: str) -> None:
        node = {"cluster": cluster, "node_type": node_type, "node_id": node_id}
        labels = ["protocol_type", "request_code", "response_code", "is_long_polling", "result"]
        self._node = node
        self._latency = Histogram(
            "rocketmq_rpc_latency",
            "Time that a request took, in milliseconds.",
            [*node, *labels],
            buckets=RPC_LATENCY_BUCKETS_MS,
            registry=registry,
        )
        self._streams = Gauge(
            "trovemq_open_streams", "Streams now open, by method.", [*node, "request_code"], registry=registry
        )
        self._children: dict[tuple[str, str, bool], Histogram] = {}

    def observe(
        self, method: str, response: str, elapsed_ms: float, *, is_long_polling: bool = False
    ) -> None:
        """Counts one answered request. `response` is OK or the symbol of an error: both sets are small."""
        key = (method, response, is_long_polling)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._latency.labels(
                **self._node,
                protocol_type="grpc",
                request_code=method,
                response_code=response,
                is_long_polling=str(is_long_polling).lower(),
                result="success" if response == "OK" else "failed",
            )
        child.observe(elapsed_ms)

    def stream_opened(self, method: str) -> None:
        self._streams.labels(**self._node, request_code=method).inc()

    def stream_closed(self, method: str) -> None:
        self._streams.labels(**self._node, request_code=method).dec()
