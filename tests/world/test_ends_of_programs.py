"""Programs that end with unanswered `send_nowait`s: the messages are stored, or the program says how many are
not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from trovemq import sync
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

COUNT = 10
STORED = {
    "in a block of its client": """
from trovemq import sync
with sync.connect(server) as client:
    send_all(client.producer(topic))
""",
    "lingering, in a function that has returned": """
from trovemq import sync
def main():
    send_all(sync.connect(server).producer(topic, linger_ms=600_000))
main()
""",
    "in a process of multiprocessing": """
import multiprocessing
def work():
    from trovemq import sync
    send_all(sync.connect(server).producer(topic))
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
""",
    "in a pool of processes": """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
def work():
    from trovemq import sync
    send_all(sync.connect(server).producer(topic, linger_ms=600_000))
with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
    pool.submit(work).result()
""",
    "after a forked child has ended": """
import os
from trovemq import sync
client = sync.connect(server)
send_all(client.producer(topic, linger_ms=600_000))
child = os.fork()
if not child:
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
""",
    "after a forked child has used a separate client": """
import os
from trovemq import sync
client = sync.connect(server)
send_all(client.producer(topic, linger_ms=600_000))
child = os.fork()
if not child:
    sync.connect(server).admin.describe_topic(topic)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
""",
}
COUNTED = {
    "with a forked child": """
import os
async def main():
    client = await trovemq.connect(server)
    send_all(client.producer(topic))
    child = os.fork()
    if not child:
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
asyncio.run(main())
""",
    "by run": """
async def main():
    client = await trovemq.connect(server)
    send_all(client.producer(topic))
asyncio.run(main())
""",
    "dropped before the process ends": """
async def main():
    client = await trovemq.connect(server)
    send_all(client.producer(topic))
asyncio.run(main())
import gc
gc.collect()
""",
}
HEAD = f"""
import asyncio, sys, warnings, trovemq
warnings.simplefilter("ignore")  # of fork in a process with threads, from Python 3.12 on
server, topic = sys.argv[1:]
def send_all(producer):
    for number in range({COUNT}):
        producer.send_nowait(b"%d" % number)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[sync.Client]:
    with sync.connect(broker.address) as connected:
        yield connected


def run(broker: BrokerProcess, topic: str, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEAD + program, broker.address, topic],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("end", STORED)
def test_messages_of_send_nowait_vanished_when_the_program_ended(
    broker: BrokerProcess, client: sync.Client, end: str
) -> None:
    topic = end.replace(" ", "_").replace(",", "")
    client.admin.create_topic(topic, queue_count=1)
    ran = run(broker, topic, STORED[end])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert client.queue_offsets(topic)[0].max_offset == COUNT


@pytest.mark.parametrize("end", COUNTED)
def test_an_asyncio_program_did_not_say_how_many_messages_it_lost(
    broker: BrokerProcess, client: sync.Client, end: str
) -> None:
    topic = end.replace(" ", "_")
    client.admin.create_topic(topic, queue_count=1)
    ran = run(broker, topic, COUNTED[end])
    missing = COUNT - client.queue_offsets(topic)[0].max_offset
    assert ran.stderr.startswith(f"{missing} messages of topic {topic} had no acknowledgement when"), (
        ran.stderr
    )
    assert ran.stderr.count("\n") == 1, ran.stderr
