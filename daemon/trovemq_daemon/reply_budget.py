"""Bounds the memory of replies that are ready and not read, in total and for each connection.

gRPC sends a reply when the client's window has space for it; until then its bytes are in this process. So
code that makes large replies first waits until the earlier ones, of all connections and of this one, leave
space, and a call ends if its reply is not read for too long. Small replies do not wait: gRPC itself holds at
most 64 KiB of them per stream. Our own transport itself counts the bytes that its clients have not read
(transport_budget.py) and ends their calls; then a reply is counted here only while it is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from trovemq_daemon.bytes_budget import BytesBudget, Claim
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

UNCOUNTED_SIZE: Final = 65_536
"""gRPC holds at most this many bytes of smaller replies per stream; they are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyLimits:
    """Limits of replies that are ready and not read, in bytes and milliseconds."""

    total_max: int = 268_435_456
    connection_max: int = 67_108_864
    reply_size_expected: int = 4_194_304  # assumed before the size of a reply is known
    space_wait_max_ms: int = 5_000  # of a wait for space; then the call is refused
    unread_time_max_ms: int = 60_000  # of a reply that is not read; then its call ends


class ReplyBudget:
    """The budget of one server. A peer is a connection."""

    def __init__(self, limits: ReplyLimits, *, transport_counts: bool = False) -> None:
        self._limits = limits
        self._transport_counts = transport_counts
        self.budget: Final = BytesBudget(limits.total_max, limits.connection_max)
        self.refused_count = 0
        self.ended_count = 0
        """The number of calls that ended because their client did not read."""

    def has_space(self, peer: str, made: int = 0) -> bool:
        """Whether another reply may be made now. `made`: bytes of finished replies that are not counted
        yet."""
        budget = self.budget
        return budget.used + made < budget.total and budget.of_peer(peer) + made < budget.peer_max

    async def wait_for_capacity(self, peer: str) -> None:
        """Returns when there is space for a reply that is made in the same step of the loop. TroveError
        LIMIT_EXCEEDED if there is none for too long."""
        if not self.has_space(peer):
            self._pass_on(await self._granted(peer))

    async def claim_capacity(self, peer: str) -> Claim:
        """Claims space for a reply that is made in several steps, so that not all calls begin theirs while
        there is space for one. TroveError LIMIT_EXCEEDED: there was none
        for too long."""
        return self.try_claim(peer) or await self._granted(peer)

    def try_claim(self, peer: str) -> Claim | None:
        """Claims space for such a reply if there is some now; else None."""
        return self.budget.take(peer, self._limits.reply_size_expected)

    @contextmanager
    def making(self, claim: Claim) -> Iterator[None]:
        """Holds a claim while a reply is made. After that its writer counts the reply, in the same step of
        the loop."""
        try:
            yield
        finally:
            self._pass_on(claim)

    def _pass_on(self, claim: Claim) -> None:
        """Wakes one waiting call. The next one is woken when this one has claimed its reply."""
        self.budget.vacate(claim)
        asyncio.get_running_loop().call_soon(self.budget.grant)

    async def _granted(self, peer: str) -> Claim:
        granted: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()

        def take(claim: Claim) -> None:
            if granted.done():  # the call was cancelled, and has not run since
                self.budget.release(claim)
            else:
                granted.set_result(claim)

        waiting = self.budget.wait(peer, self._limits.reply_size_expected, take)
        try:
            async with asyncio.timeout(self._limits.space_wait_max_ms / 1000):
                return await granted
        except BaseException as error:
            self.budget.cancel(waiting)
            if granted.done() and not granted.cancelled():
                self.budget.release(granted.result())
            if not isinstance(error, TimeoutError):
                raise
            self.refused_count += 1
            raise self._refusal(peer) from None

    def _refusal(self, peer: str) -> TroveError:
        own = self.budget.of_peer(peer)
        return TroveError(
            errors.LIMIT_EXCEEDED,
            f"unread replies take {self.budget.used} bytes, {own} of them of this connection: "
            "read them, or ask for less at once (reply_bytes_max, reply_connection_bytes_max)",
        )

    def claim(self, peer: str, size: int, made: Claim | None = None) -> Claim | None:
        """Claims space for a finished reply; None if it is small, or counted by the transport. The claim is
        to be released when the reply is written. `made`: the claim while it was made."""
        if size <= UNCOUNTED_SIZE or self._transport_counts:
            if made is not None:
                self.budget.release(made)
            return None
        if made is None:
            return self.budget.force(peer, size)
        self.budget.resize(made, size)
        return made

    def release(self, claim: Claim) -> None:
        self.budget.release(claim)

    @contextmanager
    def writing(self, peer: str, size: int) -> Iterator[None]:
        """Bounds the time in which this task writes a reply: it is cancelled if that takes too long."""
        claim = self.claim(peer, size)
        if claim is None:
            yield
            return
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def give_up() -> None:
            self.ended_count += 1
            if task is not None:
                task.cancel("the client did not read its reply")

        timer = loop.call_later(self._limits.unread_time_max_ms / 1000, give_up)
        try:
            yield
        finally:
            timer.cancel()
            self.release(claim)


def size_of(reply: Any) -> int:
    """The bytes of a reply, which is serialised or a message."""
    return len(reply) if isinstance(reply, bytes) else int(reply.ByteSize())
