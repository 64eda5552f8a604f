"""A leader that an election has chosen: in-sync sets count by the election's word, its rights end with its
lease, and it holds appends while another node takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.unit.replica_streams.nodes_here import GroupHere, NodeHere, now_ms, run
from trovemq_broker.replication.frames import InSyncSet
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_rpc.testing.loop import MemoryLoop

EPOCH = 64


class Election:
    """It is an ElectedLeader."""

    def __init__(self) -> None:
        self.wanted: list[InSyncSet] = []
        self.has_lease = True
        self.in_order = True
        self.held_count = 0

    def in_sync_wanted(self, in_sync: InSyncSet) -> None:
        self.wanted.append(in_sync)

    def may_append(self) -> bool:
        return self.has_lease

    def may_deliver_in_order(self) -> bool:
        return self.in_order

    def held(self) -> None:
        self.held_count += 1


def with_leader(program: Callable[[GroupHere, NodeHere, Election], Awaitable[None]]) -> None:
    """Node a leads b and c, which are in sync by the election."""

    async def main(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        group.group = replace(group.group, is_coordinated=True)
        copies = frozenset(one.identity for one in group.nodes.values())
        election = group["a"].election = Election()
        group["a"].in_sync = InSyncSet(EPOCH, 5, copies)
        leader = await group.start("a", EPOCH)
        await program(group, leader, election)
        await group.stop()

    run(main)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TroveError) as caught:
        call()
    return caught.value.symbol


def test_a_set_counts_when_the_election_has_confirmed_it() -> None:
    async def program(group: GroupHere, leader: NodeHere, election: Election) -> None:
        streams = leader.leading()
        assert streams.copies == 3
        await group["c"].kill()
        await group.until(lambda: bool(election.wanted))
        wanted = election.wanted[-1]
        assert wanted.nodes == ["a", "b"]
        end = leader.send()
        await asyncio.sleep(2)
        assert streams.commit_offset < end, "the set with c may still be the one that counts"
        streams.confirm(wanted)
        await group.until(lambda: streams.commit_offset == end)
        assert streams.copies == 2
        await group.until(lambda: wanted == leader.in_sync == group["b"].in_sync)

    with_leader(program)


def test_all_copies_answer_the_heartbeats() -> None:
    async def program(group: GroupHere, leader: NodeHere, _election: Election) -> None:
        streams = leader.leading()
        await asyncio.sleep(3)
        answered = streams.leader.answered_by_all_ms(now_ms())
        assert answered is not None
        assert now_ms() - answered < 1_000
        await group["b"].kill()
        await asyncio.sleep(2)
        later = streams.leader.answered_by_all_ms(now_ms())
        assert later is None or now_ms() - later > 1_000, "b counts until the election has removed it"

    with_leader(program)


def test_the_lag_of_a_copy_is_by_the_clock_of_the_election() -> None:
    """The status of a leader subtracted times of two clocks."""

    async def program(group: GroupHere, leader: NodeHere, _election: Election) -> None:
        streams = leader.leading()
        await group["c"].kill()
        leader.send()
        await asyncio.sleep(2)
        lags = {one.identity.node: one.lag_ms for one in streams.copy_states()}
        assert lags["b"] == 0
        assert 1_500 <= lags["c"] <= 3_000

    with_leader(program)


def test_without_its_lease_a_leader_takes_and_hands_out_nothing() -> None:
    async def program(_group: GroupHere, leader: NodeHere, election: Election) -> None:
        streams = leader.leading()
        streams.check_append()
        streams.check_delivery(in_order=True)
        election.in_order = False
        streams.check_delivery(in_order=False)
        assert refusal(lambda: streams.check_delivery(in_order=True)) == "SERVICE_NOT_AVAILABLE"
        election.has_lease = False
        assert refusal(streams.check_append) == "NOT_LEADER"
        assert refusal(lambda: streams.check_delivery(in_order=False)) == "NOT_LEADER"

    with_leader(program)


def test_appends_are_held_until_the_next_leader_has_all() -> None:
    async def program(group: GroupHere, leader: NodeHere, election: Election) -> None:
        streams, calls = leader.leading(), list[int]()
        streams.on_commit(lambda: calls.append(streams.commit_offset))
        end = leader.send()
        streams.hold("b")
        assert streams.is_held
        assert election.held_count == 0, "b lacks the last record"
        assert refusal(streams.check_append) == "NOT_LEADER"
        await group.until(lambda: election.held_count > 0)
        assert streams.commit_offset == end == group["b"].store.flushed_offset
        streams.release()
        assert calls == [end, end], "appends that wait are called"
        streams.check_append()
        streams.release()
        assert calls == [end, end]
        streams.hold("b")
        streams.end(TroveError(errors.NOT_LEADER, "b leads"))
        assert (streams.is_held, calls) == (False, [end, end, end])

    with_leader(program)


def test_a_follower_tells_that_its_leader_is_lost() -> None:
    async def program(group: GroupHere, leader: NodeHere, _election: Election) -> None:
        assert group["b"].lost == []
        before = group["b"].following
        assert before is not None
        assert before.reported_ms > 0
        await leader.kill()
        await group.until(lambda: group["b"].lost[:1] == ["a"])

    with_leader(program)
