"""This broker's part in the cluster's configuration: alone, owner or follower, and the changes between them.

| from     | to       | when                                                                                |
|----------|----------|-------------------------------------------------------------------------------------|
| alone    | owner    | the hello of another broker comes: the table is founded with all that this one has  |
| owner    | follower | a later generation is seen: in a hello, in the routes, or by a take-over's promise  |
| any      | owner    | a take-over here                                                                    |
| follower | (ended)  | it was removed from the cluster                                                     |

At a start a broker with a table is what its table says, and a warning says so where the setting names another
owner. One without a table follows the owner that the setting names; without the setting it is alone, which
costs nothing: no file, no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple

from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Place, Places
from trovemq_broker.cluster.config_changes import Make
from trovemq_broker.cluster.config_follower_side import FollowerSide
from trovemq_broker.cluster.config_local import LocalSide
from trovemq_broker.cluster.config_owner_side import OwnerSide
from trovemq_broker.cluster.config_store import ConfigStore, Signal
from trovemq_broker.cluster.nameserver_session import BackOff, Jitter, ReadCredentials
from trovemq_broker.cluster.take_over_calls import TakeOverCalls
from trovemq_broker.cluster.view import ConfigSummary
from trovemq_broker.cluster_config.entries import ClockMs, ConfigChange, Generation, Kind, Position
from trovemq_broker.cluster_config.follower import Serving
from trovemq_broker.cluster_config.local_tables import LocalTables
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart, parts_of
from trovemq_broker.cluster_config.owner import CHANGES_AT_ONCE_MAX, ChangeResult, begin_founding
from trovemq_broker.cluster_config.status import NodeState, NodeStatus, PromiseAsked, TakenOver
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.cluster_config.take_over import CopyStatus, status_of
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

FOUNDING_ROUNDS: Final = 3
"""The table is compared with the broker so often: a topic may be made while it is founded."""
MINUTE_S: Final = 60


@dataclass(frozen=True, slots=True)
class OwnerNamed:
    """The setting config_owner. `address`: None where the routes have it."""

    name: str
    address: Address | None


class Successor(NamedTuple):
    """The owner of a later generation than the table's."""

    generation: Generation
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What a ConfigNode is made of. `address`: where other brokers reach this one. `draw_mark`: 16 hex digits
    by chance. `publish` is called with the summary for routes; the second argument says whether it is to be
    sent now."""

    broker: str
    address: Address
    owner: OwnerNamed | None
    store: ConfigStore
    tables: LocalTables
    routes: ClusterRoutes
    places: Places
    credentials: ReadCredentials | None
    settings: BackOff
    jitter: Jitter
    clock_ms: Callable[[], ClockMs]
    draw_mark: Callable[[], str]
    publish: Callable[[ConfigSummary | None, bool], None]
    sleep: Callable[[float], Awaitable[None]]


class ConfigNode:
    """Implements SharedConfig, and the calls of ClusterConfigService. `start()` before requests are served,
    `stop()` when no more come."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._stored = parts.store.stored
        self._broker = parts.broker
        self._local = LocalSide(self._stored, parts.broker, parts.tables)
        self._signal = Signal()
        self._owner: OwnerSide | None = None
        self._former: list[OwnerSide] = []
        self._follower: FollowerSide | None = None
        self._following: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._founding = asyncio.Lock()
        self._successor: Successor | None = None
        self._hint = ""
        self._reports_seen = -1
        self._served = False
        self._removed = False
        self._taking_over = False
        self._published: tuple[str, str, Generation] | None = None

    # --- start and stop -------------------------------------------------------------------------------
    async def start(self) -> None:
        stored, head, named = self._stored, self._stored.head, self._parts.owner
        if stored.fault:
            get_logger().warning("config.copy_damaged", message=stored.fault)
        if stored.table.exists:
            if named is not None and named.name != head.owner:
                get_logger().warning("config.owner_differs", message=self._contradiction())
            if head.owner == self._broker and not stored.is_superseded:
                await self._own()
            else:
                await self._follow()
                member = stored.table.get(Kind.BROKER, self._broker)
                if member is not None and member.deleted:
                    self._refused(TroveError(errors.CONFIG_MEMBER_REMOVED, self.problem()))
        elif named is not None and named.name != self._broker:
            await self._follow()

    async def _own(self) -> None:
        store_id = await self._store.store_id()
        self._follower = None
        self._owner = owner = OwnerSide(
            self._store, self._local, self._broker, self._parts.clock_ms, self._signal
        )
        self._successor = None
        self._begin()
        try:
            await owner.join_itself(store_id)
        except TroveError as error:
            get_logger().error("config.not_stored", message=str(error))
        owner.progress()

    async def _follow(self) -> None:
        parts = self._parts
        store_id = await self._store.store_id()
        self._owner = None
        self._follower = follower = FollowerSide(
            self._store,
            self._local,
            self._broker,
            store_id,
            parts.clock_ms,
            self._signal,
            target=self._target,
            refused=self._refused,
            credentials=parts.credentials,
            settings=parts.settings,
            jitter=parts.jitter,
        )
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
        for task in (self._watching, self._following):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        for side in (*self._former, *([self._owner] if self._owner is not None else [])):
            side.end(reason)
            await side.settle()

    # --- SharedConfig ---------------------------------------------------------------------------------
    @property
    def is_shared(self) -> bool:
        return self._owner is not None or self._follower is not None

    @property
    def is_owner(self) -> bool:
        return self._owner is not None

    @property
    def table(self) -> ConfigTable:
        return self._stored.table

    async def change(self, make: Make) -> list[ChangeResult]:
        return await self._own_side().change(make)

    async def forward(self, method: str, request: bytes, *, caller: str, source: str) -> bytes:
        if self._follower is None:
            raise TroveError(
                errors.SERVICE_NOT_AVAILABLE, "this broker owns the configuration now; try again"
            )
        return await self._follower.forward(method, request, caller, source)

    def _own_side(self) -> OwnerSide:
        """TroveError CONFIG_OWNER_MOVED."""
        if self._owner is None:
            owner = self._stored.head.owner if self._successor is None else self._successor.owner
            what = f"broker {self._broker} does not own the cluster's configuration"
            raise TroveError(errors.CONFIG_OWNER_MOVED, f"{what}: {owner or 'nobody'} does", owner=owner)
        return self._owner

    # --- the calls of other brokers -------------------------------------------------------------------
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
            what = (
                f"broker {hello.broker} belongs to cluster {hello.cluster}, this broker has no configuration"
            )
            raise TroveError(errors.CONFIG_OTHER_CLUSTER, what, broker=hello.broker)
        async with self._founding:
            if not self.is_shared:
                draw = self._parts.draw_mark
                store_id = await self._store.store_id()
                async with self._store.lock:
                    work = begin_founding(self._stored, self._broker, store_id, cluster=draw(), mark=draw())
                    try:
                        await run_in_thread(work.run)
                    finally:
                        self._stored.finish(work)
                get_logger().info("config.founded", cluster=self._stored.head.cluster)
                await self._own()
            side = self._owner
            for _ in range(FOUNDING_ROUNDS):
                if side is None or not await self._add_missing(side):
                    break

    async def _add_missing(self, side: OwnerSide) -> bool:
        """Adds what this broker has and the table lacks, of a cluster of one. Returns whether there was
        any."""
        table = self._stored.table
        missing = [one for one in self._parts.tables.founding() if table.get(*one.key) is None]
        for begin in range(0, len(missing), CHANGES_AT_ONCE_MAX):
            await side.store(_still_missing(missing[begin : begin + CHANGES_AT_ONCE_MAX]))
        return bool(missing)

    async def promise(self, asked: PromiseAsked) -> CopyStatus:
        if not self.is_shared:
            what = f"broker {self._broker} has no part in cluster {asked.cluster}: it has no configuration"
            raise TroveError(errors.CONFIG_OTHER_CLUSTER, what, broker=self._broker)
        await self._store.promise(asked.generation, asked.cluster)
        try:
            self._parts.places.reached(self._parts.places.at(asked.owner, parse_address(asked.address)))
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
        if self._taking_over:
            raise TroveError(errors.JOB_RUNNING, "a take-over is under way on this broker")
        self._taking_over = True
        try:
            calls = TakeOverCalls(
                self._store, self._broker, self._parts.address, self._parts.places, self._parts.credentials
            )
            asked = await calls.ask(self._parts.routes, cluster)
            await calls.promise(asked, self._parts.draw_mark())
            await self._obey(None)
            await calls.take(asked, source)
            await self._end_following()
            await self._own()
        finally:
            self._taking_over = False
        self._local.drop(asked.dropped)
        return asked.result(self._stored.head)

    # --- another owner --------------------------------------------------------------------------------
    async def _see(self, later: Successor) -> None:
        """A generation was seen elsewhere: if it is a later one, it is obeyed."""
        if later.generation <= self._stored.head.generation or self._taking_over:
            return
        await self._store.see(later.generation, self._stored.head.cluster)
        if self._stored.promised == later.generation:
            await self._obey(later)

    async def _obey(self, successor: Successor | None) -> None:
        """A later generation was promised. None: it is not known yet whose it is."""
        known = self._successor
        if successor is None or successor.owner or known is None or known.generation < successor.generation:
            self._successor = successor
        if self._owner is not None:
            side, self._owner = self._owner, None
            self._former = [*self._former[-7:], side]
            moved = f"generation {self._stored.promised} has taken over from {self._broker}"
            get_logger().warning("config.owner_moved", message=moved)
            owner = successor.owner if successor is not None else ""
            side.end(TroveError(errors.CONFIG_OWNER_MOVED, moved, owner=owner))
            await self._follow()
        elif self._follower is not None:
            self._follower.retarget()
        self._publish(now=True)

    async def _end_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
            self._following = None

    def _target(self) -> Place | str:
        """Where the owner is; a text if that is not known."""
        name, named = self._owner_name(), self._parts.owner
        if self._taking_over:
            return "a take-over is under way on this broker"
        if not name or name == self._broker:
            seen = self._stored.promised
            return (
                f"nobody is known to own generation {seen}, which was seen: trovemq cluster config-owner NAME"
            )
        if named is not None and named.name == name and named.address is not None:
            return self._parts.places.at(name, named.address)
        found = self._parts.places.find(name)
        return found or f"the address of the owner {name} is not known: it is not in the nameservers' routes"

    def _owner_name(self) -> str:
        head, named = self._stored.head, self._parts.owner
        if self._stored.is_superseded and self._stored.table.exists:
            return "" if self._successor is None else self._successor.owner
        if self._stored.table.exists:
            return head.owner
        if self._successor is not None and self._successor.owner:
            return self._successor.owner
        return self._hint or ("" if named is None else named.name)

    def _refused(self, error: TroveError) -> None:
        """The stream to the owner ended with this error."""
        if error.spec is errors.CONFIG_MEMBER_REMOVED and self._follower is not None:
            get_logger().error("config.removed", message=error.message)
            self._removed = True
            self._follower.end()
            self._publish(now=True)
        elif error.spec is errors.CONFIG_OWNER_MOVED:
            self._hint = error.fields.get("owner", "")
        else:
            self._hint = ""

    async def _look_at_routes(self) -> None:
        """Obeys a later generation of this cluster that the nameservers show."""
        routes, head = self._parts.routes, self._stored.head
        if routes.reports == self._reports_seen or not head.cluster:
            return
        self._reports_seen = routes.reports
        later = max(
            (
                Successor(Generation(one.config.generation, one.config.mark), one.config.owner)
                for one in routes.brokers
                if one.config is not None and one.config.id == head.cluster
            ),
            default=None,
        )
        if later is None or later.generation <= head.generation or later == self._successor:
            return
        await self._see(later)

    # --- time -----------------------------------------------------------------------------------------
    async def _watch_time(self) -> None:
        second = 0
        while True:
            await self._parts.sleep(1.0)
            second += 1
            try:
                await self.second(ends_minute=second % MINUTE_S == 0)
            except TroveError as error:
                get_logger().error("config.not_stored", message=str(error))
            except Exception as error:
                get_logger().error("config.unexpected_error", exc_info=error)

    async def second(self, *, ends_minute: bool = False) -> None:
        """To be called once a second, unless the broker is alone."""
        await self._look_at_routes()
        if self._owner is not None:
            self._owner.second()
            if ends_minute:
                await self._owner.minute()
        if self._follower is not None and ends_minute:
            await self._follower.minute()
        self._publish(now=ends_minute)
        self._signal.notify()

    def _publish(self, *, now: bool) -> None:
        """The summary for the routes: at once when the owner changes; the version once a minute, and with each
        heartbeat that has something else to say."""
        head = self._stored.head
        key = (head.cluster, head.owner, head.generation)
        summary = None
        if self._stored.table.exists and not self._removed:
            generation = head.generation
            summary = ConfigSummary(
                head.cluster, head.owner, generation.number, generation.mark, head.version
            )
        self._parts.publish(summary, now or key != self._published)
        self._published = key

    # --- serving --------------------------------------------------------------------------------------
    @property
    def serves(self) -> bool:
        """Whether messages may be served. Once served, they flow on, unless this broker was removed."""
        if self._removed:
            return False
        if not self._served:
            self._served = self._follower is None or self._follower.serving.serves
        return self._served

    async def until_serves(self) -> None:
        while not self.serves:
            await self._signal.wait(1.0)

    async def until_removed(self) -> None:
        while not self._removed:
            await self._signal.wait()

    def refusal(self) -> TroveError | None:
        """The error for messages and receivers while they are not served."""
        if self.serves:
            return None
        spec = errors.CONFIG_MEMBER_REMOVED if self._removed else errors.SERVICE_NOT_AVAILABLE
        return TroveError(spec, f"{self.problem()}: use another broker", broker=self._broker)

    def problem(self) -> str:
        """For readiness: why messages are not served, or an empty text."""
        if self._removed:
            return f"broker {self._broker} was removed from its cluster: stop it"
        if self.serves or self._follower is None:
            return ""
        joins = self._follower.serving is Serving.JOINING
        what = "joins the cluster and has no configuration yet" if joins else "waits for its owner"
        return f"broker {self._broker} {what} ({self._follower.problem})"

    def warning(self) -> str:
        """For readiness; empty if there is none."""
        texts = [self._contradiction(), self._trouble(), self._local.warning() if self.is_shared else ""]
        return "; ".join(text for text in texts if text)

    def _trouble(self) -> str:
        if self._owner is not None:
            try:
                self._owner.owner.check()
            except TroveError as error:
                return error.message
        if self._follower is not None and self._follower.serving is Serving.STORED:
            return f"the stored configuration is used: {self._follower.problem}"
        return ""

    def _contradiction(self) -> str:
        named, owner = self._parts.owner, self._stored.head.owner
        if named is None or not owner or named.name == owner:
            return ""
        return f"config_owner is {named.name}, the table says {owner}: correct the setting"

    def status(self) -> NodeStatus:
        notes = self._local.notes()
        return NodeStatus(
            state=self._state(),
            problem=self.problem() or self._trouble(),
            copy=status_of(self._stored, self._broker),
            members=self._owner.members() if self._owner is not None else (),
            **notes,
        )

    def _state(self) -> NodeState:
        if self._removed:
            return NodeState.REMOVED
        if self._owner is not None:
            contradicted = self._owner.owner.contradicted
            return NodeState.CONTRADICTED if contradicted else NodeState.OWNER
        if self._follower is None:
            return NodeState.ALONE
        if self._stored.is_superseded and self._stored.head.owner == self._broker:
            return NodeState.SUPERSEDED
        return NodeState(self._follower.serving)


def _still_missing(changes: Sequence[ConfigChange]) -> Make:
    return lambda table: [one for one in changes if table.get(*one.key) is None]
