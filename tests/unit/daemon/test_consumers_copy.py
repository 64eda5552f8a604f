"""A follower's copy of the consumers' state that its leader has saved."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trovemq_broker.daemon.replica import consumers_copy
from trovemq_broker.daemon.replica.consumers_copy import EVERY_S, FIRST_S, ConsumersCopy, part_of
from trovemq_broker.groups.delivery.delivery import DeliveryState
from trovemq_broker.replication.frames import Offset
from trovemq_broker.server.wire.replica_frames import NUMBER_MAX, ConsumersPart
from trovemq_broker.state.consumer_state import SNAPSHOT_PATH, ConsumerSnapshot
from trovemq_broker.timers.timers import TimersState
from trovemq_broker.transactions.transaction_log import TransactionsState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueOffset
from trovemq_store.events.snapshot import SnapshotFile
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem

pytestmark = pytest.mark.asyncio


class Nodes:
    """A leader with a saved state, and a follower. `asked`: the offsets that it asked for."""

    def __init__(self) -> None:
        self.leader, self.follower = MemoryFileSystem(), MemoryFileSystem()
        self.reached = Offset(1_000)
        self.asked: list[int] = []
        self.replaced_after = 0
        self.copy = ConsumersCopy(self.follower, lambda: self.reached, self._ask)

    async def _ask(self, known: int, offset: int) -> ConsumersPart:
        self.asked.append(offset)
        if len(self.asked) == self.replaced_after:
            self.save(900)
        return part_of(self.leader, known, offset)

    def save(self, log_end: int, *, closed: bool = False) -> bytes:
        file = SnapshotFile(self.leader, SNAPSHOT_PATH, ConsumerSnapshot)
        state = ConsumerSnapshot(
            closed,
            PhysicalOffset(log_end),
            QueueOffset(7),
            DeliveryState([]),
            TimersState(),
            TransactionsState(0, 0, [], []),
        )
        content = file.encode(state)
        file.save(content)
        return content

    @property
    def copied(self) -> bytes:
        has_one = self.follower.exists(SNAPSHOT_PATH)
        return self.follower.read_bytes(SNAPSHOT_PATH) if has_one else b""


async def test_a_promotion_read_all_events_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower had no state, or one from when it led."""
    monkeypatch.setattr(consumers_copy, "PART_BYTES", 32)
    nodes = Nodes()
    content = nodes.save(1_000)
    assert await nodes.copy.look()
    assert nodes.copied == content
    assert nodes.asked == list(range(0, len(content), 32)), "in parts"
    nodes.asked.clear()
    assert not await nodes.copy.look()
    assert nodes.asked == [0], "it has that state"
    later = nodes.save(990)
    assert await nodes.copy.look()
    assert nodes.copied == later


async def test_a_state_that_is_ahead_of_the_followers_log_waits() -> None:
    nodes = Nodes()
    content = nodes.save(1_001)
    assert not await nodes.copy.look()
    assert nodes.copied == b""
    nodes.reached = Offset(1_001)
    assert await nodes.copy.look()
    assert nodes.copied == content


async def test_a_state_that_does_not_count_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes()
    assert not await nodes.copy.look(), "there is none"
    kept = nodes.save(10)
    assert await nodes.copy.look()
    nodes.save(20, closed=True)  # of a single broker
    assert not await nodes.copy.look()
    content = bytearray(nodes.save(20))
    content[-1] ^= 1
    nodes.leader.write_atomic(SNAPSHOT_PATH, bytes(content))
    assert not await nodes.copy.look()
    monkeypatch.setattr(consumers_copy, "PART_BYTES", 32)
    nodes.save(20)
    nodes.replaced_after = len(nodes.asked) + 2
    assert not await nodes.copy.look()
    assert nodes.copied == kept


async def test_it_is_looked_for_often_until_there_is_one() -> None:
    nodes = Nodes()
    slept: list[float] = []
    ended = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            nodes.save(10)
        if len(slept) == 4:
            ended.set()
            await asyncio.Event().wait()

    async def ask(known: int, offset: int) -> ConsumersPart:
        if len(slept) == 1:
            raise TroveError(errors.NOT_LEADER, "it follows by now")
        return part_of(nodes.leader, known, offset)

    running = asyncio.create_task(ConsumersCopy(nodes.follower, lambda: nodes.reached, ask, sleep).run())
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    waiting.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert slept == [FIRST_S, FIRST_S, FIRST_S, EVERY_S]
    assert nodes.copied


async def test_a_part_beyond_the_end_of_the_state_ended_the_call(tmp_path: Path) -> None:
    """A hostile node asks for it, or one that began with a state which a shorter one has replaced."""
    nodes, files = Nodes(), RealFileSystem(tmp_path)
    content = nodes.save(900)
    files.write_atomic(SNAPSHOT_PATH, content)
    whole = part_of(files, 0, 0)
    assert whole == ConsumersPart(len(content), whole.crc, content)
    for offset in (len(content), len(content) + 1, NUMBER_MAX):
        assert part_of(files, 0, offset) == ConsumersPart(len(content), whole.crc)
