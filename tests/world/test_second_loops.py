"""A client that is called in another event loop than its own: each call raises at once one error that names
the rule, and `close` works."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import trovemq
from tests.support.event_loop import EventLoop
from trovemq import Client, GroupSettings, TroveError, errors
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

ARGUMENTS: dict[str, Any] = {
    "id": "7F000001DA0018B4AAC20A2F3F8A0000",
    "topic": "orders",
    "name": "orders",
    "group": "g",
    "key": "k",
    "body": b"1",
    "bodies": [b"1", b"2"],
    "brokers": ["broker-a"],
    "queue_id": 0,
    "queue_offset": 0,
    "offset": 0,
    "offsets": [0],
    "timestamp": 0,
    "start": "latest",
    "handler": print,
    "concurrency": 1,
    "count_max": 1,
    "wait": 0.01,
    "duration": 10.0,
    "recall_handle": "x",
    "producer_id": "p",
    "settings": GroupSettings(),
    "client_id": "c",
    "directory": "/nowhere",
    "access_key": "user",
    "actions": ["Pub"],
    "action": "Pub",
    "resource": "Topic:orders",
    "number": 1,
}
Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, Loop] = {"asyncio": asyncio.new_event_loop, "uvloop": EventLoop}
OTHERWISE = {
    "Client.close",  # it works
    "Client.biography",  # the former name of another one
    "Admin.adopt_topics",  # no broker here shares a configuration, which it says before any call
}
AT_ONCE_S = 5.0  # a time-out would be a minute


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with BrokerProcess() as process:
        yield process.address


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Loop:
    return LOOPS[request.param]


class Scene:
    """A client that was used in its loop, and its parts."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def use(self) -> None:
        client = self.client
        await client.admin.create_topic("orders", queue_count=1, exist_ok=True)
        await client.admin.create_topic("halves", message_type="TRANSACTION", exist_ok=True)
        await client.send("orders", b"1")
        self.producer = client.producer("orders")
        await self.producer.send(b"2")
        self.subscription = client.subscribe("orders", "g", start="earliest")
        await self.subscription.__aenter__()
        self.received = await anext(self.subscription)
        self.pulled = await anext(client.pull("orders"))
        self.atomic = client.transaction()
        await self.atomic.send("orders", b"3")
        self.batch = trovemq.ReceivedBatch([self.received])
        self.halves = client.producer("halves").transaction()

    def parts(self) -> list[Any]:
        admin = self.client.admin
        users = admin.users
        calls = [self.client, admin, admin.groups, admin.store, users, admin.rules]
        return [*calls, self.producer, self.subscription, self.received, self.batch, self.atomic, self.halves]

    def calls(self) -> Iterator[tuple[str, Any]]:
        """Each public coroutine, called."""
        for part in self.parts():
            for name in dir(part):
                method = getattr(type(part), name, None)
                path = f"{type(part).__name__}.{name}"
                waits = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
                if waits and not name.startswith("_") and path not in OTHERWISE:
                    yield path, getattr(part, name)(**self.arguments(method))
        yield "send_nowait", self.at_once(lambda: self.producer.send_nowait(b"4"))
        yield "send_oneway", self.at_once(lambda: self.producer.send_oneway(b"5"))
        yield "iteration", self.at_once(lambda: aiter(self.subscription))
        yield "subscribe", self.client.subscribe("orders", "other").__aenter__()

    async def at_once(self, call: Callable[[], object]) -> None:
        call()

    def arguments(self, method: Any) -> dict[str, Any]:
        needed = [
            one.name
            for one in inspect.signature(method).parameters.values()
            if one.default is one.empty and one.name != "self" and one.kind is not one.VAR_KEYWORD
        ]
        arguments = {name: self.pulled if name == "message" else ARGUMENTS[name] for name in needed}
        if "reset" in method.__name__:
            arguments["to_min"] = True
        return arguments

    async def failures(self) -> dict[str, str]:
        """The calls that did something else than raise that error at once."""
        found = {}
        for path, call in self.calls():
            try:
                async with asyncio.timeout(AT_ONCE_S):
                    await (anext(call) if isinstance(call, AsyncIterator) else call)
                found[path] = "no error"
            except TroveError as error:
                if error.spec is not errors.EVENT_LOOP_ILLEGAL:
                    found[path] = str(error)
            except Exception as error:
                found[path] = repr(error)
        return found


async def opened(server: str) -> Scene:
    scene = Scene(await trovemq.connect(server))
    await scene.use()
    return scene


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the first loop ends with open connections
def test_a_send_in_a_second_loop_hung_past_every_time_out(server: str, loop: Loop) -> None:
    with asyncio.Runner(loop_factory=loop) as first:
        scene = first.run(opened(server))
    with asyncio.Runner(loop_factory=loop) as second:
        assert second.run(scene.failures()) == {}
        second.run(scene.client.close())
        second.run(scene.client.close())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_client_of_a_loop_that_stands_still(server: str) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        scene = first.run(opened(server))
        assert second.run(scene.failures()) == {}
        first.run(scene.client.close())


def test_a_client_is_closed_from_another_thread(server: str, loop: Loop) -> None:
    first = loop()
    thread = threading.Thread(target=first.run_forever)
    thread.start()
    try:
        scene = asyncio.run_coroutine_threadsafe(opened(server), first).result(60)
        with asyncio.Runner(loop_factory=loop) as second:
            assert second.run(scene.failures()) == {}
            sent = asyncio.run_coroutine_threadsafe(scene.client.send("orders", b"6"), first)
            assert sent.result(60).status == "PUT_OK", "the client works in its own loop"
            second.run(scene.client.close())
            assert second.run(closed(scene.client)) is errors.CLIENT_CLOSED
        assert (
            asyncio.run_coroutine_threadsafe(closed(scene.client), first).result(60) is errors.CLIENT_CLOSED
        )
    finally:
        first.call_soon_threadsafe(first.stop)
        thread.join()
        first.close()


async def closed(client: Client) -> object:
    try:
        await client.send("orders", b"7")
    except TroveError as error:
        return error.spec
    return None
