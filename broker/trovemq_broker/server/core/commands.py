"""The broker's commands to clients over their streams, and the clients' answers.

| command                     | answer of the client               | waits |
|-----------------------------|------------------------------------|-------|
| verify a message            | its listener's result, as a status | yes   |
| print the threads' stacks   | a text                             | yes   |
| recover an open transaction | it calls EndTransaction            | no    |
| reconnect                   | it opens its connections again     | no    |

A waiting command has an unguessable nonce; the answer with that nonce, from that client, ends the wait. Some
clients (Python) never answer: the wait then ends with CONSUME_MSG_TIMEOUT.

Invariants
- At most PENDING_MAX commands wait; a command is removed from the table when its wait ends, for any reason.
- An answer from another client than the one that was asked has no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from trovemq_broker.server.core.clients import Client, ClientRegistry
from trovemq_broker.server.wire.client_commands import (
    NOT_IMPLEMENTED,
    Answer,
    PrintStackTrace,
    Reconnect,
    RecoverTransaction,
    StoredMessage,
    VerifyMessage,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

PENDING_MAX: Final = 1_024
TIMEOUT_MS: Final = 5_000
TIMEOUT_MAX_MS: Final = 60_000
ANSWER_SIZE_MAX: Final = 1 << 20  # characters of an answer's text that are stored


@dataclass(frozen=True, slots=True)
class _Pending:
    client_id: str
    answer: asyncio.Future[Answer]


class ClientCommands:
    """Sends commands. `make_nonce` returns a new unguessable text at each call."""

    def __init__(self, registry: ClientRegistry, make_nonce: Callable[[], str]) -> None:
        self._registry = registry
        self._make_nonce = make_nonce
        self._pending: dict[str, _Pending] = {}
        self._turn = 0  # which of several producers is asked next
        registry.add_gone_listener(self._client_gone)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    async def verify_message(
        self,
        client_id: str,
        group: str,
        message: StoredMessage,
        timeout_ms: int = TIMEOUT_MS,
        *,
        topic: str = "",
    ) -> Answer:
        """Asks a push consumer to consume the message now. Returns the result of its listener. topic: the one
        by which consumers know the message (known_topic); "" if that is the message's.

        Raises TroveError CONSUMER_NOT_ONLINE (also if only users are connected that may not receive from the
        topic), CONSUME_MSG_TIMEOUT, NOT_IMPLEMENTED (the client does not support it), LIMIT_EXCEEDED.
        """
        topic = _topic_to_receive(group, topic or message.topic)
        command = VerifyMessage(self._make_nonce(), message, group, topic)
        return await self._ask(client_id, group, command, timeout_ms)

    async def print_stack_trace(self, client_id: str, group: str, timeout_ms: int = TIMEOUT_MS) -> Answer:
        """The stacks of the consumer's threads. TroveError CONSUMER_NOT_ONLINE, CONSUME_MSG_TIMEOUT,
        NOT_IMPLEMENTED (the client does not support it), LIMIT_EXCEEDED."""
        return await self._ask(client_id, group, PrintStackTrace(self._make_nonce()), timeout_ms)

    def recover_orphaned_transaction(
        self, client_id: str, topic: str, message: StoredMessage, transaction_id: str
    ) -> str | None:
        """Asks a producer of the topic about an open transaction: the sender if it is connected, else the
        others in turn. Returns the id of the client; None if none is connected."""
        command = RecoverTransaction(message, transaction_id)
        for client in self._producers(client_id, topic):
            for stream in reversed(client.streams):
                if not stream.may_be_asked(topic):
                    continue  # it has the client id of a producer, and is another client's
                try:
                    stream.send(command)
                except TroveError:
                    continue  # it is not read, but another one may be
                return client.client_id
        return None

    def reconnect(self, client_id: str) -> None:
        """Asks the client to open its connections again. TroveError CONSUMER_NOT_ONLINE, LIMIT_EXCEEDED."""
        client = self._registry.get(client_id)
        if client is None or client.stream is None:
            raise _not_online(client_id, "")
        client.stream.send(Reconnect(self._make_nonce()))

    def answered(self, client_id: str, nonce: str, answer: Answer) -> None:
        """Handles a client's answer; an answer without a waiting command is ignored."""
        pending = self._pending.get(nonce)
        if pending is None or pending.client_id != client_id or pending.answer.done():
            return
        pending.answer.set_result(Answer(answer.code, answer.text[:ANSWER_SIZE_MAX]))

    # --- helpers ------------------------------------------------------------------------------------
    async def _ask(
        self, client_id: str, group: str, command: VerifyMessage | PrintStackTrace, timeout_ms: int
    ) -> Answer:
        client = self._registry.get(client_id)
        if client is None or client.group != group or not group or client.stream is None:
            raise _not_online(client_id, group)
        if len(self._pending) >= PENDING_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{PENDING_MAX} commands wait for their clients")
        if not 1 <= timeout_ms <= TIMEOUT_MAX_MS:
            raise TroveError(
                errors.REQUEST_ILLEGAL,
                f"timeout {timeout_ms} ms is not 1 to {TIMEOUT_MAX_MS}",
                field="timeout",
            )
        pending = _Pending(client_id, asyncio.get_running_loop().create_future())
        self._pending[command.nonce] = pending
        try:
            _send(client, command)
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await pending.answer
        except TimeoutError:
            raise TroveError(
                errors.CONSUME_MSG_TIMEOUT, f"client {client_id} did not answer within {timeout_ms} ms"
            ) from None
        finally:
            del self._pending[command.nonce]
        if answer.code == NOT_IMPLEMENTED:
            raise TroveError(
                errors.NOT_IMPLEMENTED, f"client {client_id} does not do this: {answer.text[:200]}"
            )
        return answer

    def has_producer(self, client_id: str, topic: str) -> bool:
        """Whether the client, or another producer of the topic, is connected and may be asked about it."""
        sender = self._registry.get(client_id)
        clients = chain(() if sender is None else (sender,), self._registry.producers_of(topic))
        return any(stream.may_be_asked(topic) for client in clients for stream in client.streams)

    def _producers(self, client_id: str, topic: str) -> list[Client]:
        """The producers to ask: the sender first, then the others, each time beginning with another one."""
        others = [client for client in self._registry.producers_of(topic) if client.client_id != client_id]
        if others:
            self._turn = (self._turn + 1) % len(others)
            others = others[self._turn :] + others[: self._turn]
        sender = self._registry.get(client_id)
        return others if sender is None else [sender, *others]

    def _client_gone(self, client_id: str, _now_ms: int, _gone_ms: int) -> None:
        for pending in self._pending.values():
            if pending.client_id == client_id and not pending.answer.done():
                pending.answer.set_exception(_not_online(client_id, ""))


