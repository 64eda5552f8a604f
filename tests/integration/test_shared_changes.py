"""Changes of a configuration that brokers share, on real processes: by SDK, sync client and command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import trovemq
from tests.support.command_line import run_here
from tests.support.remoting_client import remoting_client
from trovemq import Client, GroupSettings, TroveError, errors
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_proto.remoting.codes import RequestCode

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

FAST: dict[str, Any] = {
    "heartbeat_interval_ms": 100,
    "registration_retry_min_ms": 20,
    "registration_retry_max_ms": 200,
}


class Brokers:
    """Brokers over stores that stay; `a` owns the configuration."""

    def __init__(self, directory: Path, nameserver: NameserverProcess) -> None:
        self.directory, self.nameserver = directory, nameserver
        self.running: dict[str, BrokerProcess] = {}

    def start(self, name: str, owner: str = "a", **settings: Any) -> BrokerProcess:
        broker = BrokerProcess(
            name=name,
            store=self.directory / name,
            nameservers=[self.nameserver],
            config_owner=owner,
            **{**FAST, **settings},
        )
        broker.__enter__()
        self.running[name] = broker
        return broker

    def stop(self, name: str) -> None:
        self.running.pop(name).__exit__(None, None, None)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trovemq.connect(self.nameserver.address) as client:
            yield client


@contextmanager
def brokers_of(directory: Path, names: Sequence[str], **settings: Any) -> Iterator[Brokers]:
    with NameserverProcess() as nameserver:
        brokers = Brokers(directory, nameserver)
        try:
            for name in names:
                brokers.start(name, **settings)
            yield brokers
        finally:
            for name in list(brokers.running):
                brokers.stop(name)


async def until_shared(client: Client, names: str) -> None:
    """The routes have these brokers, with one configuration."""
    await _until(
        client,
        lambda: (
            {
                route.broker.name: None if route.broker.config is None else route.broker.config.owner
                for route in client._pool.routes.state.brokers
            }
            == dict.fromkeys(names, "a")
        ),
    )


async def _until(client: Client, condition: Any) -> None:
    assert await client._pool.routes.wait_until(condition, 60), client._pool.routes.state


async def test_tools_change_the_queues_of_one_topic_on_all_brokers_at_once(tmp_path: Path) -> None:
    with brokers_of(tmp_path, "abc", remoting_enable=True) as brokers:
        async with brokers.client() as client, AsyncExitStack() as opened:
            await until_shared(client, "abc")
            tools = {
                name: await opened.enter_async_context(remoting_client(broker.address))
                for name, broker in brokers.running.items()
            }

            async def on_all(code: int, fields: dict[str, object], **queues: int) -> None:
                def asked(name: str) -> dict[str, object]:
                    count = queues.get(name, 1)
                    return {**fields, "readQueueNums": count, "writeQueueNums": count}

                answers = await asyncio.gather(*(tool.ask(code, asked(name)) for name, tool in tools.items()))
                assert [one.header.remark for one in answers if one.code] == []

            async def placed() -> dict[str, int]:
                return {one.broker: one.queue_count for one in await client.admin.describe_topic("orders")}

            wanted: dict[str, object] = {"topic": "orders", "defaultTopic": "TBW102", "perm": 6}
            await on_all(RequestCode.UPDATE_AND_CREATE_TOPIC, wanted, a=1, b=2, c=3)
            routes = client._pool.routes
            await _until(client, lambda: all(routes.has_topic("orders", name) for name in "abc"))
            assert await placed() == {"a": 1, "b": 2, "c": 3}
            await on_all(RequestCode.UPDATE_AND_CREATE_TOPIC, wanted, a=5, b=6, c=7)
            assert await placed() == {"a": 5, "b": 6, "c": 7}
            await on_all(RequestCode.DELETE_TOPIC_IN_BROKER, wanted)
            with pytest.raises(TroveError) as caught:
                await placed()
            assert caught.value.spec is errors.TOPIC_NOT_FOUND


async def test_a_topic_is_created_altered_and_deleted_on_all_brokers_at_once(tmp_path: Path) -> None:
    with brokers_of(tmp_path, "abc") as brokers:
        async with brokers.client() as client:
            await until_shared(client, "abc")
            admin = client.admin
            (made,) = await admin.create_topic("orders", 2, "FIFO")
            assert (made.placement, made.pending) == ({"a": 2, "b": 2, "c": 2}, ())
            found = await admin.describe_topic("orders")
            assert sorted((one.broker, one.queue_count, len(one.queues)) for one in found) == [
                ("a", 2, 2),
                ("b", 2, 2),
                ("c", 2, 2),
            ]
            await admin.create_topic("some", 1, brokers=["b", "c"])
            assert sorted(one.broker for one in await admin.describe_topic("some")) == ["b", "c"]
            (altered,) = await admin.alter_topic("some", 3)
            assert altered.placement == {"b": 3, "c": 3}
            with pytest.raises(TroveError) as caught:
                await admin.create_topic("some")
            assert caught.value.spec is errors.TOPIC_EXISTS
            with pytest.raises(TroveError, match="lies on c, too"):
                await admin.delete_topic("some", broker="b")
            deleted = await admin.delete_topic("some")
            assert (sorted(deleted), deleted.pending) == (["b", "c"], ())
            await client.send("orders", b"x", message_group="g")

            await admin.groups.create("billing", GroupSettings(retry_max=3))
            await admin.groups.alter("billing", GroupSettings(retry_max=4))
            described = await admin.groups.describe("billing")
            assert sorted((one.broker, one.settings.retry_max) for one in described) == [
                ("a", 4),
                ("b", 4),
                ("c", 4),
            ]
            assert await admin.groups.delete("billing") == ["a"]
            assert not await admin.groups.list_all()


async def test_changes_while_a_broker_is_away_reach_it_when_it_is_back(tmp_path: Path) -> None:
    with brokers_of(tmp_path, "abc") as brokers:
        async with brokers.client() as client:
            await until_shared(client, "abc")
            await client.admin.create_topic("gone", 1)
            brokers.stop("c")
            await until_shared(client, "ab")
            made = await client.admin.create_topic("orders", 2)
            assert (made[0].placement, made.pending, made.later) == ({"a": 2, "b": 2}, ("c",), ("c",)) or (
                made[0].placement,
                made.later,
            ) == ({"a": 2, "b": 2, "c": 2}, ("c",))
            deleted = await client.admin.delete_topic("gone")
            assert (sorted(deleted), deleted.later) == (["a", "b"], ("c",))
            brokers.start("c")
            await until_shared(client, "abc")
            await _until(client, lambda: client._pool.routes.has_topic("orders", "c"))
            assert not client._pool.routes.has_topic("gone", "c")


async def test_without_the_owner_messages_flow_and_changes_say_what_to_do(tmp_path: Path) -> None:
    with brokers_of(tmp_path, "ab") as brokers:
        async with brokers.client() as client:
            await until_shared(client, "ab")
            await client.admin.create_topic("orders", 2)
            brokers.stop("a")
            await _until(client, lambda: client._pool.routes.find("a") is None)
            for change in (
                client.admin.create_topic("more"),
                client.admin.alter_topic("orders", 3),
                client.admin.groups.create("billing"),
            ):
                with pytest.raises(TroveError) as caught:
                    await change
                assert caught.value.spec is errors.CONFIG_OWNER_UNREACHABLE
                assert "a" in caught.value.message
            assert (await client.send("orders", b"x")).broker == "b"
            brokers.start("a")
            await until_shared(client, "ab")
            async with asyncio.timeout(60):
                while True:
                    try:
                        await client.admin.alter_topic("orders", 3, broker="b")
                        break
                    except TroveError as error:
                        if error.spec is not errors.CONFIG_OWNER_UNREACHABLE:
                            raise
                        await asyncio.sleep(0.05)  # b is about to find its owner


async def test_topics_of_before_are_taken_in_by_one_command(tmp_path: Path) -> None:
    with brokers_of(tmp_path, "a") as brokers:
        brokers.start("b", owner="b")
        async with brokers.client() as client:
            await client.admin.create_topic("both", 2)
            await client.admin.create_topic("old", 3, "FIFO", broker="b")
            await client.send("old", b"kept", message_group="g")
            brokers.stop("b")
            brokers.start("b")
            await until_shared(client, "ab")
            address = brokers.nameserver.address
            code, out, text = await asyncio.to_thread(run_here, address, "topic", "adopt")
            assert code == 0, text
            found = {one["topic"]: one["placement"] for one in map(json.loads, out.splitlines())}
            assert found == {"both": {"a": 2, "b": 2}, "old": {"b": 3}}
            assert await asyncio.to_thread(run_here, address, "topic", "adopt") == (0, b"", "")
            (described,) = await client.admin.describe_topic("old")
            assert described.placement == {"b": 3}
            assert sum(queue.max_offset for queue in described.queues) == 1, "the message is still there"
            (altered,) = await client.admin.alter_topic("both", 4)
            assert altered.placement == {"a": 4, "b": 4}


async def with_users(address: str, keys: trovemq.ClientOptions) -> Client:
    """Connects when the broker has the users of its owner."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await trovemq.connect(address, options=keys)
            except TroveError as error:
                if error.spec is not errors.SERVICE_NOT_AVAILABLE:
                    raise
                await asyncio.sleep(0.05)


