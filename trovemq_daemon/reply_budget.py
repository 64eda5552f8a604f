"""Replies that are ready and not read: how much memory they may take, in total and for each connection.

gRPC takes a reply when the client's window has space for it; until then its bytes lie here. So code that
makes large replies first waits until the bytes of earlier ones, of all connections and of this one, leave
space, and a reply that nobody reads for a while ends its call. Small replies pass: gRPC itself holds at most
64 KiB of them a stream. Our own transport counts by itself the bytes that its clients have not taken
(transport_budget.py) and ends their calls. Then a reply is counted here only while it is made.
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
"""Of smaller replies gRPC holds at most so much for each stream; they are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyLimits:
    """Bytes of replies that are ready and not read, and milliseconds."""

    total_max: int = 268_435_456
    connection_max: int = 67_108_864
    reply_size_expected: int = 4_194_304  # so much is waited for, before it is known how large the reply is
    space_wait_max_ms: int = 5_000  # for space; then the call is refused
    unread_time_max_ms: int = 60_000  # of one reply; then its call ends


class ReplyBudget:
    """One of each server. A peer is a connection."""

    def __init__(self, limits: ReplyLimits, *, transport_counts: bool = False) -> None:
        self._limits = limits
        self._transport_counts = transport_counts
        self.budget: Final = BytesBudget(limits.total_max, limits.connection_max)
        self.refused_count = 0
        self.ended_count = 0
        """Calls that ended because their client did not read."""

    def has_space(self, peer: str, made: int = 0) -> bool:
        """Whether one more reply may be made now. `made`: bytes of finished replies that are not counted
        yet."""
        budget = self.budget
        return budget.used + made < budget.total and budget.of_peer(peer) + made < budget.peer_max

    async def wait_for_capacity(self, peer: str) -> None:
        """Returns when there is space for a reply that is made in the same step of the loop. TroveError
        LIMIT_EXCEEDED if there is none for too long."""
        if not self.has_space(peer):
            self._pass_on(await self._granted(peer))

    async def claim_capacity(self, peer: str) -> Claim:
        """Space for a reply that takes several steps to make: not all calls begin theirs while there is
        space for one. TroveError LIMIT_EXCEEDED as above."""
        return self.budget.take(peer, self._limits.reply_size_expected) or await self._granted(peer)

    @contextmanager
    def making(self, claim: Claim) -> Iterator[None]:
        """Claims space while a reply is made. Its writer counts it then, in the same step of the loop."""
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
            if granted.done():  # the call was cancelled, and does not know it yet
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
            f"replies that nobody reads take {self.budget.used} bytes, {own} of them of this connection: "
            "read them, or ask for less at once (reply_bytes_max, reply_connection_bytes_max)",
        )

    def claim(self, peer: str, size: int, made: Claim | None = None) -> Claim | None:
        """For a reply that was made; None if it is small, or counted by the transport. `release` it when
        it is written. `made`: what was claimed before it was made."""
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
        """For the time that this task writes a reply; it is cancelled where that takes too long."""
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
    """Bytes of a reply: serialised already, or a message."""
    return len(reply) if isinstance(reply, bytes) else int(reply.ByteSize())
