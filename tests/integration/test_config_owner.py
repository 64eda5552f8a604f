"""The cluster's configuration on real processes: joins, restarts, a lost owner, a take-over, other clusters;
once with log-ins and TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

import trovemq
from tests.support.broker_process import BrokerProcess, Stubs, error_of, refused
from tests.support.certificates import Certificates
from tests.support.stubs import stub_of
from trovemq.testing import NameserverProcess
from trovemq_proto.authentication.credentials import parse_credentials
from trovemq_proto.v1 import admin_pb2, message_pb2, route_pb2
from trovemq_proto.v1 import cluster_config_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

SERVICE = pb.DESCRIPTOR.services_by_name["ClusterConfigService"]
FAST = ("heartbeat_interval_ms=100", "registration_retry_min_ms=20", "registration_retry_max_ms=200")


class Brokers:
    """Brokers by name, each with its store; they are started again over it."""

    def __init__(self, directory: Path, nameserver: NameserverProcess) -> None:
        self.directory = directory
        self.nameserver = nameserver
        self.running: dict[str, BrokerProcess] = {}

    def start(self, name: str, owner: str = "", *settings: str, conf: Path | None = None) -> BrokerProcess:
        named = (f"config_owner={owner}",) if owner else ()
        broker = BrokerProcess(
            self.directory / name,
            (f"brokerName={name}", f"nameserver={self.nameserver.address}", *FAST, *named, *settings),
            () if conf is None else ("--config", str(conf)),
        )
        self.running[name] = broker
        assert broker.address, broker.lines
        return broker

    def stop(self, name: str) -> None:
        assert self.running.pop(name).stop() == 0

    def kill(self, name: str) -> None:
        self.running.pop(name).kill()


@contextmanager
def brokers_of(directory: Path) -> Iterator[Brokers]:
    with NameserverProcess() as nameserver:
        brokers = Brokers(directory, nameserver)
        try:
            yield brokers
        finally:
            for broker in brokers.running.values():
                broker.end()


@asynccontextmanager
async def config_of(broker: BrokerProcess) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(broker.address) as channel:
        yield stub_of(SERVICE, channel)


async def status(broker: BrokerProcess) -> Any:
    async with config_of(broker) as config:
        return await config.GetConfigStatus(pb.GetConfigStatusRequest())


async def until(broker: BrokerProcess, condition: Callable[[Any], bool]) -> Any:
    """Returns the status of which it holds."""
    async with asyncio.timeout(120), config_of(broker) as config:
        while True:
            found = await config.GetConfigStatus(pb.GetConfigStatusRequest())
            if condition(found):
                return found
            await asyncio.sleep(0.02)


def is_current(found: Any) -> bool:
    return bool(found.state == "current")


async def test_brokers_join_restart_and_take_over_from_a_killed_owner(tmp_path: Path) -> None:
    with brokers_of(tmp_path) as brokers:
        owner = brokers.start("a")
        assert (await status(owner)).state == "alone"
        assert not (tmp_path / "a/config/trovemq-cluster.table").exists()
        follower, third = brokers.start("b", "a"), brokers.start("c", "a")
        head = (await until(follower, is_current)).head
        await until(third, is_current)
        assert head.owner == "a"
        found = await until(owner, lambda one: [m.live for m in one.members] == [True] * 3)
        assert [member.broker for member in found.members] == ["a", "b", "c"]

        brokers.stop("b")  # a follower, and the owner, start again
        follower = brokers.start("b", "a")
        assert (await until(follower, is_current)).head.cluster == head.cluster
        brokers.stop("a")
        await until(follower, lambda one: one.state == "stored" and one.problem)
        assert json.loads(follower.get("/readyz")[1])["warnings"]["configuration"]
        owner = brokers.start("a")
        await until(follower, is_current)
        await until(third, is_current)

        brokers.kill("a")  # lost: the next owner is named by an operator
        await until(follower, lambda one: one.state == "stored")
        async with config_of(follower) as config:
            forward = config.ForwardChange(pb.ForwardChangeRequest(method="/x/y"))
            assert (await refused(forward)).symbol == "CONFIG_OWNER_MOVED"
            done = await config.TakeOverConfig(pb.TakeOverConfigRequest())
        assert (done.head.owner, done.head.generation.number) == ("b", 2)
        assert (list(done.promised), list(done.unreached)) == (["b", "c"], ["a"])
        await until(third, lambda one: is_current(one) and one.head.owner == "b")

        owner = brokers.start("a")  # back: by its own table it is the owner still
        back = await until(owner, lambda one: is_current(one) and one.head.owner == "b")
        assert back.head.generation.number == 2


async def test_a_joining_broker_takes_no_messages_and_is_not_in_the_routes(tmp_path: Path) -> None:
    with brokers_of(tmp_path) as brokers:
        joining = brokers.start("b", "a")
        code, text = joining.get("/readyz")
        assert code == 503
        assert "joins the cluster" in json.loads(text)["checks"]["configuration"]["detail"]
        async with Stubs(joining.address) as stubs, Stubs(brokers.nameserver.address) as routes:
            send = stubs.messages.Send(message_pb2.SendRequest(topic="t", messages=[{"body": b"x"}]))
            error = await refused(send)
            assert (error.symbol, error.spec.retriable) == ("SERVICE_NOT_AVAILABLE", True)
            stream = stubs.messages.Append()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert error_of(caught.value).symbol == "SERVICE_NOT_AVAILABLE"
            assert not (await routes.routes.GetCluster(route_pb2.GetClusterRequest())).brokers
            brokers.start("a")
            await until(joining, is_current)
            async with asyncio.timeout(120):
                while joining.get("/readyz")[0] != 200:
                    await asyncio.sleep(0.02)
                while len((await routes.routes.GetCluster(route_pb2.GetClusterRequest())).brokers) < 2:
                    await asyncio.sleep(0.02)


async def test_a_broker_of_another_cluster_is_refused_and_keeps_its_own(tmp_path: Path) -> None:
    with brokers_of(tmp_path) as brokers:
        brokers.start("a")
        foreign = brokers.start("x")
        follower, second = brokers.start("b", "a"), brokers.start("y", "x")
        await until(follower, is_current)
        cluster = (await until(second, is_current)).head.cluster
        async with config_of(follower) as config:
            take_over = config.TakeOverConfig(pb.TakeOverConfigRequest())
            assert (await refused(take_over)).symbol == "CONFIG_OTHER_CLUSTER"
        brokers.stop("y")
        brokers.stop("x")
        # its owner has lost its disk, and has become the owner of the other one's cluster
        follower_address = brokers.running["a"].address
        second = brokers.start("y", f"x@{follower_address}")
        found = await until(second, lambda one: "CONFIG_OTHER_CLUSTER" in one.problem)
        assert found.head.cluster == cluster
        assert foreign.process.returncode == 0


async def until_ready(broker: BrokerProcess) -> None:
    async with asyncio.timeout(120):
        while broker.get("/readyz")[0] != 200:
            await asyncio.sleep(0.02)


async def test_users_log_in_and_tls_carries_the_table(tmp_path: Path) -> None:
    certificates = Certificates.made(tmp_path / "tls")
    secret = "a-secret-of-brokers"
    user = json.dumps({"username": "brokers", "password": secret})
    credentials = tmp_path / "brokers.credentials"
    credentials.write_text(f"access_key=brokers\nsecret_key={secret}\n")
    credentials.chmod(0o600)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"initAuthenticationUser={user}\n")
    conf.chmod(0o600)
    on = (
        "authenticationEnabled=true",
        "tls_listen=127.0.0.1:0",
        f"tls_certificate={certificates.pem('server')}",
        f"tls_key={certificates.key('server')}",
    )
    by_tls = ("nameserver_tls=true", f"nameserver_tls_ca={certificates.ca}")
    with brokers_of(tmp_path) as brokers:
        owner = brokers.start("a", "", *on, conf=conf)
        address = next(line["tls"] for line in owner.lines if line["event"] == "broker.started")
        wrong = brokers.start("b", f"a@{address}", *on, *by_tls, conf=conf)
        file = f"config_credentials_file={credentials}"
        right = brokers.start("c", f"a@{address}", *on, *by_tls, file, conf=conf)
        who = parse_credentials(credentials.read_text())
        tls: Any = {"access_key": who.access_key, "secret_key": who.secret_key}
        await until_ready(right)  # then it has the users of its owner
        async with await trovemq.connect(right.address, **tls) as client, asyncio.timeout(120):
            (known,) = client._pool.routes.brokers(None)
            connection = client._pool.connection(known)
            while True:
                found = await connection.ask(
                    "ClusterConfigService/GetConfigStatus",
                    pb.GetConfigStatusRequest(),
                    pb.ConfigStatus.FromString,
                )
                if found.state == "current":
                    break
                await asyncio.sleep(0.02)
        assert found.head.owner == "a"
        code, text = wrong.get("/readyz")
        assert code == 503
        assert "configuration" in text
        with suppress(grpc.aio.AioRpcError):
            async with config_of(owner) as config:
                await config.GetConfigStatus(pb.GetConfigStatusRequest())
                pytest.fail("it needs a user")
        async with Stubs(right.address) as stubs:
            create = stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="t"))
            assert (await refused(create)).symbol == "AUTHENTICATION_FAILED"
