"""The scrub of a follower, once a day: it reads all of its log again, and damage is repaired.

A follower's old records have no reader until it leads. Each place that a scrub finds damaged is noted
(DamageCounts), and repaired from another node within seconds (replica_streams/log_repair.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from trovemq_broker.server.core.pace import Pace
from trovemq_broker.server.native.store_scrub import begin_scrub, scrub_steps
from trovemq_daemon.logging import get_logger
from trovemq_proto.errors import TroveError
from trovemq_store.check.findings import Finding
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError

FIRST_S: Final = 3_600.0
"""After the store was opened."""
EVERY_S: Final = 86_400.0


class FollowerScrub:
    """`root`: the store's directory. `bytes_per_s`: of the log."""

    def __init__(
        self,
        store: MessageStore,
        root: Path,
        bytes_per_s: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._root = root
        self._bytes_per_s = bytes_per_s
        self._sleep = sleep

    async def run(self) -> None:
        """Until it is cancelled. One that fails is repeated a day later."""
        wait_s = FIRST_S
        while True:
            await self._sleep(wait_s)
            wait_s = EVERY_S
            try:
                await self._once()
            except (TroveError, StorageError) as error:
                get_logger().warning("replica.not_scrubbed", reason=str(error))

    async def _once(self) -> None:
        found: list[Finding] = []
        scrub = await begin_scrub(self._store, found)
        async with aclosing(scrub_steps(scrub, self._root, Pace(self._bytes_per_s))) as steps:
            async for _ in steps:
                found.clear()  # the damage of the log is noted, and the others are counted
        findings, records = scrub.findings, scrub.progress.records
        get_logger().info("replica.scrubbed", records=records, damages=findings.finding_count)
