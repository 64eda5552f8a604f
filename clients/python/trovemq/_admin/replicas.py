"""Replica groups: their state, the promotion of a node, nodes that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from trovemq._common.arguments import check_number, check_optional_text, check_text
from trovemq._net.all_brokers import outcomes_of
from trovemq._net.connections import ConnectionPool
from trovemq._wire.replicas import MemberAddress, NodeAnswer, ReplicaCalls
from trovemq.models.replica import CutMessage, CutRecords, Promotion, ReplicaGroup, ReplicaNode
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

SERVES_S: Final = 15.0
"""How long a promoted node may take until it serves."""
SWITCHES_S: Final = 2.0
"""A leader that still leads then has given a planned switch-over up: it holds messages for a second."""
IN_SYNC_S: Final = 5.0
POLL_S: Final = 0.1


class Replicas:
    """Replica groups; `Client.admin.replicas`. Nodes are found by the client's servers, by the brokers in the
    routes and by the lost ones; each node knows the others of its group. All calls raise TroveError."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def groups(self) -> list[ReplicaGroup]:
        """The groups, by name. A node that does not answer is there with its error.

        Raises:
            TroveError: ACCESS_DENIED, …
        """
        found = await self._found()
        return [found.group(name) for name in sorted(found.names)]

    async def promote(
        self, node: str, *, group: str | None = None, fenced: str | None = None, accept_loss: int = 0
    ) -> Promotion:
        """Makes a node the leader of its group: it gathers the promises of enough others, and returns when it
        serves. The former leader steps down, or follows when it is back.

        Args:
            node: The next leader.
            group: Its group, where several have a node of this name.
            fenced: How the nodes that do not answer were stopped, in words that are recorded. With it, too
                few answers are enough.
            accept_loss: The bytes of the log that may be lost then.

        Raises:
            TroveError: NOT_ENOUGH_REPLICAS (its message names the missing ones), REPLICA_STATE_ILLEGAL
                (another node has more), NOT_A_MEMBER, ACCESS_DENIED, …
        """
        check_text("node", node)
        check_optional_text("fenced", fenced)
        check_number("accept_loss", accept_loss)
        found = await self._found()
        answer = found.node(node, group)
        calls = ReplicaCalls(self._pool.server(found.address(answer)))
        promotion = await calls.promote(answer.group, node, fenced or "", accept_loss)
        await self._serves(calls, promotion)
        return promotion

    async def recover(
        self, node: str, *, group: str | None = None, fenced: str | None = None, accept_loss: int = 0
    ) -> Promotion:
        """Founds a group again in an etcd that has nothing of it: the old etcd is lost for ever, or an
        operator chose the leaders until now. All nodes that run were started with this etcd. The node gathers
        the promises of enough of them; the longest log among these has every acknowledged message. The group
        serves once `in_sync_min` copies are in sync.

        Args:
            node: A node with the longest log.
            group: Its group, where several have a node of this name.
            fenced: How the nodes that do not answer were stopped, in words that are recorded. With it, too
                few answers are enough.
            accept_loss: The bytes of the log that may be lost then.

        Raises:
            TroveError: REPLICA_STATE_ILLEGAL (an etcd answers that has the group; another node has more),
                NOT_ENOUGH_REPLICAS, COORDINATION_UNAVAILABLE, ACCESS_DENIED, …
        """
        return await self._led("recover", node, group, fenced, accept_loss)

    async def elect_unclean(
        self, node: str, *, fenced: str, accept_loss: int, group: str | None = None
    ) -> Promotion:
        """Lets a copy lead that is not in sync, because none that is can come back. Acknowledged messages
        that it lacks are lost; nodes that come back keep the records they cut in files (`cut_records`). It
        serves once `in_sync_min` copies are in sync.

        Args:
            node: The copy.
            fenced: How the nodes of the in-sync set were stopped for good, in words that are recorded.
            accept_loss: The bytes of the log that may be lost.
            group: Its group, where several have a node of this name.

        Raises:
            TroveError: REPLICA_STATE_ILLEGAL (an in-sync copy is there; more would be lost),
                COORDINATION_UNAVAILABLE, ACCESS_DENIED, …
        """
        check_text("fenced", fenced)
        return await self._led("unclean", node, group, fenced, accept_loss)

    async def switch_over(self, group: str, *, to: str | None = None) -> ReplicaGroup:
        """Lets another node of the group lead, and returns when it serves. The group chooses its leaders by
        etcd; the former leader holds new messages until the next one has all of them, for a second at most.
        Then it continues, and is asked again.

        Args:
            group: The group.
            to: The next leader; None: the node that has most of the log. One that follows and is not in the
                in-sync set is waited for, for 5 s at most.

        Raises:
            TroveError: REPLICA_STATE_ILLEGAL (it is not in the in-sync set, or did not take over),
                BROKER_NOT_FOUND (no node of the group is known, or none leads within 15 s), ACCESS_DENIED, …
        """
        check_text("group", group)
        check_optional_text("to", to)
        found = await self._until_in_sync(group, to)
        former = found.leader(group)
        calls = ReplicaCalls(self._pool.server(found.address(former)))
        await calls.switch_over(to or "")
        loop = asyncio.get_running_loop()
        ends, due = loop.time() + SERVES_S, loop.time() + SWITCHES_S
        leads, problem = False, ""
        while loop.time() < ends:
            await asyncio.sleep(POLL_S)
            if not (now := await self._found()).of(group):
                continue  # its nodes change their roles
            state = now.group(group)
            serves = any(one.node == state.leader and one.role == "leader" for one in state.nodes)
            if serves and state.leader != former.node and state.epoch > former.epoch:
                return state
            leads = serves and state.leader == former.node
            if leads and due <= loop.time() < ends - SWITCHES_S:  # the other one lacked records for too long
                problem, due = await _switched_over(calls, to), loop.time() + SWITCHES_S
        raise TroveError(errors.REPLICA_STATE_ILLEGAL, _not_switched(former, leads=leads, problem=problem))

    async def pause_failover(self, group: str, *, seconds: int) -> ReplicaGroup:
        """No other leader is chosen for `seconds`, whatever happens to the present one.

        Args:
            group: The group, which chooses its leaders by etcd.
            seconds: At most a day; 0: no longer.

        Raises:
            TroveError: REPLICA_STATE_ILLEGAL, COORDINATION_UNAVAILABLE, ACCESS_DENIED, …
        """
        check_text("group", group)
        check_number("seconds", seconds)
        found = await self._found()
        answers = found.of(group)
        if not answers:
            raise TroveError(errors.BROKER_NOT_FOUND, f"no node of group {group} answers", broker=group)
        await ReplicaCalls(self._pool.server(found.address(answers[0]))).pause_failover(seconds)
        return found.group(group)

    async def init(self) -> ReplicaGroup:
        """Makes the node at the client's server the first one of a group. Its log stays as it is.

        Raises:
            TroveError: REPLICA_STATE_ILLEGAL (it is no node, or has a group already), ACCESS_DENIED, …
        """
        calls = ReplicaCalls(self._pool.server(self._pool.servers[0]))
        answer = await calls.init()
        loop = asyncio.get_running_loop()
        ends = loop.time() + SERVES_S
        while answer.role != "leader" and loop.time() < ends:
            await asyncio.sleep(POLL_S)
            answer = await _again(calls, answer)
        return _Answers({self._pool.servers[0]: answer}, {}).group(answer.group)

    async def leave(self, node: str, *, group: str | None = None) -> ReplicaGroup:
        """Makes the store of a group's last node a single broker's again; the node exports its state to
        RocketMQ's files, and stops. Then it starts with `coordination = none`.

        Raises:
            TroveError: REPLICA_STATE_ILLEGAL (the group has other nodes), NOT_LEADER, ACCESS_DENIED, …
        """
        check_text("node", node)
        found = await self._found()
        answer = found.node(node, group)
        state = found.group(answer.group)
        await ReplicaCalls(self._pool.server(found.address(answer))).leave()
        return state

    async def add(
        self, node: str, *, address: str, replication: str, group: str | None = None, is_voter: bool = True
    ) -> ReplicaGroup:
        """Adds a node to a group. It follows as a learner, and becomes a voter when it has all of the log.

        Args:
            node: Its name, `node_name` of its settings.
            address: HOST:PORT of its gRPC services.
            replication: HOST:PORT of its streams.
            group: The group, if there are several.
            is_voter: False: it stays a learner.

        Raises:
            TroveError: REPLICA_STATE_ILLEGAL (it is a member already), NOT_ENOUGH_REPLICAS (a member did not
                store the change), ACCESS_DENIED, …
        """
        for name, text in (("node", node), ("address", address), ("replication", replication)):
            check_text(name, text)
        found = await self._found()
        leader = found.leader(group)
        member = MemberAddress(node, address, replication, is_voter)
        await ReplicaCalls(self._pool.server(found.address(leader))).add(member)
        return (await self._found()).group(leader.group)

    async def remove(self, node: str, *, group: str | None = None) -> ReplicaGroup:
        """Removes a node from its group. It must be out of the in-sync set, and must not start again with its
        store.

        Raises:
            TroveError: REPLICA_STATE_ILLEGAL (it leads, or is in the in-sync set), NOT_ENOUGH_REPLICAS (a
                member did not store the change), ACCESS_DENIED, …
        """
        check_text("node", node)
        found = await self._found()
        leader = found.leader(group or found.group_of(node))
        await ReplicaCalls(self._pool.server(found.address(leader))).remove(node)
        return (await self._found()).group(leader.group)

    async def replace(
        self,
        node: str,
        *,
        address: str | None = None,
        replication: str | None = None,
        group: str | None = None,
    ) -> ReplicaGroup:
        """Gives a node's name to a new, empty machine: the node is removed, and added again. Its former store
        never returns. A call that was interrupted may be repeated.

        Args:
            node: The name. Its former process must be stopped.
            address: HOST:PORT of the new machine's gRPC services; None: as before.
            replication: HOST:PORT of its streams; None: as before.
            group: The group, if there are several.

        Raises:
            TroveError: REPLICA_STATE_ILLEGAL (it leads, runs, or stays in the in-sync set), NOT_A_MEMBER
                (it was removed before, and its addresses are not given), NOT_ENOUGH_REPLICAS, …
        """
        check_text("node", node)
        found = await self._found()
        leader = found.leader(group or found.group_of(node))
        member = next((one for one in leader.members if one.node == node), None)
        if member is None and (address is None or replication is None):
            text = f"node {node} of group {leader.group}: it was removed already; give its new addresses"
            raise TroveError(errors.NOT_A_MEMBER, text)
        at, streams, is_voter = (
            (address or "", replication or "", True)
            if member is None
            else (address or member.address, replication or member.replication, member.is_voter)
        )
        if member is not None:
            await self._out_of_set(leader.group, node)
            await self.remove(node, group=leader.group)
        return await self.add(node, address=at, replication=streams, group=leader.group, is_voter=is_voter)

    async def cut_records(self, group: str | None = None) -> list[CutRecords]:
        """The files of records that nodes have cut from the ends of their logs.

        Raises:
            TroveError: BROKER_UNREACHABLE if no node answers; ACCESS_DENIED, …
        """
        found = await self._found()
        answers = [one for one in found.answers.values() if group in (None, one.group)]
        calls = [ReplicaCalls(self._pool.server(found.address(one))) for one in answers]
        outcomes = await outcomes_of(one.cut_records() for one in calls)
        return [record for outcome in outcomes if not isinstance(outcome, TroveError) for record in outcome]

    async def cut_messages(
        self, cut: CutRecords, *, offset: int = 0, group: str | None = None
    ) -> tuple[list[CutMessage], int]:
        """Messages of a file of cut records, about 1 MiB of them.

        Args:
            cut: The file.
            offset: The offset of the first one; 0 for the first of the file.
            group: The node's group, where several have a node of this name.

        Returns:
            The messages, and the offset with which to ask for the next ones; no messages: there are no more.

        Raises:
            TroveError: REQUEST_ILLEGAL (there is no such file, or it is damaged), BROKER_NOT_FOUND (the node
                does not answer), RECORD_DAMAGED, ACCESS_DENIED, …
        """
        check_number("offset", offset)
        found = await self._found()
        answer = found.node(cut.node, group)
        return await ReplicaCalls(self._pool.server(found.address(answer))).cut_part(cut.path, offset)

    # --- helpers --------------------------------------------------------------------------------------
    async def _led(
        self, how: str, node: str, group: str | None, fenced: str | None, accept_loss: int
    ) -> Promotion:
        """A promotion of a group that chooses its leaders by etcd: one of its in-sync copies leads then."""
        check_text("node", node)
        check_optional_text("fenced", fenced)
        check_number("accept_loss", accept_loss)
        found = await self._found()
        answer = found.node(node, group)
        calls = ReplicaCalls(self._pool.server(found.address(answer)))
        promotion = await calls.promote(answer.group, node, fenced or "", accept_loss, how)
        loop = asyncio.get_running_loop()
        ends = loop.time() + SERVES_S
        while loop.time() < ends:
            await asyncio.sleep(POLL_S)
            for one in (await self._found()).of(answer.group):
                waits = one.role == "opening" and len(one.in_sync) < one.in_sync_min
                if one.epoch > promotion.epoch and (one.role == "leader" or waits):
                    return replace(promotion, node=one.node, epoch=one.epoch)
        text = f"no node of group {answer.group} serves yet, in an epoch after {promotion.epoch}"
        raise TroveError(errors.NOT_ENOUGH_REPLICAS, text)

    async def _until_in_sync(self, group: str, to: str | None) -> _Answers:
        """A voter that follows may have lagged a moment ago. Where it stays out of the set, the leader
        refuses it, and names the reason. A group whose nodes answer may have no leader for a moment."""
        loop = asyncio.get_running_loop()
        leads_by, ends = loop.time() + SERVES_S, loop.time() + IN_SYNC_S
        while True:
            found = await self._found()
            if (nodes := found.of(group)) and loop.time() < leads_by and not any(one.leads for one in nodes):
                await asyncio.sleep(POLL_S)
                continue
            leader = found.leader(group)
            voters = [one.node for one in leader.members if one.is_voter]
            follows = any(one.node == to and one.role == "follower" for one in found.of(group))
            if to in leader.in_sync or to not in voters or not follows or loop.time() >= ends:
                return found
            await asyncio.sleep(POLL_S)

    async def _out_of_set(self, group: str, node: str) -> None:
        """The node is stopped, or new, and the leader drops it. TroveError REPLICA_STATE_ILLEGAL."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + SERVES_S
        while True:
            found = await self._found()
            leader, answers = found.leader(group), found.of(group)
            if any(one.node == node and one.role != "new" for one in answers):
                raise TroveError(errors.REPLICA_STATE_ILLEGAL, f"node {node} still runs: stop it first")
            if node not in leader.in_sync or loop.time() > ends:
                return  # remove() refuses, and names the reason
            await asyncio.sleep(POLL_S)

    async def _serves(self, calls: ReplicaCalls, promotion: Promotion) -> None:
        loop = asyncio.get_running_loop()
        ends, problem = loop.time() + SERVES_S, "it was not asked in time"
        while loop.time() < ends:
            try:
                answer = await calls.status()
                if answer.role == "leader":
                    return
                problem = answer.problem or f"its role is {answer.role} still"
            except TroveError as error:
                problem = error.message  # its address is closed for a moment
            await asyncio.sleep(POLL_S)
        text = f"node {promotion.node} leads epoch {promotion.epoch}, and does not serve yet: {problem}"
        raise TroveError(errors.NOT_ENOUGH_REPLICAS, text)

    async def _found(self) -> _Answers:
        """The answers of all nodes that can be found. Raises the error of the first one if none answers."""
        state = self._pool.routes.state
        routed = [self._pool.connection(one.broker).address for one in state.brokers]
        known = dict.fromkeys([*self._pool.servers, *routed, *(one.address for one in state.lost)])
        answers: dict[str, NodeAnswer] = {}
        failures: dict[str, TroveError] = {}
        asked: set[str] = set()
        while wanted := [one for one in known if one not in asked]:
            asked.update(wanted)
            outcomes = await outcomes_of(ReplicaCalls(self._pool.server(one)).status() for one in wanted)
            for address, outcome in zip(wanted, outcomes, strict=True):
                if isinstance(outcome, TroveError):
                    if outcome.fields.get("grpc_status") != "UNIMPLEMENTED":  # of a nameserver
                        failures[address] = outcome
                    continue
                answers[address] = outcome
                known |= dict.fromkeys(one.address for one in outcome.members)
        for error in failures.values():
            if error.spec in (errors.ACCESS_DENIED, errors.AUTHENTICATION_FAILED):
                raise error
        return _Answers(answers, failures)


async def _switched_over(calls: ReplicaCalls, to: str | None) -> str:
    """Asks the leader again. Why it refuses; empty: it does not, or is a leader no more."""
    try:
        await calls.switch_over(to or "")
    except TroveError as error:
        return error.message if error.spec is errors.REPLICA_STATE_ILLEGAL else ""
    return ""


def _not_switched(former: NodeAnswer, *, leads: bool, problem: str) -> str:
    if not leads:
        return f"no other node of group {former.group} leads yet: {former.node} led epoch {former.epoch}"
    reason = problem or "no other copy had all of its log within a second"
    return f"node {former.node} of group {former.group} leads on: {reason}; repeat the switch-over"


async def _again(calls: ReplicaCalls, before: NodeAnswer) -> NodeAnswer:
    try:
        return await calls.status()
    except TroveError:
        return before


class _Answers:
    """The answers by the address that was asked, and the errors of the others."""

    def __init__(self, answers: Mapping[str, NodeAnswer], failures: Mapping[str, TroveError]) -> None:
        self.answers: Final = {one.node + "\0" + one.group: one for one in answers.values()}
        self._asked = {one.node + "\0" + one.group: address for address, one in answers.items()}
        self._failures = failures

    @property
    def names(self) -> set[str]:
        """Of the groups."""
        return {one.group for one in self.answers.values()}

    def address(self, answer: NodeAnswer) -> str:
        """At which it answered."""
        return self._asked[answer.node + "\0" + answer.group]

    def of(self, group: str) -> list[NodeAnswer]:
        return [one for one in self.answers.values() if one.group == group]

    def group_of(self, node: str) -> str | None:
        """The group with a member of that name; None if none or several have it."""
        found = {
            one.group for one in self.answers.values() if node in {member.node for member in one.members}
        }
        return found.pop() if len(found) == 1 else None

    def node(self, node: str, group: str | None) -> NodeAnswer:
        """TroveError BROKER_NOT_FOUND, BROKER_AMBIGUOUS."""
        found = [one for one in self.answers.values() if one.node == node and group in (None, one.group)]
        if not found:
            raise TroveError(errors.BROKER_NOT_FOUND, self._absent(node), broker=node)
        if len(found) > 1:
            names = ", ".join(sorted(one.group for one in found))
            raise TroveError(errors.BROKER_AMBIGUOUS, f"groups {names} have a node {node}: name the group")
        return found[0]

    def _absent(self, node: str) -> str:
        """Why it does not answer."""
        members = {member.node: member.address for one in self.answers.values() for member in one.members}
        if (address := members.get(node)) is not None:
            error = self._failures.get(address)
            return f"node {node} does not answer: {address if error is None else error.message}"
        if members:
            return f"no replica group has a node {node}, but {', '.join(sorted(members))}"
        reasons = "".join(f"; {error.message}" for error in self._failures.values())
        return f"no node of a group answers, and nameservers know leaders only: connect to a node{reasons}"

    def leader(self, group: str | None) -> NodeAnswer:
        """TroveError BROKER_NOT_FOUND, BROKER_AMBIGUOUS."""
        found = [one for one in self.answers.values() if one.leads and group in (None, one.group)]
        if len({one.group for one in found}) > 1:
            names = ", ".join(sorted(one.group for one in found))
            raise TroveError(errors.BROKER_AMBIGUOUS, f"there are several groups, {names}: name one")
        if not found:
            raise TroveError(errors.BROKER_NOT_FOUND, f"no node{f' of group {group}' if group else ''} leads")
        return max(found, key=lambda one: one.epoch)

    def group(self, name: str) -> ReplicaGroup:
        answers = {one.node: one for one in self.of(name)}
        leader = max((one for one in answers.values() if one.leads), key=lambda one: one.epoch, default=None)
        newest = max(answers.values(), key=lambda one: (one.members_version, one.last_epoch))
        in_sync = leader or max(answers.values(), key=lambda one: one.in_sync_version)
        members = {one.node: one for one in newest.members}
        nodes = [
            self._node(answers.get(node), member, leader) for node, member in sorted(members.items())
        ] + [
            self._node(one, MemberAddress(one.node, self.address(one), "", False), leader)
            for one in _others(answers.values(), members)
        ]
        return ReplicaGroup(
            group=name,
            leader=None if leader is None else leader.node,
            epoch=max(max(one.epoch, one.last_epoch) for one in answers.values()),
            in_sync=in_sync.in_sync,
            in_sync_min=newest.in_sync_min,
            ack=newest.ack,
            coordination=newest.coordination,
            lease_left_ms=None if leader is None or not leader.lease_left_ms else leader.lease_left_ms,
            nodes=tuple(nodes),
        )

    def _node(
        self, answer: NodeAnswer | None, member: MemberAddress, leader: NodeAnswer | None
    ) -> ReplicaNode:
        if answer is None:
            error = self._failures.get(member.address)
            return ReplicaNode(
                node=member.node,
                role="unknown",
                address=member.address,
                is_voter=member.is_voter,
                is_joining=member.is_joining,
                problem="it was not asked" if error is None else error.message,
            )
        lag_bytes, lag_ms = None, answer.lag_ms
        if leader is not None and leader.node == answer.node:
            lag_bytes, lag_ms = 0, 0
        elif leader is not None:
            lag_bytes = max(0, leader.end - answer.end)
            copy = leader.copies.get(answer.node)
            lag_ms = None if copy is None else copy[1]
        return ReplicaNode(
            node=answer.node,
            role=answer.role,
            address=member.address,
            is_voter=member.is_voter,
            is_joining=member.is_joining,
            epoch=answer.epoch,
            end=answer.end,
            flushed=answer.flushed,
            commit=answer.commit,
            lag_bytes=lag_bytes,
            lag_ms=lag_ms,
            problem=answer.problem,
            clock_ahead_ms=answer.clock_ahead_ms,
            sealing_key_id=answer.sealing_key_id,
            etcd_members=answer.etcd_members,
            etcd_version=answer.etcd_version,
            etcd_problem=answer.etcd_problem,
            failover_paused=answer.failover_paused,
        )


def _others(answers: Iterable[NodeAnswer], members: Mapping[str, MemberAddress]) -> Sequence[NodeAnswer]:
    """Nodes that answer and that the newest list of members lacks: new, or removed."""
    return sorted((one for one in answers if one.node not in members), key=lambda one: one.node)
