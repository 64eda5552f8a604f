"""Brokers of one cluster's configuration in the test's own event loop: real nodes and services over loopback,
a store in memory, the time of the test.

Nothing sleeps: a test calls `second()` of the brokers, and waits for a state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from trovemq_broker.cluster.cluster_reply import RoutedBroker, Routes
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Endpoints
from trovemq_broker.cluster.config_node import ConfigNode, NodeParts
from trovemq_broker.cluster.config_store import ConfigStore
from trovemq_broker.cluster.owner_finder import OwnerNamed
from trovemq_broker.cluster.view import ConfigSummary
from trovemq_broker.cluster_config.entries import ChangeKind, ClockMs, ConfigChange, Key, Kind
from trovemq_broker.cluster_config.local_tables import Failure
from trovemq_broker.cluster_config.reconcile import Action, ActionKind, LocalEntry
from trovemq_broker.cluster_config.shared import SharedConfig
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.server.native.cluster_config_service import ClusterConfigService
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_store.files.memory import MemoryFileSystem

WAIT_S: Final = 60.0


@dataclass(frozen=True)
class FastRetries:
    registration_retry_min_ms: int = 1
    registration_retry_max_ms: int = 20


class FakeTables:
    """A broker's own tables: topics and groups without messages. Actions on `failing` names fail."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.have: dict[Key, LocalEntry] = {}
        self.withheld: set[Key] = set()
        self.failing: set[str] = set()
        self.free = asyncio.Event()
        """Actions wait until it is set."""
        self.free.set()

    def add(self, kind: Kind, name: str, queues: int = 0, **settings: str) -> None:
        """As it was made before the broker had a table."""
        self.have[Key(kind, name)] = LocalEntry(Key(kind, name), None, settings, queues)

    def names(self, kind: Kind = Kind.TOPIC) -> list[str]:
        return sorted(key.name for key in self.have if key.kind is kind)

    def founding(self) -> Sequence[ConfigChange]:
        return [
            ConfigChange(
                ChangeKind.CREATE,
                entry.key.kind,
                entry.key.name,
                settings=entry.settings,
                placement={self.broker: entry.queues} if entry.queues else {},
                secrets=entry.secrets,
            )
            for entry in self.have.values()
        ]

    def entries(self, keys: Collection[Key] | None = None) -> Mapping[Key, LocalEntry]:
        return {key: entry for key, entry in self.have.items() if keys is None or key in keys}

    async def carry_out(self, actions: Sequence[Action]) -> list[Failure]:
        failures = []
        await self.free.wait()
        for action in actions:
            if action.key.name in self.failing:
                failures.append(Failure(action, TroveError(errors.DISK_FULL, "no space")))
            elif action.kind is ActionKind.DELETE:
                self.have.pop(action.key)
            elif action.kind is ActionKind.WITHHOLD:
                self.withheld.add(action.key)
            elif action.entry is not None:
                entry = action.entry
                queues = entry.queues_on(self.broker) if entry.kind is Kind.TOPIC else 0
                self.have[action.key] = LocalEntry(
                    action.key, entry.id, dict(entry.settings), queues, entry.secrets
                )
        return failures


