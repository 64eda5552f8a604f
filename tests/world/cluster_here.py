"""A nameserver and brokers in the test's own process and event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trovemq
from tests.support.broker_here import BrokerHere, broker_here
from trovemq_nameserver.app import NameserverApp
from trovemq_nameserver.settings import NameserverSettings

HEARTBEAT_MS = 100
ROUTE_WAIT_S = 60.0


@dataclass
class ClusterHere:
    """Brokers by name; each starts with `start` and ends with `stop`, and keeps its store and its address."""

    path: Path
    server: str
    values: dict[str, Any]
    brokers: dict[str, BrokerHere] = field(default_factory=dict)
    _ends: dict[str, AsyncExitStack] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)

    async def start(self, name: str, **values: Any) -> BrokerHere:
        end = AsyncExitStack()
        here = broker_here(
            self.path / name,
            name=name,
            nameserver=(self.server,),
            heartbeat_interval_ms=HEARTBEAT_MS,
            **{"listen": self._addresses.get(name, "127.0.0.1:0"), **self.values, **values},
        )
        broker = await end.enter_async_context(here)
        self.brokers[name], self._ends[name] = broker, end
        self._addresses[name] = broker.address
        return broker

    async def stop(self, name: str) -> None:
        """A clean stop."""
        del self.brokers[name]
        await self._ends.pop(name).aclose()

    async def close(self) -> None:
        for name in list(self.brokers):
            await self.stop(name)

    def connect(self, **options: Any) -> trovemq.client.Connecting:
        return trovemq.connect(self.server, wait_ms=30_000, options=trovemq.ClientOptions(**options))


@asynccontextmanager
async def cluster_here(path: Path, **values: Any) -> AsyncIterator[ClusterHere]:
    """`values`: settings of all brokers."""
    app = NameserverApp(NameserverSettings(listen="127.0.0.1:0", http="off", broker_broken_ms=100))
    address, _ = await app.start()
    cluster = ClusterHere(path, str(address), values)
    try:
        yield cluster
    finally:
        await cluster.close()
        await app.stop()


async def until_routed(client: trovemq.Client, topic: str, *names: str, queue_count: int = 1) -> None:
    """Waits until the client knows `queue_count` queues of the topic on each of these brokers, and on no
    other."""
    slots = client._pool.routes.slots

    def routed() -> bool:
        counts = {broker: 0 for broker, _ in slots(topic)}
        for broker, _ in slots(topic):
            counts[broker] += 1
        return counts == dict.fromkeys(names, queue_count)

    assert await client._pool.routes.wait_until(routed, ROUTE_WAIT_S), slots(topic)
