"""The account that the walks keep of acknowledged changes: when one counts as lost, and when it is missed."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.cluster_config.config_parts import created
from tests.unit.cluster_config.config_whole_walk import WholeWalk
from tests.unit.cluster_config.config_world import NAMES
from trovemq_broker.cluster_config.entries import ClockMs
from trovemq_broker.cluster_config.owner import CONNECT_WAIT_MS


class _Calm(Random):
    """Nothing fails by chance."""

    def random(self) -> float:
        return 0.99


def _two_owners() -> WholeWalk:
    """b has taken over while a was away, and has acknowledged a change alone. Then b goes, and a comes back,
    which knows nothing of that."""
    world = WholeWalk(_Calm(1))
    a, b = world.nodes["a"], world.nodes["b"]
    for name in NAMES[1:]:
        world.start_node(world.nodes[name])
    world.connect_node(b)
    while world.deliver_one("b"):
        pass
    world.crash_node(a)
    assert world.take_over_by(b)
    world.now_ms += CONNECT_WAIT_MS
    assert b.owner is not None
    b.owner.tick(ClockMs(world.now_ms))
    assert world.make(b, [created("orders")]) == [None]
    world.settle()
    assert {name for name, _ in world.acknowledged[-1].holders} == {"b"}
    world.crash_node(b)
    world.cuts.update(frozenset(("a", name)) for name in NAMES[1:])
    world.start_node(a)
    assert a.owner is not None
    return world


def test_a_change_on_no_disk_at_all_is_missed() -> None:
    """Its only disk is lost before the former owner has heard of its generation: no take-over follows."""
    world = _two_owners()
    world.lose_disk()
    assert world.acknowledged[-1].lost
    world.converge()


def test_a_change_that_a_holder_still_has_is_not_given_up() -> None:
    world = _two_owners()
    with pytest.raises(AssertionError, match="is lost"):
        world.check_acknowledged(world.nodes["a"])
    world.converge()
    assert not world.acknowledged[-1].lost
