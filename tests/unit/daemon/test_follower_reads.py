"""A follower that is read from while its log is cut: the real role, store and servers, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.registry import CollectorRegistry

import trovemq
from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS, append, flush, record
from tests.support.followers import Leader, copy
from trovemq_broker.daemon.app import open_store
from trovemq_broker.daemon.replica.follower_role import FollowerRole
from trovemq_broker.daemon.replica.node_calls import NodeCalls
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.store_place import founded
from trovemq_broker.daemon.replica.waiting_servers import WaitingServers
from trovemq_broker.daemon.security import gate_of, open_security
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.frames import Heartbeat
from trovemq_broker.replication.status import PromotionAsked
from trovemq_broker.security import changes
from trovemq_broker.security.sealing import KEY_SIZE, key_file_content
from trovemq_daemon.addresses import Address
from trovemq_daemon.clocks import boot_ms
from trovemq_daemon.lifecycle import Stop
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto.authentication.credentials import parse_credentials
from trovemq_proto.authentication.scram import SALT_SIZE
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.replica.membership import Member

ME = Member("a", "127.0.0.1:1", "127.0.0.1:2")
WAIT_S = 20


@dataclass
class Follower:
    node: OpenNode
    role: FollowerRole
    address: str

    def append(self, *bodies: bytes) -> None:
        """Records of the leader, on disk and not committed."""
        for body in bodies:
            records = [record(body, keys=body.decode(), unique_key=f"ID-{body.decode()}")]
            append(self.node.store, *records, now_ms=EpochMs(NOW_MS))
        flush(self.node.store)

    def commit(self) -> None:
        """All of the log is committed, as a heartbeat says."""
        end = self.node.store.end_offset
        self.node.state.commit = end
        self.role._available(self.node.log.committed(end))
        self.hear()

    def hear(self, sent_ago_ms: int = 0) -> None:
        in_sync = self.node.state.in_sync
        assert in_sync is not None
        state = self.node.state
        self.role._heard(
            Heartbeat(1, state.commit, self.node.store.end_offset, boot_ms() - sent_ago_ms, in_sync)
        )

    async def cut(self) -> None:
        """The log ends where it is committed."""
        to = self.node.state.commit
        await self.role._engine_store().cut(to, self.node.state.epochs.truncated(to))


def settings_of(store: Path, **more: Any) -> BrokerSettings:
    return BrokerSettings(
        coordination="manual",
        name="group",
        node_name="a",
        listen="127.0.0.1:0",
        http="off",
        replication_listen="127.0.0.1:2",
        store=str(store),
        commit_log_file_size=1 << 20,
        flush_in_kernel_enable=False,
        **{"read_from_replicas": True, **more},
    )


def make_users(settings: BrokerSettings) -> None:
    """`admin`, who may do all, and `reader`, who has no rule; as a single broker has left them."""
    own = Address("127.0.0.1", 1)
    store = open_store(settings, settings.store_settings(own), ("commit_log_file_size",))
    gate = gate_of(settings)
    assert gate is not None
    table = open_security(settings, store, gate).table
    made = new_user("reader", UserKind.NORMAL, b"secret-of-reader", salt=bytes(SALT_SIZE), now_ms=NOW_MS)
    change = table.begin(changes.add_user(table.state, made))
    change.run()
    store.flush()
    table.finish(change)
    store.close(EpochMs(NOW_MS))


@asynccontextmanager
async def following(store: Path, *, other_key: bool = False, **more: Any) -> AsyncIterator[Follower]:
    """`other_key`: than that of the users."""
    settings, unused = settings_of(store, **more), cast(Any, None)
    role: FollowerRole | None = None
    servers = WaitingServers(
        settings,
        "1",
        unused,
        lambda: cast(FollowerRole, role).refusal(),
        lambda: "",
        (),
        CollectorRegistry(),
        reads=settings.read_from_replicas,
    )
    address, _, _ = await servers.bind()
    if settings.authentication_enable:
        make_users(settings)
    if other_key:
        settings.sealing_key_path.write_bytes(key_file_content(bytes(KEY_SIZE)))
    node = await OpenNode.open(settings, ("commit_log_file_size",), Address("127.0.0.1", 1))
    node.store.topics.create("orders", queue_count=2)
    node.enter_group(founded(settings, (ME,), node.directory))
    node.lead_no_more()
    calls = NodeCalls.of(settings.name, ME.node, settings.registration_channels(), None, None)
    role = FollowerRole(node, settings, calls, servers.reads)
    role.users_failure = servers.users_failure
    await servers.open(node.store)
    stop = Stop()
    running = asyncio.create_task(role.run(stop))
    try:
        yield Follower(node, role, str(address))
    finally:
        stop.request("the test ends")
        await running
        await servers.stop()
        await asyncio.to_thread(node.close)


@pytest.mark.asyncio
async def test_reads_continue_over_a_cut_and_never_saw_the_cut_records(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(WAIT_S),
        following(tmp_path) as follower,
        trovemq.connect(follower.address) as client,
    ):
        follower.append(b"first", b"second")
        assert [one async for one in client.pull("orders")] == []
        follower.commit()
        batches = client.pull_batches("orders", follow=True)
        seen: list[bytes] = []
        async with aclosing(batches):
            batch = await anext(batches)
            seen += [bytes(one) for one in batch.bodies()]
            assert batch.replica is not None
            assert batch.replica.lag_bytes == 0
            follower.append(b"cut")
            await follower.cut()
            follower.append(b"third")
            follower.commit()
            while len(seen) < 3:
                seen += [bytes(one) for one in (await anext(batches)).bodies()]
        assert seen == [b"first", b"second", b"third"]
        assert [one.body for one in (await client.query("orders", "third")).messages] == [b"third"]
        assert (await client.query("orders", "cut")).messages == ()


@pytest.mark.asyncio
async def test_a_follower_without_a_leader_refuses_those_who_bear_no_lag(tmp_path: Path) -> None:
    impatient = trovemq.ClientOptions(replica=True, max_lag_ms=1_000)
    async with (
        asyncio.timeout(WAIT_S),
        following(tmp_path) as follower,
        trovemq.connect(follower.address) as client,
        trovemq.connect(follower.address, options=impatient) as fresh,
    ):
        follower.append(b"first")
        follower.commit()
        found = await fresh.get("ID-first")
        assert found.replica is not None
        assert (found.replica.lag_ms or 0) <= 1_000
        follower.role._read_lag.new_stream()
        follower.hear()
        follower.role._read_lag._caught_up_ms = boot_ms() - 5_000
        for asked in (fresh.get("ID-first"), fresh.query("orders", "first"), fresh.track("ID-first")):
            with pytest.raises(TroveError, match="REPLICA_LAG_EXCEEDED"):
                await asked
        with pytest.raises(TroveError, match="REPLICA_LAG_EXCEEDED"):
            await anext(fresh.pull("orders"))
        old = await client.get("ID-first")
        assert old.replica is not None
        assert (old.replica.lag_ms or 0) >= 5_000


@pytest.mark.asyncio
async def test_topics_were_not_seen_at_a_node_that_had_just_joined(tmp_path: Path) -> None:
    """Its store was opened before it had a group, and its tables stayed as they were until its next start."""
    settings = settings_of(tmp_path)
    node = await OpenNode.open(settings, ("commit_log_file_size",), Address("127.0.0.1", 1))
    node.enter_group(founded(settings, (ME,), node.directory))
    size = settings.commit_log_file_size
    leader = Leader(replace(SEGMENT, commit_log_file_size=size, tables_in_log=True))
    leader.store.topics.create("orders", queue_count=2)
    flush(leader.store)
    copy(leader.store, node.store)
    node.log.committed(node.store.end_offset)
    found = node.store.topics.get("orders")
    assert found is not None
    assert found.queue_count == 2
    await asyncio.to_thread(node.close)


@pytest.mark.asyncio
async def test_changes_are_refused_with_the_leader(tmp_path: Path) -> None:
    options = trovemq.ClientOptions(replica=True, delivery_timeout_ms=300, failover_timeout_ms=300)
    async with (
        asyncio.timeout(WAIT_S),
        following(tmp_path) as follower,
        trovemq.connect(follower.address, options=options) as client,
    ):
        with pytest.raises(TroveError, match="NOT_LEADER"):
            await client.send("orders", b"refused")
        with pytest.raises(TroveError, match="NOT_LEADER"):
            await client.admin.create_topic("more")
        with pytest.raises(TroveError, match="NOT_LEADER"):
            async with client.subscribe("orders", group="g"):
                pass
        assert follower.node.store.topics.get("more") is None


@pytest.mark.asyncio
async def test_users_and_rules_hold_as_on_a_leader_also_after_a_cut(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "authentication_enable": True,
        "authorization_enable": True,
        "sealing_key_file": str(tmp_path / "sealing.key"),
    }
    async with asyncio.timeout(WAIT_S), following(tmp_path / "store", **more) as follower:
        follower.append(b"first")
        follower.commit()
        admin = parse_credentials((tmp_path / "store.admin-credentials").read_text(encoding="utf-8"))
        for _ in range(2):
            async with trovemq.connect(
                follower.address, access_key=admin.access_key, secret_key=admin.secret_key
            ) as client:
                assert [one.body async for one in client.pull("orders")] == [b"first"]
            async with trovemq.connect(
                follower.address, access_key="reader", secret_key="secret-of-reader"
            ) as client:
                for asked in (client.get("ID-first"), client.query("orders", "first")):
                    with pytest.raises(TroveError, match="ACCESS_DENIED"):
                        await asked
                with pytest.raises(TroveError, match="ACCESS_DENIED"):
                    await anext(client.pull("orders", queue_id=0))
            with pytest.raises(TroveError, match="AUTHENTICATION"):
                await trovemq.connect(follower.address)
            follower.append(b"cut")
            await follower.cut()


@pytest.mark.asyncio
async def test_a_follower_that_serves_no_reads_says_why_the_routes_are_empty(tmp_path: Path) -> None:
    """The client said that no broker is in the routes."""
    options = trovemq.ClientOptions(replica=True, delivery_timeout_ms=300, failover_timeout_ms=300)
    async with (
        asyncio.timeout(WAIT_S),
        following(tmp_path, read_from_replicas=False) as follower,
        trovemq.connect(follower.address, options=options) as client,
    ):
        assert (await client.admin.replicas.groups()) == []
        for asked in (client.send("orders", b"x"), client.get("ID"), client.admin.list_topics()):
            with pytest.raises(TroveError, match="NOT_LEADER"):
                await asked
        with pytest.raises(TroveError, match="NOT_LEADER"):
            await anext(client.pull("orders"))
        with pytest.raises(TroveError, match="NOT_LEADER"):
            async with client.subscribe("orders", group="g"):
                pass


@pytest.mark.asyncio
@pytest.mark.parametrize("max_lag_ms", ["soon", 1.5, True, -1, None])
async def test_a_lag_of_another_type_is_refused_before_anything_is_asked(max_lag_ms: Any) -> None:
    options = replace(trovemq.ClientOptions(), max_lag_ms=max_lag_ms)
    with pytest.raises(TroveError, match="max_lag_ms"):
        trovemq.connect("127.0.0.1:1", options=options)
    with pytest.raises(TroveError, match="max_lag_ms"):
        trovemq.connect(f"trovemq://127.0.0.1:1?max_lag_ms={max_lag_ms}")


@pytest.mark.asyncio
async def test_a_follower_with_another_sealing_key_says_that_it_cannot_lead(tmp_path: Path) -> None:
    more: dict[str, Any] = {"authentication_enable": True, "sealing_key_file": str(tmp_path / "sealing.key")}
    store = tmp_path / "store"
    async with asyncio.timeout(WAIT_S), following(store, other_key=True, **more) as follower:
        status = follower.role.status()
        assert "cannot open the users" in status.problem
        assert "sealing_key_file of the other nodes" in status.cannot_lead
        with pytest.raises(TroveError, match="SEALING_KEY_MISMATCH"):
            await follower.role.promote(PromotionAsked())
