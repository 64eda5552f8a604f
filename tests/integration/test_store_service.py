"""Scrub, backup, restore on a real broker that is at work."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import trovemq
from tests.support.command_line import run_here
from trovemq.testing import BrokerProcess
from trovemq_broker.tools.__main__ import app as tools
from trovemq_proto.errors import TroveError

pytestmark = [pytest.mark.slow]

SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 2_000}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(store=tmp_path / "store", backup_root=tmp_path, **SETTINGS) as running:
        yield running


def command(broker: BrokerProcess, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, objects of the answer, standard error."""
    code, out, err = run_here(broker.address, *arguments)
    return code, [json.loads(line) for line in out.splitlines()], err


def tool(*arguments: object) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(tools, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


@asynccontextmanager
async def producing(client: trovemq.Client, acknowledged: dict[str, int]) -> AsyncIterator[None]:
    """Sends without pause; `acknowledged` has the queue offset of each key."""

    async def produce(worker: int) -> None:
        number = 0
        while True:
            key = f"w{worker}-{number}"
            receipt = await client.send("orders", key.encode() * 200, keys=[key, "all"], tag=f"t{number % 3}")
            acknowledged[key] = receipt.queue_offset
            number += 1

    workers = [asyncio.create_task(produce(worker)) for worker in range(8)]
    try:
        yield
        assert not any(worker.done() for worker in workers), "no send fails"
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def until(acknowledged: dict[str, int], count: int) -> None:
    while len(acknowledged) < count:
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_scrub_under_load_finds_nothing(broker: BrokerProcess) -> None:
    acknowledged: dict[str, int] = {}
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic("orders", 4)
        async with producing(client, acknowledged):
            await until(acknowledged, 1_000)
            scrubs = items = 0
            while scrubs < 2 or items < 4 * 1_000:  # two keys, the unique key and the tag of each, soon
                steps = [step async for step in client.admin.store.scrub()]
                last = steps[-1]
                scrubs, items = scrubs + 1, last.items
                assert [found for step in steps for found in step.findings] == []
                assert last.done
                assert (last.damages, last.position) == (0, last.end)
                assert last.records >= 1_000
                assert last.units >= 1_000


@pytest.mark.asyncio
async def test_only_one_scrub_at_a_time_and_closing_stops_it(broker: BrokerProcess) -> None:
    acknowledged: dict[str, int] = {}
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic("orders", 4)
        async with producing(client, acknowledged):
            await until(acknowledged, 1_000)
        slow = client.admin.store.scrub(bytes_per_second=1 << 16)
        await anext(slow)
        with pytest.raises(TroveError, match="a scrub of this store is running"):
            await anext(client.admin.store.scrub())
        await slow.aclose()
        async with asyncio.timeout(240):
            while True:
                try:
                    steps = [step async for step in client.admin.store.scrub()]
                    break
                except TroveError:  # the one before is still ending
                    await asyncio.sleep(0.02)
        assert steps[-1].done


@pytest.mark.asyncio
async def test_a_backup_under_load_has_every_message_acknowledged_before_it(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    acknowledged: dict[str, int] = {}
    target, restored = tmp_path / "backup", tmp_path / "restored"
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic("orders", 4)
        await client.admin.groups.create("billing")
        async with producing(client, acknowledged):
            await until(acknowledged, 1_500)
            before = dict(acknowledged)
            steps = [step async for step in client.admin.store.backup(str(target))]
            assert steps[-1].done
            await until(acknowledged, len(before) + 200)
    code, (summary,) = tool("restore", "--json", target, restored)
    assert (code, summary["commitLogMaxOffset"]) == (0, steps[-1].log_end)
    with BrokerProcess(store=restored, **SETTINGS) as other:
        async with trovemq.connect(other.address) as client:
            found = {}
            for queue_id in range(4):
                async for message in client.pull("orders", queue_id=queue_id):
                    found[message.keys[0]] = message.queue_offset
            assert before.items() <= found.items()
            assert found.items() <= acknowledged.items() | found.items()
            key = next(iter(before))
            assert [m.keys[0] for m in (await client.query("orders", key)).messages] == [key]
            assert [group.group for group in await client.admin.groups.list_all()] == ["billing"]
            steps_of_scrub = [step async for step in client.admin.store.scrub()]
            assert (steps_of_scrub[-1].damages, steps_of_scrub[-1].notes) == (0, 0)
    assert tool("verify", "--json", "--store", restored)[0] == 0


@pytest.mark.asyncio
async def test_a_kill_during_a_backup_leaves_the_store_fine(broker: BrokerProcess, tmp_path: Path) -> None:
    acknowledged: dict[str, int] = {}
    target = tmp_path / "backup"
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic("orders", 4)
        async with producing(client, acknowledged):
            await until(acknowledged, 1_500)
        backup = client.admin.store.backup(str(target), bytes_per_second=1 << 16)
        await anext(backup)
        os.kill(broker.pid, signal.SIGKILL)
        with pytest.raises(TroveError):
            async for _ in backup:
                pass
    broker.stop()
    assert target.exists()
    assert tool("restore", "--json", target, tmp_path / "restored")[0] == 1
    assert not (tmp_path / "restored").exists()
    broker.start()
    async with trovemq.connect(broker.address) as client:
        found = set()
        for queue_id in range(4):
            async for message in client.pull("orders", queue_id=queue_id):
                found.add(message.keys[0])
        assert found >= acknowledged.keys()
        shutil.rmtree(target)
        assert [step async for step in client.admin.store.backup(str(target))][-1].done


@pytest.mark.asyncio
async def test_a_backup_that_is_stopped_leaves_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    acknowledged: dict[str, int] = {}
    target = tmp_path / "backup"
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic("orders", 4)
        async with producing(client, acknowledged):
            await until(acknowledged, 1_500)
        backup = client.admin.store.backup(str(target), bytes_per_second=1 << 16)
        await anext(backup)
        assert target.exists()
        await backup.aclose()
        async with asyncio.timeout(240):
            while target.exists():
                await asyncio.sleep(0.02)
    assert not target.exists()


@pytest.mark.asyncio
async def test_a_broker_that_stops_ends_both_and_closes_cleanly(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    acknowledged: dict[str, int] = {}
    target = tmp_path / "backup"
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic("orders", 4)
        async with producing(client, acknowledged):
            await until(acknowledged, 1_000)
        backup = client.admin.store.backup(str(target), bytes_per_second=1 << 16)
        scrub = client.admin.store.scrub(bytes_per_second=1 << 16)
        await anext(backup)
        await anext(scrub)
        assert await asyncio.to_thread(broker.stop) == 0
        for stopped in (backup, scrub):
            with pytest.raises(TroveError):
                async for _ in stopped:
                    pass
    assert not target.exists()
    _, lines = tool("verify", "--json", "--store", tmp_path / "store")
    assert (lines[-1]["shutdown"], lines[-1]["findings"]) == ("clean", 0)


def test_the_command_line(broker: BrokerProcess, tmp_path: Path) -> None:
    assert command(broker, "topic", "create", "orders")[0] == 0
    for number in range(2):
        assert command(broker, "send", "orders", "body", "--key", f"k{number}")[0] == 0
    code, (summary,), _ = command(broker, "store", "scrub", "--rate", "1000000")
    assert (code, summary["records"] >= 2, summary["damages"]) == (0, True, 0)
    target = tmp_path / "backup"
    code, (answer,), _ = command(broker, "store", "backup", str(target), "--copy")
    assert (code, answer["directory"], answer["linkedFiles"]) == (0, str(target), 0)
    code, answers, error = command(broker, "store", "backup", str(target))
    assert (code, answers, json.loads(error)["error"]) == (1, [], "REQUEST_ILLEGAL")


def test_damage_is_reported_and_ends_with_1(broker: BrokerProcess, tmp_path: Path) -> None:
    command(broker, "topic", "create", "orders", "--queues", "1")
    for number in range(3):
        command(broker, "send", "orders", "body", "--key", f"k{number}")
    segment = tmp_path / "store" / "commitlog" / f"{0:020d}"
    at = segment.read_bytes().index(b"body")
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"BODY")
    code, answers, _ = command(broker, "store", "scrub")
    assert code == 1
    assert answers[-1]["damages"] == 1
    damage = [answer for answer in answers[:-1] if not answer["note"]]
    assert [(each["file"], 0 < at - each["offset"] < 200) for each in damage] == [
        (f"commitlog/{0:020d}", True)
    ]
