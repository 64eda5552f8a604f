"""Searches of a real broker, by the SDK and by the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any

import pytest
import pytest_asyncio

import trovemq
from deploy.demo.flights import FlightMessage, flight_messages
from tests.support.fork_server import run
from trovemq import Client, TroveError, Where, errors
from trovemq.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

COUNT = 400


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loaded(broker: BrokerProcess) -> list[FlightMessage]:
    """The first flights, in the order in which they were stored."""
    rows = list(islice(flight_messages(), COUNT))
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic("flights", queue_count=4, options={"indexed_properties": "origin"})
        for row in rows:
            await client.send(
                "flights",
                row.body,
                keys=row.keys,
                tag=row.tag,
                properties=row.properties,
                message_id=row.message_id,
                queue_id=row.queue_id % 4,
            )
    return rows


@pytest_asyncio.fixture(loop_scope="module")
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with trovemq.connect(broker.address) as connected:
        yield connected


async def test_everything_that_answers_is_found_in_the_order_of_time(
    client: Client, loaded: list[FlightMessage]
) -> None:
    wanted = [row for row in loaded if any(key.startswith("N14") for key in row.keys)]
    assert 3 < len(wanted) < COUNT
    found = await client.search("flights", key_prefix="N14", newest_first=False, max=COUNT)
    assert [message.unique_key for message in found.messages] == [row.message_id for row in wanted]
    assert (found.complete, found.cursor, found.unreachable) == (True, None, ())
    newest = [message async for message in client.search_all("flights", Where.key_prefix("N14"), page_size=2)]
    assert [message.unique_key for message in newest] == [row.message_id for row in reversed(wanted)]
    assert newest[0].body == wanted[-1].body


async def test_conditions_are_combined(client: Client, loaded: list[FlightMessage]) -> None:
    where = Where.key_prefix("N1") & (Where.tag("UA") | Where.property("origin", "JFK"))
    wanted = {
        row.message_id
        for row in loaded
        if any(key.startswith("N1") for key in row.keys)
        and (row.tag == "UA" or row.properties["origin"] == "JFK")
    }
    found = await client.search("flights", where, max=COUNT)
    assert {message.unique_key for message in found.messages} == wanted
    by_any = await client.search("flights", key=loaded[0].keys[0], tag="HA", match="any", max=COUNT)
    assert {message.unique_key for message in by_any.messages} == {
        row.message_id for row in loaded if loaded[0].keys[0] in row.keys or row.tag == "HA"
    }


async def test_a_cursor_continues_with_its_own_search_alone(
    client: Client, loaded: list[FlightMessage]
) -> None:
    first = await client.search("flights", tag="UA", max=3)
    assert (len(first.messages), first.complete) == (3, False)
    second = await client.search("flights", tag="UA", max=3, cursor=first.cursor)
    tagged = [row.message_id for row in reversed(loaded) if row.tag == "UA"]
    assert [m.unique_key for m in (*first.messages, *second.messages)] == tagged[:6]
    for other in ({"tag": "B6"}, {"tag": "UA", "newest_first": False}, {"key": "UA"}):
        with pytest.raises(TroveError) as refused:
            await client.search("flights", cursor=first.cursor, **other)
        assert refused.value.spec is errors.CURSOR_ILLEGAL


async def test_what_cannot_be_answered_is_an_error_and_never_an_empty_answer(
    client: Client, loaded: list[FlightMessage]
) -> None:
    assert loaded
    for asked, spec in (
        (client.search("nowhere", key="a"), errors.TOPIC_NOT_FOUND),
        (client.search("flights", properties={"dest": "ORD"}), errors.PROPERTY_NOT_INDEXED),
        (client.search("flights", key=""), errors.REQUEST_ILLEGAL),
        (client.search("flights", key="a", max=0), errors.REQUEST_ILLEGAL),
    ):
        with pytest.raises(TroveError) as refused:
            await asked
        assert refused.value.spec is spec
    nothing = await client.search("flights", key="no such key")
    assert (nothing.messages, nothing.complete) == ((), True)


async def test_a_property_declared_later_finds_what_was_there(
    client: Client, loaded: list[FlightMessage]
) -> None:
    await client.admin.create_topic("late", queue_count=1)
    await client.send("late", b"before", properties={"color": "red"})
    await client.admin.alter_topic("late", options={"indexed_properties": "color"})
    await client.send("late", b"after", properties={"color": "red"})
    found = await client.search("late", properties={"color": "red"})
    assert [message.body for message in found.messages] == [b"after", b"before"]


def _command(broker: BrokerProcess, *arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    command = [sys.executable, "-m", "trovemq.cli", "--server", broker.address, "--json", "search", "flights"]
    ran = run([*command, *arguments], check=True)
    return [json.loads(line) for line in ran.stdout.splitlines()], json.loads(ran.stderr)


async def test_the_command_line_says_what_serves_it_and_what_it_took(
    broker: BrokerProcess, loaded: list[FlightMessage]
) -> None:
    wanted = [row.message_id for row in loaded if row.tag == "UA" and "N14228" in row.keys]
    found, said = _command(broker, "--key", "N14228", "--tag", "UA", "--oldest-first")
    assert [one["messageId"] for one in found] == wanted
    assert (said["complete"], said["cursor"], said["notes"]) == (True, None, [])
    parts, said = _command(broker, "--key", "N14228", "--tag", "UA", "--explain")
    assert parts
    assert set(parts[0]) == {"broker", "index", "begin", "end", "entries", "atLeast"}
    page, said = _command(broker, "--message-id-prefix", "flight-", "--max", "5")
    assert (len(page), said["complete"]) == (5, False)
    more, _ = _command(broker, "--message-id-prefix", "flight-", "--max", "5", "--cursor", said["cursor"])
    assert [one["messageId"] for one in page + more] == [row.message_id for row in loaded[-1:-11:-1]]


async def test_searches_are_answered_after_a_kill_as_before(
    broker: BrokerProcess, loaded: list[FlightMessage]
) -> None:
    broker.restart(kill=True)
    async with trovemq.connect(broker.address, wait_ms=10_000) as client:
        found = await client.search("flights", tag="UA", max=COUNT)
        assert [m.unique_key for m in found.messages] == [
            row.message_id for row in reversed(loaded) if row.tag == "UA"
        ]
        counters = (await client.admin.statistics())[0].counters
        assert counters["searches"] == 1
        assert counters["search_entries"] + counters["search_scanned_bytes"] > 0
