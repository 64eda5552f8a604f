"""The end of a walk: everything is started and connected, and all brokers have to agree."""

from __future__ import annotations

from random import Random

from tests.unit.cluster_config.config_node import Node
from tests.unit.cluster_config.config_parts import SEAL
from tests.unit.cluster_config.config_world import NAMES, World
from trovemq_broker.cluster_config.entries import (
    ClockMs,
    Kind,
)
from trovemq_broker.cluster_config.follower import Serving
from trovemq_broker.cluster_config.reconcile import ActionKind, plan
from trovemq_broker.cluster_config.stored import StoredTable


class WholeWalk(World):
    """A walk to its end."""

    def converge(self) -> None:
        """Everything is started and connected: then all brokers have the same table, and local tables
        that are equal to it."""
        self.cuts.clear()
        self.unseen.clear()
        self.lossy = False
        while self.late:
            self.end_late()
        for name in list(self.streams):
            self.close(name)
        for node in self.nodes.values():
            if not node.up:
                self.start_node(node)
        self.now_ms += 60_000
        owner = self._last_owner()
        for _ in range(400):
            moved = self.meet()
            if owner.owner is None or not owner.up:
                owner = self._last_owner()
            elif len(self.streams) == len(NAMES) - 1 and not moved:
                break
        else:
            raise AssertionError(f"no end: {[(n.name, n.head.position) for n in self.nodes.values()]}")
        self.check_equal(owner)

    def meet(self) -> bool:
        """Each broker connects, then each stream delivers one message. Whether there was one. Callers get
        their answers at once: after the next message other brokers are live."""
        for node in self.nodes.values():
            self.connect_node(node) if node.up else self.start_node(node)
            self.settle()
        moved = False
        for name in sorted(self.streams):
            moved |= name in self.streams and self.deliver_one(name)
            self.settle()
        return moved

    def _last_owner(self) -> Node:
        for node in self.nodes.values():
            if not node.up:
                self.start_node(node)
        for node in self.nodes.values():
            self.learn(node)
        owners = [node for node in self.up() if node.owner is not None]
        best = max(owners, key=lambda node: node.head.generation, default=None)
        newest = max(node.stored.promised for node in self.up())
        if best is None or best.head.generation < newest or self.suspended:
            target = max(self.nodes.values(), key=lambda node: node.head.position)
            for _ in range(50):
                if target.up and self.take_over_by(target):
                    return target
                if not target.up:
                    self.start_node(target)
            raise AssertionError("no take-over succeeds")
        return best

    def check_equal(self, owner: Node) -> None:
        self.check_acknowledged(owner)
        image = owner.stored.table.image()
        for node in self.nodes.values():
            assert node.stored.table.image() == image, node.name
            on_disk = StoredTable.load(node.disk.files.after_power_cut(), SEAL)
            assert on_disk.table.image() == image, node.name
            if node.follower is not None:
                assert node.follower.serving(ClockMs(self.now_ms)) is Serving.CURRENT
            self.check_local(node)

    def check_local(self, node: Node) -> None:
        made = plan(node.stored.table, node.name, node.disk.local.values())
        actions = [action for action in made.actions if action.kind is not ActionKind.WITHHOLD]
        assert actions == [], node.name
        differing = {error.fields["name"] for error in made.differing}
        for entry in node.stored.table:
            own = node.disk.local.get(entry.key)
            if entry.kind is Kind.BROKER or entry.name in differing:
                continue
            if entry.deleted:
                assert own is None or entry.key in made.unlisted, f"{entry.key} came back on {node.name}"
            elif entry.kind is not Kind.TOPIC or entry.queues_on(node.name):
                assert own is not None, f"{entry.key} is missing on {node.name}"
                assert (own.id, own.settings) == (entry.id, entry.settings)
        self._check_served(node)

    def _check_served(self, node: Node) -> None:
        """Nothing that was deleted is served."""
        if self.old_copies:
            return
        deleted = {one.entry.id for one in self.acknowledged if one.entry.deleted and not one.lost}
        for key, own in node.disk.local.items():
            assert own.id not in deleted or key in node.disk.withheld, f"{key} is served by {node.name}"


def walk(source: Random, steps: int, *, old_copies: bool = False) -> WholeWalk:
    world = WholeWalk(source, old_copies=old_copies)
    for _ in range(steps):
        world.step()
    world.converge()
    return world
