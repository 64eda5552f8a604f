"""Makes this broker's part in the cluster's configuration of its settings and the parts of its store."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from trovemq_broker.admin.change_saver import Durable
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Endpoints
from trovemq_broker.cluster.config_metrics import ConfigCollector
from trovemq_broker.cluster.config_node import ConfigNode, NodeParts
from trovemq_broker.cluster.config_store import ConfigStore
from trovemq_broker.cluster.registration import registration_channels
from trovemq_broker.cluster.view import LocalBroker
from trovemq_broker.cluster_config.entries import ClockMs
from trovemq_broker.cluster_config.local_tables import LocalTables
from trovemq_broker.cluster_config.logged import LoggedTable
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_daemon.addresses import Address
from trovemq_daemon.ops_http import Readiness
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.channels import ChannelSettings
from trovemq_store.files.files import FileSystem


def monotonic_ms() -> ClockMs:
    return ClockMs(time.monotonic_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """The table of the store, and how other brokers are found and called. `channels`: of connections to
    nameservers."""

    stored: StoredTable
    routes: ClusterRoutes
    channels: ChannelSettings
    credentials: Callable[[], Credentials] | None = None


def single(files: FileSystem) -> ClusterParts:
    """Of a broker that knows no other one. Blocks. TroveError STORE_FAILED, STORE_NEWER."""
    return ClusterParts(StoredTable.load(files), ClusterRoutes(time.monotonic), registration_channels())


def config_node(
    settings: BrokerSettings,
    address: Address,
    files: FileSystem,
    cluster: ClusterParts,
    tables: LocalTables,
    view: LocalBroker,
    committed: Durable,
) -> ConfigNode:
    """`address`: where other brokers reach this one. `committed`: of a replica group, whose log has the
    table."""
    waits = committed if isinstance(cluster.stored, LoggedTable) else None
    return ConfigNode(
        NodeParts(
            broker=settings.name,
            address=address,
            owner=settings.owner_named,
            store=ConfigStore(cluster.stored, files, lambda: secrets.token_hex(8), waits),
            tables=tables,
            routes=cluster.routes,
            endpoints=Endpoints(cluster.routes, cluster.channels, must_check=settings.authentication_enable),
            credentials=cluster.credentials,
            settings=settings,
            jitter=random.random,
            clock_ms=monotonic_ms,
            draw_mark=lambda: secrets.token_hex(8),
            publish=view.set_config,
            placed=view.placements_changed,
            sleep=sleep_to_tick,
        )
    )


def show_config(
    readiness: Readiness, registry: CollectorRegistry, gate: ServingGate, node: ConfigNode
) -> None:
    """Adds its reasons to /readyz, its figures to /metrics, its refusal to calls."""
    gate.refusal = node.condition.refusal
    registry.register(ConfigCollector(node))
    readiness.add("configuration", node.condition.problem)
    readiness.add_warning("configuration", node.condition.warning)


class Registering(Protocol):
    """The registrations with nameservers."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


async def serve_messages(node: ConfigNode, gate: ServingGate, registrations: Sequence[Registering]) -> None:
    """Serves messages, and registers this broker at nameservers: not before it has a configuration, and
    not after it was removed from the cluster."""
    await node.until_serves()
    gate.refusal = None  # no call asks while messages are served
    for each in registrations:
        each.start()
    await node.until_removed()
    gate.refusal = node.condition.refusal
    await stop_all(registrations)


async def stop_all(registrations: Sequence[Registering]) -> None:
    """Unregisters this broker everywhere."""
    await asyncio.gather(*(each.stop() for each in registrations))
