"""The account that the walks keep of acknowledged changes: which brokers hold one, and when it is lost."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.unit.cluster_config.config_parts import created
from tests.unit.cluster_config.config_whole_walk import WholeWalk
from tests.unit.cluster_config.config_world import NAMES
from trovemq_broker.cluster_config.entries import ClockMs
from trovemq_broker.cluster_config.owner import CONNECT_WAIT_MS, Owner
from trovemq_proto import errors


class _Calm(Random):
    """Nothing fails by chance. Below 0.3 the end of a stream is late."""

    def __init__(self, value: float = 0.4) -> None:
        super().__init__(1)
        self._value = value

    def random(self) -> float:
        return self._value


def _joined(*, old_copies: bool = False) -> WholeWalk:
    """All are up, and b follows a."""
    world = WholeWalk(_Calm(), old_copies=old_copies)
    for name in NAMES[1:]:
        world.start_node(world.nodes[name])
    world.connect_node(world.nodes["b"])
    _deliver_all(world)
    assert _owner(world, "a").live == ["b"]
    return world


def _deliver_all(world: WholeWalk) -> None:
    while world.deliver_one("b"):
        pass
    world.settle()


def _owner(world: WholeWalk, name: str) -> Owner:
    owner = world.nodes[name].owner
    assert owner is not None
    return owner


def _two_owners() -> WholeWalk:
    """b has taken over while a was away, and has acknowledged a change alone. Then b goes, and a comes back,
    which knows nothing of that."""
    world = _joined()
    a, b = world.nodes["a"], world.nodes["b"]
    world.crash_node(a)
    assert world.take_over_by(b)
    world.now_ms += CONNECT_WAIT_MS
    _owner(world, "b").tick(ClockMs(world.now_ms))
    assert world.make(b, [created("orders")]) == [None]
    world.settle()
    assert {name for name, _ in world.acknowledged[-1].holders} == {"b"}
    world.crash_node(b)
    world.cuts.update(frozenset(("a", name)) for name in NAMES[1:])
    world.start_node(a)
    _owner(world, "a").check()
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


def test_the_owner_acknowledges_alone_as_another_broker_becomes_live() -> None:
    """c and d join before the report of b is there, which makes that live."""
    world = WholeWalk(_Calm())
    for name in NAMES[1:]:
        world.start_node(world.nodes[name])
    world.now_ms += CONNECT_WAIT_MS
    world.connect_node(world.nodes["b"])
    world.settle()
    assert world.deliver_one("b")
    assert _owner(world, "a").live == []
    assert world.meet()
    assert _owner(world, "a").live == ["b"]
    assert [one.entry.name for one in world.acknowledged] == ["b", "c", "d"]


def test_a_broker_without_its_disk_is_said_to_hold_a_change() -> None:
    """The owner has not seen yet that it is gone, and a creation is repeated."""
    world = _joined()
    a, b = world.nodes["a"], world.nodes["b"]
    assert world.make(a, [created("orders")]) == [None]
    _deliver_all(world)
    world.source = _Calm(0.25)
    world.crash_node(b)
    world.source = _Calm()
    world.lose_disk()
    assert _owner(world, "a").live == ["b"]
    assert world.make(a, [created("orders")]) == [None]
    world.settle()
    before, again = world.acknowledged[-2:]
    assert before.entry == again.entry
    assert (before.holders, again.holders) == ({("a", 1), ("b", 2)}, {("a", 1)})


def test_an_owner_of_an_older_copy_may_not_say_so_after_a_take_over() -> None:
    """The take-over did not reach it."""
    world = _joined(old_copies=True)
    a, b = world.nodes["a"], world.nodes["b"]
    world.copies = [("a", replace(a.disk, files=a.disk.files.after_process_kill()))]
    assert world.make(a, [created("orders")]) == [None]
    _deliver_all(world)
    world.crash_node(a)
    world.put_back()
    assert a.old
    world.start_node(a)
    world.connect_node(b)
    assert _owner(world, "a").contradicted == "b"
    world.cuts.update(frozenset(("a", name)) for name in NAMES[1:])
    assert world.take_over_by(b)
    (refusal,) = world.make(a, [created("other")])
    assert refusal is not None
    assert refusal.spec is errors.CONFIG_OWNER_OLD


def test_an_owner_that_is_called_old_for_nothing_is_noticed() -> None:
    world = _joined()
    _owner(world, "a").contradicted = "b"
    with pytest.raises(AssertionError, match="CONFIG_OWNER_OLD"):
        world.make(world.nodes["a"], [created("orders")])
