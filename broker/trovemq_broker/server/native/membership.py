"""A client's membership in a group, which lasts as long as its Consume stream, and a while beyond its break.

| event                                     | effect                                                        |
|-------------------------------------------|---------------------------------------------------------------|
| the stream begins                         | the client is known, with the stream's topic and filter. The  |
|                                           | first use creates the group, if settings allow that           |
| a frame                                   | the client is alive                                           |
| `leave`                                   | the client is not known any more: its messages are for others |
| the stream ends otherwise                 | the client is known for a while (core/clients.py): it opens   |
|                                           | another one                                                   |
| the client has expired, or has opened too | the stream ends with CLIENT_UNKNOWN                           |
| many other streams                        |                                                               |

A client is a member of one group. Its streams of other topics of the group add their subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import grpc

from trovemq_broker.server.core.clients import Client, ClientDescription, ClientRegistry, Subscription
from trovemq_broker.server.core.commands import ClientCommands
from trovemq_broker.server.wire.client_commands import (
    ClientCommand,
    PrintStackTrace,
    VerifyMessage,
    consume_command,
)
from trovemq_broker.server.wire.consume_frames import ConsumeStart, frame_of
from trovemq_broker.server.wire.consumers import client_type
from trovemq_broker.server.wire.statuses import METADATA_VALUE_SIZE_MAX, metadata_value
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

COMMANDS_WAITING_MAX: Final = 16
"""The most commands of one stream that are not written yet."""
EXPRESSION_SIZE_MAX: Final = 8_192  # characters
TOPICS_MAX: Final = 1_024  # that one client subscribes to while it is known


class CommandStream(Protocol):
    """The stream of a membership."""

    def begin_waiting(self) -> None:
        """Notes that a reply will follow."""

    def reply_soon(self, make: Callable[[], bytes | None]) -> None:
        """Writes the reply that `make` returns."""

    def end_with(self, error: Exception | None) -> None:
        """Ends the stream with this error."""


class Membership:
    """The membership of one stream; `join`, then `end`."""

    def __init__(
        self,
        registry: ClientRegistry,
        commands: ClientCommands,
        clock_ms: Callable[[], EpochMs],
        client_id: str,
        stream: CommandStream,
    ) -> None:
        self._registry = registry
        self._commands = commands
        self._clock_ms = clock_ms
        self._stream = stream
        self._waiting = 0
        self._client: Client | None = None
        self._topic = ""
        self._admit_again: Callable[[object], None] | None = None
        """None without users."""
        self.client_id: Final = client_id
        self.is_over = False

    def join(
        self, group: str, topic: str, start: ConsumeStart, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """The client is a member from now on. Raises TroveError FILTER_ILLEGAL, LIMIT_EXCEEDED."""
        if len(start.filter) > EXPRESSION_SIZE_MAX:
            text = f"the expression has more than {EXPRESSION_SIZE_MAX} characters"
            raise TroveError(errors.FILTER_ILLEGAL, text)
        now_ms, known = self._clock_ms(), self._registry.get(self.client_id)
        subscription = Subscription(start.filter_type, start.filter, now_ms)
        subscriptions = {topic: subscription}
        if known is not None and known.group == group:
            subscriptions = {**known.description.subscriptions, **subscriptions}
        if len(subscriptions) > TOPICS_MAX:
            text = f"{len(subscriptions)} topics, the limit of one client is {TOPICS_MAX}"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        description = ClientDescription(
            client_type=client_type(is_push=not start.invisible_ms),
            group=group,
            subscriptions=subscriptions,
            language=metadata_value(context, "x-mq-language")[:METADATA_VALUE_SIZE_MAX],
            version=metadata_value(context, "x-mq-client-version")[:METADATA_VALUE_SIZE_MAX],
            hostname=start.hostname[:METADATA_VALUE_SIZE_MAX],
            peer=context.peer()[:METADATA_VALUE_SIZE_MAX],
        )
        self._topic, self._admit_again = topic, getattr(context, "admit_again", None)
        self._client = self._registry.settle(self.client_id, description, now_ms)
        self._registry.attach(self.client_id, self)

    def check(self) -> None:
        """Raises TroveError CLIENT_UNKNOWN if the client is no member any more."""
        if self._registry.has_unregistered(self.client_id):
            raise TroveError(errors.CLIENT_UNKNOWN, "the client has ended")
        if self._registry.get(self.client_id) is not self._client:
            raise TroveError(errors.CLIENT_UNKNOWN, "the client has expired")

    def note_alive(self) -> None:
        """The client has sent a frame. Raises TroveError CLIENT_UNKNOWN."""
        self._registry.heard(self.client_id, self._clock_ms())

    def leave(self) -> None:
        """The client leaves the group. Raises TroveError CLIENT_UNKNOWN."""
        self.is_over = True
        self._registry.terminate(self.client_id, self._clock_ms())

    def end(self, *, broke: bool) -> None:
        """The stream has ended; `broke`: neither the client nor the broker has ended it."""
        if self._client is not None:
            self._registry.detach(self.client_id, self, self._clock_ms(), broke=broke)

    # --- for the registry and the commands ----------------------------------------------------------
    def send(self, command: ClientCommand) -> None:
        """Sends a command soon. Raises TroveError LIMIT_EXCEEDED if too many wait already; ACCESS_DENIED,
        AUTHENTICATION_FAILED for a message that the stream's user may not receive."""
        if not isinstance(command, VerifyMessage | PrintStackTrace):
            self._stream.end_with(TroveError(errors.SERVICE_NOT_AVAILABLE, "open another stream"))
            return
        self._check_user(command)
        if self._waiting >= COMMANDS_WAITING_MAX:
            text = f"{COMMANDS_WAITING_MAX} commands wait already for client {self.client_id}"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        self._waiting += 1
        self._stream.begin_waiting()
        self._stream.reply_soon(partial(self._written, command))

    def may_be_asked(self, topic: str) -> bool:
        """Members of groups are not asked about transactions."""
        return False

    def _check_user(self, command: VerifyMessage | PrintStackTrace) -> None:
        if self._admit_again is not None and isinstance(command, VerifyMessage):
            self._admit_again(frame_of(command.group, command.topic or self._topic))

    def _written(self, command: VerifyMessage | PrintStackTrace) -> bytes | None:
        self._waiting -= 1
        try:
            self._check_user(command)
        except TroveError:
            return None  # the user lost the right while the client did not read
        return consume_command(command)

    def close(self) -> None:
        """Ends the stream, unless the client leaves."""
        if not self.is_over:
            text = "the client has expired, or has opened other streams"
            self._stream.end_with(TroveError(errors.CLIENT_UNKNOWN, text))
