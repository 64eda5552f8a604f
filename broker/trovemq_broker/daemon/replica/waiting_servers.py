"""The servers of a node that takes no messages: a follower, or a leader before its first record is committed.

The client's port has Health, GetServerInfo, empty routes, log-ins and ReplicaService. A follower's calls of
RocketMQ's protocol and native ones go to the leader where it is known (server/rocketmq/leader_calls.py,
server/native/leader_calls.py); those about one broker, its store and its cluster are answered with
NOT_LEADER. With read_from_replicas a follower's has reads, and a route to itself.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import ServiceDescriptor
from prometheus_client.registry import Collector
from starlette.routing import BaseRoute

from trovemq_broker.cluster.call_forwarding import CallForwarder
from trovemq_broker.cluster.config_calls import Endpoints
from trovemq_broker.cluster.empty_routes import EmptyRoutes
from trovemq_broker.cluster.leader_route import LeaderRoute
from trovemq_broker.cluster.remoting_relay import (
    RelayedTo,
    RelaysCollector,
    RemotingRelay,
    relay_context,
)
from trovemq_broker.cluster.route_metrics import ForwardsCollector
from trovemq_broker.cluster.view import GroupLeader
from trovemq_broker.daemon.opening import clock_ms
from trovemq_broker.daemon.replica.follower_reads import FollowerReads
from trovemq_broker.daemon.security import access_of, gate_of, open_security
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.status import NodeStatus
from trovemq_broker.security.remoting import signed_fields
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_broker.server.access.gate import Entries
from trovemq_broker.server.access.security_service import SecurityService
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.leader_calls import NativeLeaderCalls
from trovemq_broker.server.native.replica_reads import PATHS, READS, ReplicaReads
from trovemq_broker.server.native.replica_service import ReplicaCalls, ReplicaService
from trovemq_broker.server.rocketmq import leader_calls
from trovemq_broker.server.wire import (
    admin_messages,
    broker_messages,
    config_messages,
    consume_frames,
    forwarded_messages,
    group_messages,
    producer_messages,
    query_messages,
    search_messages,
    security_messages,
    send_messages,
    store_messages,
    track_messages,
    transaction_messages,
)
from trovemq_broker.server.wire.rocketmq_services import ADMIN, ADMIN_SERVICE, MESSAGING, MESSAGING_SERVICE
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.calls import Call, OnCalls
from trovemq_daemon.grpc_server import GrpcServer
from trovemq_daemon.grpc_services import service_handlers
from trovemq_daemon.logging import get_logger
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.ops_http import OpsHttp, Readiness, ReadyCheck
from trovemq_daemon.remoting.server import FIRST_BYTE, OFF
from trovemq_daemon.tls_settings import bind_tls
from trovemq_proto import errors
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.channels import ChannelSettings
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.frame import encode_frame
from trovemq_proto.remoting.headers import Header
from trovemq_proto.remoting.relayed import RELAYED, relayed_fields
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.topics.security_entries import SecurityEntries
from trovemq_store.topics.subscription_groups import SubscriptionGroups

REFUSED: Final[Sequence[tuple[str, ServiceDescriptor]]] = (
    *(
        (one.SERVICE.full_name, one.SERVICE)
        for one in (
            admin_messages,
            broker_messages,
            config_messages,
            consume_frames,
            forwarded_messages,
            group_messages,
            producer_messages,
            query_messages,
            search_messages,
            send_messages,
            store_messages,
            track_messages,
            transaction_messages,
        )
    ),
    (MESSAGING_SERVICE, MESSAGING),
    (ADMIN_SERVICE, ADMIN),
)
NATIVE: Final[Sequence[ServiceDescriptor]] = (
    admin_messages.SERVICE,
    consume_frames.SERVICE,
    group_messages.SERVICE,
    producer_messages.SERVICE,
    query_messages.SERVICE,
    search_messages.SERVICE,
    send_messages.SERVICE,
    track_messages.SERVICE,
    transaction_messages.SERVICE,
)
"""The native services whose calls a follower forwards; and of users all but the log-in."""
LOG_IN: Final = "Authenticate"
CALLS_END_S: Final = 1.0


class ForwardBy(NamedTuple):
    """How a follower calls its leader for clients: as one broker of a cluster calls another."""

    channels: ChannelSettings
    credentials: Callable[[], Credentials] | None


class WaitingServers:
    """`bind()`, `open()` once the store is open, `stop()`. `refusal`: NOT_LEADER, with the leader where it is
    known. `problem`: of /readyz. `leader`: the node that takes messages, where it is known, and
    `leader_status`: its last status; `calls`: how it is called, None: no calls are forwarded."""

    def __init__(
        self,
        settings: BrokerSettings,
        version: str,
        node: ReplicaCalls,
        refusal: Callable[[], TroveError],
        problem: ReadyCheck,
        routes: Sequence[BaseRoute],
        collector: Collector,
        *,
        reads: bool = False,
        leader: Callable[[], GroupLeader | None] = lambda: None,
        leader_status: Callable[[], NodeStatus | None] = lambda: None,
        calls: ForwardBy | None = None,
    ) -> None:
        """`reads`: it serves reads once `self.reads` is open."""
        self._settings = settings
        self._leader = leader
        self._leader_status = leader_status
        self._version = version
        self._node = node
        self._refusal = refusal
        registry = new_registry(version)
        registry.register(collector)
        metrics = RpcMetrics(registry, cluster=settings.cluster, node_type="broker", node_id=settings.name)
        self._gate = gate_of(settings)
        self._services = ReplicaReads(refusal) if reads else None
        serving = ServingGate(PATHS if reads else ())
        serving.refusal = lambda: _unread(refusal())
        self._forwarder = None if calls is None else self._open_forwarder(calls)
        if self._forwarder is not None:
            registry.register(ForwardsCollector(self._forwarder))
            names = (*leader_calls.FORWARDED, leader_calls.TELEMETRY)
            native = _native_paths() - (PATHS if reads else frozenset())
            serving.forwarded = native | {f"/{MESSAGING_SERVICE}/{name}" for name in names}
            serving.checked_elsewhere = native
        self._here: tuple[Address, ...] = ()
        access = access_of(self._gate, serving)
        self._grpc = GrpcServer(settings.grpc_limits(), metrics, access, self._gate)
        self._calls = calls
        self._tls = None if calls is None else calls.channels.tls
        self._relay_context: ssl.SSLContext | None = None
        if settings.remoting_enable:
            announce = None if self._gate is None else self._announced
            relay = RemotingRelay(self._leader_address, lambda: self._here, self._relayed_by_tls, announce)
            self._grpc.add_guest(FIRST_BYTE, relay.accept)
            registry.register(RelaysCollector(relay))
        else:
            self._grpc.explain(FIRST_BYTE, OFF)
        readiness = Readiness()
        readiness.add("broker", problem)
        readiness.add_warning("users", self._users_problem)
        self._http = OpsHttp(
            registry, readiness, routes, name=f"TroveMQ: {settings.name}", console_url=settings.console_url
        )
        self._stopping = asyncio.Event()
        self._routes = EmptyRoutes(
            *(settings.name, version, self._stopping, settings.node_name, leader),
            clock_ms=clock_ms,
            refusal=refusal,
        )
        self.reads: Final = (
            None
            if self._services is None
            else FollowerReads(
                *(settings, version, self._services, self._routes),
                traffic=Traffic(metrics.observe, metrics.slow),
                replies=self._grpc.replies,
            )
        )
        """Of a follower, where its setting allows them."""
        self._security: BrokerSecurity | None = None
        self._entries: SecurityEntries | None = None
        self._reads_users = False
        self._loop = asyncio.get_running_loop()

    def _leader_address(self) -> Address | None:
        leader = self._leader()
        return parse_address(leader.address) if leader is not None and leader.address else None

    def _leader_tls_address(self) -> str:
        status = self._leader_status()
        return "" if status is None else status.tls_address

    def _relayed_by_tls(self, leader: Address) -> RelayedTo | None:
        address = self._leader_tls_address()
        if self._tls is None or not address:
            return None
        self._relay_context = self._relay_context or relay_context(self._tls)
        return RelayedTo(leader, parse_address(address), self._relay_context)

    async def _announced(self, peer: str, is_secure: bool) -> bytes:
        """The first request of a client's connection to the leader. TroveError."""
        read = None if self._calls is None else self._calls.credentials
        if read is None:
            text = "this node has no user to pass on connections by: set config_credentials_file"
            raise TroveError(errors.AUTHENTICATION_FAILED, text)
        fields = signed_fields(relayed_fields(peer, is_secure=is_secure), await asyncio.to_thread(read))
        return encode_frame(Header(RELAYED, 1, fields=fields))

    def _open_forwarder(self, calls: ForwardBy) -> CallForwarder:
        route = LeaderRoute(self._settings.name, self._leader, self._leader_tls_address)
        endpoints = Endpoints(route, calls.channels, must_check=self._settings.authentication_enable)
        return CallForwarder(route, endpoints, calls.credentials)

    async def bind(self) -> tuple[Address, Address | None, Address | None]:
        """Takes the addresses of gRPC, of HTTP and of TLS: with their real ports. AddressInUseError,
        SettingsError."""
        settings = self._settings
        address = self._grpc.bind(settings.listen_address)
        self._here = address, settings.advertised(address)
        tls = await bind_tls(self._grpc, settings, settings.listen_address, settings.advertised(address))
        http = settings.http_address
        http = await self._http.start(http, settings.http_tls_files) if http is not None else None
        if self.reads is not None:
            advertised = settings.advertised(address)
            self.reads.addresses = advertised, settings.tls_advertised(advertised, tls) if tls else None
        return address, http, tls

    async def open(self, store: MessageStore) -> None:
        """Serves. TroveError of open_security."""
        security: BrokerSecurity | None = None
        if self._gate is not None:
            settings, gate = self._settings, self._gate
            opened = await asyncio.to_thread(lambda: open_security(settings, store, gate, follows=True))
            self._security = security = opened
            groups = await asyncio.to_thread(SubscriptionGroups.load, store.files)

            def admit(store: MessageStore) -> None:
                entries: dict[str, Entries] = {"topic": store.topics, "group": groups}
                gate.open(opened.table, opened.sessions, entries)

            admit(store)
            if self.reads is not None:
                self.reads.admit = admit
        self.follow_users(store)
        server = self._grpc.server
        refusing, forwarded = _Refusing(self._refusal), self._forwarded()
        for name, service in REFUSED:
            several, servicer = _refused_calls(service, self._refusal), refusing
            if self._services is not None and (reads := self._services.handlers(service)):
                servicer = _Reading(reads, self._refusal)
                several = {one: calls for one, calls in several.items() if one not in READS[name]}
                several |= self._services.on_calls(service)
            handlers = service_handlers(service, servicer, on_calls=several)
            server.add_registered_method_handlers(name, handlers | forwarded.get(name, {}))
        log_in = _LogIn(SecurityService(self._settings.name, clock_ms, security), self._refusal)
        users, name = security_messages.SERVICE, security_messages.SERVICE.full_name
        handlers = service_handlers(users, log_in)
        server.add_registered_method_handlers(name, handlers | forwarded.get(name, {}))
        self._routes.add_to(server)
        ReplicaService(self._node).add_to(server)
        await self._grpc.start()

    def _forwarded(self) -> dict[str, dict[str, Any]]:
        """The handlers of the calls that go to the leader, by service and method."""
        if self._forwarder is None:
            return {}
        name, missing = self._settings.name, self._refused_forward
        calls = leader_calls.LeaderCalls(self._forwarder, name, missing, self._stopping)
        native = NativeLeaderCalls(
            *(self._forwarder, name, self._refused_native, self._refusal, calls.wait, self._stopping)
        )
        served = {} if self._services is None else READS
        found = {one.full_name: native.handlers(one, served.get(one.full_name, ())) for one in NATIVE}
        users = security_messages.SERVICE
        found[users.full_name] = native.handlers(users, (LOG_IN,))
        return found | {MESSAGING_SERVICE: calls.handlers()}

    def _refused_forward(self) -> TroveError | None:
        leader = self._leader()
        return None if leader is not None and leader.address else self._refusal()

    def _refused_native(self) -> TroveError | None:
        """This node has not checked the client's rights, and calls as a super user: a leader that does not
        know the keys of a forwarded call would admit all of them."""
        status = self._leader_status()
        return self._refused_forward() if status is not None and status.checks_forwarded else self._refusal()

    def follow_users(self, store: MessageStore) -> None:
        """The users are those of this store from now on, and change with its records."""
        self._entries = entries = store.security
        if self._security is not None and entries is not None:
            entries.add_change_listener(self._users_changed)
            self._users_changed()

    def _users_changed(self) -> None:
        """The entries of one commit are read together, in the next iteration of the event loop."""
        if not self._reads_users:
            self._reads_users = True
            self._loop.call_soon_threadsafe(self._read_users)  # the last records are read in another thread

    def _read_users(self) -> None:
        self._reads_users = False
        if self._security is None or self._entries is None:
            return
        table, before = self._security.table, self._security.table.problem
        table.follow(self._entries)
        if table.problem and table.problem != before:
            get_logger().warning("replica.users_not_readable", reason=table.problem)

    def _users_problem(self) -> str:
        return "" if (error := self.users_failure()) is None else error.message

    def users_failure(self) -> TroveError | None:
        """Why this node cannot check its callers as the group's users; None: it can, or there are none."""
        if self._security is not None:
            return self._security.table.failure
        if self._entries is None or not self._entries.have_users:
            return None
        text = "the group has users, and authentication_enable is off here: it would serve every caller"
        return TroveError(errors.AUTHENTICATION_DISABLED, text)

    async def stop(self) -> None:
        """Ends the calls that run, the addresses are free afterwards."""
        self._stopping.set()
        await self._grpc.stop(CALLS_END_S)
        if self._forwarder is not None:
            await self._forwarder.close()
        await self._http.stop()


