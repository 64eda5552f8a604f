"""A node from start to stop: one role after the other, on the same addresses.

The streams' listener and the log-in data stay over all roles; a role has its store, its servers for clients
and its operations HTTP. A node starts as a follower.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from trovemq_broker.coordination.etcd_client import EtcdClient
from trovemq_broker.coordination.etcd_coordinator import EtcdCoordinator, group_prefix
from trovemq_broker.coordination.etcd_health import EtcdHealth, HealthWatch
from trovemq_broker.daemon.app import (
    BrokerApp,
    Listening,
    installed_version,
    keep_objects,
    run_in_process,
)
from trovemq_broker.daemon.led_store import LedStore
from trovemq_broker.daemon.opening import clock_ms, wall_ms
from trovemq_broker.daemon.own_address import own_address
from trovemq_broker.daemon.replica.consumers_copy import part_of
from trovemq_broker.daemon.replica.coordinated import Coordinated
from trovemq_broker.daemon.replica.cut_listing import cut_files, cut_part
from trovemq_broker.daemon.replica.election_figures import ElectionFigures
from trovemq_broker.daemon.replica.election_group import ElectionGroup
from trovemq_broker.daemon.replica.finding import known_members
from trovemq_broker.daemon.replica.follower_role import FollowerRole
from trovemq_broker.daemon.replica.former_run import end_former_run
from trovemq_broker.daemon.replica.gathering import Leadership
from trovemq_broker.daemon.replica.leader_role import LeaderRole
from trovemq_broker.daemon.replica.node_calls import NodeCalls
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.operations import ReplicaCollector, RoleFigures, node_routes
from trovemq_broker.daemon.replica.role import Ended, Role, illegal, not_leader
from trovemq_broker.daemon.replica.store_place import directory_number
from trovemq_broker.daemon.replica.waiting_servers import ForwardBy, WaitingServers
from trovemq_broker.daemon.security import node_key
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.produce.replicated_commit import ReplicaAckSettings
from trovemq_broker.replica_streams.leader_streams import LeaderStreams
from trovemq_broker.replica_streams.node_login import PURPOSE, NodeLogin
from trovemq_broker.replica_streams.peers_allowed import PeersAllowed, ReplicaConnections
from trovemq_broker.replica_streams.service import ReplicationService, listener_limits
from trovemq_broker.replica_streams.stream_settings import StreamSettings
from trovemq_broker.replication.frames import Epoch, Identity, Offset
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import (
    CutFiles,
    CutPart,
    MembersChange,
    NodeStatus,
    Promoted,
    PromotionAsked,
)
from trovemq_broker.server.wire.replica_frames import ConsumersPart
from trovemq_daemon.addresses import Address
from trovemq_daemon.grpc_server import GrpcServer
from trovemq_daemon.lifecycle import Stop
from trovemq_daemon.logging import get_logger
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.tls import identity_for
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.real import RealFileSystem
from trovemq_store.replica.membership import Member

NEXT_ROLE_S: Final = 10.0
"""How long a promise waits for a leader to step down."""


class NodeApp:
    """One node in the running event loop. It is the ReplicaCalls and the ReplicaNode of all its roles."""

    def __init__(
        self,
        settings: BrokerSettings,
        written: Collection[str] = (),
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """As of BrokerApp."""
        self._settings = settings
        self._written = written
        self._sources = sources
        self._version = installed_version()
        self._role: Role | None = None
        self._election: Coordinated | None = None
        """With `coordination = etcd`."""
        self._figures = ElectionFigures(settings.name) if settings.is_elected else None
        self._changed = asyncio.Condition()
        self._health: HealthWatch | None = None
        self._sealing_key_id = ""
        self._is_single = False
        """Whether the group is over: its store is a single broker's."""
        self._own: Address | None = None
        self._tls_address = ""
        """Of clients by TLS, for the other nodes."""
        self._members_known: Collection[str] = [one.node for one in settings.named_nodes]
        """While the store is not open."""
        self.serving: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        """The addresses; set once the first role serves."""

    # --- its life -----------------------------------------------------------------------------------------
    async def run(self, stop: Stop) -> None:
        """Until `stop`. Raises the error that ends it."""
        settings = self._settings
        key = await asyncio.to_thread(node_key, settings)
        self._sealing_key_id = "" if key is None else key.key_id
        login = None
        if key is not None and settings.replication_tls is None:
            login = NodeLogin(key.derive(PURPOSE).hex(), clock_ms, secrets.token_bytes)
        self._calls = await asyncio.to_thread(self._node_calls, login)
        channels = await asyncio.to_thread(settings.registration_channels)
        self._forward_by = ForwardBy(channels, await asyncio.to_thread(settings.config_credentials))
        limits = StreamSettings()
        allowed = PeersAllowed(self._members, clock_ms, None if login is None else login.sessions)
        registry = new_registry(self._version)
        metrics = RpcMetrics(registry, cluster=settings.cluster, node_type="replica", node_id=settings.name)
        streams = GrpcServer(
            listener_limits(settings.grpc_limits(), limits), metrics, allowed.handler, ReplicaConnections()
        )
        ReplicationService(self, allowed, limits).add_to(streams.server)
        if login is not None:
            login.add_to(streams.server)
        etcd = await self._etcd_client() if settings.is_elected else None
        try:
            if etcd is not None:
                await self._end_former_run(EtcdCoordinator(etcd, self._prefix))
            await self._bind_streams(streams)
            await streams.start()
            try:
                await (self._run_roles(stop) if etcd is None else self._run_elected(stop, etcd))
            finally:
                await streams.stop(0)
        finally:
            if etcd is not None:
                await etcd.close()

    async def _end_former_run(self, etcd: EtcdCoordinator) -> None:
        store = self._settings.store_path
        number = partial(directory_number, store)
        await end_former_run(RealFileSystem(store), self._settings.node_name, number, etcd)

    async def _etcd_client(self) -> EtcdClient:
        channels = replace(self._calls.channels, tls=None)
        return EtcdClient(await asyncio.to_thread(self._settings.etcd_access, channels), self._figures)

    @property
    def _prefix(self) -> str:
        """Of the group's keys in etcd."""
        settings = self._settings
        return group_prefix(settings.etcd_prefix, settings.cluster, settings.name)

    def _node_calls(self, login: NodeLogin | None) -> NodeCalls:
        """Blocks. SettingsError."""
        settings = self._settings
        channels, tls = settings.registration_channels(), settings.replication_tls
        credentials = None if login is None else lambda: login.credentials
        return NodeCalls.of(settings.name, settings.node_name, channels, tls, credentials)

    async def _run_elected(self, stop: Stop, client: EtcdClient) -> None:
        """The roles, beside the election that chooses them."""
        coordinator = EtcdCoordinator(client, self._prefix)
        group = ElectionGroup(self._settings, coordinator, self._version, self._prefix)
        assert self._figures is not None, "it has an election"
        self._election = election = Coordinated(coordinator, group, self._figures)
        self._health = HealthWatch(client)
        looking = asyncio.create_task(self._health.run(), name="etcd-health")
        electing = asyncio.create_task(election.run(), name="election")
        electing.add_done_callback(
            lambda task: None if task.cancelled() else stop.request("the election failed")
        )
        try:
            await self._run_roles(stop)
            await election.resign()
            if self._is_single:
                await self._forget(group)
        finally:
            electing.cancel()
            looking.cancel()
            ended, _ = await asyncio.gather(electing, looking, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    async def _forget(self, group: ElectionGroup) -> None:
        """Its keys go from etcd. It has left all the same where etcd does not answer."""
        try:
            await group.forget()
        except TroveError as error:
            get_logger().error("replica.keys_remain", prefix=group.prefix, message=str(error))

    async def _bind_streams(self, streams: GrpcServer) -> None:
        """AddressInUseError; SettingsError for files that cannot be used."""
        settings = self._settings
        if settings.replication_tls is None:
            streams.bind(settings.replication_address)
            return
        identity = await asyncio.to_thread(
            identity_for,
            settings.replication_tls_certificate,
            settings.replication_tls_key,
            hosts=(),
            client_ca=settings.replication_tls_ca,
        )
        streams.bind_tls(settings.replication_address, identity)

    async def _run_roles(self, stop: Stop) -> None:
        leadership: Leadership | None = None
        while not stop.requested:
            if leadership is None:
                ended = await self._follow(stop)
            else:
                ended = await self._lead(stop, leadership)
            leadership = ended.lead
            if ended.leaves:
                self._is_single = True
                get_logger().info("replica.left", node=self._settings.node_name)
                return

    async def _take_role(self, role: Role | None) -> None:
        async with self._changed:
            self._role = role
            self._changed.notify_all()
        if self._election is not None:
            self._election.role_is(role)

    async def _follow(self, stop: Stop) -> Ended:
        settings = self._settings
        role: FollowerRole | None = None
        servers = WaitingServers(
            settings,
            self._version,
            self,
            lambda: not_leader("this node opens its store") if role is None else role.refusal(),
            lambda: "opening the store" if role is None else role.problem,
            node_routes(self.status),
            ReplicaCollector(self.status, self._role_figures, self._figures),
            reads=settings.read_from_replicas,
            leader=lambda: None if role is None else role.leader(),
            leader_status=lambda: None if role is None else role.leader_status(),
            calls=self._forward_by,
        )
        listening = await self._bind(servers)
        try:
            own = await self._own_address(stop)
            if own is None:
                return Ended()
            node = await OpenNode.open(settings, self._written, own)
            try:
                role = FollowerRole(
                    node, settings, self._calls, servers.reads, self._sealing_key_id, self._election
                )
                role.on_reopened, role.users_failure = servers.follow_users, servers.users_failure
                await servers.open(node.store)
                await self._take_role(role)
                self._report_serving(listening)
                return await role.run(stop)
            finally:
                await self._take_role(None)
                await servers.stop()
                await run_in_thread(node.close)
        finally:
            await servers.stop()

    async def _lead(self, stop: Stop, leadership: Leadership) -> Ended:
        settings, own = self._settings, self._own
        assert own is not None, "it has followed"
        node = await OpenNode.open(settings, self._written, own)
        role = LeaderRole(node, settings, self._calls, leadership, self._sealing_key_id, self._election)
        passing = asyncio.create_task(_pass_on(stop, role))
        try:
            if await self._open_leader(role, node):
                await self._serve(role, node)
            role.check_failure()
        finally:
            passing.cancel()
            await role.close()
            await self._take_role(None)
            await run_in_thread(partial(node.close, leaves=role.ended.leaves))
        return role.ended  # the election may have chosen this node again while the role closed

    async def _open_leader(self, role: LeaderRole, node: OpenNode) -> bool:
        """Whether it serves next; else it has ended before."""
        servers = WaitingServers(
            self._settings,
            self._version,
            self,
            role.refusal,
            lambda: role.status().problem,
            node_routes(self.status),
            ReplicaCollector(self.status, self._role_figures, self._figures),
            calls=self._forward_by,  # they wait: no node leads them to another one
        )
        await self._bind(servers)
        try:
            await servers.open(node.store)
            await self._take_role(role)
            await role.open()
            return not role.stop.requested
        finally:
            await servers.stop()

    async def _serve(self, role: LeaderRole, node: OpenNode) -> None:
        led = LedStore(
            store=node.store,
            replicated=role.streams,
            node=self,
            acks=ReplicaAckSettings(
                ack=self._settings.ack, ack_timeout_ms=self._settings.replica_ack_timeout_ms
            ),
            attach=role.attach,
            leaves=lambda: role.ended.leaves,
            routes=node_routes(self.status),
            collector=ReplicaCollector(self.status, self._role_figures, self._figures),
            leader=role.leader,
            tls_nodes=role.tls_nodes,
        )
        app = BrokerApp(self._settings, self._written, self._sources, led)
        app.serving.add_done_callback(lambda serving: None if serving.cancelled() else role.serves())
        try:
            await app.run(role.stop)
        finally:
            app.serving.cancel()

    async def _bind(self, servers: WaitingServers) -> Listening:
        """Takes the addresses; the next role takes the same ones."""
        address, http, tls = await servers.bind()
        self._settings = replace(
            self._settings, listen=str(address), http=str(http or "off"), tls_listen=str(tls or "")
        )
        advertised = self._settings.advertised(address)
        self._tls_address = str(self._settings.tls_advertised(advertised, tls)) if tls else ""
        return Listening(address, http, tls)

    async def _own_address(self, stop: Stop) -> Address | None:
        settings = self._settings
        self._own = await own_address(
            settings.advertised(settings.listen_address), stop, lambda _problem: None
        )
        return self._own

    def _report_serving(self, listening: Listening) -> None:
        if not self.serving.done():
            self.serving.set_result(listening)
            keep_objects()  # else the first collection of a leader that begins to serve looks at them
            get_logger().info(
                "node.started",
                listen=str(listening.grpc),
                replication=self._settings.replication_listen,
                http=str(listening.http or "off"),
                name=self._settings.name,
                node=self._settings.node_name,
            )

    # --- the node of the streams ----------------------------------------------------------------------------
    def _members(self) -> Collection[str]:
        """A new node knows those of the settings."""
        if self._role is not None:
            members = known_members(self._settings, self._role.node.place_if_any)
            self._members_known = [one.node for one in members]
        return self._members_known

    @property
    def names(self) -> tuple[str, str]:
        """Of the cluster and the group."""
        status = self.status()
        return status.cluster, status.group

    @property
    def promised(self) -> Epoch:
        return self.status().promised

    def leading(self) -> LeaderStreams:
        return self._open_role.leading()

    async def promise(self, epoch: Epoch) -> Promised:
        """A leader steps down first; the follower that comes after it answers."""
        if self._election is not None and not self._election.is_absent:
            raise illegal(
                f"node {self._settings.node_name} has an etcd that has its group, or does not answer: stop"
                " the node, or start it with the endpoints of the new etcd"
            )
        try:
            async with asyncio.timeout(NEXT_ROLE_S), self._changed:
                while True:
                    await self._changed.wait_for(lambda: self._role is not None)
                    role = self._open_role
                    if (found := await role.promise(epoch)) is not None:
                        return found
                    await self._changed.wait_for(partial(self._is_over, role))
        except TimeoutError:
            text = f"node {self._settings.node_name} did not step down in {NEXT_ROLE_S:.0f} s"
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, text) from None

    def _is_over(self, role: Role) -> bool:
        return self._role is not role

    async def read_log(self, offset: int, size_max: int) -> tuple[bytes, int]:
        node = self._open_role.node
        await run_in_thread(partial(node.read_ahead, Offset(offset), size_max))
        return self._open_role.node.read_committed(Offset(offset), size_max)

    async def read_consumers(self, epoch: Epoch, known: int, offset: int) -> ConsumersPart:
        role = self._open_role
        role.leading()
        if role.leads != epoch:
            raise TroveError(errors.EPOCH_STALE, f"this node leads epoch {role.leads}, and not {epoch}")
        return await run_in_thread(partial(part_of, role.node.files, known, offset))

    def open_status(self) -> NodeStatus:
        return self._completed(self._open_role.status())

    async def store_members(self, change: MembersChange) -> Identity:
        return await self._open_role.store_members(change)

    # --- the calls of operators -----------------------------------------------------------------------------
    def status(self) -> NodeStatus:
        settings = self._settings
        changing = NodeStatus(
            group=settings.name,
            node=settings.node_name,
            problem="the node changes its role",
            ack=settings.ack,
        )
        return self._completed(changing if self._role is None else self._role.status())

    def _completed(self, status: NodeStatus) -> NodeStatus:
        """With the fields that no role knows."""
        left_s = 0.0 if self._election is None else self._election.lease_left_s
        etcd = EtcdHealth(problem="") if self._health is None else self._health.last
        return replace(
            status,
            coordination=self._settings.coordination,
            lease_left_ms=int(left_s * 1_000),
            clock_ms=wall_ms(),
            sealing_key_id=self._sealing_key_id,
            etcd_members=etcd.members,
            etcd_version=etcd.version,
            etcd_problem=etcd.problem or ("" if self._election is None else self._election.illegal),
            failover_paused=self._election is not None and self._election.is_paused,
            tls_address=self._tls_address,
            checks_forwarded=True,
        )

    def _role_figures(self) -> RoleFigures | None:
        role = self._role
        return None if role is None else RoleFigures(role.node.store.damage, role.not_kept)

    @property
    def _open_role(self) -> Role:
        if self._role is None:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the node changes its role: try again")
        return self._role

    async def init_group(self) -> None:
        await self._open_role.init_group()

    async def leave_group(self) -> None:
        await self._open_role.leave_group()

    async def add_node(self, member: Member) -> None:
        await self._open_role.add_node(member)

    async def remove_node(self, node: str) -> None:
        await self._open_role.remove_node(node)

    async def promote(self, asked: PromotionAsked) -> Promoted:
        return await self._open_role.promote(asked)

    async def switch_over(self, target: str) -> None:
        role = self._open_role
        leading = role.leading()
        if self._election is None:
            raise illegal("an operator chooses the leader of this group: trovemq cluster promote NODE")
        me = self._settings.node_name
        if not target:
            others = [one for one in leading.copy_states() if one.is_connected]
            in_sync = leading.leader.in_sync.newest.copies
            able = [
                one
                for one in others
                if one.identity in in_sync and not role.cannot_take_over(one.identity.node)
            ]
            target = max(able, key=lambda one: one.flushed).identity.node if able else ""
        if target == me or target not in leading.leader.in_sync.newest.nodes:
            raise illegal(f"node {target or 'that could take over'} is not another copy of the in-sync set")
        if reason := role.cannot_take_over(target):
            raise illegal(reason)
        self._election.switch_over(target)

    async def pause_failover(self, seconds: int) -> None:
        if self._election is None:
            raise illegal("an operator chooses the leader of this group: there is no failover to be paused")
        await self._election.pause(seconds)

    async def cut_files(self) -> CutFiles:
        node, name = self._open_role.node, self._settings.node_name
        return await run_in_thread(partial(cut_files, node, name))

    async def cut_part(self, path: str, offset: Offset) -> CutPart:
        return await run_in_thread(partial(cut_part, self._open_role.node, path, offset))


def run(settings: BrokerSettings, written: Collection[str], sources: Mapping[str, str]) -> int:
    """Runs the node until it ends. Returns the exit code. The arguments are those of BrokerApp."""
    return run_in_process(lambda stop: NodeApp(settings, written, sources).run(stop))


async def _pass_on(stop: Stop, role: LeaderRole) -> None:
    """The process is asked to stop: so is the role."""
    await stop.wait()
    role.stop.request(stop.reason)