async def test_users_and_rules_that_a_follower_takes_hold_on_the_owner(tmp_path: Path) -> None:
    keys = trovemq.ClientOptions(access_key="brokers", secret_key="secret-of-brokers")
    credentials = tmp_path / "brokers.credentials"
    credentials.write_text("access_key=brokers\nsecret_key=secret-of-brokers\n")
    credentials.chmod(0o600)
    user = json.dumps({"username": "brokers", "password": "secret-of-brokers"})
    conf = tmp_path / "broker.conf"
    conf.write_text(f"initAuthenticationUser={user}\n")
    conf.chmod(0o600)
    settings: dict[str, Any] = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "config_credentials_file": credentials,
        "arguments": ["--config", str(conf)],
    }
    with brokers_of(tmp_path, "") as brokers:
        for name in "ab":
            brokers.start(name, **settings)
        async with await with_users(brokers.running["b"].address, keys) as client:
            made = await client.admin.users.create("alice", secret_key="secret-of-alice")
            assert [one.broker for one in made.users] == ["a"]
            (rule,) = await client.admin.rules.allow("alice", "Create,Get", "Topic:mine*")
            (quota,) = await client.admin.quotas.set("User:alice", trovemq.Quota(topics_max=1))
            assert (rule.number, quota.subject) == (1, "User:alice")
        alice = trovemq.ClientOptions(access_key="alice", secret_key="secret-of-alice")
        for name, topic in (("b", "mine-1"), ("a", "mine-2")):
            async with await trovemq.connect(brokers.running[name].address, options=alice) as client:
                if name == "b":
                    await client.admin.create_topic(topic)
                for refused, spec in ((topic, errors.LIMIT_EXCEEDED), ("other", errors.ACCESS_DENIED)):
                    with pytest.raises(TroveError) as caught:
                        await client.admin.create_topic(refused + "-more")
                    assert caught.value.spec is spec, name
