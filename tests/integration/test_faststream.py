"""The program of docs/how-to/faststream.md as real workers: they are killed, and are used wrongly.

Its broker of FastStream is NATS. A small server of this test takes its place, and answers the handler's
requests.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

import trovemq
from tests.integration.test_how_to import ADDRESS, PAGES, blocks
from trovemq.testing import BrokerProcess, free_port

pytest.importorskip("faststream", reason="the extra `faststream` is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

WAIT_SECONDS = 240
NATS = "127.0.0.1:4222"
(PAGE,) = (page for page in PAGES if page.stem == "faststream")
PROGRAM, DEPENDENCIES = (block.text for block in blocks(PAGE) if block.kind == "python")


class Shelves:
    """A NATS server whose only service answers when it is opened."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self._answers: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version": "2.11.0", "headers": true, "max_payload": 1048576}\r\n')
        inbox = ""
        while words := (await reader.readline()).decode().split():
            if words[0] == "PING":
                writer.write(b"PONG\r\n")
            elif words[0] == "SUB":
                inbox = words[-1]
            elif words[0] == "HPUB":  # subject, for the answer, size of the headers, size of all
                content = await reader.readexactly(int(words[4]) + len("\r\n"))
                self.asked.append(content[int(words[3]) : -2].decode())
                answer = f"MSG {words[2]} {inbox} 2\r\nA7\r\n"
                self._answers.add(asyncio.create_task(self._answer(writer, answer.encode())))
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        await self.open.wait()
        writer.write(answer)


class Shop:
    """Workers by the page, and the lines that they printed."""

    def __init__(self, directory: Path, broker: str, nats: str) -> None:
        self.directory = directory
        self.nats = nats
        self.program = PROGRAM.replace(ADDRESS, broker).replace(NATS, nats)
        self._output = (directory / "output").open("ab")
        self.workers: list[Process] = []

    async def start(self) -> Process:
        (self.directory / "shop.py").write_text(self.program, encoding="utf-8")
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "shop.py",
            cwd=self.directory,
            stdout=self._output,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.workers.append(worker)
        return worker

    def printed(self) -> str:
        return (self.directory / "output").read_text(encoding="utf-8")

    def packed(self) -> list[str]:
        return [line.split()[1] for line in self.printed().splitlines() if line.startswith("packed ")]

    async def close(self) -> None:
        for worker in self.workers:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
        self._output.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture
def shelves() -> Shelves:
    return Shelves()


@pytest_asyncio.fixture
async def nats(shelves: Shelves) -> AsyncIterator[str]:
    port = free_port()
    server = await asyncio.start_server(shelves.serve, "127.0.0.1", port)
    yield f"127.0.0.1:{port}"
    server.close()


@pytest_asyncio.fixture
async def shop(broker: BrokerProcess, nats: str, tmp_path: Path) -> AsyncIterator[Shop]:
    made = Shop(tmp_path, broker.address, nats)
    yield made
    await made.close()


@asynccontextmanager
async def client_of(broker: BrokerProcess) -> AsyncIterator[trovemq.Client]:
    """With the page's topic, in which all of the group is consumed."""
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic("parcels", exist_ok=True)
        yield client


async def lag(client: trovemq.Client) -> int:
    return sum(one.lag for one in await client.admin.groups.lag("packers", "parcels"))


async def consumed(client: trovemq.Client) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await lag(client):
            await asyncio.sleep(0.05)


async def test_a_killed_worker_loses_nothing(broker: BrokerProcess, shop: Shop, shelves: Shelves) -> None:
    numbers = [str(number) for number in range(20)]
    async with client_of(broker) as client:
        first = await shop.start()
        for number in numbers:
            await client.send("parcels", number.encode())
        await until(lambda: len(shelves.asked) == 2)
        first.send_signal(signal.SIGKILL)
        assert await first.wait() == -signal.SIGKILL
        assert shop.packed() == []
        in_hand = shelves.asked[:2]
        shelves.open.set()
        second = await shop.start()
        await until(lambda: sorted(shop.packed()) == sorted(numbers))
        await consumed(client)
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0
    assert sorted(shelves.asked) == sorted([*numbers, *in_hand]), "those in hand twice, and the others once"
    assert sorted(shop.packed()) == sorted(numbers)


async def test_a_message_without_its_answer_is_delivered_again(
    broker: BrokerProcess, shop: Shop, shelves: Shelves
) -> None:
    async with client_of(broker) as client:
        shop.program = shop.program.replace("timeout=30", "timeout=0.2")
        worker = await shop.start()
        await client.send("parcels", b"late")
        await until(lambda: "TimeoutError" in shop.printed())
        shelves.open.set()
        await until(lambda: shop.packed() == ["late"])
        await consumed(client)
        worker.terminate()
        assert await worker.wait() == 0


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (ADDRESS, "trovemq://{address}?colour=red", "a URL has no option 'colour'; it may have"),
        (ADDRESS, "127.0.0.1:{nothing}", "BROKER_UNREACHABLE"),
        ('handle("parcels"', 'handle("nowhere"', "topic 'nowhere' does not exist here; create it, or"),
    ],
    ids=["wrong URL", "no broker", "missing topic"],
)
async def test_a_worker_that_cannot_start_says_why(
    before: str, after: str, said: str, broker: BrokerProcess, shop: Shop
) -> None:
    words = after.format(address=broker.address, nothing=free_port())
    shop.program = PROGRAM.replace(before, words, 1).replace(ADDRESS, broker.address).replace(NATS, shop.nats)
    worker = await shop.start()
    assert await asyncio.wait_for(worker.wait(), WAIT_SECONDS) == 1
    assert said in shop.printed().splitlines()[-1]


async def test_its_dependencies_work_in_our_handlers(broker: BrokerProcess, shop: Shop) -> None:
    more = DEPENDENCIES.replace('group="printers"', 'group="printers", start="earliest"')
    shop.program = shop.program.replace("app = FastStream", f"{more}\napp = FastStream")
    async with client_of(broker) as client:
        await client.admin.create_topic("labels", exist_ok=True)
        worker = await shop.start()
        await client.send("labels", b"one")
        await until(lambda: "label for one in Ulm" in shop.printed())
        worker.terminate()
        assert await worker.wait() == 0
