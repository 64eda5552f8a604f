"""This broker's part in the cluster's configuration: alone, owner or follower, and the changes between them.

| from     | to       | when                                                                                |
|----------|----------|-------------------------------------------------------------------------------------|
| alone    | owner    | the hello of another broker comes: the table is founded with all that this one has  |
| owner    | follower | a later generation is seen: in a hello, in the routes, or by a take-over's promise  |
| any      | owner    | a take-over here                                                                    |
| follower | (ended)  | it was removed from the cluster: stored, also where its table lacks that            |

At a start a broker with a table has the role that its table says; a warning says so where the setting names
another owner. One without a table follows the owner that the setting names; without the setting it is alone,
which costs nothing: no file, no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Endpoints
from trovemq_broker.cluster.config_changes import Make
from trovemq_broker.cluster.config_condition import ConfigCondition, Role
from trovemq_broker.cluster.config_follower_side import FollowerSide
from trovemq_broker.cluster.config_founding import add_missing, found
from trovemq_broker.cluster.config_local import LocalSide
from trovemq_broker.cluster.config_owner_side import OwnerSide, removed
from trovemq_broker.cluster.config_store import ConfigStore, Signal
from trovemq_broker.cluster.nameserver_session import BackOff, Jitter, ReadCredentials
from trovemq_broker.cluster.owner_finder import OwnerFinder, OwnerNamed, Successor
from trovemq_broker.cluster.take_over_calls import TakeOverCalls
from trovemq_broker.cluster.view import ConfigSummary
from trovemq_broker.cluster_config.entries import ClockMs, Generation, Kind, Position
from trovemq_broker.cluster_config.local_tables import LocalTables
from trovemq_broker.cluster_config.member_removal import member_removal
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart, parts_of
from trovemq_broker.cluster_config.owner import ChangeResult
from trovemq_broker.cluster_config.status import NodeStatus, PromiseAsked, TakenOver
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.cluster_config.take_over import CopyStatus, status_of
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

MINUTE_S: Final = 60
FORMER_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """The parts of a ConfigNode. `address`: where other brokers reach this one. `draw_mark`: 16 hex digits
    by chance. `publish` is called with the summary for routes; the second argument says whether it is to be
    sent now. `placed` is called with the topics whose placement may have changed."""

    broker: str
    address: Address
    owner: OwnerNamed | None
    store: ConfigStore
    tables: LocalTables
    routes: ClusterRoutes
    endpoints: Endpoints
    credentials: ReadCredentials | None
    settings: BackOff
    jitter: Jitter
    clock_ms: Callable[[], ClockMs]
    draw_mark: Callable[[], str]
    publish: Callable[[ConfigSummary | None, bool], None]
    placed: Callable[[Iterable[str]], None]
    sleep: Callable[[float], Awaitable[None]]


class ConfigNode:
    """Implements SharedConfig, and the calls of ClusterConfigService. `start()` before requests are served,
    `stop()` when no more come."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._stored = stored = parts.store.stored
        self._broker = parts.broker
        self._local = LocalSide(stored, parts.broker, parts.tables, parts.placed, parts.store.dropped)
        self._signal = Signal()
        self._role = Role()
        self._finder = OwnerFinder(stored, parts.broker, parts.owner, parts.endpoints, parts.routes)
        self.condition: Final = ConfigCondition(parts.broker, stored, self._role, self._local, self._finder)
        self._former: list[OwnerSide] = []
        self._following: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._founding = asyncio.Lock()
        self._taking_over = False
        self._published: tuple[str, str, Generation] | None = None
        self._other_cluster = ""
        self.changes = 0
        """Changes that this broker has made as the owner, since its start."""
        self.changes_waiting = 0
        """Callers whose changes are not acknowledged yet."""

    # --- start and stop -------------------------------------------------------------------------------
    async def start(self) -> None:
        stored, named = self._stored, self._parts.owner
        if stored.fault:
            get_logger().warning("config.copy_damaged", message=stored.fault)
        if self._finder.contradiction():
            get_logger().info("config.owner_differs", message=self._finder.contradiction())
        if not stored.table.exists:
            if named is not None and named.name != self._broker:
                await self._follow()
        elif stored.head.owner == self._broker and not stored.is_superseded:
            await self._own()
        else:
            await self._follow()
            member = stored.table.get(Kind.BROKER, self._broker)
            if stored.removed or (member is not None and member.deleted):
                self._take_removal()
                self._recording = asyncio.create_task(self._note_removal(), name="config-removed")
        self._role.is_known = True
        self._signal.notify()
        self._begin_recording()

    def _begin_recording(self) -> None:
        if self._store.must_record and (self._recording is None or self._recording.done()):
            self._recording = asyncio.create_task(self._record(), name="config-record")

    async def _record(self) -> None:
        """A replica group's log has the table from now on."""
        try:
            await self._store.record()
        except TroveError as error:  # the next change does it
            get_logger().error("config.not_stored", message=str(error))

    async def _own(self) -> None:
        store_id = await self._store.store_id()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
            self._following = None
        self._finder.note(None)
        owner = OwnerSide(self._store, self._local, self._broker, self._parts.clock_ms, self._signal)
        self._role.owner, self._role.follower = owner, None
        self._begin()
        try:
            await owner.join_itself(store_id)
        except TroveError as error:
            get_logger().error("config.not_stored", message=str(error))
        owner.progress()

    async def _follow(self) -> None:
        parts = self._parts
        store_id = await self._store.store_id()
        follower = FollowerSide(
            self._store,
            self._local,
            self._broker,
            store_id,
            parts.clock_ms,
            self._signal,
            target=lambda: "a take-over is under way" if self._taking_over else self._finder.target(),
            refused=self._refused,
            check_joined=self._finder.check_joined,
            credentials=parts.credentials,
            settings=parts.settings,
            jitter=parts.jitter,
        )
        self._role.owner, self._role.follower = None, follower
        self._following = asyncio.create_task(follower.run(), name="config-follower")
        self._begin()

    def _begin(self) -> None:
        """Another role."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch_time(), name="config")
        self._publish(now=True)
        self._signal.notify()

    async def stop(self) -> None:
        reason = TroveError(errors.SERVICE_NOT_AVAILABLE, f"broker {self._broker} is stopping")
        self._store.end()
        for task in (self._recording, self._watching, self._following):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        owner = self._role.owner
        for side in (*self._former, *([owner] if owner is not None else [])):
            side.end(reason)
            await side.settle()

    async def until_serves(self) -> None:
        """The summary for the routes is that of the table then."""
        while not self.condition.serves:
            await self._signal.wait(1.0)
        self._publish(now=True)

    async def until_removed(self) -> None:
        while not self._role.removed:
            await self._signal.wait()

    # --- SharedConfig ---------------------------------------------------------------------------------
    @property
    def is_shared(self) -> bool:
        return not self._role.is_alone

    @property
    def is_owner(self) -> bool:
        return self._role.owner is not None

    @property
    def table(self) -> ConfigTable:
        return self._stored.table

    async def change(self, make: Make) -> list[ChangeResult]:
        self.changes_waiting += 1
        try:
            results = await self._own_side().change(make)
        finally:
            self.changes_waiting -= 1
        self.changes += len(results)
        return results

    async def forward(self, method: str, request: bytes, *, caller: str, source: str) -> bytes:
        if self._role.follower is None:
            what = "this broker owns the configuration now; try again"
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, what)
        return await self._role.follower.forward(method, request, caller, source)

    def _own_side(self) -> OwnerSide:
        """TroveError CONFIG_OWNER_MOVED."""
        if self._role.owner is None:
            owner = self._finder.owner()
            owner = "" if owner == self._broker else owner
            what = f"broker {self._broker} does not own the cluster's configuration"
            raise TroveError(
                errors.CONFIG_OWNER_MOVED, f"{what}: {owner or 'no known broker'} does", owner=owner
            )
        return self._role.owner

    # --- the calls of other brokers -------------------------------------------------------------------
    def status(self) -> NodeStatus:
        return self.condition.status()

    def owner_position(self) -> Position:
        """TroveError CONFIG_OWNER_MOVED."""
        self._own_side().owner.check()
        return self._stored.head.position

    async def watch(
        self, hello: Hello, reports: AsyncIterator[Report]
    ) -> AsyncGenerator[TablePart | None, None]:
        if hello.broker == self._broker:
            what = f"the broker that follows is called {hello.broker}, as the owner is: give it another name"
            raise TroveError(errors.BROKER_NAME_TAKEN, what, broker=hello.broker)
        if not self.is_shared or self._stored.table.members() == [self._broker]:
            await self._found(hello)
        side = self._own_side()
        try:
            async with aclosing(side.watch(hello, reports)) as parts:
                async for part in parts:
                    yield part
        except TroveError as error:
            if error.spec is errors.CONFIG_OWNER_MOVED and hello.cluster == self._stored.head.cluster:
                await self._see(Successor(hello.promised, ""))
            raise

    async def _found(self, hello: Hello) -> None:
        """Founds the table for the first broker that follows. TroveError."""
        if hello.cluster not in ("", self._stored.head.cluster):
            what = f"broker {hello.broker} belongs to cluster {hello.cluster}, this one has no configuration"
            raise TroveError(errors.CONFIG_OTHER_CLUSTER, what, broker=hello.broker)
        async with self._founding:
            if not self.is_shared:
                await found(self._store, self._broker, self._parts.draw_mark)
                await self._own()
            if self._role.owner is not None:
                await add_missing(self._role.owner, self._stored.table, self._parts.tables)

    async def promise(self, asked: PromiseAsked) -> CopyStatus:
        if not self.is_shared:
            what = f"broker {self._broker} has no part in cluster {asked.cluster}: it has no configuration"
            raise TroveError(errors.CONFIG_OTHER_CLUSTER, what, broker=self._broker)
        await self._store.promise(asked.generation, asked.cluster)
        try:
            self._parts.endpoints.reached(self._parts.endpoints.at(asked.owner, parse_address(asked.address)))
        except SettingsError:
            get_logger().warning("config.address_illegal", owner=asked.owner, address=asked.address)
        await self._obey(Successor(asked.generation, asked.owner))
        return status_of(self._stored, self._broker)

    async def copy(self, generation: Generation) -> AsyncGenerator[TablePart, None]:
        if self._stored.promised != generation or generation <= self._stored.head.generation:
            what = f"broker {self._broker} has promised generation {self._stored.promised}, not {generation}"
            raise TroveError(errors.CONFIG_GENERATION_OLD, what, promised=str(self._stored.promised))
        for part in parts_of(self._stored.table.image()):
            yield part

    async def take_over(self, cluster: str, source: str) -> TakenOver:
        if self._role.removed:
            raise removed(self._broker)
        if self._taking_over:
            raise TroveError(errors.JOB_RUNNING, "a take-over is under way on this broker")
        self._taking_over = True
        parts = self._parts
        try:
            calls = TakeOverCalls(
                self._store, self._broker, parts.address, parts.endpoints, parts.credentials
            )
            asked = await calls.ask(parts.routes, cluster)
            await calls.promise(asked, parts.draw_mark())
            await self._obey(None)
            await calls.take(asked, source, self._local.replaced)
            await self._own()
        finally:
            self._taking_over = False
        return asked.result(self._stored.head)

    async def clear_dropped(self) -> int:
        return await self._local.dropped.clear()

    async def remove_member(self, broker: str) -> Collection[str] | None:
        """Its topics leave it first, in parts: a call that ends half-way is repeated."""
        self._own_side()
        pending: set[str] = set()
        while True:
            results = await self.change(lambda table: member_removal(table, broker))
            pending.update(name for result in results for name in result.pending if name != broker)
            if not results:
                return None
            if any(result.entry.key == (Kind.BROKER, broker) for result in results):
                return pending

    # --- another owner --------------------------------------------------------------------------------
    async def _see(self, later: Successor) -> None:
        """A generation was seen elsewhere: if it is a later one, it is obeyed."""
        if later.generation <= self._stored.head.generation or self._taking_over:
            return
        await self._store.see(later.generation, self._stored.head.cluster)
        if self._stored.promised == later.generation:
            await self._obey(later)

    async def _obey(self, successor: Successor | None) -> None:
        """A later generation was promised. None: it is that of a take-over here."""
        self._finder.note(successor)
        side = self._role.owner
        if side is not None:
            self._former = [*self._former, side][-FORMER_MAX:]
            moved = f"generation {self._stored.promised} has taken over from {self._broker}"
            get_logger().warning("config.owner_moved", message=moved)
            owner = successor.owner if successor is not None else self._broker
            side.end(TroveError(errors.CONFIG_OWNER_MOVED, moved, owner=owner))
            await self._follow()
        elif self._role.follower is not None:
            self._role.follower.retarget()
        self._publish(now=True)

    async def _refused(self, error: TroveError) -> None:
        """The stream to the owner ended with this error."""
        self._finder.hint = ""
        if error.spec is errors.CONFIG_MEMBER_REMOVED and self._role.follower is not None:
            self._take_removal()
            await self._note_removal()
        elif error.spec is errors.CONFIG_OWNER_MOVED:
            self._finder.hint = error.fields.get("owner", "")

    def _take_removal(self) -> None:
        """This broker is no member any more."""
        assert self._role.follower is not None, "the owner stays a member"
        self._role.removed = True
        get_logger().error("config.removed", message=self.condition.problem())
        self._role.follower.end()
        self._publish(now=True)

    async def _note_removal(self) -> None:
        """Stores it, which in a replica group waits for the commit."""
        try:
            await self._store.note_removal()
        except TroveError as failure:
            get_logger().error("config.not_stored", message=str(failure))

    # --- time -----------------------------------------------------------------------------------------
    async def _watch_time(self) -> None:
        second = 0
        while True:
            await self._parts.sleep(1.0)
            second += 1
            try:
                await self.second(ends_minute=second % MINUTE_S == 0)
            except Exception as error:  # a full disk, for one: the next second tries again
                get_logger().error("config.unexpected_error", exc_info=error)

    async def second(self, *, ends_minute: bool = False) -> None:
        """To be called once a second, unless the broker is alone."""
        later = self._finder.later()
        if later is not None:
            await self._see(later)
        self._note_other_cluster()
        if ends_minute:
            self._begin_recording()
        owner, follower = self._role.owner, self._role.follower
        if owner is not None:
            owner.second()
            if ends_minute:
                await owner.minute()
        if follower is not None and ends_minute:
            await follower.minute()
        self._publish(now=ends_minute)
        self._signal.notify()

    def _note_other_cluster(self) -> None:
        text = self._finder.other_cluster()
        if text and not self._other_cluster:
            get_logger().error("config.other_cluster", message=text)
        self._other_cluster = text

    def _publish(self, *, now: bool) -> None:
        """The summary for the routes: at once when the owner changes; the version once a minute, and with
        each heartbeat that has something else to say."""
        head = self._stored.head
        key = head.cluster, head.owner, head.generation
        self._parts.publish(self.condition.summary(), now or key != self._published)
        self._published = key
