"""The context of a call for its handler: requests are admitted, replies stay within the quotas.

Our own transport can pass the messages of a stream to a receiver, without a task, and send replies from
callbacks. Here the same interface has the check of access; a call that may have to wait for a quota is read
by its coroutine.

Invariants
- A message is checked once: a message that the receiver leaves to the reader is not checked again. If it
  was a view of the transport's buffer, which other messages use after the callback, it is read again.
- Only attributes of the outer context that give no access to messages are available.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol, TypeAlias

import grpc

from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_daemon.grpc_transport import is_end
from trovemq_proto.authentication.calls import Buffer
from trovemq_store.topics.creators import Creator

Receiver: TypeAlias = Callable[[Any], bool]
WRITE_WAIT_MAX_S: Final = 1.0  # for a quota; during the wait the reply counts as unread
_PASSED: Final = frozenset(name for name in dir(grpc.aio.ServicerContext) if not name.startswith("_"))


class Checks(Protocol):
    """The checks of one call."""

    @property
    def may_wait(self) -> bool:
        """Whether a message may have to wait, or may be refused in a reply."""
        ...

    async def next(self, data: Any) -> Any:
        """The admitted message; the end of the requests if the stream is to end. Raises TroveError."""
        ...

    def next_now(self, data: Buffer) -> Any:
        """The admitted message; None, and nothing was done, if `may_wait`. Raises TroveError."""
        ...

    def again(self, message: Any, data: bytes) -> Any:
        """A message that was admitted, of a copy of its bytes: it is not checked again."""
        ...

    @property
    def may_reply(self) -> bool:
        """Whether a reply need not wait, and users and rules are those by which replies were checked."""
        ...

    def check_reply(self) -> None:
        """Checks the caller again if users or rules have changed. Raises TroveError."""
        ...

    def admit_again(self, message: Any) -> None:
        """Checks a message that was admitted before. Raises TroveError."""
        ...

    def admits(self, message: Any) -> bool:
        """Whether a message would be admitted now."""
        ...

    @property
    def creator(self) -> Creator:
        """The creator of the topics that the call creates."""
        ...

    def count(self, reply: Any) -> float:
        """Counts a reply. Returns the seconds that the next one must wait."""
        ...


class CheckedContext:
    """A context whose `read` returns admitted messages only, and whose `write` keeps to quotas."""

    def __init__(self, context: Any, checks: Checks) -> None:
        self._context = context
        self._checks = checks

    def __eq__(self, other: object) -> bool:
        """As a key it is its call: a callback's notes about the call are found again."""
        return other is self._context or other is self

    def __hash__(self) -> int:
        return hash(self._context)

    async def read(self) -> Any:
        data = await self._context.read()
        return data if is_end(data) else await self._checks.next(data)

    async def write(self, reply: Any) -> None:
        self._checks.check_reply()
        await self._context.write(reply)
        wait_s = min(self._checks.count(reply), WRITE_WAIT_MAX_S)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def admit_again(self, message: Any) -> None:
        """To be called before the reply to a message that has waited. Raises TroveError."""
        self._checks.admit_again(message)

    def admits(self, message: Any) -> bool:
        """Whether the caller may send such a message now; a refusal is not noted."""
        return self._checks.admits(message)

    def __getattr__(self, name: str) -> Any:
        if name not in _PASSED:
            raise AttributeError(name)
        return getattr(self._context, name)


class CheckedCallbacks(CheckedContext):
    """A CheckedContext with the callbacks of trovemq_rpc."""

    def __init__(self, context: Any, checks: Checks) -> None:
        super().__init__(context, checks)
        self._admitted: Any = None
        self._admitted_view = False
        self.try_send: Final[Callable[[Any], bool]] = context.try_send
        """To be called if `can_send`, or while a message that needed no wait is received."""
        self.try_send_now: Final[Callable[[Any], bool]] = context.try_send_now

    async def read(self) -> Any:
        data = await self._context.read()
        if self._admitted is not None:  # `data` are its bytes
            message, self._admitted = self._admitted, None
            return self._checks.again(message, data) if self._admitted_view else message
        return data if is_end(data) else await self._checks.next(data)

    def set_receiver(self, receiver: Receiver | None) -> None:
        """As in the transport; the receiver gets admitted messages. A refusal ends the reader's `read`."""
        self._context.set_receiver(None if receiver is None else self._behind_checks(receiver))

    def _behind_checks(self, receiver: Receiver) -> Receiver:
        checks, creator = self._checks, self._checks.creator

        def receive(data: Buffer) -> bool:
            message = checks.next_now(data)
            if message is None:
                return False
            token = set_creator(creator)
            try:
                taken = receiver(message)
            finally:
                reset_creator(token)
            if not taken:
                self._admitted, self._admitted_view = message, not isinstance(data, bytes)
            return taken

        return receive

    @property
    def can_send(self) -> bool:
        return self._checks.may_reply and bool(self._context.can_send)


def checked_context(context: Any, checks: Checks) -> CheckedContext:
    """The context for a stream of requests."""
    return (CheckedCallbacks if hasattr(context, "set_receiver") else CheckedContext)(context, checks)


async def checked_requests(requests: Any, checks: Checks) -> AsyncIterator[Any]:
    """The call's requests for a handler that iterates over them."""
    async for data in requests:
        message = await checks.next(data)
        if is_end(message):
            return
        yield message
