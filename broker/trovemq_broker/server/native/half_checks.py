"""The CheckHalves stream: a producer is connected, and the broker asks it about open transactions.

| from the client | effect                                                                               |
|-----------------|--------------------------------------------------------------------------------------|
| `start`         | the producer is known, with its topics; answered by `connected`                      |
| an empty frame  | the producer is alive                                                                |
| `leave`         | the producer is not known any more; no other frame follows                           |
| the end         | without `leave` a break: the producer stays known for a while, so that it can return |
| no `start`      | for START_WAIT_S: ends the stream, REQUEST_TIMEOUT                                   |

Invariants
- At most CHECKS_WAITING_MAX checks wait for a client that does not read them; it is not heard meanwhile.
- A stream is attached to its client from its `start` to its end.
- A stream gets half messages of the topics of its start only: its caller was admitted for these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from trovemq_broker.server.core.clients import ClientDescription, ClientRegistry
from trovemq_broker.server.native.reply_stream import ReplyStream
from trovemq_broker.server.wire.client_commands import ClientCommand, RecoverTransaction
from trovemq_broker.server.wire.native_calls import Request
from trovemq_broker.server.wire.producer_messages import CONNECTED, check_reply, leaves, topics_to_check
from trovemq_broker.server.wire.statuses import METADATA_VALUE_SIZE_MAX, Context, metadata_value
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

CHECKS_WAITING_MAX: Final = 256
START_WAIT_S: Final = 30.0


class CheckStream(ReplyStream):
    """One open stream of one producer."""

    def __init__(
        self,
        registry: ClientRegistry,
        client_id: str,
        context: Context,
        clock_ms: Callable[[], EpochMs],
        start_wait_s: float = START_WAIT_S,
    ) -> None:
        super().__init__(context, CHECKS_WAITING_MAX)
        self._registry = registry
        self._client_id = client_id
        self._clock_ms = clock_ms
        self._attached: _AttachedProducer | None = None
        self._topics: frozenset[str] = frozenset()
        self._is_over = False
        no_start = TroveError(errors.REQUEST_TIMEOUT, f"no start came within {start_wait_s:g} s")
        loop = asyncio.get_running_loop()
        self._start_timer = loop.call_later(start_wait_s, self.end_with, no_start)

    async def handle(self, request: Request) -> None:
        """One frame. Raises TroveError CLIENT_UNKNOWN if the client was forgotten; LIMIT_EXCEEDED,
        REQUEST_ILLEGAL, TOPIC_ILLEGAL."""
        now_ms = self._clock_ms()
        if self._is_over:
            raise TroveError(errors.REQUEST_ILLEGAL, "the producer has left")
        if leaves(request):
            self._is_over = True
            self._detach(broke=False)
            if self._registry.get(self._client_id) is not None:
                self._registry.terminate(self._client_id, now_ms)
        elif self._attached is None:
            self._start_timer.cancel()
            self._topics = topics_to_check(request)
            self._registry.settle(self._client_id, self._description(self._topics), now_ms)
            self._attached = _AttachedProducer(self)
            self._registry.attach(self._client_id, self._attached)
            await self.reply(CONNECTED)
        else:
            self._registry.heard(self._client_id, now_ms)

    def _description(self, topics: frozenset[str]) -> ClientDescription:
        return ClientDescription.of_producer(
            topics,
            language=metadata_value(self._context, "x-mq-language")[:METADATA_VALUE_SIZE_MAX],
            version=metadata_value(self._context, "x-mq-client-version")[:METADATA_VALUE_SIZE_MAX],
            peer=self._peer[:METADATA_VALUE_SIZE_MAX],
        )

    def may_be_asked(self, topic: str) -> bool:
        """Whether its start names the topic."""
        return topic in self._topics

    def check(self, command: RecoverTransaction) -> None:
        """Asks about an open transaction. Raises TroveError LIMIT_EXCEEDED; PERMISSION_MISSING for a topic
        that its start does not name."""
        if not self.may_be_asked(command.message.topic):
            raise TroveError(errors.PERMISSION_MISSING, "the producer is not asked about this topic")
        if self._waiting >= CHECKS_WAITING_MAX:
            text = f"{CHECKS_WAITING_MAX} checks wait already for client {self._client_id}"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        message = check_reply(command)
        self.begin_waiting()
        self.reply_soon(lambda: message)

    def close(self) -> None:
        self._start_timer.cancel()
        self._detach(broke=not self._ending)

    def _detach(self, *, broke: bool) -> None:
        if self._attached is not None:
            self._registry.detach(self._client_id, self._attached, self._clock_ms(), broke=broke)
            self._attached = None


class _AttachedProducer:
    """The stream for the registry and the commands."""

    def __init__(self, stream: CheckStream) -> None:
        self._stream = stream

    def send(self, command: ClientCommand) -> None:
        """Asks about an open transaction soon. Raises TroveError LIMIT_EXCEEDED; PERMISSION_MISSING for a
        topic that the start does not name; NOT_IMPLEMENTED for other commands, which are for members of
        groups."""
        if not isinstance(command, RecoverTransaction):
            raise TroveError(errors.NOT_IMPLEMENTED, "a producer is asked about transactions only")
        self._stream.check(command)

    def may_be_asked(self, topic: str) -> bool:
        """Whether the start names the topic."""
        return self._stream.may_be_asked(topic)

    def close(self) -> None:
        """Ends the stream: its client is not known any more, or has too many streams."""
        self._stream.end_with(TroveError(errors.CLIENT_UNKNOWN, "the client is not known any more"))
