"""`topic spread` of a FIFO topic whose command, owner of the configuration or broker is killed in each of its
steps: the command is repeated, and the topic is open, complete and in order."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import trovemq
from tests.integration.test_grow_and_shrink import named, until
from tests.support.loop_time import slowness
from tests.support.trials import SOAK
from trovemq import Client, GroupSettings, TroveError, errors
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = pytest.mark.slow

BROKERS = ("b1", "b2", "b3")
STEPS = ("closing", "waiting", "moving", "settling")
GROUPS = [f"g{number}" for number in range(6)]
PRODUCERS = ("p", "q")
KILLS = [(victim, step) for victim in ("command", "b1", "b2") for step in STEPS]
"""b1 owns the configuration; it and b2 have the topic before."""
IN_DOUBT = (errors.BROKER_UNREACHABLE, errors.REQUEST_TIMEOUT)
UNSETTLED = (*IN_DOUBT, errors.RECEIPT_HANDLE_ILLEGAL)
"""Of an acknowledgement: the message is delivered again. A killed broker has lost a lease that was not in its
log yet."""
WAIT_S = 120
"""On the reference machine, where a step takes a few seconds."""
PART = [("command", "waiting"), ("command", "moving"), ("b1", "settling")]


@pytest.fixture
def cluster() -> Iterator[tuple[str, dict[str, BrokerProcess]]]:
    """A nameserver's address, and three brokers; b1 owns the configuration."""
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess())
        brokers = {
            name: processes.enter_context(
                BrokerProcess(name=name, nameservers=[nameserver], config_owner="b1")
            )
            for name in BROKERS
        }
        yield nameserver.address, brokers


class Ledger:
    """Two producers, each of which sends to every message group, and a consumer group of two members. A task
    that fails ends the scene."""

    def __init__(self, server: str, client: Client, running: asyncio.TaskGroup) -> None:
        self._server = server
        self._client = client
        self._running = running
        self.sent: dict[tuple[str, str], int] = defaultdict(int)
        self.received: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.receives = asyncio.Event()
        self._stopping = False
        self._members: list[asyncio.Task[None]] = []
        self._senders: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self.receives.set()
        self._senders = [
            self._running.create_task(self._send(name, group)) for name in PRODUCERS for group in GROUPS
        ]
        self._members = [self._running.create_task(self._receive()) for _ in range(2)]

    async def _send(self, name: str, group: str) -> None:
        while not self._stopping:
            body = f"{name} {group} {self.sent[name, group]}".encode()
            try:
                await self._client.send("steps", body, message_group=group)
            except TroveError as error:
                if error.spec not in IN_DOUBT:
                    raise  # a closed topic and a broker that is away are waited for
                continue  # it may be stored: so it is sent again, and received once or twice
            self.sent[name, group] += 1
            await asyncio.sleep(0.02)

    async def _receive(self) -> None:
        async with (
            trovemq.connect(self._server) as client,
            client.subscribe("steps", group="workers", start="earliest") as messages,
        ):
            async for message in messages:
                await self.receives.wait()
                name, group, number = message.body.decode().split()
                self.received[name, group].append(int(number))
                try:
                    await message.ack()
                except TroveError as error:
                    if error.spec not in UNSETTLED:
                        raise

    async def check(self) -> None:
        """Ends the producers; every message is received, in the order of each producer and group."""
        self._stopping = True
        async with waiting():
            await asyncio.gather(*self._senders)
        async with waiting():
            while any(len(set(self.received[key])) < count for key, count in self.sent.items()):
                await asyncio.sleep(0.05)
        for key, count in self.sent.items():
            firsts = list(dict.fromkeys(self.received[key]))
            assert firsts == list(range(count)), f"{key}: lost, or in another order"
        for task in self._members:
            task.cancel()


def waiting() -> asyncio.Timeout:
    """The bound of a wait: only a scene that hangs meets it."""
    return asyncio.timeout(WAIT_S * slowness())


async def command(server: str, *brokers: str) -> Process:
    words = ["topic", "spread", "steps", "--brokers", ",".join(brokers), "--settle", "1s"]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trovemq.cli", "--server", server, "--json", *words, stdout=PIPE, stderr=DEVNULL
    )


async def states(process: Process) -> list[str]:
    """All further states; the process has ended."""
    assert process.stdout is not None
    found = [json.loads(line)["state"] async for line in process.stdout]
    await process.wait()
    return found


async def reached(process: Process, step: str) -> bool:
    """Reads until the state is shown; False if the process ended without it."""
    assert process.stdout is not None
    async for line in process.stdout:
        if json.loads(line)["state"] == step:
            return True
    return False


async def scene(server: str, brokers: dict[str, BrokerProcess], victim: str, step: str) -> None:
    async with trovemq.connect(server) as client, asyncio.TaskGroup() as running:
        await until(
            client,
            lambda state: named(state) == set(BROKERS) and all(one.broker.config for one in state.brokers),
        )
        await client.admin.create_topic("steps", queue_count=2, message_type="FIFO", brokers=["b1", "b2"])
        await client.admin.groups.create("workers", GroupSettings(orderly=True))
        await until(client, lambda _: len(client._pool.routes.ordered_slots("steps")) == 4)
        ledger = Ledger(server, client, running)
        ledger.begin()
        await asyncio.sleep(0.5)
        if step == "waiting":
            ledger.receives.clear()
        if step == "moving":
            await asyncio.to_thread(brokers["b3"].kill)
        process = await command(server, "b2", "b3")
        async with waiting():
            assert await reached(process, step)
        if victim == "command":
            process.kill()
            await states(process)
        else:
            await asyncio.to_thread(brokers[victim].kill)
        ledger.receives.set()
        if victim != "command":
            await asyncio.sleep(0.5)
            await asyncio.to_thread(brokers[victim].start)
        if step == "moving":
            await asyncio.to_thread(brokers["b3"].start)
        async with waiting():
            ended = await states(process)
        again = await command(server, "b2", "b3")
        async with waiting():
            last = await states(again)
        assert (again.returncode, last[-1:]) == (0, ["done"]), f"the first one: {ended}"
        await asyncio.sleep(0.5)
        await ledger.check()
        described = await client.admin.describe_topic("steps")
        assert {one.broker for one in described} == set(BROKERS)
        assert all(one.placement == {"b2": 2, "b3": 2} and not one.options for one in described)


@pytest.mark.parametrize(("victim", "step"), KILLS if SOAK else PART)
def test_a_kill_in_a_step_of_a_spread(
    cluster: tuple[str, dict[str, BrokerProcess]], victim: str, step: str
) -> None:
    asyncio.run(scene(*cluster, victim, step))
