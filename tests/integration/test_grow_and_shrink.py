"""A cluster that grows and shrinks: the blocks of the how-to; a broker that is killed, drained, removed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import trovemq
from tests.integration.test_how_to import Reader, command_line, exit_code
from tests.support.event_loop import EventLoop
from trovemq import BrokerRoute, Client, ClusterState, TroveError, errors
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_broker.__main__ import main as broker_main

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/grow-and-shrink.md"


class Operator(Reader):
    """Starts real brokers where the page does, each with its name."""

    nameserver: NameserverProcess

    def command(self, words: list[str]) -> int:
        if words[:2] == ["trovemq", "nameserver"]:
            return 0  # it runs
        if words[:2] == ["trovemq", "server"]:
            name = words[words.index("--name") + 1]
            added = [word for word in words if word.startswith("config_owner=")]
            arguments = [one for word in added for one in ("--set", word)]
            started = BrokerProcess(name=name, nameservers=[self.nameserver], arguments=arguments)
            self.daemons.enter_context(started)
            return exit_code(broker_main, [*words[1:], "--print-config"])
        assert words[0] == "trovemq"
        return command_line(["--server", self.nameserver.address, *words[1:]])


def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    unused: Any = None
    with NameserverProcess() as nameserver, asyncio.Runner(loop_factory=EventLoop) as runner:
        reader = Operator(PAGE, unused, tmp_path, runner, monkeypatch=monkeypatch)
        reader.nameserver = nameserver
        with reader.daemons:
            reader.follow()


async def until(client: Client, condition: Callable[[ClusterState], bool]) -> None:
    routes = client._pool.routes
    assert await routes.wait_until(lambda: condition(routes.state), 30)


def named(state: ClusterState) -> set[str]:
    return {route.broker.name for route in state.brokers}


def of(state: ClusterState, *names: str) -> list[BrokerRoute]:
    return [route for route in state.brokers if route.broker.name in names]


def run(
    printed: pytest.CaptureFixture[bytes], *words: str
) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """Exit code, standard output and standard error of a command line."""
    printed.readouterr()
    code = command_line(["--json", *words])
    shown = printed.readouterr()
    return code, [json.loads(line) for line in shown.out.splitlines()], json.loads(shown.err or b"{}")


async def fill(server: str) -> None:
    """`orders` on both brokers with messages in each queue; `bills` on b1 alone."""
    async with trovemq.connect(server) as client:
        await until(client, lambda state: named(state) == {"b1", "b2"})
        await client.admin.create_topic("orders", queue_count=1, broker="b2")
        made = await client.admin.create_topic("orders", queue_count=1)
        assert (made.existing, {one.broker for one in made}) == (("b2",), {"b1", "b2"})
        await client.admin.create_topic("bills", queue_count=1, broker="b1")
        with pytest.raises(TroveError) as differs:
            await client.admin.create_topic("bills", queue_count=2)
        assert differs.value.spec is errors.TOPIC_SETTINGS_DIFFER
        await client.admin.delete_topic("bills", broker="b2")
        await client.admin.groups.create("billing")
        for broker in ("b1", "b2"):
            await client.send("orders", b"x", keys="k", queue_id=0, broker=broker)
        await client.admin.groups.reset("billing", "orders", to_min=True)


async def look_while_one_is_away(server: str) -> None:
    """b2 was killed, and is lost."""
    async with trovemq.connect(server) as client:
        await until(client, lambda state: {one.name for one in state.lost} == {"b2"})
        admin = client.admin
        for answer in (
            await admin.list_topics(),
            await admin.describe_topic("orders"),
            await admin.statistics(),
            await admin.groups.list_all(),
            await admin.groups.lag("billing"),
            await client.queue_offsets("orders"),
        ):
            assert answer
            assert answer.missing == ("b2",)
        assert (await admin.describe_topic("bills")).missing == (), "b2 did not have it"
        found = await client.query("orders", "k")
        assert (len(found.messages), found.complete, found.unreachable) == (1, False, ("b2",))
        searched = await client.search("orders")
        assert (searched.complete, searched.unreachable) == (False, ("b2",))
        made = await admin.create_topic("later", queue_count=1)
        assert made.pending == ("b2",)
        deleted = await admin.delete_topic("orders")
        assert (list(deleted), deleted.pending) == (["b1"], ("b2",))


async def consume_all(server: str, count: int) -> None:
    async with trovemq.connect(server) as client, client.subscribe("orders", group="billing") as messages:
        for _ in range(count):
            message = await anext(messages)
            await message.ack()


def test_a_broker_that_is_killed_drained_and_removed(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess())
        first, second = (
            processes.enter_context(BrokerProcess(name=name, nameservers=[nameserver]))
            for name in ("b1", "b2")
        )
        server = nameserver.address
        here = ("--server", server)
        asyncio.run(fill(server))
        second.kill()
        asyncio.run(look_while_one_is_away(server))
        code, _, note = run(capsysbinary, *here, "topic", "list")
        assert (code, note["missing"]) == (0, ["b2"])
        code, _, note = run(capsysbinary, *here, "broker", "remove", "b2", "--yes")
        assert (code, note["error"]) == (1, "BROKER_NOT_EMPTY")
        assert "cannot be counted" in note["message"]

        second.start()
        words = ("broker", "remove", "b2", "--yes", "--grace", "0s", "--within", "0s")
        code, _, note = run(capsysbinary, *here, *words)
        assert (code, note["error"]) == (1, "BROKER_NOT_EMPTY")
        kinds = {(one["kind"], one["topic"], one["count"]) for one in note["left"]}
        assert ("topic", "orders", 1) in kinds, "it came back with b2"
        run(capsysbinary, *here, "topic", "create", "orders", "--queues", "1", "--broker", "b1")
        code, _, note = run(capsysbinary, *here, *words)
        assert (code, note["left"]) == (
            1,
            [{"kind": "unconsumed", "count": 1, "topic": "orders", "group": "billing"}],
        )
        states = {one["broker"]: one["state"] for one in run(capsysbinary, *here, "cluster")[1]}
        assert states == {"b1": "serving", "b2": "serving"}, "a refused removal ends its drain"
        asyncio.run(consume_all(server, 1))
        code, shown, _ = run(capsysbinary, *here, *words)
        assert (code, shown) == (0, [{"broker": "b2", "state": "removed", "lost": []}])
        assert second.wait() == 0
        assert [one["broker"] for one in run(capsysbinary, *here, "cluster")[1]] == ["b1"]

        second.start()
        second.kill()
        asyncio.run(lost(server))
        code, shown, _ = run(capsysbinary, *here, "broker", "remove", "b2", "--accept-loss", "--yes")
        assert (code, shown[0]["lost"][0]["kind"]) == (0, "unknown")
        assert [one["broker"] for one in run(capsysbinary, *here, "cluster")[1]] == ["b1"], "it is forgotten"
        assert "missing" not in run(capsysbinary, *here, "topic", "list")[2]
        assert first.running


def test_a_broker_with_dead_letters_could_only_be_removed_with_a_loss(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """They stay where they are when they are sent again, and were counted for ever."""
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess())
        for name in ("b1", "b2"):
            processes.enter_context(BrokerProcess(name=name, nameservers=[nameserver]))
        here = ("--server", nameserver.address)
        words = ("broker", "remove", "b2", "--yes", "--grace", "0s", "--within", "0s")

        async def fail() -> None:
            async with trovemq.connect(nameserver.address) as client:
                await until(client, lambda state: named(state) == {"b1", "b2"})
                await client.admin.create_topic("orders", queue_count=1)
                await client.admin.groups.create("billing")
                for _ in range(2):
                    await client.send("orders", b"x", broker="b2")
                async with client.subscribe("orders", group="billing") as messages:
                    for _ in range(2):
                        await (await anext(messages)).dead_letter("spoilt")

        asyncio.run(fail())
        letters = {"kind": "dead_letters", "topic": "%DLQ%billing", "group": "billing"}
        code, _, note = run(capsysbinary, *here, *words)
        assert (code, note["left"]) == (1, [{**letters, "count": 2}])
        resend = ("dlq", "resend", "billing", "--broker", "b2", "--yes")
        assert run(capsysbinary, *here, *resend, "--offset", "0")[0] == 0
        asyncio.run(consume_all(nameserver.address, 1))
        code, _, note = run(capsysbinary, *here, *words)
        assert (code, note["left"]) == (1, [{**letters, "count": 1}])
        assert run(capsysbinary, *here, *resend, "--all")[0] == 0
        asyncio.run(consume_all(nameserver.address, 1))
        code, shown, _ = run(capsysbinary, *here, *words)
        assert (code, shown) == (0, [{"broker": "b2", "state": "removed", "lost": []}])


def test_a_connected_client_named_a_removed_broker_as_missing(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """It was connected while another one removed the broker."""
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess())
        for name in ("b1", "b2"):
            processes.enter_context(BrokerProcess(name=name, nameservers=[nameserver]))
        words = ("broker", "remove", "b2", "--yes", "--grace", "0s", "--within", "0s", "--accept-loss")

        async def scene() -> None:
            async with trovemq.connect(nameserver.address) as client:
                await until(client, lambda state: named(state) == {"b1", "b2"})
                await client.admin.create_topic("orders", queue_count=1)
                for broker in ("b1", "b2"):
                    await client.send("orders", b"x", keys="k", broker=broker)
                code, shown, _ = await asyncio.to_thread(
                    run, capsysbinary, "--server", nameserver.address, *words
                )
                assert (code, shown[0]["state"]) == (0, "removed")
                await until(client, lambda state: (named(state), state.removed) == ({"b1"}, ("b2",)))
                found = await client.query("orders", "k")
                assert (len(found.messages), found.complete, found.unreachable) == (1, True, ())
                searched = await client.search("orders")
                assert (len(searched.messages), searched.complete, searched.unreachable) == (1, True, ())

        asyncio.run(scene())


async def lost(server: str) -> None:
    async with trovemq.connect(server) as client:
        await until(client, lambda state: {one.name for one in state.lost} == {"b2"})


def test_a_message_in_a_consumers_hand_keeps_its_broker(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """The broker is drained, and would be removed, while a consumer works on its message."""
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess())
        for name in ("b1", "b2"):
            broker = processes.enter_context(BrokerProcess(name=name, nameservers=[nameserver]))
        here = ("--server", nameserver.address)
        words = ("broker", "remove", "b2", "--yes", "--grace", "0s", "--within", "0s")

        def removed() -> tuple[int, Any]:
            code, shown, note = run(capsysbinary, *here, *words)
            return code, note["left"] if code else shown[0]["state"]

        async def scene() -> None:
            async with trovemq.connect(nameserver.address) as client:
                await until(client, lambda state: named(state) == {"b1", "b2"})
                await client.admin.create_topic("orders", queue_count=1)
                await client.admin.groups.create("billing")
                await client.send("orders", b"x", queue_id=0, broker="b2")
                async with client.subscribe("orders", group="billing", start="earliest") as messages:
                    message = await asyncio.wait_for(anext(messages), 60)
                    left = [{"kind": "unconsumed", "count": 1, "topic": "orders", "group": "billing"}]
                    assert await asyncio.to_thread(removed) == (1, left)
                    await client.admin.brokers.drain("b2", grace_ms=0)
                    await until(client, lambda state: any(one.broker.drained for one in of(state, "b2")))
                    receipt = await client.send("orders", b"later")
                    assert receipt.broker == "b1", "no new message goes to b2"
                    await message.ack()
                    (of_b2,) = await client.admin.groups.lag("billing", broker="b2")
                    assert (of_b2.lag, of_b2.in_flight) == (0, 0), "a drained broker takes acknowledgements"
                    assert await asyncio.to_thread(removed) == (0, "removed")
                    other = await asyncio.wait_for(anext(messages), 60)
                    assert (other.body, other.attempt) == (b"later", 1)
                    await other.ack()

        asyncio.run(scene())
        assert broker.wait() == 0
