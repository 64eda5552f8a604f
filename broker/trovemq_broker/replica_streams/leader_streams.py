"""A leader on the event loop: the streams of its followers, its timer, and the commit for acknowledgements.

Frames of followers come in through `follow()`, appends and syncs through `appended()` and `flushed()`. The
state machine (`trovemq_broker.replication.leader`) decides; its actions are carried out here, in order.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeAlias

from trovemq_broker.replica_streams.frame_faults import FrameFaults
from trovemq_broker.replica_streams.outgoing import Outgoing
from trovemq_broker.replica_streams.stream_settings import StreamSettings
from trovemq_broker.replica_streams.taken_streams import TakenStreams
from trovemq_broker.replication.frames import (
    Epoch,
    Hello,
    Identity,
    InSyncSet,
    LeaderFrame,
    Node,
    NowMs,
    Offset,
    Progress,
)
from trovemq_broker.replication.leader import (
    CopyState,
    EndStream,
    GroupSettings,
    Leader,
    LeaderAction,
    LeaderLog,
    Send,
    StepDown,
    StoreSet,
)
from trovemq_broker.replication.peers import Stream
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.files import StorageError
from trovemq_store.replica.epochs import Epochs

Refuses: TypeAlias = Callable[[Node], Awaitable[bool]]
"""Whether the node's machine refuses connections: its process has ended."""
STORE_AGAIN_S: Final = 1.0
"""After an in-sync set could not be stored."""


class ElectedLeader(Protocol):
    """The election that has chosen this leader."""

    def in_sync_wanted(self, in_sync: InSyncSet) -> None:
        """LeaderStreams.confirm() is the answer."""

    def held(self) -> None:
        """The target of a hold has all of the log, and nothing is appended."""

    def may_append(self) -> bool:
        """Whether it may take messages, and hand them out, now."""

    def may_deliver_in_order(self) -> bool:
        """Whether no leader before can hold a message for a consumer of an ordered group."""


class _Link:
    """The stream of one follower."""

    def __init__(self, number: Stream, node: Node, outgoing: Outgoing) -> None:
        self.number: Final = number
        self.node: Final = node
        self.outgoing: Final = outgoing
        self.ended_here = False
        """Not by the follower, or the network."""


