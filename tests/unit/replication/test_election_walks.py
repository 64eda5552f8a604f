"""Groups that elect their leaders at etcd, by seed: whatever fails, there, in between, or at the nodes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.trials import Trials
from tests.unit.replication.election_world import ElectionWorld
from trovemq_broker.coordination.coordinator import Put
from trovemq_broker.replication.election_records import PAUSE

WALKS = 4_000
DEFAULT_WALKS = 100
PARTS = 4
STEPS = 60
GROWING = 1_000
DEFAULT_GROWING = 40
GROWING_STEPS = 30


def walk(seed: int) -> ElectionWorld:
    """A group of 1 to 5 nodes through STEPS faults; in the end one leader serves, and all have its log."""
    source = random.Random(f"election {seed}")
    nodes = source.choice((1, 2, 3, 3, 3, 3, 4, 5))
    in_sync_min = 1 if nodes == 1 else source.randrange(1, min(3, nodes) + 1)
    world = ElectionWorld(
        seed,
        nodes=nodes,
        in_sync_min=in_sync_min,
        is_sync=source.random() < 0.7,
        spares=source.choice((0, 0, 1, 2)),
        odds=source.choice((0.0, 0.02, 0.1)),
    )
    world.broke_leases = source.random() < 0.4
    names = list(world.nodes)
    backups = []
    world.run(2_000)
    for _ in range(STEPS):
        for _ in range(source.randrange(10)):
            world.send()
            world.deliver()
            world.run(world.now_ms + source.choice((1, 5, 20)))
        fault(world, source, names)
        world.healed()
        world.run(world.now_ms + source.choice((10, 100, 500, 2_500)))
        world.deliver()
        if source.random() < 0.05:
            backups.append(world.etcd.backup())
        if backups and source.random() < 0.02 and not world.lost and world.restore(source.choice(backups)):
            backups.clear()
            world.run(world.now_ms + 5_000)
            world.recover()
    world.settle()
    return world


def growing(seed: int) -> ElectionWorld:
    """A group that one node founded, with fewer voters than its minimum. Its etcd is lost often, and
    an operator recovers it by the promises of just enough voters."""
    source = random.Random(f"growing {seed}")
    world = ElectionWorld(
        seed,
        nodes=1,
        in_sync_min=source.choice((2, 2, 3)),
        spares=source.choice((1, 2, 3)),
        odds=source.choice((0.0, 0.02, 0.1)),
    )
    names = list(world.nodes)
    world.run(2_000)
    for _ in range(GROWING_STEPS):
        for _ in range(source.randrange(6)):
            world.send()
            world.run(world.now_ms + source.choice((1, 5, 20)))
        if source.random() < 0.5:
            world.change_members()
        else:
            fault(world, source, names)
        world.healed()
        world.send()
        if world.elections and not world.lost and source.random() < 0.15:
            world.recover()
        world.run(world.now_ms + source.choice((10, 100, 500, 2_500)))
    world.settle()
    return world


def fault(world: ElectionWorld, source: random.Random, names: list[str]) -> None:
    """One of them. A fault ends as often as one begins."""
    name, other, etcd = source.choice(names), source.choice(names), world.etcd
    faults: list[tuple[int, Callable[[], object]]] = [
        (2, lambda: world.kill_as_allowed(name, power_cut=False)),
        (1, lambda: world.kill_as_allowed(name, power_cut=True)),
        (5, lambda: world.start(name)),
        (1, lambda: world.stop(name)),
        (1, lambda: world.lose_disk(name)),
        (1, lambda: world.cut_off.add((name, other))),
        (3, world.cut_off.clear),
        (1, lambda: world.pause(name, source.choice((50, 1_000, 4_000, 10_000)))),
        (1, lambda: world.slow.update({name: source.choice((0, 500, 3_000))})),
        (1, world.slow.clear),
        (1, lambda: world.trim(name)),
        (1, lambda: world.jump(name, source.choice((100, 3_000, 60_000)))),
        (1, lambda: world.switch(name)),
        (1, lambda: setattr(etcd, "has_quorum", False)),
        (3, lambda: setattr(etcd, "has_quorum", True)),
        (1, lambda: etcd.restart_ttls(world.now_ms)),
        (2, world.break_leases),
        (1, lambda: world.cut_from_etcd.update([(name, source.choice(("to", "from")))])),
        (3, world.cut_from_etcd.clear),
        (3 if world.spares else 0, world.change_members),
        (1, lambda: pause_failover(world, source)),
    ]
    (act,) = source.choices([act for _, act in faults], [weight for weight, _ in faults])
    act()


def pause_failover(world: ElectionWorld, source: random.Random) -> None:
    if world.etcd.has_quorum:
        lease = world.etcd.grant(source.choice((1, 10)), world.now_ms)
        world.etcd.swap((), (Put(PAUSE, b"{}", lease.id),), world.now_ms)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_walk_keeps_every_acknowledged_record(trials: Trials, part: int) -> None:
    done = 0
    for number in trials.numbers(WALKS, default=DEFAULT_WALKS, part=part, parts=PARTS):
        with trials.one(number):
            walk(number)
        done += 1
    trials.count("replication", "walks of a group that elects its leaders", done)


def test_a_walk_of_a_group_that_grows_keeps_every_acknowledged_record(trials: Trials) -> None:
    done = 0
    for number in trials.numbers(GROWING, default=DEFAULT_GROWING):
        with trials.one(number):
            growing(number)
        done += 1
    trials.count("replication", "walks of a group that grows from one node", done)


def test_one_seed_gives_one_trace_in_two_processes() -> None:
    """Whatever a process's hashes of strings are."""
    code = "from tests.unit.replication.test_election_walks import walk; print(walk(3).trace.hexdigest())"
    root = Path(__file__).parents[3]
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1] != ""
