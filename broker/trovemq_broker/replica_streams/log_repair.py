"""Repairs damaged records of a node's log from the other nodes' copies.

Each reader of the log notes the damage that it meets (DamageCounts): the start of the store, a pull, a query,
a scrub. Each such place below the commit is asked of the other nodes, one call at a time, and written where
an answer has good records of it. A reader finds them at its next read.

Invariants
- Nothing is repaired while the store recovers, nor at or beyond the commit or the synced end.
- Where no other node has a good copy, the log stays as it is; the place is tried again.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from trovemq_broker.replication.frames import FRAME_BYTES_MAX, Node, Offset
from trovemq_broker.server.wire.replica_frames import LogRange
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import raise_failed_sync
from trovemq_store.files.files import StorageError

ReadLog: TypeAlias = Callable[[Node, Offset, int], Awaitable[LogRange]]
"""(node, offset, size_max): that node's committed records from there on. TroveError."""
LOOK_S: Final = 1.0
AGAIN_S: Final = 60.0
"""After no node had a good copy of a place."""


class LogRepair:
    """`run()` as long as the store is open. `store`: the present one; `others`: the nodes in the order in
    which they are asked."""

    def __init__(
        self, store: Callable[[], MessageStore], others: Callable[[], Sequence[Node]], read: ReadLog
    ) -> None:
        self._store = store
        self._others = others
        self._read = read
        self._again: dict[Offset, float] = {}
        """When a place is tried again that could not be repaired."""

    async def run(self) -> None:
        """Until it is cancelled. TroveError STORE_FAILED: a sync failed."""
        while True:
            await sleep_to_tick(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Tries each place that is due, once."""
        store, now_s = self._store(), asyncio.get_running_loop().time()
        places = store.damage.places
        self._again = {place: due_s for place, due_s in self._again.items() if place in places}
        for place, size in sorted(places.items()):
            if store is not self._store():
                return  # it was opened again: its start has found the present damage
            if place < store.min_offset:
                store.damage.forget(place)
            elif place < store.repairable_end and self._again.get(place, 0.0) <= now_s:
                await self._repair(store, place, min(Offset(place + size), store.repairable_end))

    async def _repair(self, store: MessageStore, place: Offset, end: Offset) -> None:
        reasons: dict[Node, str] = {}
        for node in self._others():
            try:
                found_end = await self._repair_from(store, node, place, max(end, Offset(place + 1)))
            except (TroveError, StorageError) as error:
                if isinstance(error, StorageError):
                    raise_failed_sync(error)
                reasons[node] = str(error)
                continue
            store.damage.repaired(place, found_end)
            get_logger().warning("replica.repaired", physical_offset=place, end=found_end, copy_of=node)
            return
        if place not in self._again:
            get_logger().error("replica.not_repaired", physical_offset=place, nodes=reasons)
        self._again[place] = asyncio.get_running_loop().time() + AGAIN_S

    async def _repair_from(self, store: MessageStore, node: Node, begin: Offset, end: Offset) -> Offset:
        """Writes that node's records from `begin` on, as far as they cover the damage up to `end`. Returns
        where they end. TroveError; StorageError."""
        at = begin
        while at < end:
            found = await self._read(node, at, min(end - at, FRAME_BYTES_MAX))
            if found.offset != at or zlib.crc32(found.data) != found.crc:
                text = f"node {node} answered with other bytes than those at {at}"
                raise TroveError(errors.REPLICA_FRAME_ILLEGAL, text)
            work = store.begin_repair(at, found.data, end)
            await run_in_thread(work.run)
            at = work.end
        return at
