"""Replica groups by seed: whatever fails, an acknowledged record is in the log of every later leader."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.trials import Trials
from tests.unit.replication.group_world import TICK_MS, World

WALKS = 4_000
DEFAULT_WALKS = 80
PARTS = 4
STEPS = 80


def walk(seed: int) -> World:
    """A group of 2 to 5 nodes through STEPS faults; in the end all nodes have one log."""
    source = random.Random(f"walk {seed}")
    nodes = source.choice((2, 3, 3, 3, 4, 5))
    in_sync_min = source.randrange(1, 3) if nodes == 2 else source.randrange(2, (nodes + 3) // 2 + 1)
    spares = source.choice((0, 0, 1, 2))
    world = World(seed, nodes=nodes, in_sync_min=in_sync_min, is_sync=source.random() < 0.7, spares=spares)
    names = list(world.nodes)
    world.run(1_000)
    for _ in range(STEPS):
        for _ in range(source.randrange(12)):
            world.send()
            world.run(world.now_ms + source.choice((1, 5, 20)))
        fault(world, source, names)
        world.healed()
        world.run(world.now_ms + source.choice((10, 100, 500, 2_500)))
    world.settle()
    return world


def fault(world: World, source: random.Random, names: list[str]) -> None:
    """One of them. A fault ends as often as one begins."""
    name, other = source.choice(names), source.choice(names)
    faults: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: world.kill(name)),
        (1, lambda: world.kill(name, power_cut=world.is_sync)),
        (4, lambda: world.start(name)),
        (1, lambda: world.lose_disk(name)),
        (1, lambda: world.cut_off.add((name, other))),
        (3, world.cut_off.clear),
        (1, lambda: world.pause(name, source.choice((50, 1_000, 4_000)))),
        (1, lambda: world.slow.update({name: source.choice((0, 500, 3_000))})),
        (1, world.slow.clear),
        (2, lambda: world.trim(name)),
        (1, world.promote),
        (1, world.hide_leader),
        (3 if world.spares else 0, world.change_members),
        (1, world.configure),
        (3, world.promote_where_none_leads),
    ]
    (act,) = source.choices([act for _, act in faults], [weight for weight, _ in faults])
    act()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_walk_keeps_every_acknowledged_record(trials: Trials, part: int) -> None:
    done = 0
    for number in trials.numbers(WALKS, default=DEFAULT_WALKS, part=part, parts=PARTS):
        with trials.one(number):
            walk(number)
        done += 1
    trials.count("replication", "walks of a replica group", done)


def loaded(world: World, until_ms: int) -> list[int]:
    """An append each 10 ms. Returns how long the commit stood still, each time."""
    waits, since_ms, before = [], world.now_ms, -1
    while world.now_ms < until_ms:
        world.send()
        world.run(world.now_ms + 10)
        leader = world.nodes[world.named].leader
        assert leader is not None
        if leader.commit > before:
            waits.append(world.now_ms - since_ms)
            since_ms, before = world.now_ms, leader.commit
    return [*waits, world.now_ms - since_ms]


@pytest.mark.parametrize("seed", range(3))
def test_the_slowest_copy_comes_back_while_load_lasts(seed: int) -> None:
    world = World(seed, nodes=3, in_sync_min=2)
    world.run(1_000)
    slow = next(name for name in world.nodes if name != world.named)
    world.kill(slow)
    loaded(world, 4_000)
    leader = world.nodes[world.named].leader
    assert leader is not None
    assert slow not in leader.in_sync.newest.nodes
    world.slow[slow] = 400
    world.start(slow)
    assert max(loaded(world, 12_000)) <= leader.settings.lag_max_ms
    assert leader.in_sync.confirmed is not None
    assert slow in leader.in_sync.confirmed.nodes


@pytest.mark.parametrize("seed", range(3))
def test_a_silent_copy_delays_a_commit_for_its_time_only(seed: int) -> None:
    world = World(seed, nodes=3, in_sync_min=2)
    world.run(2_000)
    silent = next(name for name in world.nodes if name != world.named)
    for again in range(3):
        world.pause(silent, 6_000)
        waits = loaded(world, world.now_ms + 5_000)
        leader = world.nodes[world.named].leader
        assert leader is not None
        assert max(waits) <= leader.settings.lag_max_ms + 2 * TICK_MS, f"pause {again}"
        world.run(world.now_ms + 5_000)
