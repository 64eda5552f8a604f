"""The owner of the cluster's configuration on its event loop: changes of callers, streams of followers, and
this broker's own tables.

A change is acknowledged by Owner.result(); then it is made in this broker's tables, and its caller answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final

from trovemq_broker.cluster.config_changes import ConfigChanges, Make
from trovemq_broker.cluster.config_local import LocalSide
from trovemq_broker.cluster.config_store import ConfigStore, Signal
from trovemq_broker.cluster_config.entries import ChangeKind, ClockMs, ConfigChange, Entry, Kind
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart
from trovemq_broker.cluster_config.owner import STORE_ID, ChangeResult, FollowerStream, Owner
from trovemq_broker.cluster_config.status import MemberStatus
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

CALLER_WAIT_S: Final = 8.0
LIVE_WAIT_S: Final = 0.5
STREAMS_MAX: Final = 1_024


class _Link:
    """An open stream to a follower."""

    def __init__(self, stream: FollowerStream) -> None:
        self.stream = stream
        self.wake = asyncio.Event()
        self.ended: Exception | None = None
        self.joined = False
        """Whether its broker has become a member."""

    def end(self, error: Exception) -> None:
        self.ended = self.ended or error
        self.wake.set()


class OwnerSide:
    """`second()` and `minute()` are called by the node's task."""

    def __init__(
        self,
        store: ConfigStore,
        local: LocalSide,
        broker: str,
        clock_ms: Callable[[], ClockMs],
        signal: Signal,
    ) -> None:
        self._store = store
        self._local = local
        self._broker = broker
        self._clock_ms = clock_ms
        self._signal = signal
        self.owner: Final = Owner(store.stored, broker, clock_ms())
        self._changes = ConfigChanges(store, self.owner, broker, clock_ms, self.progress)
        self._links: set[_Link] = set()
        self._applied = 0
        self._compared = False
        self._applying: asyncio.Task[None] | None = None
        self._stopped: TroveError | None = None

    # --- changes --------------------------------------------------------------------------------------
    async def change(self, make: Make) -> list[ChangeResult]:
        """The results, acknowledged and made in this broker's own tables. Raises the errors of `make`, and
        TroveError of a change that is refused, or in doubt."""
        stored = False
        try:
            async with asyncio.timeout(CALLER_WAIT_S):
                entries = await self._changes.store(make)
                stored = True
                results = await self._acknowledged(entries)
            return await self._held_by_live(entries, results)
        except TimeoutError:
            what = "the change is stored on the owner, and" if stored else "the change"
            raise TroveError(
                errors.REQUEST_TIMEOUT,
                f"{what} was not acknowledged within {CALLER_WAIT_S:.0f} s; it may or may not have been made:"
                " read the entry, and decide again",
                in_doubt="true",
            ) from None

    async def _acknowledged(self, entries: list[Entry]) -> list[ChangeResult]:
        """The results, when all are acknowledged and made in this broker's own tables."""
        version = max((entry.version.version for entry in entries), default=0)
        while True:
            results = [self.owner.result(entry) for entry in entries]
            found = [result for result in results if result is not None]
            is_made = self._applied >= version or self._stopped is not None
            if len(found) == len(entries) and is_made:
                return found
            if self._stopped is not None:
                what = f"{self._stopped.message}; the change may or may not have been made"
                raise TroveError(self._stopped.spec, what, in_doubt="true")
            await self._signal.wait()

    async def _held_by_live(self, entries: list[Entry], results: list[ChangeResult]) -> list[ChangeResult]:
        """The results when all live brokers hold the changes, or LIVE_WAIT_S later: `pending` is to name
        those that are away or late, not those whose report comes a millisecond after the first one."""
        try:
            async with asyncio.timeout(LIVE_WAIT_S):
                while any(not self._live.isdisjoint(result.pending) for result in results):
                    await self._signal.wait()
                    results = await self._acknowledged(entries)
        except TimeoutError:
            pass
        return results

    @property
    def _live(self) -> frozenset[str]:
        return frozenset(self.owner.live)

    async def join(self, change: ConfigChange) -> None:
        """Makes a broker a member, or notes its new store: on disk here when this returns. TroveError."""

        def make(table: ConfigTable) -> list[ConfigChange]:
            member = table.live(Kind.BROKER, change.name)
            settings = change.settings if member is None else {**member.settings, **change.settings}
            action = ChangeKind.CREATE if member is None else ChangeKind.ALTER
            seen = None if member is None else member.version
            return [ConfigChange(action, Kind.BROKER, change.name, seen, settings)]

        await self._changes.store(make)

    async def join_itself(self, store_id: str) -> None:
        """The owner is a member: also after a take-over, and with another store."""
        member = self._store.stored.table.live(Kind.BROKER, self._broker)
        if member is None or member.settings.get(STORE_ID) != store_id:
            settings = {STORE_ID: store_id}
            await self.join(ConfigChange(ChangeKind.CREATE, Kind.BROKER, self._broker, settings=settings))

    async def store(self, make: Make) -> None:
        """Returns when the changes are on this broker's disk."""
        await self._changes.store(make)

    def progress(self) -> None:
        """Something has changed: sends, applies, and answers callers."""
        for link in self._links:
            link.wake.set()
        if self._must_apply() and (self._applying is None or self._applying.done()):
            self._applying = asyncio.create_task(self._apply(), name="config-apply")
        self._signal.notify()

    def _must_apply(self) -> bool:
        if self._stopped is not None or self._store.stored.is_superseded:
            return False
        return self.owner.acknowledged > self._applied or self._may_compare()

    def _may_compare(self) -> bool:
        """Whether everything is to be compared, and no entry waits for its acknowledgement."""
        return not self._compared and self.owner.acknowledged == self.owner.head.version

    async def _apply(self) -> None:
        """Makes the acknowledged entries in this broker's own tables."""
        while self._must_apply():
            version = self.owner.acknowledged
            entries, whole = self.owner.take_acknowledged(), self._may_compare()
            try:
                if whole:
                    self._compared = True
                    await self._local.whole()
                else:
                    await self._local.some(entries)
            except Exception as error:  # it is compared again in a minute; other changes are made
                get_logger().error("config.not_compared", exc_info=error)
            self._applied = max(self._applied, version)
            self._signal.notify()

    # --- time -----------------------------------------------------------------------------------------
    def second(self) -> None:
        """To be called once a second."""
        now_ms = self._clock_ms()
        self.owner.tick(now_ms)
        late = self.owner.overdue(now_ms)
        for link in [link for link in self._links if link.stream in late]:
            get_logger().warning("config.follower_overdue", broker=link.stream.broker)
            link.end(TroveError(errors.CONFIG_GAP, "no report came in time"))
            link.stream.live = False  # it had its time: no change waits for it to come back
            self.owner.disconnected(link.stream, now_ms)
        for link in self._links:
            if link.joined and self._store.stored.table.live(Kind.BROKER, link.stream.broker) is None:
                link.end(removed(link.stream.broker))
        self.progress()

    async def minute(self) -> None:
        """To be called once a minute: forgets deletions, plans failed actions again."""
        try:
            async with self._store.lock:
                work = self.owner.begin_forgetting()
                if work is not None:
                    try:
                        await self._store.run(work)
                    finally:
                        self.owner.finish(work, self._clock_ms())
        except TroveError as error:
            get_logger().warning("config.not_forgotten", message=str(error))
        if self._local.has_failures:
            self._compared = False
        self.progress()

    # --- followers ------------------------------------------------------------------------------------
    async def watch(
        self, hello: Hello, reports: AsyncIterator[Report]
    ) -> AsyncGenerator[TablePart | None, None]:
        """The parts for a follower, until its stream ends; None first if it has everything."""
        if len(self._links) >= STREAMS_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{STREAMS_MAX} brokers follow already")
        self._check_member(hello)
        link = _Link(self.owner.connected(hello, self._clock_ms()))
        for other in self._links:
            if other.stream.broker == hello.broker:
                other.end(TroveError(errors.CONFIG_GAP, "the broker has opened another stream"))
        self._links.add(link)
        reading = asyncio.create_task(self._read(link, reports), name=f"config-reports {hello.broker}")
        try:
            if link.stream.membership is not None:
                await self.join(link.stream.membership)
            link.joined = True
            get_logger().info("config.follower", broker=hello.broker, position=str(hello.position))
            self.progress()
            is_first = True
            while link.ended is None:
                link.wake.clear()
                parts = self.owner.parts_for(link.stream, self._clock_ms())
                if is_first and not parts:
                    yield None
                is_first = False
                for part in parts:
                    yield part
                if not parts:
                    await link.wake.wait()
            if not isinstance(link.ended, StopAsyncIteration):
                raise link.ended
        finally:
            self._links.discard(link)
            reading.cancel()
            self.owner.disconnected(link.stream, self._clock_ms())
            self.progress()

    async def _read(self, link: _Link, reports: AsyncIterator[Report]) -> None:
        try:
            async for report in reports:
                self.owner.reported(link.stream, report, self._clock_ms())
                self.progress()
            link.end(StopAsyncIteration())
        except Exception as error:
            link.end(error)

    def _check_member(self, hello: Hello) -> None:
        """TroveError CONFIG_MEMBER_REMOVED for a broker that was removed and has the table still. One whose
        membership was dropped by a take-over becomes a member again."""
        table, head = self._store.stored.table, self.owner.head
        is_later = hello.position.generation == head.generation and hello.position.version > head.version
        if hello.promised > head.generation or is_later:
            return  # this owner is of the past: connected() says so
        if hello.cluster != head.cluster or table.live(Kind.BROKER, hello.broker) is not None:
            return
        is_forgotten = hello.position.version < head.horizon and head.contains(hello.position)
        if table.get(Kind.BROKER, hello.broker) is not None or is_forgotten:
            raise removed(hello.broker)

    def members(self) -> list[MemberStatus]:
        live = {*self.owner.live, self._broker}
        return [MemberStatus(name, version, name in live) for name, version in self.owner.positions().items()]

    # --- end ------------------------------------------------------------------------------------------
    def end(self, reason: TroveError) -> None:
        """This broker is not the owner any more, or stops: ends the followers' streams."""
        self._stopped = reason
        for link in self._links:
            link.end(reason)
        self._signal.notify()

    async def settle(self) -> None:
        """Returns when no change is under way."""
        await self._changes.settle()
        if self._applying is not None:
            await asyncio.wait([self._applying])


def removed(broker: str) -> TroveError:
    what = f"broker {broker} was removed from the cluster: to use it again, start it with an empty store"
    return TroveError(errors.CONFIG_MEMBER_REMOVED, what, broker=broker)