@dataclass(eq=False)
class ConfigBroker:
    """One broker: `start()`, `stop()`, and again over the same files."""

    cluster: ConfigCluster
    name: str
    owner: str = ""
    files: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    up: bool = False

    def __post_init__(self) -> None:
        self.tables = FakeTables(self.name)
        self.placed: list[str] = []
        self.summary: ConfigSummary | None = None
        self.handled: list[tuple[str, bytes, str, str]] = []
        self.routes = ClusterRoutes(lambda: 0.0)

    async def start(self) -> None:
        metrics = RpcMetrics(new_registry("1"), cluster="c", node_type="broker", node_id=self.name)
        self.server = GrpcServer(GrpcLimits(), metrics)
        self.address = self.server.bind(Address("127.0.0.1", 0))
        channels = ChannelSettings(reconnect_min_ms=1, reconnect_max_ms=20)
        named = None
        if self.owner:
            name, _, text = self.owner.partition("@")
            named = OwnerNamed(name, parse_address(text) if text else None)
        self.node = ConfigNode(
            NodeParts(
                broker=self.name,
                address=self.address,
                owner=named,
                store=ConfigStore(StoredTable.load(self.files), self.files, self.cluster.draw),
                tables=self.tables,
                routes=self.routes,
                endpoints=Endpoints(self.routes, channels),
                credentials=None,
                settings=FastRetries(),
                jitter=lambda: 0.0,
                clock_ms=lambda: ClockMs(self.cluster.now_ms),
                draw_mark=self.cluster.draw,
                publish=self._publish,
                placed=self.placed.extend,
                sleep=_never,
            )
        )
        ClusterConfigService(self.node, self._handle).add_to(self.server.server)
        self.up = True
        self.cluster.announce()
        await self.node.start()
        await self.server.start()

    def _publish(self, summary: ConfigSummary | None, now: bool) -> None:
        self.summary = summary
        if now:
            self.cluster.announce()

    async def _handle(self, method: str, request: bytes, caller: str, source: str) -> bytes:
        """A client's call: creates the topic of that name on all members."""
        self.handled.append((method, request, caller, source))
        await self.create_topic(request.decode())
        return b"made " + request

    async def create_topic(self, name: str, **settings: str) -> Any:
        def make(table: ConfigTable) -> list[ConfigChange]:
            placement = dict.fromkeys(table.members(), 4)
            return [ConfigChange(ChangeKind.CREATE, Kind.TOPIC, name, None, settings, placement)]

        shared: SharedConfig = self.node
        (result,) = await shared.change(make)
        return result

    async def delete(self, kind: Kind, name: str) -> Any:
        def make(table: ConfigTable) -> list[ConfigChange]:
            entry = table.live(kind, name)
            assert entry is not None
            return [ConfigChange(ChangeKind.DELETE, kind, name, entry.version)]

        (result,) = await self.node.change(make)
        return result

    async def stop(self) -> None:
        self.up = False
        await self.node.stop()
        await self.server.stop(0)
        self.cluster.announce()

    @property
    def state(self) -> str:
        return str(self.node.status().state)


class ConfigCluster:
    """The brokers, their time, and the routes that a nameserver would give."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.brokers: dict[str, ConfigBroker] = {}
        self.hidden: set[str] = set()
        """Brokers that are not in the routes."""
        self._drawn = 0

    def draw(self) -> str:
        self._drawn += 1
        return f"{self._drawn:016x}"

    async def add(self, name: str, owner: str = "") -> ConfigBroker:
        self.brokers[name] = broker = ConfigBroker(self, name, owner)
        await broker.start()
        return broker

    def announce(self) -> None:
        """Gives each broker the routes of the others."""
        for broker in self.brokers.values():
            others = {
                other.name: RoutedBroker(other.name, other.address, None, False, 1, {}, other.summary)
                for other in self.brokers.values()
                if other.up and other is not broker and other.name not in self.hidden
            }
            broker.routes.report("ns", Routes(others))

    async def second(self, ms: int = 1_000) -> None:
        self.now_ms += ms
        for broker in self.brokers.values():
            if broker.up and broker.node.is_shared:
                await broker.node.second()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when it holds. Gives way to the event loop, and to the network, meanwhile."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.001)


@asynccontextmanager
async def config_cluster() -> AsyncIterator[ConfigCluster]:
    cluster = ConfigCluster()
    try:
        yield cluster
    finally:
        for broker in cluster.brokers.values():
            if broker.up:
                await broker.stop()


async def two(cluster: ConfigCluster) -> tuple[ConfigBroker, ConfigBroker]:
    """An owner `a` and `b`, which follows it."""
    owner = await cluster.add("a")
    follower = await cluster.add("b", "a")
    await cluster.until(lambda: follower.state == "current" and owner.node.status().members[1].live)
    return owner, follower


async def refused(work: Awaitable[object], spec: ErrorSpec) -> TroveError:
    with pytest.raises(TroveError) as found:
        await work
    assert found.value.spec is spec, found.value
    return found.value


async def _never(_seconds: float) -> None:
    await asyncio.Event().wait()
