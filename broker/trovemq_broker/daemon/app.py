"""The daemon from start to stop; `broker_services` is the composition root, which creates all parts and
connects them.

Its order: listen (nothing is served yet) - open and recover the store - serve - drain - close the store.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from trovemq_broker.cluster.call_forwarding import CallForwarder
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Endpoints
from trovemq_broker.cluster.registration import Registrations
from trovemq_broker.cluster.rocketmq_registration import RocketmqRegistrations
from trovemq_broker.cluster.route_metrics import ForwardsCollector, RoutesCollector
from trovemq_broker.cluster.route_watch import RouteWatches
from trovemq_broker.cluster.view import BrokerView
from trovemq_broker.cluster_config.entries import SecretSeal
from trovemq_broker.cluster_config.logged import LoggedTable
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.daemon.broker_services import BrokerServices
from trovemq_broker.daemon.config_wiring import (
    ClusterParts,
    Registering,
    serve_messages,
    show_config,
    stop_all,
)
from trovemq_broker.daemon.led_store import LedStore
from trovemq_broker.daemon.opening import (
    clock_ms,
    collector_at_rest,
    failures_that_end,
    open_consumer_state,
    wall_ms,
)
from trovemq_broker.daemon.own_address import own_address
from trovemq_broker.daemon.readiness_reasons import (
    add_registration_reasons,
    add_store_reasons,
    drain_warning,
)
from trovemq_broker.daemon.recovery_log import log_recovery
from trovemq_broker.daemon.replica.store_place import check_single
from trovemq_broker.daemon.rocketmq_topics import TopicsForRocketmq
from trovemq_broker.daemon.security import AccessCollector, access_of, gate_of, open_security
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.daemon.store_owner import take_store
from trovemq_broker.daemon.tracing import open_tracing
from trovemq_broker.maintenance.consumer_tasks import log_copy_failures
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_broker.server.access.gate import Entries
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_broker.server.monitoring.metrics import BrokerCollector
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.remoting.gate import RemotingGate
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_daemon import clocks
from trovemq_daemon.addresses import Address, warn_of_open
from trovemq_daemon.early_imports import import_early
from trovemq_daemon.grpc_server import GrpcServer
from trovemq_daemon.lifecycle import Stop, run_daemon
from trovemq_daemon.limits import raise_descriptor_limit
from trovemq_daemon.logging import get_logger
from trovemq_daemon.memory_trim import keep_one_arena
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.ops_http import OpsHttp, Readiness
from trovemq_daemon.remoting.server import FIRST_BYTE, OFF, RemotingServer
from trovemq_daemon.tls_reload import TlsReload
from trovemq_daemon.tls_settings import bind_tls
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.interpreter import REMEDY, UNOPTIMISED, interpreter_text
from trovemq_proto.memory import keep_freed_memory
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.remoting.relayed import RELAYED
from trovemq_store.check.store_view import SIZES, with_sizes_of_store
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError
from trovemq_store.files.real import RealFileSystem
from trovemq_store.settings import StoreSettings

LATE_MODULES: Final = ("numpy.ma", "trovemq_proto.records.batch_matrix", "lz4.frame", "zstandard")
"""Imported at their first use otherwise: numpy.ma by NumPy's `unique`, the others where a body needs them."""
YOUNG_OBJECTS_MAX: Final = 10_000
"""New objects before a collection looks at them. With the default of 700 there was one for every 50th
SendMessage, of 64 in flight, and hardly anything of a call is in a cycle.
"""
THREAD_SWITCH_S: Final = 0.0005
"""How long a thread of background work (a step of the trees) may hold the interpreter while the event loop
waits for it. By default it is 5 ms, which a message then waits. 20,000 messages a second to a live reader,
with it over the default: p50 0.47, p99 0.69. No benchmark has a case for other times.
"""
CALLS_END_S: Final = 1.0  # for unary calls under way when the streams have ended
LAST_REPLIES_S: Final = 0.5  # for replies with STORE_FAILED to waiting calls


