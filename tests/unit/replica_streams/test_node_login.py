"""The calls of nodes to each other, of strangers, new nodes and removed ones among them, and the log-in of
nodes that have no users."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from tests.unit.replica_streams.nodes_here import CLUSTER, GROUP, GroupHere, NodeHere, now_ms, run
from tests.unit.replica_streams.test_hostile_peers import CHANNELS
from trovemq_broker.cluster.nameserver_session import error_in
from trovemq_broker.daemon.replica.node_calls import NodeCalls
from trovemq_broker.replica_streams.node_login import NodeLogin
from trovemq_broker.replication.status import MembersChange
from trovemq_broker.server.wire import replica_frames as wire
from trovemq_proto import errors
from trovemq_proto.channels import open_channel
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_store.replica.membership import Member

SECRET = "ab" * 32


def group_run(
    use: Callable[[GroupHere, Member], Coroutine[Any, Any, None]], *, logs_in: bool = False
) -> None:
    """`a` leads; the second argument is `a` as a member."""

    async def program(_loop: MemoryLoop) -> None:
        group = GroupHere("a", "b", "c")
        if logs_in:
            for one in group.nodes.values():
                take_login(one, login(SECRET))
        await group.start("a")
        member = group.listed.member("a")
        assert member is not None
        await use(group, member)
        await group.until_equal()
        await group.stop()

    run(program)


def login(secret: str) -> NodeLogin:
    return NodeLogin(secret, now_ms, random.Random(1).randbytes)


def take_login(node: NodeHere, made: NodeLogin) -> None:
    users: Any = made
    node.sessions, node.users, node.credentials = made.sessions, users, made.credentials


def calls(me: str, made: NodeLogin | None = None) -> NodeCalls:
    return NodeCalls(GROUP, me, CHANNELS, None if made is None else lambda: made.credentials)


async def refusal(call: Coroutine[Any, Any, object]) -> TroveError:
    with pytest.raises(TroveError) as caught:
        await call
    return caught.value


def test_a_member_asks_for_the_status_and_stores_a_list() -> None:
    async def use(group: GroupHere, a: Member) -> None:
        status = await calls("b").status(a, CLUSTER)
        assert (status.node, status.listed) == ("a", group.listed)
        assert (await calls("b").status(a, "")).node == "a", "a new store of a member"
        later = replace(group.listed, version=9, removed=("0" * 16,) * 1_024)
        stored = await calls("b").store_members(a, MembersChange(CLUSTER, GROUP, later, 1))
        assert stored.node == "a"
        assert group.listed == later

    group_run(use)


@pytest.mark.parametrize(
    ("node", "cluster", "is_answered"),
    [("removed", CLUSTER, True), ("stranger", "", False), ("stranger", "another", False)],
)
def test_a_removed_node_learns_of_it_and_a_stranger_nothing(
    node: str, cluster: str, is_answered: bool
) -> None:
    async def use(group: GroupHere, a: Member) -> None:
        if is_answered:
            assert (await calls(node).status(a, cluster)).listed.member(node) is None
            return
        error = await refusal(calls(node).status(a, cluster))
        assert (error.spec, error.message) == (errors.NOT_A_MEMBER, "the caller is not allowed here")
        assert group["a"].allowed.refusals.counts["NOT_A_MEMBER"] == 1

    group_run(use)


def test_nodes_without_users_log_in_by_their_key() -> None:
    async def use(_group: GroupHere, a: Member) -> None:
        assert (await calls("b", login(SECRET)).status(a, CLUSTER)).node == "a"
        for wrong in (None, login("cd" * 32)):
            error = await refusal(calls("b", wrong).status(a, CLUSTER))
            assert error.spec is errors.SEALING_KEY_MISMATCH
            assert "sealing_key_file" in error.message

    group_run(use, logs_in=True)


def test_a_node_calls_none_that_checks_no_log_in() -> None:
    """Another process may have taken the port of a node on this machine."""

    async def use(_group: GroupHere, a: Member) -> None:
        error = await refusal(calls("b", login(SECRET)).status(a, CLUSTER))
        assert error.spec is errors.SEALING_KEY_MISMATCH

    group_run(use)


@pytest.mark.parametrize(
    ("path", "size", "spec"),
    [
        (wire.GET_STATUS, wire.FRAME_SIZE_MAX + 1, errors.REPLICA_FRAME_ILLEGAL),
        (wire.PROMISE, wire.FRAME_SIZE_MAX + 1, errors.REPLICA_FRAME_ILLEGAL),
        (wire.STORE_MEMBERS, wire.LISTED_SIZE_MAX + 1, errors.REPLICA_FRAME_ILLEGAL),
        (wire.GET_STATUS, wire.LISTED_SIZE_MAX + 1_025, None),
        (wire.GET_STATUS, 16 << 20, None),
    ],
)
def test_requests_that_are_too_long_are_refused(path: str, size: int, spec: ErrorSpec | None) -> None:
    """The last ones by the transport, before it takes their bytes."""

    async def use(_group: GroupHere, a: Member) -> None:
        async with open_channel(a.replication, CHANNELS) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(path)(b"\x0a" * size, timeout=10)
        found = error_in(caught.value.trailing_metadata())
        assert spec is (None if found is None else found.spec)
        if found is None:
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    group_run(use)
