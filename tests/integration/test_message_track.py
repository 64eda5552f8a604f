"""The track of a message: real daemons, the SDK and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import trovemq
from tests.support.command_line import run_here
from trovemq import Client, ConsumptionStatus, GroupSettings, TrackEvent, TroveError, errors
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

START_SECONDS_MAX = 240


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(ready_timeout=START_SECONDS_MAX) as process:
        yield process


@pytest_asyncio.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with trovemq.connect(broker.address) as connected:
        yield connected


def of_group(events: tuple[TrackEvent, ...], group: str) -> list[tuple[str, int]]:
    return [(event.kind, event.attempt) for event in events if event.group == group]


def by_group(statuses: tuple[ConsumptionStatus, ...]) -> dict[str, ConsumptionStatus]:
    return {status.group: status for status in statuses}


async def test_two_groups_a_retry_and_a_dead_letter(client: Client, broker: BrokerProcess) -> None:
    await client.admin.create_topic("tracked", queue_count=1)
    quick = GroupSettings(retry_max=1, backoff_ms=(10,))
    await client.admin.groups.create("failing", quick)
    await client.admin.groups.create("retrying", GroupSettings(retry_max=16, backoff_ms=(10,)))
    async with asyncio.timeout(240):
        async with client.subscribe("tracked", "retrying") as retrying:
            receipt = await client.send("tracked", b"x", keys="k", tag="t")
            message = await anext(retrying)
            in_flight = by_group((await client.track(receipt.message_id)).statuses)["retrying"]
            assert (in_flight.reason, in_flight.consumed, in_flight.attempt) == ("in-flight", False, 1)
            assert in_flight.until > receipt.store_timestamp
            assert (in_flight.online, in_flight.subscribed) == (1, 1)
            await message.nack()
            message = await anext(retrying)
            assert message.attempt == 2
            await message.ack()
            async with client.subscribe("tracked", "failing") as failing:
                for _ in range(2):
                    await (await anext(failing)).nack()
                while any(row.lag for row in await client.admin.groups.lag("failing", "tracked")):
                    await asyncio.sleep(0.05)
    found = await client.track(receipt.offset_msg_id)
    assert found.complete
    assert [copy.role for copy in found.copies] == ["message", "dead-letter"]
    assert (found.copies[0].offset_msg_id, found.copies[0].broker) == (receipt.offset_msg_id, receipt.broker)
    assert [event.kind for event in found.events][:2] == ["produced", "stored"]
    assert of_group(found.events, "retrying") == [
        ("delivered", 1),
        ("returned", 1),
        ("delivered", 2),
        ("acknowledged", 2),
    ]
    *before, last, end = of_group(found.events, "failing")
    assert before == [("delivered", 1), ("returned", 1), ("delivered", 2)]
    assert {last, end} == {("dead-letter-stored", 0), ("dead-lettered", 2)}, "by their times, a tick apart"
    statuses = by_group(found.statuses)
    assert (statuses["retrying"].reason, statuses["retrying"].consumed) == ("acknowledged", True)
    assert (statuses["failing"].reason, statuses["failing"].topic) == ("dead", "%DLQ%failing")
    code, out, err = await asyncio.to_thread(run_here, broker.address, "track", receipt.message_id)
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["type"] for row in rows].count("event") == len(found.events)


async def test_nobody_there_then_not_reached(client: Client) -> None:
    await client.admin.create_topic("lonely", queue_count=1)
    async with client.subscribe("lonely", "gone") as subscription:
        await client.send("lonely", b"first")
        async with asyncio.timeout(240):
            await (await anext(subscription)).ack()
    receipt = await client.send("lonely", b"second")
    (status,) = (await client.track(receipt.message_id, "lonely")).statuses
    assert (status.reason, status.ahead, status.online) == ("no-member", 0, 0)


async def test_an_error_is_never_an_empty_answer(client: Client) -> None:
    for identifier, spec in (
        ("0123456789ABCDEF0123456789ABCDEF", errors.MESSAGE_NOT_FOUND),
        ("two words", errors.MESSAGE_ID_ILLEGAL),
        (("no-such-topic", 0, 0), errors.TOPIC_NOT_FOUND),
    ):
        with pytest.raises(TroveError) as refused:
            await client.track(identifier)
        assert refused.value.spec is spec


async def test_copies_on_two_brokers_are_one_timeline() -> None:
    with NameserverProcess(ready_timeout=START_SECONDS_MAX) as nameserver:
        servers = [nameserver]
        with BrokerProcess(name="one", nameservers=servers), BrokerProcess(name="two", nameservers=servers):
            async with trovemq.connect(nameserver.address, wait_ms=20_000) as client:
                async with asyncio.timeout(240):
                    while len((await client.admin.cluster()).brokers) < 2:
                        await asyncio.sleep(0.05)
                await client.admin.create_topic("wide", queue_count=1)
                for name in ("two", "one"):
                    await client.send("wide", b"x", message_id="same-key", broker=name, queue_id=0)
                found = await client.track("same-key")
    assert [(copy.broker, copy.message) for copy in found.copies] == [("two", 2), ("one", 1)]
    times = [event.timestamp for event in found.events]
    assert times == sorted(times)
    assert {event.broker for event in found.events} == {"one", "two"}
