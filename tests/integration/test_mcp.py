"""The MCP server on a real broker, through the package's client in memory, and once over standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

import trovemq
from trovemq.mcp import ANSWER_CHARACTERS_MAX, BODY_CHARACTERS_MAX, ITEMS_MAX, Bounded, make_server
from trovemq.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

READS = {
    "cluster", "list_topics", "describe_topic", "list_groups", "group_lag", "query", "get_message", "track",
    "dead_letters",
}  # fmt: skip


@pytest.fixture(scope="module")
def shop() -> Iterator[BrokerProcess]:
    """A broker with 150 orders of one key, a large one, and three dead letters of the group billing."""
    with BrokerProcess() as broker:
        client = broker.client
        client.admin.create_topic("orders", queue_count=1)
        with client.producer("orders") as producer:
            producer.send_batch([b"order %d" % n for n in range(150)], keys=["k"] * 150, tags=["paid"] * 150)
        client.send("orders", b"\xff" + b"x" * 100_000, keys=["large"], properties={"note": "y" * 5_000})
        with client.subscribe("orders", "billing", start="earliest") as messages:
            for _, message in zip(range(3), messages, strict=False):
                message.dead_letter()
        yield broker


@asynccontextmanager
async def agent(broker: BrokerProcess, **options: Any) -> AsyncIterator[Client]:
    async def connect() -> trovemq.Client:
        return await trovemq.connect(broker.address)

    async with Client(make_server(connect, **options)) as client:
        yield client


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    answer: dict[str, Any] = result.structured_content
    return answer


async def test_the_tools_only_read_unless_the_operator_allows_more(shop: BrokerProcess) -> None:
    async with agent(shop) as client:
        listed = (await client.list_tools()).tools
        assert {tool.name for tool in listed} == READS
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in listed)
        assert all(tool.description for tool in listed)
    async with agent(shop, resend=True) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {*READS, "resend_dead_letters"}


async def test_an_agent_finds_a_message_and_why_it_was_not_consumed(shop: BrokerProcess) -> None:
    async with agent(shop) as client:
        (topic,) = (await ask(client, "list_topics", contains="order"))["items"]
        assert (topic["topic"], topic["brokers"]) == ("orders", ["broker-test"])
        assert (await ask(client, "describe_topic", topic="orders"))["items"][0]["queue_count"] == 1
        assert [one["name"] for one in (await ask(client, "cluster"))["items"]] == ["broker-test"]
        assert [one["group"] for one in (await ask(client, "list_groups"))["items"]] == ["billing"]
        lag = await ask(client, "group_lag", group="billing")
        assert lag["total_lag"] == 148
        letters = await ask(client, "dead_letters", group="billing")
        assert [one["body"] for one in letters["items"]] == ["order 0", "order 1", "order 2"]
        (large,) = (await ask(client, "query", topic="orders", key="large"))["items"]
        assert (await ask(client, "get_message", id=large["message_id"]))["items"][0]["queue_offset"] == 150
        again = await ask(client, "query", topic="orders", key=large["message_id"], kind="message_id")
        assert again["items"] == [large]
        track = await ask(client, "track", id=large["message_id"])
        assert track["items"][0]["group"] == "billing"
        assert track["complete"]


async def test_an_agent_that_asks_for_everything_gets_a_part(
    shop: BrokerProcess,
) -> None:
    async with agent(shop) as client:
        found, cursor = [], None
        while True:
            page = await ask(client, "query", topic="orders", key="k", limit=ITEMS_MAX, cursor=cursor)
            assert len(page["items"]) <= ITEMS_MAX
            found += [one["queue_offset"] for one in page["items"]]
            if page["complete"]:
                break
            cursor = page["cursor"]
        assert found == list(range(149, -1, -1))
        first = await ask(client, "dead_letters", group="billing", limit=2)
        assert (first["truncated"], first["next_offset"]) == (True, 2)
        assert "only 2 items" in first["notes"][0]
        rest = await ask(client, "dead_letters", group="billing", offset=2, broker=first["next_broker"])
        assert [one["offset"] for one in rest["items"]] == [2]
        refused = await client.call_tool("query", {"topic": "orders", "key": "k", "limit": 1_000_000})
        assert refused.is_error
        assert "less than or equal to 100" in str(refused.content)


async def test_a_topic_of_many_queues_is_cut(shop: BrokerProcess) -> None:
    shop.client.admin.create_topic("wide", queue_count=400, exist_ok=True)
    async with agent(shop) as client:
        wide = await ask(client, "describe_topic", topic="wide")
    assert [len(one["queues"]) for one in wide["items"]] == [ITEMS_MAX]
    assert (wide["truncated"], wide["notes"]) == (True, ["only the first 100 of 400 queues on broker-test"])
    assert len(json.dumps(wide)) <= ANSWER_CHARACTERS_MAX


async def test_large_and_binary_bodies_are_cut(shop: BrokerProcess) -> None:
    async with agent(shop) as client:
        (large,) = (await ask(client, "query", topic="orders", key="large"))["items"]
        assert large["body"].startswith("\\xffxxx")
        assert (len(large["body"]), large["body_truncated"]) == (BODY_CHARACTERS_MAX, True)
        assert large["body_bytes"] == 100_001
        assert len(large["properties"]["note"]) == BODY_CHARACTERS_MAX + 1
    async with agent(shop, bodies=False) as client:
        (large,) = (await ask(client, "query", topic="orders", key="large"))["items"]
        assert "body" not in large


async def test_an_error_says_what_to_do(shop: BrokerProcess) -> None:
    async with agent(shop, resend=True) as client:
        for tool, arguments, symbol in (
            ("query", {"topic": "no-such", "key": "k"}, "TOPIC_NOT_FOUND"),
            ("query", {"topic": "orders", "key": "k", "cursor": "another"}, "CURSOR_ILLEGAL"),
            ("get_message", {"id": "no such id"}, "MESSAGE_ID_ILLEGAL"),
            ("group_lag", {"group": "no-such"}, "GROUP_NOT_FOUND"),
            ("dead_letters", {"group": "no-such"}, "GROUP_NOT_FOUND"),
            ("resend_dead_letters", {"group": "no-such", "offsets": [0]}, "GROUP_NOT_FOUND"),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert symbol in str(result.content)
            assert getattr(trovemq.errors, symbol).what_to_do in str(result.content)
        result = await client.call_tool("query", {"topic": "orders", "key": "k", "kind": "colour"})
        assert "Input should be 'key', 'message_id' or 'tag'" in str(result.content).replace("\\'", "'")


async def test_dead_letters_are_sent_once(shop: BrokerProcess) -> None:
    async with agent(shop, resend=True) as client:
        first = await ask(client, "resend_dead_letters", group="billing", offsets=[0])
        second = await ask(client, "resend_dead_letters", group="billing", offsets=[0])
    assert (first["items"][0]["topic"], first["items"][0]["again"]) == ("orders", False)
    assert second["items"][0]["again"]


async def test_an_answer_is_never_larger_than_its_bound() -> None:
    found = Bounded(ITEMS_MAX)
    found.add_all("x" * 9_000 for _ in range(ITEMS_MAX))
    answer = found.answer()
    assert answer["truncated"]
    assert len(answer["items"]) == 4
    assert len(json.dumps(answer)) <= ANSWER_CHARACTERS_MAX + 1_000


async def test_the_command_serves_standard_input_and_output(shop: BrokerProcess) -> None:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "trovemq.cli", "--server", shop.address, "mcp"]
    )
    async with Client(stdio_client(command)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READS
        assert (await ask(client, "group_lag", group="billing"))["items"][0]["topic"] == "orders"
