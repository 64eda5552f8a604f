"""The consumers' state on a follower: a copy of the file that the leader saved last.

The leader saves the state of deliveries, timers and transactions now and then, so that its start replays
only the events after it (state/consumer_state.py). The file is of a position of the log, which both nodes
have byte for byte: so it counts on a follower, too, and a promotion replays no more events than a start of
the leader.

Invariants
- A follower keeps a state only whose position its own log has reached, committed and on disk, by the frames
  of the leader that sent it: no later leader cuts below it.
- Whatever is wrong with an answer, the state before stays, or the log alone gives the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from trovemq_broker.daemon.replica.node_calls import NodeCalls
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.replication.frames import Epoch, Node, Offset
from trovemq_broker.server.wire.replica_frames import ConsumersAsked, ConsumersPart
from trovemq_broker.state.consumer_state import SNAPSHOT_PATH
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto.errors import TroveError
from trovemq_store.events.snapshot import crc_of, decoded
from trovemq_store.files.failures import raise_failed_sync
from trovemq_store.files.files import FileSystem, StorageError

Ask: TypeAlias = Callable[[int, int], Awaitable[ConsumersPart]]
"""(known, offset): a part of the leader's state. TroveError; none where no leader is followed."""
FIRST_S: Final = 2.0
"""Between two looks until the first state was saved."""
EVERY_S: Final = 60.0
PART_BYTES: Final = 1 << 20
SIZE_MAX: Final = 1 << 30
_HEAD_BYTES: Final = 16


class _Head(msgspec.Struct):
    """The fields of ConsumerSnapshot that say whether it counts."""

    closed: bool
    log_end: Offset


def part_of(files: FileSystem, known: int, offset: int) -> ConsumersPart:
    """Of the saved state, from that byte on. Blocks. StorageError."""
    if not files.exists(SNAPSHOT_PATH):
        return ConsumersPart()
    file = files.open(SNAPSHOT_PATH)
    try:
        crc = crc_of(file.read(0, min(_HEAD_BYTES, file.size)))
        if crc in (0, known):
            return ConsumersPart()
        begin = min(offset, file.size)  # the caller may have begun with a state that was longer
        return ConsumersPart(file.size, crc, file.read(begin, min(begin + PART_BYTES, file.size)))
    finally:
        file.close()


class ConsumersCopy:
    """`run()` beside a follower. `reached`: up to there its log is committed and on disk."""

    def __init__(
        self,
        files: FileSystem,
        reached: Callable[[], Offset],
        ask: Ask,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._files = files
        self._reached = reached
        self._ask = ask
        self._sleep = sleep

    async def run(self) -> None:
        """Until it is cancelled. StorageError: a sync failed."""
        wait_s = FIRST_S
        while True:
            await self._sleep(wait_s)
            try:
                if await self.look():
                    wait_s = EVERY_S
            except TroveError:
                continue  # no leader, or a busy one
            except StorageError as error:
                raise_failed_sync(error)
                get_logger().warning("replica.consumers_not_copied", reason=str(error))

    async def look(self) -> bool:
        """Whether the leader had a newer state, and this node has it now. TroveError; StorageError."""
        known = await run_in_thread(self._known)
        found = first = await self._ask(known, 0)
        content = bytearray(found.data)
        while len(content) < first.size <= SIZE_MAX and found.data:
            found = await self._ask(known, len(content))
            if (found.size, found.crc) != (first.size, first.crc):
                return False  # it was replaced meanwhile
            content += found.data
        return await run_in_thread(partial(self._save, bytes(content)))

    def _known(self) -> int:
        """The CRC of the present state; 0: none."""
        if not self._files.exists(SNAPSHOT_PATH):
            return 0
        file = self._files.open(SNAPSHOT_PATH)
        try:
            return crc_of(file.read(0, min(_HEAD_BYTES, file.size)))
        finally:
            file.close()

    def _save(self, content: bytes) -> bool:
        head = decoded(content, _Head)
        if head is None or head.closed or head.log_end > self._reached():
            return False
        self._files.write_atomic(SNAPSHOT_PATH, content)
        return True


def copy_of(
    node: OpenNode, calls: NodeCalls, followed: Callable[[], tuple[Node, Epoch] | None]
) -> ConsumersCopy:
    """`followed`: the leader and its epoch; None while none is followed."""

    async def ask(known: int, offset: int) -> ConsumersPart:
        leader, place = followed(), node.place_if_any
        member = None if leader is None or place is None else place.member(leader[0])
        if leader is None or place is None or member is None:
            return ConsumersPart()
        asked = ConsumersAsked(place.cluster, place.group, leader[1], place.node, known, offset)
        return await calls.read_consumers(member, asked)

    return ConsumersCopy(node.files, lambda: min(node.state.commit, node.log.flushed), ask)
