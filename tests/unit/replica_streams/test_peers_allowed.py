"""Who may call the replication listener: log-ins on loopback, names of certificates, no other caller."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.services_here import security_on
from tests.unit.replica_streams.nodes_here import GroupHere, run
from trovemq_broker.replica_streams.peers_allowed import (
    CONNECTIONS_MAX,
    SOURCE_CONNECTIONS_MAX,
    PeersAllowed,
    ReplicaConnections,
)
from trovemq_broker.security.changes import add_user
from trovemq_broker.server.access.security_service import SecurityService
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto import errors
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_store.files.memory import MemoryFileSystem

LOOPBACK, ELSEWHERE = "ipv4:127.0.0.1:5000", "ipv4:10.0.0.7:5000"


class Context:
    """Of a call."""

    def __init__(self, peer: str, names: Sequence[str] | None = None) -> None:
        self._peer = peer
        self._names = names

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        if self._names is None:
            return {}
        names = [name.encode() for name in self._names]
        return {"transport_security_type": [b"ssl"], "x509_subject_alternative_name": names}


def allowed() -> PeersAllowed:
    return PeersAllowed(lambda: ("b", "c"), lambda: 0)


@pytest.mark.parametrize(
    ("context", "nodes"),
    [
        (Context(LOOPBACK), {"b", "c"}),
        (Context(ELSEWHERE), set()),
        (Context(ELSEWHERE, ["b"]), {"b"}),
        (Context(ELSEWHERE, ["b.example", "c"]), {"c"}),
        (Context(ELSEWHERE, ["stranger"]), set()),
        (Context(ELSEWHERE, []), set()),
        (Context(LOOPBACK, ["stranger"]), set()),
        (Context(ELSEWHERE, ["B"]), set()),
    ],
)
def test_a_caller_is_the_member_of_its_certificate(context: Context, nodes: set[str]) -> None:
    assert allowed().nodes_of(context) == nodes


def test_the_certificate_of_another_node_is_refused_and_counted() -> None:
    access = allowed()
    access.check_node(Context(ELSEWHERE, ["b"]), "b")
    with pytest.raises(TroveError) as caught:
        access.check_node(Context(ELSEWHERE, ["b"]), "c")
    assert caught.value.spec is errors.NOT_A_MEMBER
    assert "b" not in caught.value.message.split()
    assert access.refusals.counts["NOT_A_MEMBER"] == 1


@pytest.mark.parametrize(
    ("context", "node", "knows_group", "is_answered"),
    [
        (Context(ELSEWHERE, ["b"]), "b", False, True),
        (Context(ELSEWHERE, ["removed"]), "removed", True, True),
        (Context(ELSEWHERE, ["removed"]), "removed", False, False),
        (Context(ELSEWHERE, ["removed"]), "b", True, False),
        (Context(ELSEWHERE, []), "b", True, False),
        (Context(ELSEWHERE), "b", True, False),
        (Context(LOOPBACK), "b", False, True),
        (Context(LOOPBACK), "stranger", False, False),
    ],
)
def test_the_status_is_for_members_and_for_those_that_were(
    context: Context, node: str, knows_group: bool, is_answered: bool
) -> None:
    access = allowed()
    if is_answered:
        access.check_status(context, node, knows_group=knows_group)
        return
    with pytest.raises(TroveError) as caught:
        access.check_status(context, node, knows_group=knows_group)
    assert (caught.value.spec, caught.value.message) == (
        errors.NOT_A_MEMBER,
        "the caller is not allowed here",
    )


def test_one_address_does_not_take_all_connections() -> None:
    connections = ReplicaConnections()
    opened = [connections.opened(f"ipv4:10.0.0.1:{port}") for port in range(1_000)]
    assert sum(opened) == SOURCE_CONNECTIONS_MAX
    others = [connections.opened(f"ipv4:10.0.1.{host}:1") for host in range(250)]
    assert sum(others) == CONNECTIONS_MAX - SOURCE_CONNECTIONS_MAX
    for port in range(SOURCE_CONNECTIONS_MAX):
        connections.closed(f"ipv4:10.0.0.1:{port}")
    assert connections.opened("ipv4:10.0.0.1:1")


@pytest.mark.parametrize(
    ("secret", "kind", "follows"),
    [
        ("secret-of-nodes", UserKind.SUPER, True),
        ("another-secret", UserKind.SUPER, False),
        ("secret-of-nodes", UserKind.NORMAL, False),
        (None, UserKind.SUPER, False),
    ],
)
def test_a_node_logs_in_where_there_is_authentication(
    secret: str | None, kind: UserKind, follows: bool
) -> None:
    async def program(loop: MemoryLoop) -> None:
        group = GroupHere("a", "b")
        salt = random.Random(1).randbytes(16)
        security = security_on(MemoryFileSystem())
        user = new_user("nodes", kind, b"secret-of-nodes", salt=salt, now_ms=0)
        security.table.state = add_user(security.table.state, user)
        users = SecurityService("a", lambda: EpochMs(int(loop.time() * 1_000)), security)
        group["a"].sessions, group["a"].users = security.sessions, users
        if secret is not None:
            group["b"].credentials = Credentials("nodes", secret)
        for one in group.nodes.values():
            await one.start()
        await group["a"].lead(1)
        await group["b"].follow()
        if follows:
            await group.until_equal()
        else:
            following: Any = group["b"].following
            await group.until(lambda: "the leader was not asked yet" not in following.problem)
            assert group["b"].store.end_offset == 0
            assert group["a"].leading().leader.connected_copies == 1
        await group.stop()

    run(program)
