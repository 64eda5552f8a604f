"""A client's session with one broker: its Telemetry stream, its heartbeats, and the commands that it
answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from trovemq._net.connections import ConnectionPool
from trovemq._net.outages import NOT_FOUND
from trovemq._rocketmq.identity import user_agent
from trovemq._rocketmq.messages import duration, received_message
from trovemq._rocketmq.messaging import MessagingService
from trovemq._rocketmq.statuses import error_of, may_pass
from trovemq._wire.connection import Connection, Stream
from trovemq.models.cluster import BrokerInfo
from trovemq.received import Handler, ReceivedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 10.0
COMMANDS_AT_ONCE_MAX: Final = 16
TERMINATE_TIMEOUT_MS: Final = 1_000
_SYMBOLS: Final = frozenset(spec.symbol.lower() for spec in errors.ERRORS)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction whose end a broker does not know: it asks for the end."""

    session: Session
    command: service_pb2.RecoverOrphanedTransactionCommand

    @property
    def transaction_id(self) -> str:
        return self.command.transaction_id

    @property
    def unique_key(self) -> str:
        """The half message's."""
        return self.command.message.system_properties.message_id

    def half(self) -> ReceivedMessage:
        """The half message. Raises TroveError as received_message."""
        return received_message(self.command.message, self.session.broker)

    async def end(self, *, commit: bool) -> None:
        """Answers the broker. Raises TroveError as MessagingService.end_transaction."""
        topic = self.command.message.topic.name
        service = self.session.service()
        await service.end_transaction(topic, self.unique_key, self.transaction_id, commit=commit, asked=True)


Check: TypeAlias = Callable[[OpenTransaction], Coroutine[Any, Any, None]]


