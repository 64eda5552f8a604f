"""The telemetry stream: the client sends settings and answers, the broker settings and commands.

| the client sends                  | the broker does                                                  |
|-----------------------------------|------------------------------------------------------------------|
| settings                          | answers status OK and the merged settings (client_settings.py)   |
| settings that are illegal         | ends the stream, INVALID_ARGUMENT                                |
| settings of a type not served     | ends the stream, INTERNAL                                        |
| thread_stack_trace, verify result | resolves the command that waits for it (commands.py)             |
| anything else                     | nothing                                                          |
| bytes that are not a command      | ends the stream, INVALID_ARGUMENT                                |
| the end of its side               | ends its own                                                     |
| no client id                      | sends a status CLIENT_ID_REQUIRED, ends the stream               |
| no settings for SETTINGS_WAIT_S   | ends the stream, INVALID_ARGUMENT: half-open streams are bounded |

Invariants
- One element is written at a time. The reader itself answers settings, so a client that does not read its
  answers is not read, either; commands wait in an outbox of at most OUTBOX_MAX.
- A stream is attached to its client from its first legal settings to its end, whatever the reason of the end
  is.
- With users, a stream gets half messages only of topics that its user may send to, and messages to consume
  only of those that it may receive from, whatever client id it has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import grpc

from trovemq_broker.consumer_settings import STREAMS_PER_CLIENT
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.rocketmq.client_settings import SettingsRules, accept_settings
from trovemq_broker.server.rocketmq.forwards import client_of
from trovemq_broker.server.rocketmq.mirrors import Mirrors, Origin, client_key
from trovemq_broker.server.wire.client_commands import (
    ClientCommand,
    producer_of,
    settings_for,
    telemetry_command,
)
from trovemq_broker.server.wire.client_settings import (
    ClientSettings,
    ClientTypeError,
    consumer_settings,
    producer_settings,
)
from trovemq_broker.server.wire.statuses import STATUS_TEXT_SIZE_MAX, Context, Malformed, client_id_of
from trovemq_broker.server.wire.telemetry import (
    answer_as_bytes,
    refused_command,
    settings_as_bytes,
    telemetry_event,
)
from trovemq_daemon.addresses import Address
from trovemq_daemon.grpc_transport import is_end
from trovemq_daemon.peers import came_by_tls
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.subscription_groups import SubscriptionGroup

OUTBOX_MAX: Final = 256
SETTINGS_WAIT_S: Final = 30.0
END_WAIT_S: Final = 0.05

Note = Callable[[Context, Sequence[Address]], None]
"""Gets the addresses that the client of a stream was given."""


class TelemetryStream:
    """One open stream of one client."""

    def __init__(
        self,
        core: BrokerCore,
        rules: SettingsRules,
        context: Context,
        client_id: str,
        settings_wait_s: float,
        mirrors: Mirrors | None = None,
        note: Note | None = None,
    ) -> None:
        self._core = core
        self._mirrors = mirrors
        self._note = note
        self._key = client_key(client_id)
        self._rules = rules
        self._settings_wait_s = settings_wait_s
        self._context = context
        self._client_id = client_id
        self._outbox: deque[tuple[object, object]] = deque()
        """Each after the settings that its message needs; None if it has no message."""
        self._admit_again: Callable[[object], None] | None = getattr(context, "admit_again", None)
        self._admits: Callable[[object], bool] | None = getattr(context, "admits", None)
        """Both are None without users."""
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._ended = False
        self._end_error: TroveError | None = None
        self.task: asyncio.Task[object] | None = None

    # --- for the registry and the commands -------------------------------------------------------------
    def send(self, command: ClientCommand) -> None:
        """Raises TroveError LIMIT_EXCEEDED; ACCESS_DENIED, AUTHENTICATION_FAILED for a message that the
        stream's user may not get: a half message of a topic that it may not send to, or one to consume of a
        topic that it may not receive from."""
        needed = settings_for(command)
        self._check_user(needed)
        if len(self._outbox) >= OUTBOX_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"{OUTBOX_MAX} commands wait already for client {self._client_id}"
            )
        self._outbox.append((needed, telemetry_command(command)))
        self._wake.set()

    def pass_on(self, command: object) -> None:
        """Sends the command of another broker, which has checked the user; not if too many wait."""
        if len(self._outbox) < OUTBOX_MAX:
            self._outbox.append((None, command))
            self._wake.set()

    def may_be_asked(self, topic: str) -> bool:
        """Whether its user may send to the topic."""
        return self._admits is None or self._admits(producer_of(topic))

    def _check_user(self, needed: object) -> None:
        if needed is not None and self._admit_again is not None:
            self._admit_again(needed)

    def close(self, error: TroveError | None = None) -> None:
        """Ends the stream soon: with OK, or with this error."""
        if not self._ended and self.task is not None:
            self._ended = True
            self._end_error = error
            self.task.cancel()

    # --- serving ------------------------------------------------------------------------------------
    async def serve(self) -> None:
        """Serves until the client, `close` or an error ends the stream."""
        self.task = asyncio.current_task()
        writer = asyncio.create_task(self._write_outbox(), name="telemetry-writer")
        writer.add_done_callback(self._writer_done)
        broke = False
        try:
            await self._read_all()
        except asyncio.CancelledError:
            if not self._ended or self.task is None:
                broke = True
                raise
            self.task.uncancel()
            if self._end_error is not None:
                raise self._end_error from None
        finally:
            self._ended = True
            writer.cancel()
            self._core.registry.detach(self._client_id, self, self._core.clock_ms(), broke=broke)
            if self._mirrors is not None:
                self._mirrors.ended(self._key, self)

    def _writer_done(self, writer: asyncio.Task[None]) -> None:
        """Ends the stream if a command could not be written: the client is gone."""
        if not writer.cancelled() and writer.exception() is not None:
            self.close()

    async def _write(self, command: object) -> None:
        async with self._writing:
            await self._context.write(command)

    async def _write_outbox(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                needed, command = self._outbox.popleft()
                try:
                    self._check_user(needed)
                except TroveError:
                    continue  # the user lost the right while the client did not read
                await self._write(command)

    async def _read_all(self) -> None:
        try:
            async with asyncio.timeout(self._settings_wait_s) as wait:
                while True:
                    command = await self._context.read()
                    if is_end(command):
                        # A lost connection looks like an end of the client's side, too; its cancellation
                        # follows at once.
                        wait.reschedule(None)
                        await asyncio.sleep(END_WAIT_S)
                        return
                    await self._handle(command)
                    if self._is_attached():
                        wait.reschedule(None)
        except TimeoutError:
            await self._abort(grpc.StatusCode.INVALID_ARGUMENT, "no settings came")

    async def _handle(self, command: object) -> None:
        core, now_ms = self._core, self._core.clock_ms()
        group = None
        try:
            event = telemetry_event(command)
            if isinstance(event, ClientSettings):
                description, group = accept_settings(event, self._context, self._rules, now_ms)
                core.registry.settle(self._client_id, description, now_ms)
                if self._note is not None:
                    self._note(self._context, event.dialled)
        except ClientTypeError as error:
            await self._abort(grpc.StatusCode.INTERNAL, str(error))
        except TroveError as error:
            if error.spec is errors.LIMIT_EXCEEDED:
                raise  # not a fault of the settings: reported as gRPC's RESOURCE_EXHAUSTED
            await self._abort(grpc.StatusCode.INVALID_ARGUMENT, f"{error.symbol}: {error.message}")
        if isinstance(event, Malformed):
            await self._abort(grpc.StatusCode.INVALID_ARGUMENT, event.reason)
        if isinstance(event, ClientSettings):
            await self._answer(event, group)
            if self._mirrors is not None:
                origin = Origin(client_of(self._context), came_by_tls(self._context))
                self._mirrors.settled(self._key, self, settings_as_bytes(command), origin)
        elif event is not None:
            core.commands.answered(self._client_id, *event)
            if self._mirrors is not None and (answer := answer_as_bytes(command)):
                self._mirrors.answered(self._key, answer)

    async def _answer(self, settings: ClientSettings, group: SubscriptionGroup | None) -> None:
        if not self._is_attached():
            self._core.registry.attach(self._client_id, self)
        if group is None:
            await self._write(producer_settings(settings, self._rules.body_size_max))
        else:
            await self._write(consumer_settings(settings, group))

    def _is_attached(self) -> bool:
        client = self._core.registry.get(self._client_id)
        return client is not None and self in client.streams

    async def _abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        await self._context.abort(code, text[:STATUS_TEXT_SIZE_MAX])
        raise AssertionError("abort raises")


class Telemetry:
    """The open streams. `note` gets the addresses by which clients came."""

    def __init__(
        self,
        core: BrokerCore,
        settings_wait_s: float = SETTINGS_WAIT_S,
        mirrors: Mirrors | None = None,
        note: Note | None = None,
    ) -> None:
        self._core = core
        self._mirrors = mirrors
        self._note = note
        self._rules = SettingsRules(core.group_for_use, core.store.settings.body_size_max)
        self._settings_wait_s = settings_wait_s
        self._streams_max = STREAMS_PER_CLIENT * core.registry.clients_max
        self._streams: set[TelemetryStream] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._streams)

    async def telemetry(self, _requests: object, context: Context) -> None:
        """Handles one stream. Raises TroveError LIMIT_EXCEEDED, SERVICE_NOT_AVAILABLE."""
        await self._serve(context, self._mirrors, self._note)

    async def forwarded(self, context: Context) -> None:
        """Handles the stream of a client of another broker. Raises TroveError LIMIT_EXCEEDED,
        SERVICE_NOT_AVAILABLE."""
        await self._serve(context, None)

    async def _serve(self, context: Context, mirrors: Mirrors | None, note: Note | None = None) -> None:
        if self._closed:
            raise _stopping()
        if len(self._streams) >= self._streams_max:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{self._streams_max} telemetry streams are open")
        try:
            client_id = client_id_of(context)
        except TroveError as error:
            await context.write(refused_command(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
            raise
        stream = TelemetryStream(
            self._core, self._rules, context, client_id, self._settings_wait_s, mirrors, note
        )
        self._streams.add(stream)
        try:
            await stream.serve()
        finally:
            self._streams.discard(stream)

    async def end_all(self, timeout_s: float) -> None:
        """Ends all streams with SERVICE_NOT_AVAILABLE, because the broker is stopping, and accepts no
        more."""
        self._closed = True
        tasks = {stream.task for stream in self._streams if stream.task is not None}
        for stream in list(self._streams):
            stream.close(_stopping())
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)


def _stopping() -> TroveError:
    return TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping")