class BrokerApp:
    """One broker in the running event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        written: Collection[str] = SIZES,
        sources: Mapping[str, str] | None = None,
        led: LedStore | None = None,
    ) -> None:
        """`written`: names of the settings that were given. A size that was not given is that of the store.
        `sources`: where each value comes from, for operators. `led`: of the leader of a replica group, which
        opens and closes the store itself."""
        self._sources = sources
        self._led = led
        self._settings = settings
        self._written = written
        self._version = installed_version()
        self._registry = new_registry(self._version)
        self._rpc_metrics = RpcMetrics(
            self._registry, cluster=settings.cluster, node_type="broker", node_id=settings.name
        )
        self._rpc_metrics.slow.set_limit(settings.slow_request_ms, settings.waits_of_requests())
        self._tracing = open_tracing(settings.otlp_endpoint, settings.name, self._version)
        self._gate = gate_of(settings)
        self._serving_gate = ServingGate()
        access = access_of(self._gate, self._serving_gate)
        self._grpc = GrpcServer(settings.grpc_limits(), self._rpc_metrics, access, self._gate)
        self._problem = "starting"
        self.serving: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        """The addresses on which it listens; set once requests are served."""
        readiness = Readiness()
        readiness.add("broker", lambda: self._problem)
        self._readiness = readiness
        routes = () if led is None else led.routes
        if led is not None:
            self._registry.register(led.collector)
        self._http = OpsHttp(
            self._registry,
            readiness,
            routes,
            name=f"TroveMQ: {settings.name}",
            console_url=settings.console_url,
        )
        self._tls = TlsReload(settings, self._grpc, self._http)

    async def run(self, stop: Stop) -> None:
        """Serves until `stop`, then drains. Raises the error that ends it: AddressInUseError, TroveError,
        …"""
        settings = self._settings
        self._registration_channels = await asyncio.to_thread(settings.registration_channels)
        self._registration_credentials = await asyncio.to_thread(settings.registration_credentials)
        self._config_credentials = await asyncio.to_thread(settings.config_credentials)
        address = self._grpc.bind(settings.listen_address)
        tls = await bind_tls(self._grpc, settings, settings.listen_address, settings.advertised(address))
        http = settings.http_address
        http = await self._http.start(http, settings.http_tls_files) if http is not None else None
        try:
            advertised = settings.advertised(address)
            own = await own_address(advertised, stop, self._report)
            if own is None:
                return
            self._problem = "recovering the store"
            store = await asyncio.to_thread(self._open_store, own)
            self._grpc.connection_limit.needed = lambda: store.descriptors_needed
            model: ConsumerState | None = None
            try:
                model = await asyncio.to_thread(open_consumer_state, store, settings)
                security = await self._open_security(store, model)
                seal = None if security is None else security.table.sealer("cluster:")
                stored = await asyncio.to_thread(self._load_config, store, seal)
                await self._serve(
                    model, store, stored, security, advertised, Listening(address, http, tls), stop
                )
            finally:
                self._problem = "closing the store"
                if self._led is None:
                    await asyncio.to_thread(close_store, store, model)
                elif self._led.leaves() and model is not None:
                    await asyncio.to_thread(export_state, store, model)
        finally:
            await self._grpc.stop(0)
            await self._http.stop()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    def _open_store(self, own: Address) -> MessageStore:
        """Blocks."""
        if self._led is not None:
            return self._led.store
        store = open_store(self._settings, self._settings.store_settings(own), self._written)
        try:
            check_single(store.files)
            take_store(store.files, self._settings)
        except BaseException:
            close_store(store, None)
            raise
        return store

    def _load_config(self, store: MessageStore, seal: SecretSeal | None) -> StoredTable:
        """The cluster's configuration: of a replica group in its log, else in a file. Blocks."""
        return StoredTable.load(store.files, seal) if self._led is None else LoggedTable.open(store, seal)

    def _report(self, problem: str) -> None:
        self._problem = problem

    async def _open_security(self, store: MessageStore, model: ConsumerState) -> BrokerSecurity | None:
        """Users and rules; None if there is no authentication."""
        if self._gate is None:
            return None
        settings = self._settings
        owner = settings.owner_named
        open_ = partial(open_security, makes_first_user=owner is None or owner.name == settings.name)
        security = await asyncio.to_thread(open_, settings, store, self._gate)
        entries: dict[str, Entries] = {"topic": store.topics, "group": model.groups}
        self._gate.open(security.table, security.sessions, entries)
        self._registry.register(AccessCollector(self._gate, security))
        return security

    async def _serve(
        self,
        model: ConsumerState,
        store: MessageStore,
        stored: StoredTable,
        security: BrokerSecurity | None,
        advertised: Address,
        listening: Listening,
        stop: Stop,
    ) -> None:
        settings = self._settings
        routes = ClusterRoutes(asyncio.get_running_loop().time)
        endpoints = Endpoints(routes, self._registration_channels, must_check=settings.authentication_enable)
        calls = CallForwarder(routes, endpoints, self._config_credentials)
        services = BrokerServices(
            store,
            model,
            settings,
            advertised,
            self._version,
            traffic=Traffic(self._rpc_metrics.observe, self._rpc_metrics.slow),
            replies=self._grpc.replies,
            tls_address=settings.tls_advertised(advertised, listening.tls) if listening.tls else None,
            security=security,
            request_stop=stop.request,
            sources=self._sources,
            readiness=self._readiness,
            tracing=self._tracing,
            others=routes,
            calls=calls,
            cluster=ClusterParts(stored, routes, self._registration_channels, self._config_credentials),
            led=self._led,
        )
        core = services.core
        registrations = self._registrations(services.view)
        everywhere: Sequence[Registering] = (registrations, self._at_rocketmq(services))
        watches = self._route_watches(routes, core.turns)
        services.add_to(self._grpc.server)
        self._add_remoting(services)
        self._registry.register(BrokerCollector(services.statistics))
        self._registry.register(RoutesCollector(routes, registrations.leaving_out))
        self._registry.register(ForwardsCollector(calls))
        add_store_reasons(self._readiness, core, services.tasks)
        self._readiness.add_warning("drain", lambda: drain_warning(services.drain_control))
        show_config(self._readiness, self._registry, self._serving_gate, services.config)
        try:
            async with asyncio.TaskGroup() as group:
                commit = group.create_task(core.group_commit.run(), name="group-commit")
                others = [group.create_task(work, name=name) for name, work in services.background().items()]
                others.append(group.create_task(self._tls.run(), name="tls"))
                await watches.start()
                await services.start()
                await self._start(listening)
                serving = serve_messages(services.config, self._serving_gate, everywhere)
                others.append(group.create_task(serving, name="serve-messages"))
                await stop.wait()
                get_logger().info("broker.stopping", reason=stop.reason)
                await self._drain(services, everywhere)
                await commit
                for task in others:
                    task.cancel()
        finally:
            self._problem = "stopped"
            await watches.stop()
            await calls.close()
            await self._grpc.stop(LAST_REPLIES_S if core.group_commit.failure is not None else 0)
            await core.settle()
            if security is not None and not store.failed:
                await security.changes.settle(store.commit_limit)
            core.group_commit.close()

    def _add_remoting(self, services: BrokerServices) -> None:
        if not self._settings.remoting_enable:
            self._grpc.explain(FIRST_BYTE, OFF)
            return
        gate = RemotingGate(self._gate, self._serving_gate)
        services.remoting.transactions.may_send = gate.may_send
        services.remoting.calls.admission = gate
        server = RemotingServer(
            self._rpc_metrics,
            {**services.remoting.handlers, RELAYED: gate.relayed},
            together=services.core.accumulator.together,
            around=gate.around,
        )
        self._grpc.add_guest(FIRST_BYTE, server.accept)

    def _registrations(self, view: BrokerView) -> Registrations:
        settings = self._settings
        made = Registrations(
            settings.nameserver_addresses,
            view,
            settings,
            random.random,
            self._registration_channels,
            self._registration_credentials,
        )
        add_registration_reasons(self._readiness, made)
        return made

    def _at_rocketmq(self, services: BrokerServices) -> RocketmqRegistrations:
        settings, view, groups = self._settings, services.view, services.core.groups
        announced = TopicsForRocketmq(services.core, view)
        nameservers = settings.rocketmq_nameserver_addresses
        made = RocketmqRegistrations(nameservers, announced, settings, random.random, clocks.wall_ms())
        if nameservers:
            view.add_change_listener(made.changed)
            groups.add_change_listener(made.changed)
            self._readiness.add_warning("rocketmq_nameservers", made.warning)
        return made

    def _route_watches(self, routes: ClusterRoutes, turns: Turns) -> RouteWatches:
        settings = self._settings
        return RouteWatches(
            settings.nameserver_addresses,
            routes,
            (settings.cluster, settings.name),
            settings,
            random.random,
            self._registration_channels,
            self._registration_credentials,
            turns,
        )

    async def _start(self, listening: Listening) -> None:
        await self._grpc.start()
        await self._grpc.set_serving(True)
        keep_objects()
        sys.setswitchinterval(THREAD_SWITCH_S)
        self._problem = ""
        self.serving.set_result(listening)
        get_logger().info(
            "broker.started",
            listen=str(listening.grpc),
            tls=str(listening.tls or "off"),
            http=str(listening.http or "off"),
            name=self._settings.name,
            python=(python := interpreter_text()),
        )
        if python.endswith(UNOPTIMISED):
            get_logger().info("python.unoptimised", cost="1.2 to 1.6 times the processor time", to_do=REMEDY)
        services = {"listen": listening.grpc, "tls_listen": listening.tls}
        warn_of_open((services if self._gate is None else {}) | {"http": listening.http})

    async def _drain(self, services: BrokerServices, registrations: Sequence[Registering]) -> None:
        self._problem = "stopping"
        timeout_s = self._settings.drain_time_max_ms / 1000
        await self._grpc.set_serving(False)
        await stop_all(registrations)
        await services.drain(timeout_s)
        await self._grpc.stop(min(timeout_s, CALLS_END_S))