def producer_role(client_id: str, topic: str, check: Check) -> Role:
    """The role of a producer with transactions."""
    return Role(client_id=client_id, client_type=v2.PRODUCER, publishing=(topic,), check=check)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The client's role for its brokers.

    Attributes:
        client_id: Its id.
        client_type: PRODUCER, PUSH_CONSUMER or SIMPLE_CONSUMER.
        group: The consumer group, "" for a producer.
        publishing: Topics that a producer sends to.
        subscription: Topic, filter and polling of a consumer; None for a producer.
        handler: Consumes a message that an operator sends directly.
        check: Decides about a half message of which a broker asks.
        work: Runs beside the stream after the broker's settings have arrived.
        missing: Called when a topic or group that was there is not found, with the broker's name; "" for all.
    """

    client_id: str
    client_type: v2.ClientType
    group: str = ""
    publishing: tuple[str, ...] = ()
    subscription: v2.Subscription | None = None
    handler: Handler | None = None
    check: Check | None = None
    work: Callable[[Session], Awaitable[None]] | None = None
    missing: Callable[[str, TroveError], None] | None = None

    def settings(self, call_timeout_ms: int) -> v2.Settings:
        """The first message of the stream."""
        settings = v2.Settings(
            client_type=self.client_type,
            request_timeout=duration(call_timeout_ms),
            user_agent=user_agent(),
        )
        if self.subscription is not None:
            settings.subscription.CopyFrom(self.subscription)
        else:
            settings.publishing.topics.extend(v2.Resource(name=topic) for topic in self.publishing)
        return settings


class Session:
    """One client's session with one broker, until it is closed; a broken stream is opened again.

    Args:
        pool: The client's connections.
        broker: The broker.
        role: The client's role.

    Attributes:
        settings: The broker's newest settings; None before the first.
    """

    def __init__(self, pool: ConnectionPool, broker: BrokerInfo, role: Role) -> None:
        self._pool = pool
        self._broker = broker
        self.role = role
        self.settings: v2.Settings | None = None
        self._stream: Stream | None = None
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._commands: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()  # settings have arrived
        self._answered = asyncio.Event()  # settings or a failure have arrived
        self._failure: TroveError | None = None  # of the last stream

    @property
    def broker(self) -> str:
        """The broker's name."""
        return self._broker.name

    def service(self) -> MessagingService:
        """The broker's calls, by the present connection."""
        return MessagingService(self.connection(), self.role.client_id)

    def connection(self) -> Connection:
        """The present connection."""
        return self._pool.connection(self._pool.routes.find(self._broker.name) or self._broker)

    def start(self) -> None:
        """Opens the stream in the background."""
        self._spawn(self._tasks, "stream", self._keep_stream())
        self._spawn(self._tasks, "heartbeats", self._beat())
        if self.role.work is not None:
            self._spawn(self._tasks, "work", self._work(self.role.work))

    async def opened(self) -> None:
        """Waits for the broker's first settings. Raises TroveError if the first attempt failed."""
        try:
            async with asyncio.timeout(self._pool.options.connect_timeout_ms / 1000):
                await self._answered.wait()
        except TimeoutError:
            text = f"broker {self.broker} did not answer with its settings"
            raise TroveError(errors.REQUEST_TIMEOUT, text, broker=self.broker) from None
        if self.settings is None:
            assert self._failure is not None
            raise self._failure

    async def stop_work(self) -> None:
        """Ends everything but the stream and its commands."""
        working = [task for task in self._tasks if task.get_name().startswith("work ")]
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    async def close(self, *, notify: bool) -> None:
        """Ends the session; `notify`: reports it to the broker."""
        stream = self._stream
        if notify and self.settings is not None:
            try:
                await self.service().terminate(self.role.group, TERMINATE_TIMEOUT_MS)
                if stream is not None:
                    await stream.end()
            except TroveError as error:
                _log.debug("broker %s did not get the end of %s: %s", self.broker, self.role.group, error)
        for task in (*self._tasks, *self._commands):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._commands, return_exceptions=True)

    # --- the stream -----------------------------------------------------------------------------------

    async def _keep_stream(self) -> None:
        failures = 0
        while not self._pool.closed:
            had_settings = self.settings
            try:
                await self._serve()
            except TroveError as failure:
                error = self._failure = _named(failure)
                self._answered.set()
                if not may_pass(error):
                    self._refused(error)
            except Exception:  # a failed command must not end the session
                _log.exception("the stream of %s to broker %s broke off", self.role.client_id, self.broker)
            failures = 1 if self.settings is not had_settings else failures + 1
            await asyncio.sleep(self._pool.options.backoff.seconds(failures))

    def _refused(self, error: TroveError) -> None:
        if self.role.missing is not None and error.spec in NOT_FOUND:
            self.role.missing(self.broker, error)
        else:
            _log.warning("broker %s refuses %s: %s", self.broker, self.role.client_id, error)

    async def _serve(self) -> None:
        stream = self._stream = self.service().open_telemetry()
        try:
            await self._introduce()
            while True:
                await self._on_command(await stream.read())
        finally:
            self._stream = None
            stream.cancel()

    async def _introduce(self) -> None:
        settings = self.role.settings(self._pool.options.call_timeout_ms)
        await self._say(service_pb2.TelemetryCommand(settings=settings))

    async def _say(self, command: service_pb2.TelemetryCommand) -> None:
        """Writes one command, never two at a time; it is lost if the stream is broken."""
        async with self._writing:
            if self._stream is not None:
                await self._stream.send(command.SerializeToString())

    async def _on_command(self, command: service_pb2.TelemetryCommand) -> None:
        kind = command.WhichOneof("command")
        if kind == "settings":
            self._take_settings(command)
        elif kind is None and command.HasField("status"):
            error = error_of(command.status, self.service().address)
            if error is not None:
                raise error
        elif kind == "recover_orphaned_transaction_command":
            self._check(command.recover_orphaned_transaction_command)
        elif kind == "reconnect_endpoints_command":
            raise TroveError(errors.BROKER_UNREACHABLE, f"broker {self.broker} asks for a new connection")

    def _take_settings(self, command: service_pb2.TelemetryCommand) -> None:
        error = error_of(command.status, self.service().address) if command.HasField("status") else None
        if error is not None:
            raise error
        self.settings = command.settings
        self._settled.set()
        self._answered.set()

    def _check(self, command: service_pb2.RecoverOrphanedTransactionCommand) -> None:
        # The broker repeats a command that was refused here in its next round.
        if self.role.check is not None and len(self._commands) < COMMANDS_AT_ONCE_MAX:
            self._spawn(self._commands, "check", self.role.check(OpenTransaction(self, command)))

    # --- beside the stream ----------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self.service().heartbeat(self.role.client_type, self.role.group)
            except TroveError as error:
                if error.spec is errors.CLIENT_UNKNOWN and self._stream is not None:
                    self._stream.cancel()  # the next stream sends the client's settings again

    async def _work(self, work: Callable[[Session], Awaitable[None]]) -> None:
        await self._settled.wait()
        await work(self)

    def _spawn(self, tasks: set[asyncio.Task[None]], kind: str, work: Coroutine[Any, Any, None]) -> None:
        name = f"{kind} of {self.role.group or self.role.client_id} at {self.broker}"
        task = asyncio.get_running_loop().create_task(work, name=name)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(_log_failure)


def _named(error: TroveError) -> TroveError:
    """The error of the row that its text names: refused settings arrive as `SYMBOL: why` in a gRPC status."""
    if error.spec is errors.REQUEST_ILLEGAL:
        for word in error.message.split(": "):
            if word.isupper() and word.lower() in _SYMBOLS:
                return TroveError(errors.by_symbol(word), error.message, **error.fields)
    return error


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        if not isinstance(task.exception(), TroveError):
            _log.error("%s failed", task.get_name(), exc_info=task.exception())
        else:
            _log.warning("%s ended: %s", task.get_name(), task.exception())