def _send(client: Client, command: VerifyMessage | PrintStackTrace) -> None:
    """On the newest stream whose user may get it: others may name the same client id."""
    for stream in reversed(client.streams):
        try:
            stream.send(command)
        except TroveError as error:
            if error.spec not in (errors.ACCESS_DENIED, errors.AUTHENTICATION_FAILED):
                raise
        else:
            return
    raise TroveError(
        errors.CONSUMER_NOT_ONLINE,
        f"the user of client {client.client_id[:255]!r} may not receive the message",
        client_id=client.client_id,
    )


def _topic_to_receive(group: str, topic: str) -> str:
    """The topic from which a member of the group must be allowed to receive, to get a message of this one; ""
    for the group's own retry and dead letters whose origin is unknown."""
    if topic in (f"{RETRY_PREFIX}{group}", f"{DEAD_LETTER_PREFIX}{group}"):
        return ""
    for separator in "+_":
        topic = topic.removeprefix(f"{RETRY_PREFIX}{group}{separator}")
    return topic


def _not_online(client_id: str, group: str) -> TroveError:
    of_group = f" of group {group[:160]!r}" if group else ""
    return TroveError(
        errors.CONSUMER_NOT_ONLINE,
        f"no client {client_id[:255]!r}{of_group} is connected",
        client_id=client_id,
    )