def _native_paths() -> frozenset[str]:
    """Of the native calls that go to the leader."""
    return frozenset(
        f"/{service.full_name}/{method.name}"
        for service in (*NATIVE, security_messages.SERVICE)
        for method in service.methods
        if method.name != LOG_IN
    )


def _unread(refusal: TroveError) -> TroveError:
    """It says that no request of the call was looked at, also of a stream with several."""
    refusal.fields[errors.UNREAD] = "true"
    return refusal


class _Refusing:
    """A servicer with every method."""

    def __init__(self, refusal: Callable[[], TroveError]) -> None:
        async def refused(_request: Any, _context: Any) -> Any:
            raise _unread(refusal())

        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        return self._refused


class _Reading(_Refusing):
    """A servicer of which these methods are served."""

    def __init__(self, reads: Mapping[str, Any], refusal: Callable[[], TroveError]) -> None:
        super().__init__(refusal)
        self.__dict__.update(reads)


class _LogIn(_Refusing):
    """SecurityService of a node that changes no user."""

    def __init__(self, service: SecurityService, refusal: Callable[[], TroveError]) -> None:
        super().__init__(refusal)
        self.authenticate = service.authenticate


def _refused_calls(service: ServiceDescriptor, refusal: Callable[[], TroveError]) -> dict[str, OnCalls]:
    """Of the RPCs with one request and several replies: the check of rights takes no coroutine of them."""

    def refused(calls: Sequence[Call]) -> None:
        for call in calls:
            call.answer(_unread(refusal()))

    return {
        method.name: refused
        for method in service.methods
        if method.server_streaming and not method.client_streaming
    }
