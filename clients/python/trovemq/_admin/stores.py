"""Checks and copies brokers' stores while they are in use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from trovemq._net.connections import ConnectionPool
from trovemq._wire.stores import StoreCalls
from trovemq.models.cluster import BrokerInfo
from trovemq.models.store import BackupProgress, ScrubProgress
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

RATE_MAX: Final = 1 << 40


class Stores:
    """Administration of brokers' stores; `Client.admin.store`. To stop a call, close its generator."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def scrub(
        self, *, broker: str | None = None, bytes_per_second: int | None = None
    ) -> AsyncGenerator[ScrubProgress, None]:
        """Checks every record, consume-queue unit and key-index item of a store that is in use.

        Args:
            broker: The broker; None for all, one after the other.
            bytes_per_second: How fast the store is read; None for 64 MiB.

        Yields:
            The progress about every half second, with new findings; the last one of each broker is `done`.

        Raises:
            TroveError: LIMIT_EXCEEDED if a scrub is running, REQUEST_ILLEGAL, BROKER_NOT_FOUND, …
        """
        rate = _checked_rate(bytes_per_second)
        for info in self._pool.routes.brokers(broker):
            async with aclosing(self._calls(info).scrub(rate)) as steps:
                async for progress in steps:
                    yield progress

    async def backup(
        self,
        directory: str,
        *,
        broker: str | None = None,
        bytes_per_second: int | None = None,
        copy: bool = False,
    ) -> AsyncGenerator[BackupProgress, None]:
        """Copies a broker's store, as it is on disk now, into a directory on the broker's machine.

        Args:
            directory: The absolute path of a missing or empty directory there.
            broker: The broker; needed if there are several.
            bytes_per_second: How fast the store is read; None for 64 MiB.
            copy: Copies closed segments, too; otherwise they are hard-linked if possible.

        Yields:
            The progress about every half second; the last one is `done`. If the generator is closed before,
            the backup is removed.

        Raises:
            TroveError: BROKER_AMBIGUOUS, REQUEST_ILLEGAL (the directory), LIMIT_EXCEEDED, DISK_FULL, …
        """
        rate = _checked_rate(bytes_per_second)
        brokers = self._pool.routes.brokers(broker)
        if len(brokers) > 1:
            names = ", ".join(info.name for info in brokers)
            raise TroveError(errors.BROKER_AMBIGUOUS, f"name one of {names}: a backup is of one store")
        async with aclosing(self._calls(brokers[0]).backup(directory, rate, copy)) as steps:
            async for progress in steps:
                yield progress

    def _calls(self, info: BrokerInfo) -> StoreCalls:
        return StoreCalls(self._pool.connection(info), info.name)


def _checked_rate(bytes_per_second: int | None) -> int:
    """The rate on the wire, where 0 is the default."""
    if bytes_per_second is not None and not 1 <= bytes_per_second <= RATE_MAX:
        raise TroveError(
            errors.REQUEST_ILLEGAL, f"bytes_per_second={bytes_per_second} is not in 1..{RATE_MAX}"
        )
    return bytes_per_second or 0
