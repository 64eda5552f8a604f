"""Walks by seed over three nodes with real engines and streams: kills, power cuts, silent connections, and an
operator who promotes. Whatever was committed stays, and in the end all nodes have one log."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.trials import Trials
from tests.unit.replica_streams.nodes_here import GroupHere, NodeHere, run
from trovemq_broker.replication.promotion import choose, epoch_of_leader, epoch_to_promise
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_rpc.testing.loop import MemoryLoop

NAMES = ("a", "b", "c")
STEPS = 60
WALKS = 250
DEFAULT_WALKS = 6
PARTS = 3
TRACED = 40
ROOT = Path(__file__).parents[3]


@dataclass
class Walk:
    """`acknowledged`: the bytes of the appends that were committed, by where they begin."""

    group: GroupHere
    loop: MemoryLoop
    random: random.Random
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    waiting: dict[int, bytes] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    """Of each step: its name, the time and the state after it, that of the random numbers, too."""

    def count(self, event: str) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1

    # --- steps ----------------------------------------------------------------------------------------
    async def step(self) -> None:
        for node in self.group.nodes.values():
            node.check_tasks()
        (act,) = self.random.choices(
            (self.burst, self.start, self.kill, self.promote, self.power_cut_of_all, self.silence),
            (78, 9, 5, 3, 3, 2),
        )
        await act()
        await asyncio.sleep(self.random.choice((0, 0.001, 0.01, 0.1, 0.6)))
        chance = zlib.crc32(repr(self.loop.random.getstate()).encode())
        self.trace.append(f"{act.__name__} {self.loop.time():.6f} {chance:08x} {self.group.state()}")

    async def silence(self) -> None:
        self.loop.silence()
        self.count("silence")

    async def burst(self) -> None:
        for _ in range(self.random.randrange(1, 12)):
            self.send()
            await asyncio.sleep(self.random.choice((0, 0.001, 0.004)))

    def send(self) -> None:
        leader = self.group.leader
        if leader is None or not leader.is_up or leader.streams is None:
            return
        begin = leader.store.end_offset
        try:
            leader.streams.check_append()
        except TroveError as error:
            self.count(error.symbol)
            return
        if self.random.random() < 0.2:
            end = leader.transact(self.random.randrange(2, 7), 300)
        else:
            end = leader.send(self.random.randrange(1, 6), self.random.randrange(10, 3_000))
        segment = leader.store.log.segments.at(begin)
        assert segment is not None
        self.waiting[begin] = bytes(leader.store.log.read(begin, min(end, segment.end) - begin))
        self.count("sent")

    def committed(self, leader: NodeHere) -> None:
        """All that is below the leader's commit is acknowledged."""
        commit = leader.leading().commit_offset
        for begin in [one for one in self.waiting if one + len(self.waiting[one]) <= commit]:
            data = self.waiting.pop(begin)
            found = bytes(leader.store.log.read(PhysicalOffset(begin), len(data)))
            if found == data:  # else it was lost with a former leader, unacknowledged
                self.acknowledged[begin] = data

    async def kill(self) -> None:
        up = [one for one in self.group.nodes.values() if one.is_up]
        if len(up) < 2:
            return
        node = self.random.choice(up)
        power_cut = self.random.random() < 0.4
        await node.kill(power_cut=power_cut)
        self.count("power cut" if power_cut else "kill")

    async def power_cut_of_all(self) -> None:
        up = [node for node in self.group.nodes.values() if node.is_up]
        await asyncio.gather(*(node.kill(power_cut=True) for node in up))
        for _ in NAMES:
            await self.start()
        self.count("power cut of all")

    async def start(self) -> None:
        for node in self.group.nodes.values():
            if not node.is_up:
                await node.start()
                if node is not self.group.leader:
                    await node.follow()
                return

    async def promote(self) -> bool:
        """Each node that is up is asked for its promise; the chosen one leads."""
        up = [one for one in self.group.nodes.values() if one.is_up]
        highest = max(one.state.promised for one in up)
        epoch = epoch_to_promise(highest, self.random.choice(up).name, NAMES)
        answers = [await one.promise(epoch) for one in up]
        try:
            name = choose(answers, epoch, voters=len(NAMES), in_sync_min=2)
        except TroveError:
            self.count("no choice")
            for one in up:
                if one is not self.group.leader:
                    await one.follow()
            return False
        self.waiting.clear()  # of the former leader: acknowledged by it, or never
        leader = self.group[name]
        self.check_all_is_there(leader)
        await leader.lead(epoch_of_leader(epoch, name, NAMES))
        leader.leading().on_commit(lambda: self.committed(leader))
        for one in up:
            if one is not leader:
                await one.follow()
        self.count("promotion")
        return True

    # --- checks ---------------------------------------------------------------------------------------
    def check_all_is_there(self, node: NodeHere) -> None:
        for begin, data in self.acknowledged.items():
            found = bytes(node.store.log.read(PhysicalOffset(begin), len(data)))
            assert found == data, f"acknowledged bytes at {begin} are missing on {node.name}"

    async def settle(self) -> None:
        for _ in NAMES:
            await self.start()
        for node in self.group.nodes.values():
            node.check_tasks()
        while not await self.promote():
            await asyncio.sleep(1)
        leader = self.group.leader
        assert leader is not None
        await self.group.until(lambda: leader.leading().leader.is_open)
        self.send()
        await self.group.until(lambda: not self.waiting)
        assert self.acknowledged, self.counts
        await self.group.until_equal()
        self.check_all_is_there(leader)
        for node in self.group.nodes.values():
            assert node.log_bytes == leader.log_bytes, node.name
            assert node.bodies == leader.bodies, node.name
            assert node.final is None, node.final


def walked(seed: int, steps: int = STEPS) -> Walk:
    """A whole walk."""
    walks: list[Walk] = []

    async def program(loop: MemoryLoop) -> None:
        group = GroupHere(*NAMES)
        walk = Walk(group, loop, random.Random(seed))
        walks.append(walk)
        for node in group.nodes.values():
            await node.start()
        await walk.promote()
        for _ in range(steps):
            await walk.step()
        await walk.settle()
        await group.stop()

    run(program, seed)
    return walks[0]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_what_was_committed_stays(trials: Trials, part: int) -> None:
    done = 0
    for seed in trials.numbers(WALKS, default=DEFAULT_WALKS, part=part, parts=PARTS):
        with trials.one(seed):
            walked(seed)
        done += 1
    trials.count("replication", "walks of three real logs and their streams", done)


@pytest.mark.slow
def test_one_seed_is_one_walk_in_each_process() -> None:
    """Each process has other hashes of texts, other addresses of objects, and another time."""
    program = f"from {__name__} import walked; print('\\n'.join(walked(3, steps={TRACED}).trace))"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hashes in ("1", "2")
    ]
    printed = [child.communicate(timeout=300)[0].splitlines() for child in children]
    first, second = (lines[-TRACED:] for lines in printed)  # log lines are before
    assert len(first) == TRACED
    assert [one for one, other in zip(first, second, strict=True) if one != other] == []
