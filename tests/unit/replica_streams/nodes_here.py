"""The nodes of a replica group in one process: real engines on the memory file system, real streams on the
network in memory. The wiring is that of a daemon, as far as the streams need it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS
from tests.support.followers import Leader as Messages
from tests.support.followers import bodies, files_of
from tests.support.services_here import InlineExecutor
from trovemq_broker.cluster.config_calls import Endpoint
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.produce.sync_thread import Done, SyncThread
from trovemq_broker.replica_streams.engine_log import EngineLog, Grown, known_commit, saved_commit
from trovemq_broker.replica_streams.engine_store import EngineStore
from trovemq_broker.replica_streams.follower_stream import FollowerStream
from trovemq_broker.replica_streams.leader_streams import ElectedLeader, LeaderStreams
from trovemq_broker.replica_streams.peers_allowed import PeersAllowed, ReplicaConnections
from trovemq_broker.replica_streams.probes import refused
from trovemq_broker.replica_streams.service import ReplicationService, listener_limits
from trovemq_broker.replica_streams.stream_settings import StreamSettings
from trovemq_broker.replication.follower import ReplicaState
from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Offset
from trovemq_broker.replication.leader import GroupSettings
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange, NodeStatus, Role
from trovemq_broker.server.access.security_service import SecurityService
from trovemq_broker.server.wire.replica_frames import ConsumersPart
from trovemq_daemon.addresses import Address
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.sessions import Sessions
from trovemq_proto import errors
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.channels import ChannelSettings
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.membership import Member, Members
from trovemq_store.replica.replica_file import ReplicaFile

CLUSTER, GROUP, KEY_ID = "c", "g", "k"
FIRST_PORT = 7_001


class Retries:
    registration_retry_min_ms = 50
    registration_retry_max_ms = 1_000


def run(program: Callable[[MemoryLoop], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Runs it in the loop's own time, on a network that delays and cuts bytes. One seed is one run: all
    chance is the seed's, and nothing looks at the machine's clock."""
    loop = InlineLoop(seed, Faults(delay_s_max=0.004, piece_size_max=65_536), end_s=2_000)
    with asyncio.Runner(loop_factory=lambda: loop) as runner, _inline(loop, Random(seed)):
        runner.run(program(loop))


@contextmanager
def _inline(loop: MemoryLoop, random: Random) -> Iterator[None]:
    loop.set_default_executor(InlineExecutor())
    with (
        patch("trovemq_broker.produce.group_commit.SyncThread", LateSync),
        patch("trovemq_daemon.handler_guard.TURN_S", math.inf),
        patch("trovemq_rpc.channel.subchannel._random", random),
        patch("trovemq_rpc.server.endpoint.random", random),
    ):
        yield


class InlineLoop(MemoryLoop):
    """Its executor has no thread to wait for: the base's wait is for one, which this loop does not see."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing."""


class LateSync(SyncThread):
    """Syncs after some milliseconds, which a kill may come before."""

    _next: asyncio.TimerHandle | None = None

    def start(self, call: Callable[[], None], done: Done) -> None:
        def sync() -> None:
            failure: BaseException | None = None
            try:
                call()
            except BaseException as error:  # as the thread does
                failure = error
            done(failure)

        loop = asyncio.get_running_loop()
        assert isinstance(loop, MemoryLoop)
        self._next = loop.call_later(loop.random.choice((0.001, 0.01, 0.2)), sync)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1_000)


