"""Two nodes of a replica group over TLS: each certificate must have its node's name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.certificates import Certificates
from tests.support.services_here import InlineSync
from tests.unit.replica_streams.nodes_here import CLUSTER, GroupHere, NodeHere
from trovemq_broker.replica_streams.peers_allowed import ReplicaConnections
from trovemq_broker.replica_streams.service import ReplicationService, listener_limits
from trovemq_daemon.addresses import Address
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.tls import read_identity
from trovemq_proto.channels import ChannelSettings
from trovemq_proto.tls import ClientTls

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


class TlsNode(NodeHere):
    """Listens on a real port, by TLS that asks for certificates."""

    certificates: Certificates

    async def _listen(self) -> None:
        metrics = RpcMetrics(new_registry("1"), cluster=CLUSTER, node_type="broker", node_id=self.name)
        limits = listener_limits(GrpcLimits(transport="trovemq"), self.group.settings)
        self.server = GrpcServer(limits, metrics, self.allowed.handler, ReplicaConnections())
        ReplicationService(self, self.allowed, self.group.settings).add_to(self.server.server)
        made = self.certificates
        identity = read_identity(made.pem(self.name), made.key(self.name))
        identity = replace(identity, client_ca=made.authority.certificate)
        self.address = self.server.bind_tls(Address("127.0.0.1", 0), identity)
        await self.server.start()

    def shows(self, name: str, authority: Certificates | None = None) -> None:
        """As a client it has the certificate of that name, of the group's authority or of another one."""
        made = authority or self.certificates
        tls = ClientTls(
            ca=self.certificates.authority.certificate,
            certificate=made.pem(name).read_bytes(),
            key=made.key(name).read_bytes(),
        )
        self.channels = ChannelSettings(transport="trovemq", tls=tls)


@asynccontextmanager
async def two_nodes(directory: Path, leader_shows: str = "a") -> AsyncIterator[tuple[GroupHere, TlsNode]]:
    made = Certificates.made(directory / "tls")
    for name in ("a", "b", "other"):
        made.server(name, name)
    group = GroupHere("a", "b")
    for name in "ab":
        tls_node = TlsNode(group, name)
        tls_node.certificates, tls_node.in_sync = made, group[name].in_sync
        group.nodes[name] = tls_node
    follower = group["b"]
    assert isinstance(follower, TlsNode)
    follower.shows("b")
    if leader_shows != "a":
        made.server("a", leader_shows)
    with patch("trovemq_broker.produce.group_commit.SyncThread", InlineSync):
        for node in group.nodes.values():
            await node.start()
        await group["a"].lead(1)
        try:
            yield group, follower
        finally:
            await group.stop()


async def test_a_node_follows_over_tls(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (group, follower):
        await follower.follow()
        await group.until_equal()
        for _ in range(20):
            group["a"].send(3, 700)
        await group.until_equal()
        assert follower.log_bytes == group["a"].log_bytes


async def problem_of(group: GroupHere, follower: TlsNode) -> str:
    await follower.follow()
    following = follower.following
    assert following is not None
    await group.until(lambda: "not asked yet" not in following.problem)
    assert follower.store.end_offset == 0
    assert group["a"].leading().leader.connected_copies == 1
    return following.problem


async def test_the_certificate_of_another_node_is_refused(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (group, follower):
        follower.shows("a")
        assert "NOT_A_MEMBER" in await problem_of(group, follower)


async def test_the_certificate_of_a_stranger_is_refused(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (group, follower):
        follower.shows("other")
        assert "NOT_A_MEMBER" in await problem_of(group, follower)
        assert group["a"].allowed.refusals.counts["NOT_A_MEMBER"] > 0


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (group, follower):
        others = Certificates.made(tmp_path / "others")
        others.server("b", "b")
        follower.shows("b", others)
        assert await problem_of(group, follower)


async def test_a_leader_with_the_certificate_of_another_node_is_not_followed(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, leader_shows="other") as (group, follower):
        assert await problem_of(group, follower)
