"""Every service of one broker, wired on the parts of its open store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

import grpc

from trovemq_broker.admin.drain import Drain
from trovemq_broker.admin.local_config import LocalConfig
from trovemq_broker.cluster.self_route import SelfRouteService
from trovemq_broker.cluster.view import NO_PLACEMENT, BrokerDescription, LocalBroker, broker_info
from trovemq_broker.cluster_config.entries import Kind
from trovemq_broker.cluster_config.shared import SharedConfig
from trovemq_broker.daemon.background import StoreTasks
from trovemq_broker.daemon.broker_description import description_of
from trovemq_broker.daemon.config_wiring import ClusterParts, config_node, single
from trovemq_broker.daemon.led_store import LedStore
from trovemq_broker.daemon.live_settings import LiveSettings
from trovemq_broker.daemon.opening import clock_ms, wall_ms
from trovemq_broker.daemon.process_condition import look
from trovemq_broker.daemon.routed_topics import RoutedTopics
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.maintenance import consumer_tasks
from trovemq_broker.produce.replicated_commit import ReplicaAckSettings, ReplicatedCommit
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_broker.server.access.security_service import SecurityService
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.forwarding import BrokerCalls
from trovemq_broker.server.core.other_brokers import NO_OTHERS, OtherBrokers
from trovemq_broker.server.monitoring.statistics import BrokerStatistics
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.admin_service import AdminService
from trovemq_broker.server.native.broker_service import BrokerService
from trovemq_broker.server.native.cluster_config_service import ClusterConfigService
from trovemq_broker.server.native.consume_stream import ConsumerService
from trovemq_broker.server.native.group_service import GroupService
from trovemq_broker.server.native.look_up_forwards import LookUpForwards
from trovemq_broker.server.native.message_service import MessageService
from trovemq_broker.server.native.producer_service import ProducerService
from trovemq_broker.server.native.query_service import QueryService
from trovemq_broker.server.native.replica_service import ReplicaService
from trovemq_broker.server.native.search_service import SearchService
from trovemq_broker.server.native.shared_changes import SharedChanges
from trovemq_broker.server.native.store_service import StoreService
from trovemq_broker.server.native.track_service import TrackService
from trovemq_broker.server.native.transaction_service import TransactionService
from trovemq_broker.server.remoting.broker_admin import DiskSpace, Surroundings
from trovemq_broker.server.remoting.rates import SAMPLE_S
from trovemq_broker.server.remoting.service import ForTools, RemotingService
from trovemq_broker.server.rocketmq.forwarded_service import ForwardedService
from trovemq_broker.server.rocketmq.forwards import Forwards
from trovemq_broker.server.rocketmq.service import RocketmqService
from trovemq_broker.server.wire.tool_calls import TOOL_SERVICES
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.transactions.transactions import TransactionCheck
from trovemq_daemon import clocks
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.logging import set_log_level
from trovemq_daemon.ops_http import Readiness
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.message_store import MessageStore

if TYPE_CHECKING:
    from trovemq_broker.server.monitoring.tracing import BrokerTracing

SESSIONS_INTERVAL_S: Final = 60.0
EXPIRE_INTERVAL_S: Final = 1.0  # a stream that broke is noticed so late: before BROKEN_MS is over
EXPIRE_BROKEN_INTERVAL_S: Final = 0.1
NODES_INTERVAL_S: Final = 1.0


class BrokerServices:
    """Every service of one broker, on the parts of its open store. The daemon adds them to its server, runs
    `background` beside them and ends with `drain`."""

    def __init__(
        self,
        store: MessageStore,
        model: ConsumerState,
        settings: BrokerSettings,
        advertised: Address,
        version: str,
        *,
        traffic: Traffic,
        replies: ReplyBudget | None = None,
        tls_address: Address | None = None,
        security: BrokerSecurity | None = None,
        request_stop: Callable[[str], None] = lambda _reason: None,
        sources: Mapping[str, str] | None = None,
        readiness: Readiness | None = None,
        tracing: BrokerTracing | None = None,
        others: OtherBrokers = NO_OTHERS,
        calls: BrokerCalls | None = None,
        cluster: ClusterParts | None = None,
        shared: SharedConfig | None = None,
        replicated: ReplicatedCommit | None = None,
        replica_acks: ReplicaAckSettings | None = None,
        led: LedStore | None = None,
    ) -> None:
        """`others`: the cluster's other brokers; `calls` forwards the calls that belong to one of them.
        `shared`: instead of the node's own part in the cluster's configuration. `replicated`,
        `replica_acks`: of a replica group, for acknowledgements. `led`: of the leader of a replica group."""
        self._replica = ReplicaService(None if led is None else led.node)
        if led is not None:
            replicated, replica_acks = led.attached()
        self.core = core = BrokerCore(
            *(store, model, settings, advertised, version),
            clock_ms=clock_ms,
            wall_ms=wall_ms,
            traffic=traffic,
            replies=replies,
            tracing=tracing,
            replicated=replicated,
            replica_acks=replica_acks,
        )
        self._security = security
        self._settings = settings
        self.tasks = StoreTasks(core, settings, wall_ms)
        self.store_service = StoreService(
            store, settings.store_path, core.topic_changes.changing, clock_ms, settings.backup_path
        )
        self.messages = MessageService(core)
        self.queries = QueryService(store, settings.queries_max, core.traffic, core.turns)
        self.searches = SearchService(store, self.queries.one_more, core.traffic, core.turns)
        self.atomic = TransactionService(core)
        self.statistics = BrokerStatistics(
            core,
            queries=self.queries,
            searches=self.searches.counters,
            streams=self.messages.streams,
            retention=self.tasks.retention.counters,
            store_service=self.store_service.counters,
        )
        self._led = led
        self.view = self._own_view(description_of(store, advertised, tls_address, version, led))
        self._calls = calls
        self._route = SelfRouteService(
            *(self.view, clock_ms),
            others=lambda: len(others.names()),
            other_names=lambda: self._looked_up(others),
        )
        others.add_change_listener(self._route.others_changed)
        self._open_config(settings, advertised, tls_address, cluster, shared)
        self.drain_control = Drain(
            *(settings.name, core.appender, self.view.withdraw, lambda: len(core.atomic), request_stop)
        )
        self.live = LiveSettings(settings, sources or {}, core, self.tasks, self.queries, set_log_level)
        self._broker = BrokerService(
            settings.name,
            self.drain_control,
            self.live,
            lambda: look(settings, store, self.tasks.retention, version, readiness or Readiness()),
        )
        self._open_rocketmq(others, tls_address, calls)
        self.producers = ProducerService(core)
        self.consumers = ConsumerService(core, self.rocketmq.receiver, self.rocketmq.acknowledger)
        self._open_admin(others)
        self._tracks = TrackService(core, self.queries.one_more)
        if security is not None and settings.audit_topic_enable:
            security.audit.open(self.tasks.audit, core.group_commit.durable)
        self._users = SecurityService(settings.name, clock_ms, security, self.shared_changes)
        self._open_tools()

    def _open_rocketmq(
        self,
        others: OtherBrokers,
        tls_address: Address | None,
        calls: BrokerCalls | None,
    ) -> None:
        """The services of RocketMQ's protocol, and of its calls that other brokers forward."""
        core, forwards = self.core, None
        if calls is not None:
            own = core.advertised, tls_address
            forwards = Forwards(core.broker, others, calls, self._placement_of, own)
        self.rocketmq = RocketmqService(
            *(core, lambda: self.drain_control.offers_writes, self.live.set_log_level),
            others=others,
            tls_address=tls_address,
            placement_of=self._placement_of,
            forwards=forwards,
            nodes=self._other_nodes,
        )
        nameservers = (*self._settings.nameserver, *self._settings.rocketmq_nameserver)
        around = Surroundings(clock_ms(), self._disk, ";".join(nameservers))
        self.remoting = RemotingService(
            *(core, self.rocketmq.routes.data_of, lambda: self._addresses(others)),
            ForTools(self._placement_of, self.queries.one_more, around),
        )
        self._forwarded = ForwardedService(
            self.rocketmq.forwarded_handlers(), self.rocketmq.telemetry.forwarded, self._security
        )

    def _open_admin(self, others: OtherBrokers) -> None:
        """The services of topics and groups."""
        self._admin = AdminService(
            self.core,
            topic_hold=self.tasks.retention.topic_hold,
            broker_info=lambda: broker_info(self.view),
            counters=self.statistics.counter_steps,
            shared=self.shared_changes,
            draining=lambda: self._draining(others),
            holding=lambda topic: [one.broker for one in others.holding(topic)],
        )
        self._groups = GroupService(self.core, self.shared_changes)

    def _open_tools(self) -> None:
        """The calls that requests of RocketMQ's tools stand for."""
        for service in (self._admin, self._groups, self._broker, self._users):
            self.remoting.calls.add(TOOL_SERVICES[type(service).__name__], service)

    def _disk(self) -> DiskSpace:
        try:
            total, used, free = shutil.disk_usage(self._settings.store_path)
        except OSError:
            return DiskSpace(0, 0)
        return DiskSpace(total, free, used)

    def _addresses(self, others: OtherBrokers) -> dict[str, str]:
        """Of the live brokers of the cluster that this one knows, by name."""
        return {**others.addresses(), self.core.broker: str(self.core.advertised)}

    def _looked_up(self, others: OtherBrokers) -> list[str]:
        """The other brokers to which look-ups are forwarded: those that are away are among them, so that
        answers name them as missing."""
        if self._calls is None:
            return []
        members = self._shared.table.members() if self._shared.is_shared else ()
        return sorted({*others.names(), *others.lost(), *members} - {self.core.broker})

    def _may_ask_about_transaction(self, client_id: str, topic: str) -> bool:
        asked = self.rocketmq.may_ask_about_transaction(client_id, topic)
        return asked or self.remoting.transactions.may_ask(client_id, topic)

    async def _check_transaction(self, check: TransactionCheck) -> None:
        if not self.remoting.transactions.ask(check):
            await self.rocketmq.check_transaction(check)

    def _other_nodes(self, by_tls: bool) -> list[Address]:
        """Of the replica group that this broker leads."""
        if self._led is None:
            return []
        if by_tls:
            return self._led.tls_nodes()
        leader = self._led.leader()
        return [parse_address(one.address) for one in leader.nodes if one.node != leader.node]

    def _placement_of(self, topic: str) -> Mapping[str, int]:
        """The queues of a topic by broker, as the cluster's configuration has them."""
        entry = self._shared.table.live(Kind.TOPIC, topic) if self._shared.is_shared else None
        return NO_PLACEMENT if entry is None else entry.placement

    def _open_config(
        self,
        settings: BrokerSettings,
        advertised: Address,
        tls_address: Address | None,
        cluster: ClusterParts | None,
        shared: SharedConfig | None,
    ) -> None:
        """This broker's part in the cluster's configuration, and the calls that change it."""
        core, security = self.core, self._security
        if security is not None:
            security.changes.durable = core.group_commit.committed
        address = tls_address if tls_address is not None and settings.nameserver_tls else advertised
        self.config = config_node(
            *(settings, address, core.store.files, cluster or single(core.store.files)),
            tables=LocalConfig(
                settings.name,
                core.store.topics,
                core.groups,
                core.topic_changes,
                core.group_changes,
                None if security is None else security.changes,
                lambda: self.config.table,
            ),
            view=self.view,
            committed=core.group_commit.committed,
        )
        used: SharedConfig = self.config if shared is None else shared
        self._shared = used
        self.shared_changes = SharedChanges(used, settings.name, security)
        core.appender.may_create_topics = lambda: not used.is_shared
        self._cluster_config = ClusterConfigService(self.config, self.shared_changes.handle)

    def add_to(self, server: grpc.aio.Server) -> None:
        added: Any = server
        if self._calls is not None:
            added = LookUpForwards(server, self.core.broker, self._calls)
        for service in (
            *(self.queries, self.searches, self._tracks, self._groups),
            *(self.messages, self.atomic, self.store_service),
            *(self.rocketmq, self.consumers, self.producers),
            *(self._broker, self._admin, self._users, self._route),
            *(self._cluster_config, self._forwarded, self._replica),
        ):
            service.add_to(added)

    async def start(self) -> None:
        """Call before the server starts, while the log is synced."""
        await self.core.group_changes.finish_deletions()
        await self.config.start()

    def _own_view(self, description: BrokerDescription) -> LocalBroker:
        return LocalBroker(description, RoutedTopics(self.core.store), self._placement_of)

    def _draining(self, others: OtherBrokers) -> list[str]:
        """The brokers that ask for no new messages."""
        own = [] if self.drain_control.offers_writes else [self.core.broker]
        return [*own, *others.draining()]

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """The background tasks by name; they run until they are cancelled."""
        model = self.core.model
        return {
            **self.tasks.background(lambda: self.queries.lookup_count),
            "deliveries": consumer_tasks.flush_events_and_renew_leases(
                model, self._is_alive, clock_ms, clocks.boot_ms
            ),
            "redeliveries": self.rocketmq.receiver.watch_redeliveries(),
            "transactions": consumer_tasks.check_transactions(
                model,
                self._may_ask_about_transaction,
                self._check_transaction,
                clock_ms,
            ),
            "clients": self._expire_clients(),
            **({"rates": self._sample_rates()} if self._settings.remoting_enable else {}),
            "drain": self.drain_control.run(),
            **({"sessions": self._expire_sessions(self._security)} if self._security is not None else {}),
            **({"nodes": self._announce_nodes(self._led)} if self._led is not None else {}),
        }

    async def _announce_nodes(self, led: LedStore) -> None:
        """Puts later members of the replica group into the routes."""
        while True:
            await sleep_to_tick(NODES_INTERVAL_S)
            self.view.set_leader(led.leader())

    async def _sample_rates(self) -> None:
        while True:
            self.remoting.admin.sample()
            await sleep_to_tick(SAMPLE_S)

    async def _expire_sessions(self, security: BrokerSecurity) -> None:
        while True:
            await sleep_to_tick(SESSIONS_INTERVAL_S)
            security.sessions.expire(clock_ms())
            security.flush_logs()

    def _is_alive(self, client_id: str) -> bool:
        return self.core.registry.is_alive(client_id, self._lease_time())

    async def _expire_clients(self) -> None:
        expire_at = 0.0
        while True:
            await sleep_to_tick(
                EXPIRE_BROKEN_INTERVAL_S if self.core.registry.has_broken else EXPIRE_INTERVAL_S
            )
            now = asyncio.get_running_loop().time()
            if now < expire_at:
                self.core.registry.expire_broken(self._lease_time())
            else:
                self.core.registry.expire(self._lease_time())
                expire_at = now + EXPIRE_INTERVAL_S - EXPIRE_BROKEN_INTERVAL_S  # a tick may be early

    def _lease_time(self) -> EpochMs:
        """The time by which clients expire: as for leases, a pause of the broker does not count."""
        return self.core.delivery.lease_time.at(clock_ms())

    async def drain(self, timeout_s: float) -> None:
        """Refuses appends, syncs the log, answers the open requests, ends the streams."""
        if self._security is not None:
            self._security.audit.close()
        self.core.stop_work()
        await self.config.stop()
        await asyncio.gather(self.messages.streams.end_all(timeout_s), self.atomic.end_all(timeout_s))
        await self.consumers.streams.end_all(timeout_s)
        await self.producers.streams.end_all(timeout_s)
        await self.rocketmq.end_streams(timeout_s)
        self._route.close()
