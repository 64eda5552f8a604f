"""The coordinator with a real etcd: the answers of the fake one, keys that go with their leases, users, and
an etcd that stops."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from shutil import which
from typing import TypeVar

import pytest

import trovemq_rpc as rpc
from tests.support.certificates import Certificates
from tests.support.etcd_process import EtcdProcess, etcd_members, etcd_process, needs_etcd
from tests.support.fake_etcd import FakeEtcd
from trovemq_broker.coordination.coordinator import Compare, Delete, Put
from trovemq_broker.coordination.etcd_client import EtcdAccess, EtcdClient
from trovemq_broker.coordination.etcd_coordinator import EtcdCoordinator
from trovemq_broker.coordination.etcd_health import HealthWatch
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import TlsOptions, read_tls

pytestmark = pytest.mark.slow

PREFIX = "/trovemq/c/g/"
BOTH = ("fake", pytest.param("etcd", marks=needs_etcd))
WAIT_S_MAX = 30
T = TypeVar("T")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with etcd_process(tmp_path_factory.mktemp("etcd")) as found:
        yield found


@asynccontextmanager
async def coordinator(
    address: str, prefix: str = PREFIX, password: str = ""
) -> AsyncIterator[EtcdCoordinator]:
    async def read_password() -> str:
        return password

    access = EtcdAccess(
        endpoints=[address],
        channels=ChannelSettings(),
        user="root" if password else "",
        password=read_password,
    )
    client = EtcdClient(access)
    try:
        yield EtcdCoordinator(client, prefix)
    finally:
        await client.close()


@asynccontextmanager
async def either(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[EtcdCoordinator]:
    """Of a fake etcd, or of the real one; each test has its own keys."""
    prefix = f"/trovemq/{request.node.name}/"
    if kind == "etcd":
        async with coordinator(request.getfixturevalue("etcd").address, prefix) as found:
            yield found
        return
    server = rpc.server()
    FakeEtcd().add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with coordinator(f"127.0.0.1:{port}", prefix) as found:
            yield found
    finally:
        await server.stop(None)


@pytest.mark.parametrize("kind", BOTH)
def test_keys_change_by_their_revisions_only(kind: str, request: pytest.FixtureRequest) -> None:
    async def program() -> None:
        async with either(kind, request) as here:
            empty = await here.read()
            assert empty.values == {}
            made = await here.swap([Compare("state", 0)], [Put("state", b"1"), Put("nodes/a", b"a")])
            assert made.done
            values = made.snapshot.values
            assert {key: one.value for key, one in values.items()} == {"state": b"1", "nodes/a": b"a"}
            assert values["state"].changed == values["state"].created == made.snapshot.revision
            assert made.snapshot.revision == empty.revision + 1
            again = await here.swap([Compare("state", 0)], [Put("state", b"2")])
            assert (again.done, again.snapshot) == (False, made.snapshot)
            change = [Compare("state", values["state"].changed), Compare("lock", 0)]
            changed = await here.swap(change, [Put("state", b"3"), Delete("nodes/a")])
            assert changed.done
            (state,) = changed.snapshot.values.values()
            assert (state.value, state.created) == (b"3", values["state"].created)
            assert state.changed == changed.snapshot.revision > state.created
            assert await here.read() == changed.snapshot

    asyncio.run(program())


@pytest.mark.parametrize("kind", BOTH)
def test_a_lease_holds_its_keys(kind: str, request: pytest.FixtureRequest) -> None:
    async def program() -> None:
        async with either(kind, request) as here:
            lease = await here.grant(3)
            assert lease.ttl_s == 3
            put = await here.swap([], [Put("lock", b"x", lease.id), Put("state", b"1")])
            assert put.snapshot.values["lock"].lease == lease.id
            assert await here.keep_alive(lease.id) == 3
            await here.revoke(lease.id)
            assert set((await here.read()).values) == {"state"}
            assert await here.keep_alive(lease.id) == 0
            await here.revoke(lease.id)
            late = await here.swap([], [Put("lock", b"x", lease.id)])
            assert (late.done, set(late.snapshot.values)) == (False, {"state"})

    asyncio.run(program())


@pytest.mark.parametrize("kind", BOTH)
def test_a_watch_tells_changes_after_a_revision(kind: str, request: pytest.FixtureRequest) -> None:
    async def program() -> None:
        async with either(kind, request) as here:
            before = await here.read()
            missed = await here.swap([], [Put("state", b"1")])
            async with aclosing(here.watch(before.revision)) as hints, asyncio.timeout(WAIT_S_MAX):
                assert await anext(hints) >= missed.snapshot.revision
                gone = await here.swap([], [Delete("state")])
                assert await anext(hints) >= gone.snapshot.revision

    asyncio.run(program())


@needs_etcd
def test_a_key_goes_when_its_lease_is_not_kept(etcd: EtcdProcess) -> None:
    async def program() -> None:
        async with coordinator(etcd.address, "/trovemq/expiry/") as here:
            lease = await here.grant(1)
            put = await here.swap([], [Put("lock", b"x", lease.id)])
            async with aclosing(here.watch(put.snapshot.revision)) as hints, asyncio.timeout(WAIT_S_MAX):
                await anext(hints)
            assert (await here.read()).values == {}

    asyncio.run(program())


@needs_etcd
def test_an_etcd_that_has_stopped_is_unavailable_and_its_state_is_kept(tmp_path: Path) -> None:
    async def program() -> None:
        with etcd_process(tmp_path) as first:
            async with coordinator(first.address) as here:
                await here.swap([], [Put("state", b"1")])
                first.stop()
                with pytest.raises(TroveError) as caught:
                    await here.read()
                assert caught.value.spec is errors.COORDINATION_UNAVAILABLE
        with etcd_process(tmp_path) as second:
            async with coordinator(second.address) as here:
                assert (await here.read()).values["state"].value == b"1"

    asyncio.run(program())


@needs_etcd
@pytest.mark.skipif(which("etcdctl") is None, reason="no etcdctl in PATH: install the package etcd-client")
def test_a_user_of_etcd_logs_in(tmp_path: Path) -> None:
    def control(address: str, *line: str) -> None:
        subprocess.run(["etcdctl", f"--endpoints={address}", *line], check=True, env={"ETCDCTL_API": "3"})

    async def program() -> None:
        with etcd_process(tmp_path) as etcd:
            control(etcd.address, "user", "add", "root:secret")
            control(etcd.address, "auth", "enable")
            async with coordinator(etcd.address, password="secret") as here:
                assert (await here.swap([], [Put("state", b"1")])).done
                lease = await here.grant(3)
                assert await here.keep_alive(lease.id) == 3
            for password in ("", "another"):
                async with coordinator(etcd.address, password=password) as here:
                    with pytest.raises(TroveError, match=r"user name is empty|authentication failed"):
                        await here.read()

    asyncio.run(program())


@needs_etcd
def test_two_of_three_members_answer_for_the_one_that_is_lost(tmp_path: Path) -> None:
    async def program(members: list[EtcdProcess]) -> None:
        access = EtcdAccess(endpoints=[one.address for one in members], channels=ChannelSettings())
        client = EtcdClient(access)
        here, health = EtcdCoordinator(client, PREFIX), HealthWatch(client)
        try:
            put = await here.swap([Compare("state", 0)], [Put("state", b"1")])
            await health.ask()
            assert (health.last.members, health.last.problem) == (3, "")
            assert health.last.version[:2] == "3."
            first, second, third = members
            assert client.endpoint == first.address
            first.stop(signal.SIGKILL)
            later = await _within(here.read)
            assert later.values["state"].value == b"1"
            assert client.endpoint in (second.address, third.address)
            change = [Compare("state", put.snapshot.values["state"].changed)]
            assert (await _within(lambda: here.swap(change, [Put("state", b"2")]))).done
            lease = await _within(lambda: here.grant(3))
            assert await here.keep_alive(lease.id) == 3
            second.stop(signal.SIGKILL)
            with pytest.raises(TroveError) as alone:
                await here.read()
            assert alone.value.spec is errors.COORDINATION_UNAVAILABLE, "one of three answers nothing"
        finally:
            await client.close()

    with etcd_members(tmp_path, 3) as members:
        asyncio.run(program(members))


@needs_etcd
def test_etcd_by_tls_with_a_certificate_of_the_client(tmp_path: Path) -> None:
    certificates = Certificates.made(tmp_path / "certificates")
    (tmp_path / "other").mkdir()
    stranger = Certificates.made(tmp_path / "other")

    async def asked(address: str, tls: TlsOptions | None) -> None:
        files = None if tls is None else read_tls(tls)
        client = EtcdClient(EtcdAccess(endpoints=[address], channels=ChannelSettings(tls=files)))
        try:
            await EtcdCoordinator(client, PREFIX).read()
        finally:
            await client.close()

    def options(of: Certificates, ca: Certificates) -> TlsOptions:
        return TlsOptions(ca=str(ca.ca), certificate=str(of.pem("client")), key=str(of.key("client")))

    with etcd_process(tmp_path, certificates) as etcd:
        asyncio.run(asked(etcd.address, options(certificates, certificates)))
        for refused in (
            None,
            TlsOptions(ca=str(certificates.ca)),
            options(stranger, certificates),
            options(certificates, stranger),
        ):
            with pytest.raises(TroveError) as error:
                asyncio.run(asked(etcd.address, refused))
            assert error.value.spec is errors.COORDINATION_UNAVAILABLE, refused


async def _within(call: Callable[[], Awaitable[T]]) -> T:
    """etcd chooses another leader meanwhile."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            try:
                return await call()
            except TroveError:
                await asyncio.sleep(0.1)
