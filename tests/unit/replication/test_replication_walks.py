"""Replica groups by seed: whatever fails, an acknowledged record is in the log of every later leader."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.trials import Trials
from tests.unit.replication.group_world import World

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