class LeaderStreams:
    """`run()` until it is cancelled, then `end()`. It is a ReplicatedCommit.

    Args:
        group, log, me, epochs, stored, known_commit: As for Leader: the epoch and its first record are in the
            log.
        store_set: Stores and syncs an in-sync set; called in a thread.
        clock_ms: Never steps back.
        refuses: Is asked when a stream has ended.
        committed: Lets readers see the log up to the commit.
        stepped_down: A higher epoch was promised elsewhere.
        election: Confirms the in-sync sets; None: the copies do, by storing them.
    """

    def __init__(
        self,
        group: GroupSettings,
        log: LeaderLog,
        me: Identity,
        epochs: Epochs,
        stored: InSyncSet,
        known_commit: Offset,
        *,
        store_set: Callable[[InSyncSet], None],
        clock_ms: Callable[[], NowMs],
        refuses: Refuses,
        committed: Callable[[Offset], None],
        stepped_down: Callable[[Epoch], None],
        election: ElectedLeader | None = None,
        settings: StreamSettings | None = None,
    ) -> None:
        self._settings = settings or StreamSettings()
        self._log = log
        self._clock_ms = clock_ms
        self._store_set = store_set
        self._refuses = refuses
        self._committed = committed
        self._stepped_down = stepped_down
        self._election = election
        self.leader: Final = Leader(group, log, me, epochs, stored, known_commit, clock_ms())
        self._epoch_start = epochs.entries[-1].start
        self._commit = self.leader.commit
        self._on_commit: list[Callable[[], None]] = []
        self._links: dict[Stream, _Link] = {}
        self._numbers = itertools.count(1)
        self._faults = FrameFaults()
        self._taken: dict[Node, TakenStreams] = {}
        self._ended: TroveError | None = None
        self._set: InSyncSet | None = None
        self._set_wanted = asyncio.Event()
        self._probes: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None
        """While it runs."""
        self._held_for: Node | None = None
        """The node that takes over as planned."""
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms: NowMs = 0
        self.problem = ""
        """For readiness; empty if there is none."""
        self.not_kept: frozenset[Node] = frozenset()
        """Members that lag so far, or are away for so long, that retention does not wait for them."""

    # --- for acknowledgements (ReplicatedCommit) ------------------------------------------------------
    @property
    def commit_offset(self) -> Offset:
        return self._commit

    @property
    def copies(self) -> int:
        return len({copy.node for copy in self.leader.in_sync.counted})

    def copy_states(self) -> list[CopyState]:
        """The followers, by the clock of this leader."""
        return self.leader.copies(self._clock_ms())

    def check_append(self) -> None:
        """TroveError NOT_LEADER, NOT_ENOUGH_REPLICAS."""
        self._check_lease()
        if self._held_for is not None:
            raise TroveError(errors.NOT_LEADER, f"node {self._held_for} takes over now")
        self.leader.check_append()
        if not self.leader.is_open:
            text = f"the first record of epoch {self.leader.epoch} is not committed yet"
            raise TroveError(errors.NOT_ENOUGH_REPLICAS, text)

    @property
    def is_held(self) -> bool:
        return self._held_for is not None

    def hold(self, target: Node) -> None:
        """Nothing is appended until release() or end(); the election hears when the target has all."""
        self._held_for = target
        self._look_whether_held()

    def release(self) -> None:
        """Appends continue."""
        if self._held_for is not None:
            self._held_for = None
            for call in self._on_commit:
                call()

    def _look_whether_held(self) -> None:
        leader, end = self.leader, self._log.end
        if self._election is None or leader.commit < end:
            return
        copies = {one.identity.node: one for one in self.copy_states()}
        target = copies.get(self._held_for or "")
        if target is not None and (target.flushed if leader.settings.is_sync else target.end) >= end:
            self._election.held()

    def check_delivery(self, *, in_order: bool) -> None:
        """TroveError NOT_LEADER, SERVICE_NOT_AVAILABLE."""
        self._check_lease()
        if in_order and self._election is not None and not self._election.may_deliver_in_order():
            text = "ordered groups wait until the rights of the leader before have ended"
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, text)

    def _check_lease(self) -> None:
        """To be asked each time: a process that was paused has lost the right while it slept."""
        if self._ended is not None:
            raise self._ended
        if self._election is not None and not self._election.may_append():
            raise TroveError(errors.NOT_LEADER, "this node is not known to lead any more: its lease is over")

    def appended(self) -> None:
        self._take(self.leader.appended)

    def flushed(self) -> None:
        self._take(self.leader.flushed)

    def on_commit(self, call: Callable[[], None]) -> None:
        self._on_commit.append(call)

    @property
    def needed_from(self) -> Offset:
        kept = self.leader.kept_log(self._clock_ms())
        for node in sorted(kept.not_kept - self.not_kept):
            get_logger().warning("replica.log_not_kept", node=node, log_end=self.leader.log_end)
        self.not_kept = kept.not_kept
        return kept.begin

    # --- its life -------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Leads until cancelled. Raises the error of an action that could not be carried out."""
        self._failed = asyncio.get_running_loop().create_future()
        storing = asyncio.create_task(self._store_sets(), name="replica-sets")
        try:
            self._carry_out(self.leader.begin())
            self._tick()
            await self._failed
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._failed.cancel()
            storing.cancel()
            for probe in self._probes:
                probe.cancel()
            await asyncio.gather(storing, *self._probes, return_exceptions=True)

    def _tick(self) -> None:
        self._timer = None
        self._take(self.leader.tick)

    def _set_timer(self) -> None:
        """For the state machine's next tick, which an input may have made an earlier one."""
        failed = self._failed
        if failed is None or failed.done() or self._ended is not None:
            return
        now_ms = self._clock_ms()
        due_ms = min(self.leader.next_tick_ms, now_ms + self._settings.tick_ms)
        if self._timer is not None:
            if due_ms >= self._due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        self._timer = failed.get_loop().call_later(max(0, due_ms - now_ms) / 1_000, self._tick)

    def regroup(self, group: GroupSettings) -> None:
        """The members have changed: a node that is none any more loses its stream."""
        self._take(partial(self.leader.regroup, group))

    def confirm(self, in_sync: InSyncSet) -> None:
        """The election has confirmed the proposed set, which this node stores, too."""
        self._set = in_sync
        self._set_wanted.set()
        self._take(partial(self.leader.set_confirmed, in_sync))

    def end(self, error: TroveError) -> None:
        """This node leads no more, or stops: nothing is committed, and all streams end."""
        if self._ended is None:
            self._ended = error
        self.release()
        for link in self._links.values():
            self._end(link, error)

    # --- streams --------------------------------------------------------------------------------------
    async def follow(
        self, hello: Hello, reports: AsyncIterator[Progress]
    ) -> AsyncGenerator[LeaderFrame, None]:
        """The frames for a follower, until its stream ends. TroveError."""
        node = hello.identity.node
        if self._ended is not None:
            raise self._ended
        self._faults.check(node, self._clock_ms())
        if len(self._links) >= self._settings.streams_max:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{len(self._links)} streams are open already")
        outgoing = Outgoing(self._settings.queued_frames_max, self._epoch_start)
        link = _Link(next(self._numbers), node, outgoing)
        self._links[link.number] = link
        reading: asyncio.Task[None] | None = None
        try:
            self._take(partial(self.leader.hello, link.number, hello), link)
            reading = asyncio.create_task(self._read(link, reports), name=f"replica-progress {node}")
            while True:
                yield await outgoing.next()
        except TroveError as error:
            if error.spec is errors.REPLICA_FRAME_ILLEGAL:
                self._faults.note(node, self._clock_ms())
            self._log_end(node, error)
            raise
        finally:
            if reading is not None:
                reading.cancel()
            del self._links[link.number]
            self._closed(link)

    def _log_end(self, node: Node, error: TroveError) -> None:
        count = 1
        if error.spec is errors.REPLICA_STREAM_TAKEN:  # of a member: the group's size bounds them
            count = self._taken.setdefault(node, TakenStreams()).note(self._clock_ms())
        if count:
            get_logger().warning("replica.stream_ended", node=node, message=str(error), count=count)

    async def _read(self, link: _Link, reports: AsyncIterator[Progress]) -> None:
        try:
            async for report in reports:
                if link.outgoing.error is not None:
                    return
                self._take(partial(self.leader.progress, link.number, report), link)
            link.outgoing.end(TroveError(errors.BROKER_UNREACHABLE, "the follower ended the stream"))
        except TroveError as error:
            self._end(link, error)
        except Exception as error:  # of the connection
            link.outgoing.end(TroveError(errors.BROKER_UNREACHABLE, f"the stream broke: {error}"))

    def _end(self, link: _Link, error: TroveError) -> None:
        link.ended_here = True
        link.outgoing.end(error)

    def _closed(self, link: _Link) -> None:
        """Tries whether the follower's process has ended: then it is not waited for."""
        if link.ended_here or self._ended is not None:
            self._take(partial(self.leader.closed, link.number))
            return
        probe = asyncio.create_task(self._probe(link), name=f"replica-probe {link.node}")
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def _probe(self, link: _Link) -> None:
        is_dead = False
        try:
            async with asyncio.timeout(self._settings.probe_timeout_ms / 1_000):
                is_dead = await self._refuses(link.node)
        except (OSError, TimeoutError):
            pass
        self._take(partial(self.leader.closed, link.number, is_dead=is_dead))

    # --- actions --------------------------------------------------------------------------------------
    def _take(self, give: Callable[[NowMs], list[LeaderAction]], link: _Link | None = None) -> None:
        """Gives an input to the state machine, and carries out its actions. `link`: they are of that stream
        alone."""
        if self._ended is not None:
            return
        try:
            self._carry_out(give(self._clock_ms()))
        except (TroveError, StorageError) as error:  # the log cannot be read there
            self._unreadable(
                error, [one for one in self._links.values() if link is None or one.node == link.node]
            )
            if link is not None:  # else the next append would read there again, for all
                self._take(partial(self.leader.closed, link.number))
        except Exception as error:
            self._fail(error)
            raise
        if self._held_for is not None:
            self._look_whether_held()
        self._set_timer()

    def _fail(self, error: Exception) -> None:
        """Ends run()."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    def _carry_out(self, actions: Iterable[LeaderAction]) -> None:
        for action in actions:
            match action:
                case Send(stream, frame):
                    self._send(stream, frame)
                case EndStream(stream, error):
                    if (link := self._links.get(stream)) is not None:
                        self._end(link, error)
                case StoreSet(in_sync) if self._election is not None:
                    self._election.in_sync_wanted(in_sync)
                case StoreSet(in_sync):
                    self._set = in_sync
                    self._set_wanted.set()
                case StepDown(epoch):
                    self._step_down(epoch)
                    return
        if self.leader.commit > self._commit:
            self._commit = self.leader.commit
            self._committed(self._commit)
            for call in self._on_commit:
                call()

    def _send(self, stream: Stream, frame: LeaderFrame) -> None:
        link = self._links.get(stream)
        if link is None:
            return
        try:
            link.outgoing.put(frame)
        except TroveError as error:
            self._end(link, error)

    def _step_down(self, epoch: Epoch) -> None:
        get_logger().error("replica.stepped_down", epoch=self.leader.epoch, promised=epoch)
        text = f"epoch {self.leader.epoch} ended: {epoch} is promised"
        for link in self._links.values():
            self._end(link, TroveError(errors.EPOCH_STALE, text))
        self.end(TroveError(errors.NOT_LEADER, text))
        self._stepped_down(epoch)

    def _unreadable(self, error: Exception, links: Iterable[_Link]) -> None:
        """Frames may be missing on these streams: their followers begin again where their logs end."""
        self.problem = f"the log cannot be sent to the followers: {error}"
        get_logger().error("replica.log_unreadable", message=str(error))
        for link in links:
            self._end(link, TroveError(errors.STORE_FAILED, "the leader cannot read its log"))

    async def _store_sets(self) -> None:
        """Stores each proposed set, the newest where several came meanwhile."""
        while True:
            await self._set_wanted.wait()
            self._set_wanted.clear()
            in_sync = self._set
            assert in_sync is not None, "a set is wanted"
            try:
                await run_in_thread(partial(self._store_set, in_sync))
            except (TroveError, StorageError) as error:
                self.problem = f"the in-sync set cannot be stored: {error}"
                get_logger().error("replica.set_not_stored", message=str(error))
                self._set_wanted.set()
                await asyncio.sleep(STORE_AGAIN_S)
                continue
            except Exception as error:
                self._fail(error)
                return
            self.problem = ""
            if self._election is None:
                self._take(partial(self.leader.set_stored, in_sync.version))
