"""The members of a group at its leader: each change is one list (replication/members.py), which this node
stores, then sends to the others.

    add, remove      an operator's: return when the list counts
    run()            offers the list until it counts, and makes learners voters

A list that does not count yet is never withdrawn: it counts once all copies of the in-sync sets have
stored it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from trovemq_broker.daemon.replica.elected import Elected
from trovemq_broker.daemon.replica.node_calls import NodeCalls, gathered
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.role import illegal
from trovemq_broker.replica_streams.leader_streams import LeaderStreams
from trovemq_broker.replication.election_members import MemberChange
from trovemq_broker.replication.frames import Epoch, Identity, Node
from trovemq_broker.replication.leader import GroupSettings
from trovemq_broker.replication.members import MemberChanges
from trovemq_broker.replication.status import MembersChange, NodeStatus, Role
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member, Members

POLL_S: Final = 0.5
COUNTS_S: Final = 5.0
"""How long an operator's call waits until a list counts."""


class GroupMembers:
    """Of one leadership. `group`: its settings; `statuses`: of the other nodes that answer."""

    def __init__(
        self,
        node: OpenNode,
        calls: NodeCalls,
        streams: Callable[[], LeaderStreams],
        epoch: Epoch,
        group: GroupSettings,
        statuses: Callable[[], Mapping[Node, NodeStatus]],
        election: Elected | None = None,
    ) -> None:
        """`election`: makes each change where it looks for the members, before any node stores the list."""
        self._node = node
        self._election = election
        self._calls = calls
        self._streams = streams
        self._epoch: Final = epoch
        self._group = group
        self._statuses = statuses
        place = node.place
        known = () if place.in_sync is None else place.in_sync.nodes
        self._changes: Final = MemberChanges(place.listed, epoch, place.node, known)
        self._stored: dict[Identity, int] = {}
        self._one_change = asyncio.Lock()

    async def run(self) -> None:
        """Until it is cancelled. StorageError."""
        while True:
            async with self._one_change:
                await self._take_written()
                await (self._make_voters() if self.counts else self._offer())
            await asyncio.sleep(POLL_S)

    @property
    def _listed(self) -> Members:
        """The newest list; this node's state has it, or is to get it."""
        return self._changes.newest

    @property
    def counts(self) -> bool:
        """Whether the newest list counts: the next change may begin."""
        return self._changes.counts

    # --- calls of operators -----------------------------------------------------------------------------
    async def add(self, member: Member) -> None:
        """A new voter is a learner until it has all of the log: a group of one could not commit meanwhile.
        TroveError REPLICA_STATE_ILLEGAL, NOT_ENOUGH_REPLICAS."""
        async with self._one_change:
            known = self._listed.member(member.node)
            if known is not None and (known.is_voter or not member.is_voter):
                raise illegal(f"node {member.node} is a member already")
            if known is None:
                await self._check_is_new(member)
            await self._until_it_counts()
            if known is None:
                await self._change(lambda changes: changes.add(member))
            elif member.node not in self._listed.joining:
                await self._change(lambda changes: changes.join(member.node))
            await self._until_it_counts()

    async def remove(self, node: Node) -> None:
        """One that is in the in-sync set has to be out of it first; at the minimum it must be stopped, and
        the group then commits with fewer copies. TroveError NOT_A_MEMBER, REPLICA_STATE_ILLEGAL,
        NOT_ENOUGH_REPLICAS."""
        async with self._one_change:
            place = self._node.place
            if node == place.node:
                raise illegal(f"node {node} leads: promote another one first")
            if self._listed.member(node) is None:
                raise TroveError(errors.NOT_A_MEMBER, f"node {node} of group {place.group}")
            self._counted_without(node)
            await self._until_it_counts(without=node if self._election is None else "")
            stores, counted = self._stores_of(node), self._counted_without(node)
            await self._change(lambda changes: changes.remove(node, stores, counted))
            await self._until_it_counts()

    async def _check_is_new(self, member: Member) -> None:
        """A store of this group whose node is no member was removed from it."""
        try:
            found = await self._calls.status(member, self._node.place.cluster)
        except TroveError:
            return  # it is not started yet: the id of its store is asked for at its Hello
        if found.role is not Role.NEW:
            raise illegal(f"node {member.node} has a store of a group: a node is added with an empty one")

    def _stores_of(self, node: Node) -> set[str]:
        """The ids of its stores that are known."""
        member, status = self._listed.member(node), self._statuses().get(node)
        stored = self._node.place.in_sync
        copies = {one.identity for one in self._streams().copy_states()}
        copies |= self._streams().leader.in_sync.counted | (frozenset() if stored is None else stored.copies)
        found = {one.store_id for one in copies if one.node == node}
        found.add("" if member is None else member.store_id)
        found.add("" if status is None or status.cluster != self._node.place.cluster else status.store_id)
        return found - {""}

    def _counted_without(self, node: Node) -> frozenset[Identity]:
        """The copies that count, without a stopped node's where the group needs one copy less without it."""
        counted = self._streams().leader.in_sync.counted
        if all(one.node != node for one in counted):
            return counted
        needed, voters = self._node.place.in_sync_needed, len(self._listed.places)
        is_here = any(one.identity.node == node and one.is_connected for one in self._streams().copy_states())
        if is_here or voters - 1 >= needed:
            raise illegal(f"node {node} is in the in-sync set: stop it, and wait until it is out of it")
        return frozenset(one for one in counted if one.node != node)

    # --- changes ----------------------------------------------------------------------------------------
    async def _change(self, change: MemberChange) -> None:
        """One later list. TroveError REPLICA_STATE_ILLEGAL; COORDINATION_UNAVAILABLE: it may be written
        later, and run() takes it then."""
        if self._election is not None:
            self._changes.take(await self._election.change_members(change))
        else:
            try:
                change(self._changes)
            except ValueError as error:
                raise illegal(str(error)) from None
        await self._store()
        self._streams().regroup(self.settings())

    async def _take_written(self) -> None:
        """A list whose change got no answer in time, and was written all the same."""
        written = None if self._election is None else self._election.listed
        if written is not None and self._changes.take(written):
            await self._store()
            self._streams().regroup(self.settings())

    async def _store(self) -> None:
        """StorageError: the list does not count, because this node has not stored it; run() tries again."""
        if self._node.place.listed.version < self._listed.version:
            await run_in_thread(partial(self._node.take_members, self._listed))
        self._stored[self._node.place.identity] = self._listed.version

    async def _until_it_counts(self, without: Node = "") -> None:
        """`without`: a node that is lost, and removed next: it cannot store the list. TroveError
        NOT_ENOUGH_REPLICAS."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + COUNTS_S
        while not self.counts:
            reasons = await self._offer(without)
            if loop.time() >= until_s and not self.counts:
                raise TroveError(
                    errors.NOT_ENOUGH_REPLICAS,
                    f"version {self._listed.version} of the members is stored here, and counts once all"
                    f" copies of the in-sync set have stored it{reasons}: the leader offers it until then",
                )
            await asyncio.sleep(POLL_S / 5)

    async def _offer(self, without: Node = "") -> str:
        """Sends the list to the members that lack it; returns why some did not store it."""
        await self._store()
        place, version = self._node.place, self._listed.version
        for status in self._statuses().values():
            if status.cluster == place.cluster and status.listed == self._listed:
                self._stored[status.identity] = version
        has_it = {one.node for one, stored in self._stored.items() if stored == version}
        copies = [one for one in self._streams().leader.in_sync.counted if one.node != without]
        counted = {one.node for one in copies}
        asked = [
            one
            for one in self._listed.nodes
            if one.node != place.node and one.node in (counted | set(self._statuses()))
            if one.node not in has_it or one.node in counted
        ]
        change = MembersChange(place.cluster, place.group, self._listed, self._epoch)
        stored, failures = await gathered(asked, lambda one: self._calls.store_members(one, change))
        self._stored |= dict.fromkeys(stored.values(), version)
        if self._changes.confirm(self._stored, copies):
            get_logger().info("replica.members", version=version, nodes=",".join(sorted(self._listed.places)))
            self._streams().regroup(self.settings())
        return "".join(f"; {node}: {error.message}" for node, error in sorted(failures.items()))

    async def _make_voters(self) -> None:
        """The next learner that joins and has all that is committed."""
        copies = {one.identity.node: one for one in self._streams().copy_states()}
        for node in sorted(copies.keys() & self._listed.joining):
            one = copies[node]
            if one.is_connected and one.flushed >= self._node.state.commit:
                await self._make_voter(one.identity)
                return

    async def _make_voter(self, identity: Identity) -> None:
        """A store with an in-sync set was a voter's: it may have been removed before its id was known."""
        node = identity.node
        status = self._statuses().get(node)
        if status is None or status.identity != identity:
            return
        if status.in_sync is not None:
            get_logger().error("replica.voter_refused", node=node, message="its store is not a new one")
            await self._try_change(node, lambda changes: changes.refuse(node))
            return
        if await self._try_change(node, lambda changes: changes.make_voter(node, identity.store_id)):
            await self._offer()
            get_logger().info("replica.voter", node=node)

    async def _try_change(self, node: Node, change: MemberChange) -> bool:
        """Whether it is made; else run() tries again."""
        try:
            await self._change(change)
        except TroveError as error:
            get_logger().warning("replica.voter_waits", node=node, message=str(error))
            return False
        return True

    def settings(self) -> GroupSettings:
        """With the newest list. A voter of a list that does not count yet may not be in a set; but as many
        copies are needed as by that list, because a node that has it may choose a leader by it."""
        newest = self._listed
        return replace(
            self._group,
            voters=self._changes.voters,
            in_sync_min=newest.needed(self._node.place.in_sync_min),
            stores=newest.stores,
            removed=frozenset(newest.removed),
        )
