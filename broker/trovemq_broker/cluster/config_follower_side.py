"""A broker that follows the owner of the cluster's configuration, on its event loop: the stream, the broker's
own tables, and the calls that it passes on.

A stored update is made in this broker's tables before its position is reported: a client whose change was
acknowledged finds it on the live followers, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from trovemq_broker.cluster.config_calls import BrokerConnection, Endpoint, connected, read_part, reported
from trovemq_broker.cluster.config_local import LocalSide
from trovemq_broker.cluster.config_owner_side import removed
from trovemq_broker.cluster.config_store import ConfigStore, Signal
from trovemq_broker.cluster.nameserver_session import (
    Attempts,
    BackOff,
    Jitter,
    ReadCredentials,
    Sign,
    error_in,
)
from trovemq_broker.cluster_config import protobuf
from trovemq_broker.cluster_config.entries import ClockMs, Kind
from trovemq_broker.cluster_config.follower import Follower, Serving, Stored
from trovemq_broker.cluster_config.messages import TablePart
from trovemq_broker.cluster_config.table import Update
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import cluster_config_pb2 as pb

FIRST_PART_S: Final = 60.0
"""An owner with 10,000 topics founds the table for 20 s first. A dead one is noticed by the transport."""
FORWARD_S: Final = 10.0
"""The owner answers a change within 8 s."""
FORWARDS_MAX: Final = 64
ARRIVAL_S: Final = 1.0
LOGGED_MAX: Final = 16
_WITH_SECRETS: Final = "/trovemq.v1.SecurityService/"


class FollowerSide:
    """`run()` until it is cancelled. `target` returns where the owner is, or why that is not known; `refused`
    is called with the error that ended a stream, `check_joined` before an update is stored."""

    def __init__(
        self,
        store: ConfigStore,
        local: LocalSide,
        broker: str,
        store_id: str,
        clock_ms: Callable[[], ClockMs],
        signal: Signal,
        *,
        target: Callable[[], Endpoint | str],
        refused: Callable[[TroveError], Awaitable[None]],
        check_joined: Callable[[Update], None],
        credentials: ReadCredentials | None,
        settings: BackOff,
        jitter: Jitter,
    ) -> None:
        self._store = store
        self._local = local
        self._broker = broker
        self._clock_ms = clock_ms
        self._signal = signal
        self._target = target
        self._refused = refused
        self._check_joined = check_joined
        self._credentials = credentials
        self._settings = settings
        self._jitter = jitter
        self.follower: Final = Follower(store.stored, broker, store_id, clock_ms())
        self.problem = "the owner was not asked yet"
        self._logged: list[str] = []  # problems since the owner was found last
        self._applied = 0
        self._compared = False
        """Whether its own tables were compared with the table: users and groups of the cluster are there."""
        self._connection: BrokerConnection | None = None
        self._stream: asyncio.Task[str] | None = None
        self._wake = asyncio.Event()
        self._forwards = 0
        self.ended = False
        """Whether this broker follows no owner any more."""

    @property
    def serving(self) -> Serving:
        """It serves when it has a table, and has made its own tables equal to it."""
        found = self.follower.serving(self._clock_ms())
        return found if self._compared or not found.serves else Serving.WAITING

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the owner is reached now."""
        return self._connection.endpoint if self._connection is not None else None

    # --- the stream -----------------------------------------------------------------------------------
    async def run(self) -> None:
        """Follows until cancelled, or until this broker was removed."""
        await self.compare()
        self._compared = self._store.stored.table.exists
        attempts, loop = Attempts(self._settings, self._jitter), asyncio.get_running_loop()
        lasting_s = self._settings.registration_retry_max_ms / 1000
        while not self.ended:
            began = loop.time()
            self._wake.clear()
            self._stream = asyncio.create_task(self._one_stream(), name="config-stream")
            try:
                await asyncio.wait([self._stream])
            finally:
                await _end(self._stream)
                self._connection = None
                self.follower.disconnected()
            self._lost(_problem_of(self._stream))
            lasted = loop.time() - began >= lasting_s or self._wake.is_set()
            pause_s = attempts.pause_s(lasted=lasted)
            if not self._wake.is_set():
                await self._wait(pause_s)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    def retarget(self) -> None:
        """Another broker is the owner: connects to that at once."""
        self._wake.set()
        if self._stream is not None:
            self._stream.cancel()

    async def _one_stream(self) -> str:
        """Follows one stream, from the log-in to its end. Returns why it ended."""
        endpoint = self._target()
        if isinstance(endpoint, str):
            return endpoint
        call: Any = None
        try:
            async with connected(endpoint, self._credentials) as connection:
                call, sign = connection.stream("WatchConfig")
                try:
                    with reported(endpoint):
                        hello = protobuf.hello_to(self.follower.hello())
                        await call.write(sign(hello.SerializeToString()))
                        await self._receive(call, sign, connection)
                except asyncio.InvalidStateError:  # grpc.aio raises it for a write to a call that has ended
                    error = error_in(await call.trailing_metadata())
                    if error is not None:
                        raise error from None
                finally:
                    call.cancel()
        except TroveError as error:
            await self._refused(error)
            return str(error)
        except TimeoutError:
            return f"broker {endpoint.broker} at {endpoint.address} does not answer"
        return f"broker {endpoint.broker} ended the stream"

    async def _receive(self, call: Any, sign: Sign, connection: BrokerConnection) -> None:
        timeout_s: float | None = FIRST_PART_S
        while not self.ended:
            async with asyncio.timeout(timeout_s):
                message = await call.read()
            timeout_s = None
            if not isinstance(message, bytes):  # the transport's end of the stream
                return
            part = protobuf.part_of(read_part(message))
            stored = None
            if part is None:
                self.follower.connected_current()
            else:
                stored = await self._stored(part)
                if stored is None:
                    continue
                if not self._compared:
                    self.problem = "its table came: this broker makes the missing entries"
                await self._apply(stored)
            self._found(connection)
            if stored is not None:
                await call.write(sign(protobuf.report_to(stored.report).SerializeToString()))

    async def _stored(self, part: TablePart) -> Stored | None:
        """The update that this part completes, on disk."""
        stored: Stored | None = None
        async with self._store.lock:
            work = self.follower.begin(part)
            if work is not None:
                try:
                    self._check_joined(work.update)
                    await self._local.replaced(work.update, work.dropped)  # the last copy of some entries
                    await self._store.run(work)
                finally:
                    stored = self.follower.finish(work)
        return stored

    async def _apply(self, stored: Stored) -> None:
        """Makes the update in this broker's own tables."""
        if stored.is_whole or self._local.incomplete:
            await self.compare()
        elif self._store.stored.is_superseded:
            self._local.incomplete = True
        else:
            await self._made(self._local.some(stored.entries))
        member = self._store.stored.table.get(Kind.BROKER, self._broker)
        if member is not None and member.deleted:
            await self._refused(removed(self._broker))

    async def compare(self) -> None:
        """Compares all of this broker's own tables, unless the table may lose its last changes."""
        stored = self._store.stored
        if stored.table.exists and not stored.is_superseded:
            await self._made(self._local.whole())

    async def _made(self, work: Any) -> None:
        version = self._store.stored.head.version
        try:
            await work
        except Exception as error:  # it is compared again in a minute; the stream stays open
            get_logger().error("config.not_compared", exc_info=error)
        self._applied, self._compared = version, True
        self._signal.notify()

    async def minute(self) -> None:
        """To be called once a minute: plans failed actions again."""
        if self._local.has_failures:
            await self.compare()

    def _found(self, connection: BrokerConnection) -> None:
        if self._connection is None:
            head, endpoint = self._store.stored.head, connection.endpoint
            get_logger().info(
                "config.followed",
                owner=endpoint.broker,
                address=str(endpoint.address),
                position=str(head.position),
            )
            self._logged = []
        self._connection, self.problem = connection, ""
        self._signal.notify()

    def _lost(self, problem: str) -> None:
        if problem not in self._logged:
            get_logger().warning("config.owner_unreachable", message=problem)
            self._logged = [*self._logged, problem][-LOGGED_MAX:]
        self.problem = problem
        self._signal.notify()

    def end(self) -> None:
        """This broker follows no owner any more."""
        self.ended = True
        self._wake.set()
        self._signal.notify()

    # --- calls of clients -----------------------------------------------------------------------------
    async def forward(self, method: str, request: bytes, caller: str, source: str) -> bytes:
        """The owner's reply. TroveError CONFIG_OWNER_UNREACHABLE, REQUEST_TIMEOUT, LIMIT_EXCEEDED, and those
        of the owner."""
        owner, connection = self.follower.check_owner(), self._connection
        if connection is None:
            what = f"owner {owner} of the cluster's configuration does not answer"
            raise TroveError(errors.CONFIG_OWNER_UNREACHABLE, what, owner=owner)
        if method.startswith(_WITH_SECRETS) and not connection.endpoint.is_private:
            what = "secrets are sent to the owner over TLS only, or on loopback: set nameserver_tls"
            raise TroveError(errors.REQUEST_ILLEGAL, f"{what}, or make the change at the owner {owner}")
        if self._forwards >= FORWARDS_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{FORWARDS_MAX} changes are being forwarded already")
        self._forwards += 1
        try:
            message = pb.ForwardChangeRequest(method=method, request=request, caller=caller, source=source)
            reply = await connection.unary("ForwardChange", message, pb.ForwardChangeReply, FORWARD_S)
        except TroveError as error:
            lost = error.spec is errors.BROKER_UNREACHABLE
            if "in_doubt" in error.fields or not (lost or error.spec is errors.REQUEST_TIMEOUT):
                raise
            spec = errors.CONFIG_OWNER_UNREACHABLE if lost else error.spec
            what = f"{error.message}; the change may or may not have been made"
            raise TroveError(spec, what, owner=owner, in_doubt="true") from None
        finally:
            self._forwards -= 1
        await self._arrived(reply.position.version)
        return reply.reply

    async def _arrived(self, version: int) -> None:
        """Returns when this broker's own tables have that version, after ARRIVAL_S at the latest."""
        try:
            async with asyncio.timeout(ARRIVAL_S):
                while self._applied < version and self.follower.is_current:
                    await self._signal.wait()
        except TimeoutError:
            pass


def _problem_of(task: asyncio.Task[str]) -> str:
    """Why a stream has ended."""
    if task.cancelled():
        return "another broker is the owner"
    error = task.exception()
    if error is None:
        return task.result()
    get_logger().error("config.unexpected_error", exc_info=error)
    return f"unexpected error: {error}"


async def _end(task: asyncio.Task[str]) -> None:
    """Ends the task, and waits for it."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
