"""The servers of a node that takes no messages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.registry import CollectorRegistry

from tests.support.atomic import SEGMENT
from tests.support.engine import open_store
from tests.support.followers import commit, copy, follower
from tests.support.remoting_client import remoting_client
from tests.support.stubs import PRODUCERS, add_fake
from tests.unit.security.test_security_records import led_users
from trovemq_broker.cluster.registration import registration_channels
from trovemq_broker.cluster.view import GroupLeader, GroupNode
from trovemq_broker.daemon.replica.waiting_servers import ForwardBy, WaitingServers
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.status import NodeStatus
from trovemq_broker.server.native import leader_calls
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_proto.v1 import producer_pb2
from trovemq_store.files.memory import MemoryFileSystem


@pytest.mark.asyncio
async def test_a_follower_whose_callers_log_in_ended_at_its_start(tmp_path: Path) -> None:
    """Calls with several replies were refused by a coroutine, which the check of rights does not take."""
    settings = BrokerSettings(
        store=str(tmp_path),
        http="off",
        authentication_enable=True,
        authorization_enable=True,
        sealing_key_file=str(tmp_path / "sealing.key"),
    )
    unused: Any = None

    def refusal() -> TroveError:
        return TroveError(errors.NOT_LEADER, "this node follows")

    servers = WaitingServers(settings, "1", unused, refusal, lambda: "", (), CollectorRegistry())
    await servers.open(open_store(MemoryFileSystem()))
    await servers.stop()


@pytest.mark.asyncio
async def test_a_node_without_authentication_says_that_the_group_has_users(tmp_path: Path) -> None:
    """As its leader it would serve all callers, whatever the rules say. The users come with the log."""
    leader, _ = led_users()
    store = follower(MemoryFileSystem(), LOG_ORIGIN, replace(SEGMENT, tables_in_log=True))
    settings = BrokerSettings(store=str(tmp_path), listen="127.0.0.1:0", http="off")
    unused: Any = None
    servers = WaitingServers(
        *(settings, "1", unused, lambda: TroveError(errors.NOT_LEADER), lambda: "", (), CollectorRegistry())
    )
    await servers.bind()
    await servers.open(store)
    assert servers.users_failure() is None
    copy(leader, store)
    commit(store, leader.end_offset)
    failure = servers.users_failure()
    assert failure is not None
    assert failure.spec is errors.AUTHENTICATION_DISABLED
    servers.follow_users(open_store(MemoryFileSystem()))
    assert servers.users_failure() is None, "it has another store since, without users"
    await servers.stop()


@pytest.mark.asyncio
async def test_the_log_of_a_waiting_node_did_not_say_that_remoting_is_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = BrokerSettings(store=str(tmp_path), listen="127.0.0.1:0", http="off")
    unused: Any = None
    servers = WaitingServers(
        *(settings, "1", unused, lambda: TroveError(errors.NOT_LEADER), lambda: "", (), CollectorRegistry())
    )
    await servers.bind()
    await servers.open(open_store(MemoryFileSystem()))
    async with remoting_client(str(servers._here[0])) as client:
        client.writer.write(bytes(4))
        await client.closed()
    await servers.stop()
    assert "remoting_enable = true" in caplog.text


class IgnoringLeader:
    """It serves every recall, and does not look at the keys of a forwarded call: as the version before."""

    def __init__(self) -> None:
        self.recalls = 0

    async def recall(self, _request: Any, _context: Any) -> producer_pb2.RecallReply:
        self.recalls += 1
        return producer_pb2.RecallReply()


@pytest.mark.asyncio
@pytest.mark.parametrize(("checks", "recalls"), [(False, 0), (None, 0), (True, 1)])
async def test_an_older_leader_admitted_all_calls_of_a_follower_s_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks: bool | None, recalls: int
) -> None:
    """It takes the follower, a super user, for the caller. None: the leader's status is not known."""
    monkeypatch.setattr(leader_calls, "WAIT_S", 0.0)
    old, server = IgnoringLeader(), grpc.aio.server()
    add_fake(server, PRODUCERS, old)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    leader = GroupLeader("g1", "b", 5, (GroupNode("b", address),))
    status = None if checks is None else NodeStatus(group="g1", node="b", checks_forwarded=checks)
    unused: Any = None
    servers = WaitingServers(
        BrokerSettings(store=str(tmp_path), listen="127.0.0.1:0", http="off"),
        *("1", unused, lambda: TroveError(errors.NOT_LEADER), lambda: "", (), CollectorRegistry()),
        leader=lambda: leader,
        leader_status=lambda: status,
        calls=ForwardBy(registration_channels(), None),
    )
    listening, _, _ = await servers.bind()
    await servers.open(open_store(MemoryFileSystem()))
    async with grpc.aio.insecure_channel(str(listening)) as channel:
        ask = channel.unary_unary("/trovemq.v1.ProducerService/Recall")
        with suppress(grpc.aio.AioRpcError):
            await ask(b"", timeout=60)
    await servers.stop()
    await server.stop(None)
    assert old.recalls == recalls
