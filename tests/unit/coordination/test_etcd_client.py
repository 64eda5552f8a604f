"""The client of etcd beside a fake one, in memory and virtual time: endpoints, log-ins, time limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.support.fake_etcd import FakeEtcd
from tests.unit.rpc.memory_rpc import run
from trovemq_broker.coordination.coordinator import Compare, Delete, Put
from trovemq_broker.coordination.etcd_client import EtcdAccess, EtcdClient
from trovemq_broker.coordination.etcd_coordinator import EtcdCoordinator
from trovemq_broker.coordination.etcd_health import EtcdHealth, HealthWatch
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings
from trovemq_proto.errors import TroveError
from trovemq_rpc.testing.loop import MemoryLoop

PREFIX = "/trovemq/c/g/"
PORTS = (2379, 3379)
USER = ("trovemq", "secret")


@dataclass
class Calls:
    """It is an Observer."""

    seen: list[tuple[str, bool]] = field(default_factory=list)

    def called(self, name: str, seconds: float, *, answered: bool) -> None:
        assert seconds >= 0
        self.seen.append((name, answered))


@dataclass
class World:
    """Two endpoints of one etcd, and a coordinator that knows both."""

    loop: MemoryLoop
    etcd: FakeEtcd
    servers: list[Any]
    listeners: list[Any]
    coordinator: EtcdCoordinator
    client: EtcdClient
    calls: Calls

    async def end_first(self) -> None:
        self.listeners[0].close()
        await self.servers[0].stop(None)


@asynccontextmanager
async def world(loop: MemoryLoop, user: tuple[str, str] | None, password: str) -> AsyncIterator[World]:
    etcd, calls = FakeEtcd(user), Calls()
    servers, listeners = [], []
    for port in PORTS:
        server = rpc.server()
        etcd.add_to(server)
        await server.start()
        servers.append(server)
        listeners.append(await loop.create_server(partial(server.accept, None), "127.0.0.1", port))

    async def read_password() -> str:
        return password

    access = EtcdAccess(
        endpoints=[f"127.0.0.1:{port}" for port in PORTS],
        channels=ChannelSettings(),
        user="" if user is None else user[0],
        password=read_password,
    )
    client = EtcdClient(access, calls)
    try:
        yield World(loop, etcd, servers, listeners, EtcdCoordinator(client, PREFIX), client, calls)
    finally:
        await client.close()
        for listener, server in zip(listeners, servers, strict=True):
            listener.close()
            await server.stop(None)


def in_world(
    program: Callable[[World], Coroutine[Any, Any, None]],
    user: tuple[str, str] | None = None,
    password: str = USER[1],
) -> None:
    async def main(loop: MemoryLoop) -> None:
        async with world(loop, user, password) as here:
            await program(here)

    run(main)


async def unavailable(call: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(TroveError) as caught:
        await call
    assert caught.value.spec is errors.COORDINATION_UNAVAILABLE
    return caught.value.message


def test_a_key_is_made_once_and_changed_by_its_revision_only() -> None:
    async def program(here: World) -> None:
        coordinator = here.coordinator
        assert (await coordinator.read()).values == {}
        first = await coordinator.swap([Compare("state", 0)], [Put("state", b"1")])
        assert first.done
        assert first.snapshot.values["state"].value == b"1"
        again = await coordinator.swap([Compare("state", 0)], [Put("state", b"2")])
        assert (again.done, again.snapshot.values) == (False, first.snapshot.values)
        changed = first.snapshot.values["state"].changed
        gone = await coordinator.swap([Compare("state", changed)], [Delete("state"), Put("lock", b"x")])
        assert (gone.done, set(gone.snapshot.values)) == (True, {"lock"})
        assert await coordinator.read() == gone.snapshot

    in_world(program)


def test_the_next_endpoint_answers_where_the_first_one_has_ended() -> None:
    async def program(here: World) -> None:
        await here.coordinator.read()
        await here.end_first()
        await here.coordinator.read()
        assert here.client.endpoint == f"127.0.0.1:{PORTS[1]}"
        assert here.calls.seen == [("range", True), ("range", False), ("range", True)]

    in_world(program)


def test_the_health_of_etcd_is_what_it_last_said() -> None:
    async def program(here: World) -> None:
        watch = HealthWatch(here.client)
        assert watch.last.problem
        await watch.ask()
        assert watch.last == EtcdHealth(1, "3.5.0", "")
        for server in here.servers:
            await server.stop(None)
        for listener in here.listeners:
            listener.close()
        await watch.ask()
        assert watch.last.members == 0
        assert "MemberList" in watch.last.problem

    in_world(program)


def test_a_transaction_without_an_answer_is_not_sent_again() -> None:
    async def program(here: World) -> None:
        async def lose(name: str, context: Any) -> None:
            if name == "Txn":
                await context.abort(rpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed")

        here.etcd.before = lose
        swap = here.coordinator.swap([Compare("state", 0)], [Put("state", b"1")])
        assert "leader changed" in await unavailable(swap)
        assert here.etcd.calls == ["Txn"], "it may have been done: only the caller knows how to find out"
        here.etcd.before = None
        assert (await here.coordinator.swap([Compare("state", 0)], [Put("state", b"1")])).done
        assert here.client.endpoint == f"127.0.0.1:{PORTS[1]}"

    in_world(program)


def test_a_silent_endpoint_is_left_after_a_second() -> None:
    async def program(here: World) -> None:
        silent: list[str] = []

        async def wait_once(name: str, _context: Any) -> None:
            if not silent:
                silent.append(name)
                await asyncio.sleep(60)

        here.etcd.before = wait_once
        began = here.loop.time()
        await here.coordinator.read()
        assert 1 <= here.loop.time() - began < 1.1
        here.etcd.before = None

    in_world(program)


def test_without_any_endpoint_the_error_names_the_last_one() -> None:
    async def program(here: World) -> None:
        for listener, server in zip(here.listeners, here.servers, strict=True):
            listener.close()
            await server.stop(None)
        assert f"127.0.0.1:{PORTS[1]}" in await unavailable(here.coordinator.read())

    in_world(program)


def test_a_log_in_lasts_until_etcd_wants_another_one() -> None:
    async def program(here: World) -> None:
        await here.coordinator.read()
        await here.coordinator.read()
        assert here.etcd.calls == ["Authenticate", "Range", "Range"]
        here.etcd.log_out()
        lease = await here.coordinator.grant(3)
        assert here.etcd.calls[3:] == ["LeaseGrant", "Authenticate", "LeaseGrant"]
        here.etcd.log_out()
        assert await here.coordinator.keep_alive(lease.id) == 3
        here.etcd.log_out()
        swapped = await here.coordinator.swap([], [Put("lock", b"x", lease.id)])
        assert swapped.done, "a refused log-in has changed nothing, so it is sent again"

    in_world(program, USER)


def test_a_wrong_password_is_an_error_that_shows_none() -> None:
    async def program(here: World) -> None:
        said = await unavailable(here.coordinator.read())
        assert "authentication failed" in said
        assert "guessed" not in said

    in_world(program, USER, "guessed")


def test_a_key_goes_with_its_lease() -> None:
    async def program(here: World) -> None:
        coordinator = here.coordinator
        lease = await coordinator.grant(1)
        assert lease.ttl_s == 2, "etcd grants no less"
        await coordinator.swap([], [Put("lock", b"x", lease.id), Put("state", b"1")])
        assert await coordinator.keep_alive(lease.id) == 2
        await coordinator.revoke(lease.id)
        assert set((await coordinator.read()).values) == {"state"}
        assert await coordinator.keep_alive(lease.id) == 0
        await coordinator.revoke(lease.id)  # it has gone: that is no error
        late = await coordinator.swap([], [Put("lock", b"x", lease.id)])
        assert (late.done, set(late.snapshot.values)) == (False, {"state"})

    in_world(program)


def test_a_watch_hints_at_changes_of_the_groups_keys() -> None:
    async def program(here: World) -> None:
        coordinator = here.coordinator
        seen: set[int] = set()

        async def watch(after: int) -> None:
            async with aclosing(coordinator.watch(after)) as hints:
                async for revision in hints:
                    seen.add(revision)

        watching = asyncio.create_task(watch((await coordinator.read()).revision))
        await asyncio.sleep(0.1)
        assert seen == set()
        swapped = await coordinator.swap([], [Put("state", b"1")])
        await asyncio.sleep(0.1)
        assert seen == {swapped.snapshot.revision}
        await here.end_first()
        await unavailable(watching)  # type: ignore[arg-type]

    in_world(program)


def test_an_etcd_of_another_cluster_is_refused() -> None:
    async def program(here: World) -> None:
        await here.coordinator.read()
        here.etcd.cluster += 1
        with pytest.raises(TroveError, match="is another one") as caught:
            await here.coordinator.read()
        assert caught.value.spec is errors.COORDINATION_ILLEGAL

    in_world(program)
