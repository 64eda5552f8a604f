"""Requests and replies over two brokers: who gets which reply, times, repeats, misuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

import trovemq
import trovemq.sync
from trovemq import ReceivedMessage, errors
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

WAIT_SECONDS = 120
TOPICS = count(1)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a nameserver with two brokers."""
    with NameserverProcess() as nameserver:
        servers = [nameserver]
        with (
            BrokerProcess(nameservers=servers, name="a"),
            BrokerProcess(nameservers=servers, name="b"),
        ):
            yield nameserver.address


@pytest.fixture
def topic(address: str) -> str:
    name = f"prices-{next(TOPICS)}"
    with trovemq.sync.connect(address) as client:
        client.admin.create_topic(name, queue_count=1)
    return name


Respond = Callable[[trovemq.Client, ReceivedMessage], Awaitable[object]]


@asynccontextmanager
async def responder(address: str, topic: str, respond: Respond) -> AsyncIterator[None]:
    async with trovemq.connect(address) as client:

        async def work(message: ReceivedMessage) -> None:
            await respond(client, message)

        working = asyncio.create_task(client.consume(topic, "sellers", work, start="earliest"))
        try:
            yield
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def in_capitals(client: trovemq.Client, message: ReceivedMessage) -> None:
    await client.reply(message, message.body.upper(), properties={"kind": "loud"})


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_each_client_gets_the_replies_to_its_requests(address: str, topic: str) -> None:
    async with (
        responder(address, topic, in_capitals),
        trovemq.connect(address) as one,
        trovemq.connect(address) as two,
    ):
        asked = [
            client.request(topic, f"{name} {number}".encode(), timeout=WAIT_SECONDS)
            for number in range(20)
            for name, client in (("one", one), ("two", two))
        ]
        replies = await asyncio.gather(*asked)
        assert [reply.body.decode() for reply in replies] == [
            f"{name} {number}" for number in range(20) for name in ("ONE", "TWO")
        ]
        assert replies[0].properties == {"kind": "loud"}
        assert {reply.broker for reply in replies} == {"a", "b"}
        assert one.reply_counts == two.reply_counts == trovemq.ReplyCounts(0, 0, 0)
        topics = {found.topic for found in await one.admin.list_topics()}
        assert {name for name in topics if "repl" in name} == {"trovemq-replies"}


async def test_without_a_reply_the_error_says_what_to_do(address: str, topic: str) -> None:
    async with trovemq.connect(address) as client:
        with pytest.raises(trovemq.TroveError, match=r"client\.reply\(message, …\)") as raised:
            await client.request(topic, b"apples", timeout=3)
        assert raised.value.spec is errors.REQUEST_TIMEOUT
        assert client.reply_counts.waiting == 0
        with pytest.raises(trovemq.TroveError, match="TOPIC_NOT_FOUND"):
            await client.request("no-such-topic", b"apples", timeout=WAIT_SECONDS)
        with pytest.raises(trovemq.TroveError, match="REQUEST_ILLEGAL"):
            await client.request(topic, b"apples", timeout=0)


async def test_late_and_double_replies_are_dropped_and_counted(address: str, topic: str) -> None:
    proceed = asyncio.Event()

    async def twice(client: trovemq.Client, message: ReceivedMessage) -> None:
        if message.body == b"slow":
            await proceed.wait()
        await client.reply(message, b"first")
        await client.reply(message, b"second")

    async with responder(address, topic, twice), trovemq.connect(address) as client:
        assert (await client.request(topic, b"fast", timeout=WAIT_SECONDS)).body == b"first"
        await until(lambda: client.reply_counts.double == 1)
        with pytest.raises(trovemq.TroveError, match="REQUEST_TIMEOUT"):
            await client.request(topic, b"slow", timeout=3)
        proceed.set()
        await until(lambda: client.reply_counts.late == 2)
        assert client.reply_counts.waiting == 0


async def test_a_client_that_is_closed_ends_its_requests(address: str, topic: str) -> None:
    client = await trovemq.connect(address)
    asked = asyncio.create_task(client.request(topic, b"apples", timeout=WAIT_SECONDS))
    await until(lambda: client.reply_counts.waiting)
    await client.close()
    with pytest.raises(trovemq.TroveError, match="CLIENT_CLOSED"):
        await asked


async def test_a_message_that_is_no_request_cannot_be_replied_to(address: str, topic: str) -> None:
    async with trovemq.connect(address) as client:
        await client.send(topic, b"plain")
        async with client.subscribe(topic, "sellers", start="earliest") as messages:
            async for message in messages:
                with pytest.raises(trovemq.TroveError, match=r"did not use client\.request"):
                    await client.reply(message, b"?")
                await message.ack()
                break


async def test_threads_ask_and_answer(address: str, topic: str) -> None:
    async with responder(address, topic, in_capitals):

        def ask() -> bytes:
            with trovemq.sync.connect(address) as client:
                reply = client.request(topic, b"apples", timeout=WAIT_SECONDS, keys=["k1"])
                assert client.reply_counts.waiting == 0
                return bytes(reply.body)

        assert await asyncio.to_thread(ask) == b"APPLES"
