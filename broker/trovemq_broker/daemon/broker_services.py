"""Every service of one broker, wired on the parts of its open store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

import grpc

from trovemq_broker.admin.drain import Drain
from trovemq_broker.cluster.self_route import SelfRouteService
from trovemq_broker.cluster.view import BrokerDescription, LocalBroker, broker_info
from trovemq_broker.daemon.live_settings import LiveSettings
from trovemq_broker.daemon.process_condition import look
from trovemq_broker.daemon.security import BrokerSecurity
from trovemq_broker.daemon.services import RoutedTopics, StoreServices, clock_ms, unique_keys
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.maintenance import consumer_tasks
from trovemq_broker.produce.append import batch_size_limit
from trovemq_broker.server.access.changes import SecurityChanges
from trovemq_broker.server.access.security_service import SecurityParts, SecurityService
from trovemq_broker.server.core.commands import ClientCommands
from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.admin_service import AdminService
from trovemq_broker.server.native.broker_service import BrokerService
from trovemq_broker.server.native.consume_stream import ConsumeParts, ConsumerService
from trovemq_broker.server.native.group_service import GroupService, GroupServiceParts
from trovemq_broker.server.native.producer_service import ProducerService
from trovemq_broker.server.native.track_service import TrackParts, TrackService
from trovemq_broker.server.rocketmq.service import RocketmqService
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_daemon import clocks
from trovemq_daemon.addresses import Address
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
NONCE_BYTES: Final = 16


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
    ) -> None:
        self.parts = services = StoreServices(store, settings, traffic, model, replies, tracing)
        self._tracing = tracing
        self._settings = settings
        self._model = model
        if tracing is not None:
            model.delivery.on_settled = tracing.settled
        self.view = LocalBroker(_description(store, advertised, tls_address, version), RoutedTopics(store))
        self._route = SelfRouteService(self.view, clock_ms)
        self.drain_control = Drain(
            settings.name, services.appender, self.view.withdraw, lambda: len(services.atomic), request_stop
        )
        self.live = LiveSettings(settings, sources or {}, services, set_log_level)
        self._broker = BrokerService(
            settings.name,
            self.drain_control,
            self.live,
            lambda: look(settings, services, version, readiness or Readiness()),
        )
        self.registry = services.clients
        self.registry.add_gone_listener(self._model.delivery.release_client)
        self._commands = ClientCommands(self.registry, lambda: secrets.token_hex(NONCE_BYTES))
        rocketmq = self._rocketmq_parts(advertised, version)
        self.rocketmq = RocketmqService(rocketmq)
        self.producers = ProducerService(rocketmq)
        self.consumers = self._consumer_service(rocketmq, replies)
        self._admin = self._admin_service()
        self._groups = GroupService(
            GroupServiceParts(
                store=services.store,
                model=self._model,
                changes=services.group_changes,
                offsets=services.offsets,
                registry=self.registry,
                commands=self._commands,
                durable=services.group_commit.durable,
                turns=services.turns,
                clock_ms=clock_ms,
            )
        )
        self._security = security
        if security is not None and settings.audit_topic_enable:
            security.audit.open(services.audit, services.group_commit.durable)
        self._users = self._security_service()
        self._tracks = TrackService(
            TrackParts(
                store=services.store,
                model=self._model,
                registry=self.registry,
                durable=services.group_commit.durable,
                one_more=services.queries.one_more,
                turns=services.turns,
                clock_ms=clock_ms,
            )
        )

    def _consumer_service(self, rocketmq: RocketmqParts, replies: ReplyBudget | None) -> ConsumerService:
        return ConsumerService(
            ConsumeParts(
                rocketmq=rocketmq,
                receiver=self.rocketmq.receiver,
                acknowledger=self.rocketmq.acknowledger,
                replies=replies,
            )
        )

    def _security_service(self) -> SecurityService:
        if self._security is None:
            return SecurityService(None)
        changes = SecurityChanges(self._security.table)
        return SecurityService(
            SecurityParts(
                changes,
                self._security.sessions,
                self._settings.name,
                clock_ms,
                self._security.quotas,
                self._security.audit.login,
            )
        )

    def _rocketmq_parts(self, advertised: Address, version: str) -> RocketmqParts:
        parts = self.parts
        return RocketmqParts(
            store=parts.store,
            groups=parts.model.groups,
            delivery=parts.model.delivery,
            timers=parts.model.timers,
            transactions=parts.model.transactions,
            settings=parts.model.settings,
            appender=parts.appender,
            accumulator=parts.accumulator,
            group_commit=parts.group_commit,
            puller=parts.puller,
            long_polls=parts.long_polls,
            waits=parts.receive_waits,
            offsets=parts.offsets,
            search=parts.search_offset,
            registry=parts.clients,
            commands=self._commands,
            traffic=parts.traffic,
            turns=parts.turns,
            broker=self._settings.name,
            advertised=advertised,
            version=version,
            clock_ms=clock_ms,
            next_message_id=unique_keys().next,
            set_log_level=self.live.set_log_level,
            offers_writes=lambda: self.drain_control.offers_writes,
            tracing=self._tracing,
        )

    def _admin_service(self) -> AdminService:
        parts = self.parts
        return AdminService(
            parts.store,
            parts.topic_changes,
            parts.offsets,
            parts.long_polls,
            parts.traffic,
            turns=parts.turns,
            topic_hold=parts.retention.topic_hold,
            broker_info=lambda: broker_info(self.view),
            counters=parts.statistics.counter_steps,
        )

    def add_to(self, server: grpc.aio.Server) -> None:
        parts = self.parts
        for service in (
            *(parts.messages, parts.transactions, parts.queries, parts.searches, parts.store_service),
            *(
                self.rocketmq,
                self.consumers,
                self.producers,
                self._broker,
                self._admin,
                self._groups,
                self._users,
            ),
            *(self._tracks, self._route),
        ):
            service.add_to(server)

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """The background tasks by name; they run until they are cancelled."""
        return {
            **self.parts.background(self._settings),
            "deliveries": consumer_tasks.flush_events_and_renew_leases(
                self._model, self._is_alive, clock_ms, clocks.boot_ms
            ),
            "redeliveries": self.rocketmq.receiver.watch_redeliveries(),
            "transactions": consumer_tasks.check_transactions(
                self._model,
                self.rocketmq.may_ask_about_transaction,
                self.rocketmq.check_transaction,
                clock_ms,
            ),
            "clients": self._expire_clients(),
            "drain": self.drain_control.run(),
            **({"sessions": self._expire_sessions(self._security)} if self._security is not None else {}),
        }

    async def _expire_sessions(self, security: BrokerSecurity) -> None:
        while True:
            await sleep_to_tick(SESSIONS_INTERVAL_S)
            security.sessions.expire(clock_ms())
            security.flush_logs()

    def _is_alive(self, client_id: str) -> bool:
        return self.registry.is_alive(client_id, self._lease_time())

    async def _expire_clients(self) -> None:
        expire_at = 0.0
        while True:
            await sleep_to_tick(EXPIRE_BROKEN_INTERVAL_S if self.registry.has_broken else EXPIRE_INTERVAL_S)
            now = asyncio.get_running_loop().time()
            if now < expire_at:
                self.registry.expire_broken(self._lease_time())
            else:
                self.registry.expire(self._lease_time())
                expire_at = now + EXPIRE_INTERVAL_S - EXPIRE_BROKEN_INTERVAL_S  # a tick may be early

    def _lease_time(self) -> EpochMs:
        """The time by which clients expire: as for leases, a pause of the broker does not count."""
        return self._model.delivery.lease_time.at(clock_ms())

    async def drain(self, timeout_s: float) -> None:
        """Refuses appends, syncs the log, answers the open requests, ends the streams."""
        if self._security is not None:
            self._security.audit.close()
        await self.parts.drain(timeout_s)
        await self.consumers.streams.end_all(timeout_s)
        await self.producers.streams.end_all(timeout_s)
        await self.rocketmq.end_streams(timeout_s)
        self._route.close()


def _description(
    store: MessageStore, advertised: Address, tls_address: Address | None, version: str
) -> BrokerDescription:
    settings = store.settings
    return BrokerDescription(
        cluster=settings.cluster,
        name=settings.broker,
        address=str(advertised),
        store_host_ipv6=settings.store_host.startswith("["),
        append_property_crc=settings.append_property_crc,
        body_size_max=settings.body_size_max,
        batch_size_max=batch_size_limit(settings),
        flush_mode=settings.flush_mode,
        version=version,
        tls_address=str(tls_address or ""),
    )