class NodeHere:
    """One node. Its disk (`files`, `in_sync`) outlives a kill."""

    def __init__(self, group: GroupHere, name: str, files: MemoryFileSystem | None = None) -> None:
        self.group = group
        self.name = name
        self.files = MemoryFileSystem() if files is None else files
        self.identity = Identity(name, f"store of {name}", 0)
        self.in_sync: InSyncSet | None = None
        self.address = Address("127.0.0.1", FIRST_PORT + len(group.nodes))
        self.streams: LeaderStreams | None = None
        self.following: FollowerStream | None = None
        self.final: TroveError | None = None
        self.grown: set[tuple[str, int]] = set()
        self.stepped_down: list[Epoch] = []
        self.election: ElectedLeader | None = None
        self.lost: list[str] = []
        self.is_up = False
        self.cuts = 0
        self.sessions: Sessions | None = None
        self.users: SecurityService | None = None
        self.credentials: Credentials | None = None
        self.channels = ChannelSettings(transport="trovemq")
        self._tasks: list[asyncio.Task[Any]] = []
        self._listener: asyncio.AbstractServer | None = None

    # --- its life -------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Opens the store and listens; it neither leads nor follows."""
        self.is_up = True
        commit = saved_commit(self.files)
        self.store, self.replica = self._open(commit)
        self.replica.end_at(self.store.end_offset)
        self.state = ReplicaState(
            self.replica.promised_epoch,
            self.replica.epochs,
            known_commit(self.store, commit),
            self.in_sync,
        )
        self.log = EngineLog(self.store, self.replica, self.state)
        others = [one for one in self.group.nodes if one != self.name]
        self.allowed = PeersAllowed(lambda: others, now_ms, self.sessions)
        await self._commit_in_groups()
        await self._listen()

    def _open(self, commit: Offset) -> tuple[MessageStore, ReplicaFile]:
        store = MessageStore.open(
            self.files, self.group.store_settings, NOW_MS, process_id=1, commit_limit=commit
        )
        return store, ReplicaFile.open(self.files)

    async def _commit_in_groups(self) -> None:
        self.syncs = GroupCommit(self.store, FlushSettings(flush_mode="sync"), self._synced)
        self._syncing = asyncio.create_task(self.syncs.run())
        await asyncio.sleep(0)

    async def _listen(self) -> None:
        metrics = RpcMetrics(new_registry("1"), cluster=CLUSTER, node_type="broker", node_id=self.name)
        limits = listener_limits(GrpcLimits(transport="trovemq"), self.group.settings)
        self.connections = ReplicaConnections()
        self.server = GrpcServer(limits, metrics, self.allowed.handler, self.connections)
        ReplicationService(self, self.allowed, self.group.settings).add_to(self.server.server)
        if self.users is not None:
            self.users.add_to(self.server.server)
        await self.server.start()
        inner: Any = self.server._server
        host, port = self.address.host, self.address.port
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: inner.accept(None), host, port)

    async def kill(self, *, power_cut: bool = False) -> None:
        """The process is gone at once; its disk stays, with the synced content alone after a power cut."""
        self.is_up = False
        files = self.files.after_power_cut() if power_cut else self.files.after_process_kill()
        self.syncs.close()
        self._syncing.cancel()
        await self._end_roles()
        if self._listener is not None:
            self._listener.close()
        await self.server.stop(0)
        await asyncio.gather(self._syncing, return_exceptions=True)
        self.files = files

    async def _end_roles(self) -> None:
        if self.streams is not None:
            self.streams.end(TroveError(errors.NOT_LEADER))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self.streams = self.following = None

    # --- roles ----------------------------------------------------------------------------------------
    async def lead(self, epoch: Epoch) -> None:
        """Appends the epoch's first record, and leads."""
        await self._end_roles()
        self.group.leader = self
        if self.store.cut_unfinished_run(self.replica):
            await self._closing()
            self.store.close(NOW_MS)
            self.log.store, self.log.file = self._open(self.state.commit)
            await self._opened(self.log.store)
            self.state.epochs = self.replica.epochs
        if epoch > self.replica.promised_epoch:
            self.replica.promise(epoch)
        self.replica.begin_epoch(epoch, self.store.end_offset)
        self.state.promised, self.state.epochs = epoch, self.replica.epochs
        self.messages = _messages(self.store)
        self.messages.send("orders", 0, 1)
        assert self.in_sync is not None
        self.streams = LeaderStreams(
            self.group.group,
            self.log,
            self.identity,
            self.replica.epochs,
            self.in_sync,
            self.state.commit,
            store_set=self._store_set,
            clock_ms=now_ms,
            refuses=lambda node: refused(self.group.nodes[node].address),
            committed=self._committed,
            stepped_down=self.stepped_down.append,
            election=self.election,
            settings=self.group.settings,
        )
        self._tasks = [asyncio.create_task(self.streams.run())]
        self.syncs.appended()

    async def follow(self) -> None:
        """Follows the leader that the group names."""
        await self._end_roles()
        store = EngineStore(
            self.log,
            self.replica,
            self.state,
            store_set=self._store_set,
            wall_ms=lambda: NOW_MS,
            closing=self._closing,
            reopen=self._open,
            opened=self._opened,
            appended=self._appended_raw,
            available=self._available,
        )
        self.following = FollowerStream(
            CLUSTER,
            GROUP,
            self.identity,
            self.log,
            self.state,
            self.group.store_settings.commit_log_file_size,
            store,
            target=self._target,
            credentials=(lambda: own) if (own := self.credentials) is not None else None,
            clock_ms=now_ms,
            retries=Retries(),
            jitter=lambda: 0.5,
            sealing_key_id=KEY_ID,
            lost=self.lost.append,
            settings=self.group.settings,
            is_sync=True,
        )
        self._tasks = [asyncio.create_task(self._run_following(self.following))]

    async def _run_following(self, following: FollowerStream) -> None:
        self.final = await following.run()

    def _target(self) -> Endpoint | str:
        leader = self.group.leader
        if leader is None:
            return "no leader is known"
        return Endpoint(leader.name, leader.address, self.channels)

    # --- for its parts --------------------------------------------------------------------------
    def _store_set(self, in_sync: InSyncSet) -> None:
        self.in_sync = self.state.in_sync = in_sync

    def _synced(self, grown: Grown) -> None:
        self._available(grown)
        if self.streams is not None:
            self.streams.flushed()
        elif self.following is not None:
            self.following.flushed()

    def _committed(self, commit: Offset) -> None:
        self.state.commit = commit
        self._available(self.log.committed(commit))

    def _available(self, grown: Grown) -> None:
        self.grown.update((topic, int(queue_id)) for topic, queue_id in grown)

    def _appended_raw(self) -> None:
        self.syncs.appended()

    async def _closing(self) -> None:
        self.cuts += 1
        self.syncs.stop()
        await self._syncing
        self.syncs.close()

    async def _opened(self, store: MessageStore) -> None:
        self.store, self.replica = store, self.log.file
        await self._commit_in_groups()

    # --- for ReplicationService -----------------------------------------------------------------------
    @property
    def names(self) -> tuple[str, str]:
        return CLUSTER, GROUP

    @property
    def promised(self) -> Epoch:
        return self.state.promised

    def leading(self) -> LeaderStreams:
        if self.streams is None:
            raise TroveError(errors.NOT_LEADER)
        return self.streams

    async def promise(self, epoch: Epoch) -> Promised:
        await self._end_roles()
        if epoch < self.state.promised:
            raise TroveError(errors.EPOCH_STALE)
        self.syncs.appended()
        await self.group.until(lambda: self.store.flushed_offset == self.store.end_offset)
        self.replica.promise(epoch)
        self.state.promised = epoch
        return Promised(self.identity, epoch, self.state.epochs, self.store.end_offset, self.in_sync)

    def open_status(self) -> NodeStatus:
        status = NodeStatus(group=GROUP, node=self.name, cluster=CLUSTER, role=Role.FOLLOWER)
        return replace(status, listed=self.group.listed)

    async def store_members(self, change: MembersChange) -> Identity:
        self.group.listed = change.listed
        return self.identity

    async def read_log(self, offset: Offset, size_max: int) -> tuple[bytes, int]:
        if not self.log.begin <= offset < self.state.commit:
            raise TroveError(errors.REPLICA_OFFSET_MISMATCH, f"nothing is committed at {offset}")
        await asyncio.sleep(0)
        return self.log.records_at(offset, min(size_max, self.state.commit - offset))

    async def read_consumers(self, epoch: Epoch, known: int, offset: int) -> ConsumersPart:
        if epoch != self.leading().leader.epoch:
            raise TroveError(errors.EPOCH_STALE)
        return ConsumersPart()

    # --- for tests ------------------------------------------------------------------------------------
    def check_tasks(self) -> None:
        """Raises the error of one that has failed."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def send(self, count: int = 1, size: int = 100, queue: int = 0) -> int:
        """One append of a leader. Returns where it ends."""
        assert self.streams is not None
        self.streams.check_append()
        self.messages.send("orders", queue, count, size)
        return self.appended()

    def transact(self, count: int, size: int = 100) -> int:
        self.messages.transact(count, size)
        return self.appended()

    def appended(self) -> int:
        assert self.streams is not None
        self.syncs.appended()
        self.streams.appended()
        return self.store.end_offset

    @property
    def log_bytes(self) -> dict[str, bytes]:
        return files_of(self.files, "commitlog")

    @property
    def bodies(self) -> dict[tuple[str, int], list[bytes]]:
        return bodies(self.store)


def _messages(store: MessageStore) -> Messages:
    made = Messages.__new__(Messages)
    made.settings, made.sent, made.count, made.store = store.settings, [], store.end_offset // 8, store
    return made


class GroupHere:
    """The nodes, all in the first in-sync set."""

    def __init__(
        self,
        *names: str,
        in_sync_min: int = 2,
        settings: StreamSettings | None = None,
        segment_size: int = SEGMENT.commit_log_file_size,
    ) -> None:
        self.settings = settings or StreamSettings()
        self.store_settings = replace(
            SEGMENT, commit_log_file_size=segment_size, body_size_max=2 << 20, batch_size_max=3 << 20
        )
        self.nodes: dict[str, NodeHere] = {}
        self.leader: NodeHere | None = None
        for name in names:
            self.nodes[name] = NodeHere(self, name)
        self.group = GroupSettings(
            CLUSTER,
            GROUP,
            dict.fromkeys(names, True),
            segment_size,
            in_sync_min=in_sync_min,
            sealing_key_id=KEY_ID,
        )
        first = InSyncSet(0, 1, frozenset(one.identity for one in self.nodes.values()))
        for one in self.nodes.values():
            one.in_sync = first
        members = (Member(one.name, "h:1", str(one.address)) for one in self.nodes.values())
        self.listed = Members.first(members)

    def __getitem__(self, name: str) -> NodeHere:
        return self.nodes[name]

    async def start(self, leader: str, epoch: Epoch = 1) -> NodeHere:
        for one in self.nodes.values():
            await one.start()
        await self[leader].lead(epoch)
        for one in self.nodes.values():
            if one.name != leader:
                await one.follow()
        await self.until(lambda: self[leader].leading().leader.is_open)
        return self[leader]

    async def stop(self) -> None:
        for one in self.nodes.values():
            if one.is_up:
                await one.kill()

    async def until(self, is_so: Callable[[], bool], seconds: float = 30.0) -> None:
        """Returns when it is so; AssertionError after that time of the loop's clock."""
        ends = asyncio.get_running_loop().time() + seconds
        while not is_so():
            for one in self.nodes.values():
                one.check_tasks()
            assert asyncio.get_running_loop().time() < ends, self.state()
            await asyncio.sleep(0.01)

    async def until_equal(self) -> None:
        """All that are up have the leader's log, synced and committed."""
        leader = self.leader
        assert leader is not None
        await self.until(
            lambda: all(
                one.store.flushed_offset == one.state.commit == leader.store.end_offset
                for one in self.nodes.values()
                if one.is_up
            )
        )

    def state(self) -> str:
        return "; ".join(
            f"{one.name}: end {one.store.end_offset}, flushed {one.store.flushed_offset}, commit "
            f"{one.state.commit}, {one.following.problem if one.following else 'leads'}"
            for one in self.nodes.values()
            if one.is_up
        )


def epoch_ms() -> EpochMs:
    return EpochMs(NOW_MS + now_ms())