def keep_objects() -> None:
    """All present objects stay: later collections skip them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)


@dataclass(frozen=True, slots=True)
class Listening:
    grpc: Address
    http: Address | None
    tls: Address | None = None


def open_store(
    settings: BrokerSettings,
    store_settings: StoreSettings,
    written: Collection[str],
    commit_limit: PhysicalOffset | None = None,
) -> MessageStore:
    """Opens and recovers; blocks. `commit_limit`: of a node of a replica group. Raises TroveError
    STORE_LOCKED, STORE_SETTINGS_MISMATCH, …"""
    started = time.perf_counter()
    with _failures_of(settings.store_path), failures_that_end("the store cannot be opened"):
        store_settings = with_sizes_of_store(settings.store_path, store_settings, written)
        files = RealFileSystem(settings.store_path)
        with collector_at_rest():
            store = MessageStore.open(
                files, store_settings, wall_ms(), process_id=os.getpid(), commit_limit=commit_limit
            )
    report = store.recovery
    get_logger().info(
        "store.opened",
        path=str(settings.store_path),
        clean=report.clean,
        records_scanned=report.records_scanned,
        bytes_cut=report.bytes_cut,
        damages=len(report.damages),
        gaps=len(report.gaps),
        end=report.end,
        ms=round((time.perf_counter() - started) * 1000),
    )
    log_recovery(get_logger(), store)
    return store


@contextmanager
def _failures_of(store: Path) -> Iterator[None]:
    """Adds to an error the store that could not be opened, and the remedy if this process may not write to
    it."""
    try:
        yield
    except TroveError as error:
        if error.spec is errors.STORE_LOCKED:
            raise TroveError(error.spec, f"another broker has the store {store} open") from error
        cause = error.__cause__
        while isinstance(cause, TroveError):
            cause = cause.__cause__
        if error.spec not in (errors.STORE_FAILED, errors.DISK_FULL) or not isinstance(cause, StorageError):
            raise
        what = f"the store {store} cannot be opened: {cause}"
        if cause.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            what += (
                "; a broker writes to its store: allow that, or name another store (trovemq store verify, "
                "dump and export read a read-only store)"
            )
        raise TroveError(error.spec, what) from error


def close_store(store: MessageStore, model: ConsumerState | None) -> None:
    """Exports the pending messages, flushes and closes; blocks.

    Raises TroveError DISK_FULL, STORE_FAILED: the next start then recovers.
    """
    with failures_that_end("the store was not closed cleanly"):
        try:
            if model is not None:
                export_state(store, model)
        finally:
            store.close(wall_ms())


def export_state(store: MessageStore, model: ConsumerState) -> None:
    """Exports the pending messages to RocketMQ's files; blocks. TroveError DISK_FULL, STORE_FAILED."""
    with failures_that_end("the pending messages were not exported"):
        if not store.failed:
            model.export_to_rocketmq(clock_ms())
            log_copy_failures(model)


def installed_version() -> str:
    try:
        return version("trovemq-broker")
    except PackageNotFoundError:
        return "unknown"


def run(settings: BrokerSettings, written: Collection[str], sources: Mapping[str, str]) -> int:
    """Runs the daemon until it ends. Returns the exit code. The arguments are those of BrokerApp."""
    return run_in_process(lambda stop: BrokerApp(settings, written, sources).run(stop))


def run_in_process(main: Callable[[Stop], Awaitable[None]]) -> int:
    """Runs the daemon's coroutine until it ends. Returns the exit code."""
    keep_one_arena()
    keep_freed_memory()
    raise_descriptor_limit()
    import_early(*LATE_MODULES)
    return run_daemon(main)
