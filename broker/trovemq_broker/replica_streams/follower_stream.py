"""A follower on the event loop: dials its leader, again and again, and carries out the actions of its state
machine.

A promise, cut, join or in-sync set is stored through FollowerStore, which may take long: meanwhile no frame
is read, so that the transport holds the leader back, and no other stream is opened.

With our own transport, data of the log is appended in the callback that receives it, and a report is written
in the callback that makes it: no task is woken between a frame, its sync and its report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from trovemq_broker.cluster.config_calls import Endpoint, reported
from trovemq_broker.cluster.nameserver_session import (
    Attempts,
    BackOff,
    Jitter,
    ReadCredentials,
    Sign,
    error_in,
    open_session,
)
from trovemq_broker.replica_streams.frame_faults import FrameFaults
from trovemq_broker.replica_streams.stream_settings import StreamSettings
from trovemq_broker.replica_streams.taken_streams import TakenStreams
from trovemq_broker.replication.follower import (
    Cut,
    End,
    Follower,
    FollowerAction,
    FollowerLog,
    Join,
    Promise,
    ReplicaState,
    SendProgress,
    StoreSet,
)
from trovemq_broker.replication.frames import (
    Data,
    Epoch,
    Heartbeat,
    Identity,
    InSyncSet,
    LeaderFrame,
    Node,
    NowMs,
    Offset,
    Progress,
)
from trovemq_broker.server.wire import replica_frames as wire
from trovemq_broker.server.wire.replica_data import is_data
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings, open_channel
from trovemq_proto.errors import TroveError
from trovemq_store.files.files import StorageError
from trovemq_store.replica.epochs import Epochs

LOG_IN_S: Final = 10.0
FINAL: Final = (
    errors.STORE_DIVERGED,
    errors.SEGMENT_SIZE_MISMATCH,
    errors.GROUP_MISMATCH,
    errors.SEALING_KEY_MISMATCH,
)
"""Errors that stay until an operator has looked."""


class FollowerStore(Protocol):
    """A node's own state and log. The first four are on disk, and in the ReplicaState, when they return;
    TroveError, StorageError: the stream ends, and the node tries again."""

    async def promise(self, epoch: Epoch) -> None: ...

    async def cut(self, to: Offset, epochs: Epochs) -> None:
        """The log ends there, with these epochs."""

    async def join(self, begin: Offset, epochs: Epochs) -> None:
        """The log begins there, empty, with these epochs."""

    async def store_set(self, in_sync: InSyncSet) -> None: ...

    def appended(self) -> None:
        """Bytes were appended: they are to be synced, and FollowerStream.flushed() is called then."""

    def committed(self, commit: Offset) -> None:
        """Readers may see the log up to there."""


class FollowerStream:
    """`run()` until it is cancelled, or returns.

    Args:
        cluster, group, me, log, state, segment_size: As for Follower.
        store: Carries out its actions.
        target: Where the leader is, or why that is not known.
        credentials: For a leader that asks for a log-in.
        clock_ms: Never steps back.
        retries, jitter: Of the pauses between two attempts.
        learner: It is never in the in-sync set.
        heard: Called with each heartbeat, once it was applied; with None when a stream begins.
        sealing_key_id: As of Hello.
        lost: Is called when a stream to that leader has ended, or could not be opened.
        is_sync: Appended data is synced at once.
    """

    def __init__(
        self,
        cluster: str,
        group: str,
        me: Identity,
        log: FollowerLog,
        state: ReplicaState,
        segment_size: int,
        store: FollowerStore,
        *,
        target: Callable[[], Endpoint | str],
        credentials: ReadCredentials | None,
        clock_ms: Callable[[], NowMs],
        retries: BackOff,
        jitter: Jitter,
        learner: bool = False,
        heard: Callable[[Heartbeat | None], None] = lambda _heartbeat: None,
        sealing_key_id: str = "",
        lost: Callable[[Node], None] | None = None,
        settings: StreamSettings | None = None,
        is_sync: bool = False,
    ) -> None:
        self._is_sync = is_sync
        self._names = (cluster, group, me)
        self._sealing_key_id = sealing_key_id
        self._log = log
        self._state = state
        self._segment_size = segment_size
        self._store = store
        self._target = target
        self._credentials = credentials
        self._clock_ms = clock_ms
        self._learner = learner
        self._heard = heard
        self._on_lost = lost
        self._settings = settings or StreamSettings()
        self._retries = retries
        self._attempts = Attempts(retries, jitter)
        self._faults = FrameFaults()
        self._taken = TakenStreams()
        self._wake = asyncio.Event()
        self._retargeted = False
        self.follower: Follower | None = None
        """Of the open stream, or of the last one."""
        self._committed: Offset = state.commit
        self._write_now: Callable[[bytes], bool] = lambda _report: False
        self._progress: Progress | None = None
        """The newest report, until the task that waits for space has written it."""
        self._progress_wanted = asyncio.Event()
        self.reported_ms: NowMs = 0
        """The last report to a leader."""
        self.problem = "the leader was not asked yet"
        """For readiness; empty while the leader is followed."""

    @property
    def is_following(self) -> bool:
        return not self.problem

    @property
    def lag_bytes(self) -> int:
        """Behind the leader's end, as far as it is known."""
        return 0 if self.follower is None else self.follower.lag_bytes

    def flushed(self) -> None:
        """The log's synced end has moved."""
        if self.follower is not None:
            self._note_progress(self.follower.flushed())

    def retarget(self) -> None:
        """Another node leads: it is dialled at once."""
        self._retargeted = True
        self._wake.set()

    # --- streams --------------------------------------------------------------------------------------
    async def run(self) -> TroveError:
        """Follows until cancelled, or until an error that only an operator can end: that is returned."""
        loop, lasting_s = asyncio.get_running_loop(), self._retries.registration_retry_max_ms / 1_000
        while True:
            began, self._retargeted = loop.time(), False
            self._wake.clear()
            endpoint = self._target()
            if isinstance(endpoint, str):
                error = TroveError(errors.BROKER_UNREACHABLE, endpoint)
            else:
                error = await self._one_stream(endpoint)
            self._lost(error)
            if self._on_lost is not None and not isinstance(endpoint, str) and not self._retargeted:
                self._on_lost(endpoint.broker)
            if error.spec in FINAL:
                return error
            lasted = loop.time() - began >= lasting_s or self._retargeted
            pause_s = max(self._attempts.pause_s(lasted=lasted), self._held_s(error))
            if not self._retargeted:
                await self._wait(pause_s)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _held_s(self, error: TroveError) -> float:
        if error.spec is not errors.REPLICA_FRAME_ILLEGAL:
            return 0.0
        me, now_ms = self._names[2].node, self._clock_ms()
        self._faults.note(me, now_ms)
        return self._faults.wait_ms(me, now_ms) / 1_000

    def _lost(self, error: TroveError) -> None:
        text, count = str(error), 1
        if error.spec is errors.REPLICA_STREAM_TAKEN:
            count = self._taken.note(self._clock_ms())
        if count and text != self.problem:
            get_logger().warning("replica.not_following", message=text, count=count)
        self.problem = text

    async def _one_stream(self, endpoint: Endpoint) -> TroveError:
        """Follows one stream, from the log-in to its end. Returns why it ended."""
        try:
            async with open_channel(str(endpoint.address), self._channels(endpoint)) as channel:
                with reported(endpoint):
                    session = await open_session(channel, self._credentials, LOG_IN_S, must_check=True)
                    login = session.call(wire.FOLLOW)
                    ask = channel.stream_stream(wire.FOLLOW, response_deserializer=bytes)
                    call = ask(metadata=login[0])
                    try:
                        return await self._talk(call, login[1])
                    finally:
                        call.cancel()
        except TroveError as error:
            return error
        except StorageError as error:
            return TroveError(errors.STORE_FAILED, str(error))
        except TimeoutError:
            return TroveError(errors.BROKER_UNREACHABLE, f"{endpoint.broker} does not answer")

    def _channels(self, endpoint: Endpoint) -> ChannelSettings:
        """The leader's certificate must have the name of its node."""
        tls = endpoint.channels.tls
        named = None if tls is None else replace(tls, server_name=endpoint.broker)
        return replace(endpoint.channels, tls=named, message_size_max=self._settings.message_size_max)

    async def _talk(self, call: Any, sign: Sign) -> TroveError:
        cluster, group, me = self._names
        follower = Follower(
            cluster,
            group,
            me,
            self._log,
            self._state,
            self._segment_size,
            self._sealing_key_id,
            is_sync=self._is_sync,
        )
        self.follower, self._progress = follower, None
        self._write_now = partial(_write_now, call, sign)
        self._progress_wanted.clear()
        self._heard(None)
        hello = follower.hello(self._clock_ms(), learner=self._learner)
        sending = asyncio.create_task(self._send(call, sign, wire.follower_bytes(hello)))
        try:
            return await self._receive(call, follower)
        finally:
            follower.ended()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, call: Any, sign: Sign, hello: bytes) -> None:
        """Sends the hello, then the newest progress whenever one could not be written at once. The reader
        notices a broken stream."""
        await call.write(sign(hello))
        while True:
            await self._progress_wanted.wait()
            self._progress_wanted.clear()
            while (progress := self._progress) is not None:
                self.reported_ms = self._clock_ms()
                await call.write(sign(wire.follower_bytes(progress)))
                self.reported_ms = self._clock_ms()
                if self._progress is progress:
                    self._progress = None

    async def _receive(self, call: Any, follower: Follower) -> TroveError:
        tick_s = self._settings.tick_ms / 1_000
        reading: asyncio.Task[Any] | None = None
        if hasattr(call, "set_receiver"):
            call.set_receiver(partial(self._take_now, follower))
        try:
            while not self._retargeted:
                frame: LeaderFrame | None = None
                reading = reading or asyncio.create_task(call.read())
                await asyncio.wait((reading,), timeout=tick_s)
                if not reading.done():
                    actions = follower.tick(self._clock_ms())
                else:
                    message, reading = reading.result(), None
                    if not isinstance(message, bytes):  # the transport's end of the stream
                        return await self._reason(call)
                    frame = wire.leader_frame_of(message)
                    actions = follower.frame(frame, self._clock_ms())
                    if isinstance(frame, Data):
                        self._store.appended()
                if (error := await self._carry_out(call, follower, actions)) is not None:
                    return error
                if isinstance(frame, Heartbeat):
                    self._heard(frame)
            return TroveError(errors.BROKER_UNREACHABLE, "another node leads")
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    def _take_now(self, follower: Follower, message: bytes) -> bool:
        """Appends data of the log, whose actions wait for nothing. False: it is another frame, for the
        reader. TroveError, StorageError: the stream ends."""
        if self._retargeted or not is_data(message):
            return False
        actions = follower.frame(wire.leader_frame_of(message), self._clock_ms())
        self._store.appended()
        for action in actions:
            if isinstance(action, End):
                raise action.error
        self._note_progress(actions)
        self._show_committed()
        return True

    async def _reason(self, call: Any) -> TroveError:
        error = error_in(await call.trailing_metadata())
        return error or TroveError(errors.BROKER_UNREACHABLE, "the leader ended the stream")

    # --- actions --------------------------------------------------------------------------------------
    async def _carry_out(
        self, call: Any, follower: Follower, actions: list[FollowerAction]
    ) -> TroveError | None:
        """Returns why the stream is to end; None: it continues."""
        while actions:
            stored = False
            for action in actions:
                match action:
                    case Promise(epoch):
                        await self._store.promise(epoch)
                        stored = True
                    case Cut(to, epochs):
                        await self._store.cut(to, epochs)
                        stored = True
                    case Join(begin, epochs):
                        await self._store.join(begin, epochs)
                        stored = True
                    case StoreSet(in_sync):
                        await self._store.store_set(in_sync)
                        stored = True
                    case SendProgress():
                        self._note_progress([action])
                    case End(error, _):
                        return error
            if stored and call.done():
                follower.ended()
            actions = follower.done() if stored else []
        self._show_committed()
        return None

    def _show_committed(self) -> None:
        if self._state.commit > self._committed:
            self._committed = self._state.commit
            self._store.committed(self._committed)

    def _note_progress(self, actions: list[FollowerAction]) -> None:
        for action in actions:
            if isinstance(action, SendProgress):
                self.problem = ""
                self._report(action.progress)

    def _report(self, progress: Progress) -> None:
        """At once, unless one waits for space: reports keep their order."""
        if self._progress is None and self._write_now(wire.follower_bytes(progress)):
            self.reported_ms = self._clock_ms()
        else:
            self._progress = progress
            self._progress_wanted.set()


def _write_now(call: Any, sign: Sign, report: bytes) -> bool:
    """False: it would have to wait."""
    if not getattr(call, "writable", False):
        return False
    call.write_now(sign(report))
    return True
