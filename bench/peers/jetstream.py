"""NATS JetStream, file storage; synced: `sync_interval: always`, which NATS 2.10 and newer know."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.peers.peer import HOME, Command, Peer, package_missing
from bench.peers.task import (
    GROUP_TIMEOUT_S,
    LIVE_TIMEOUT_S,
    Answer,
    Stopwatch,
    Task,
    age_us,
    body,
    latencies,
    paced,
    stamped,
    timed,
)

SYNCS_SINCE = (2, 10)
PLACES = f"{HOME}/bin:/usr/sbin:/usr/bin"


@asynccontextmanager
async def connected(task: Task) -> AsyncIterator[Any]:
    import nats

    connection = await nats.connect(f"nats://{task.address}")
    yield connection.jetstream(
        timeout=30, publish_async_max_pending=max(task.in_flight, 4_000 if task.rate else 1)
    )
    await connection.close()


class Client:
    """nats-py."""

    async def make_topic(self, stream: Any, task: Task) -> Answer:
        """Several servers need some seconds until they have elected who places the copies."""
        import nats.js.errors

        deadline = time.monotonic() + GROUP_TIMEOUT_S
        while True:
            try:
                await stream.add_stream(
                    name=task.topic, subjects=[_subject(task)], storage="file", num_replicas=task.copies
                )
            except (TimeoutError, nats.js.errors.Error):
                if task.copies == 1 or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
            else:
                return {"count": 1}

    async def one_at_a_time(self, stream: Any, task: Task) -> Answer:
        return await timed(task, lambda number: stream.publish(_subject(task), body(number)))

    async def produce(self, stream: Any, task: Task) -> Answer:
        done, watch = 0, Stopwatch(task)
        while done < task.count and not watch.over:
            await stream.publish_async(_subject(task), body(done))
            done += 1
        await stream.publish_async_completed()
        return watch.answer(done)

    async def consume(self, stream: Any, task: Task) -> Answer:
        watch = Stopwatch(task)
        return watch.answer(await _read(stream, task, lambda _data: None, task.seconds))

    async def live_send(self, stream: Any, task: Task) -> None:
        await paced(task, lambda number: stream.publish_async(_subject(task), stamped(number)))
        await stream.publish_async_completed()

    async def live_read(self, stream: Any, task: Task) -> Answer:
        ages = list[float]()
        await _read(stream, task, lambda data: ages.append(age_us(data)), task.seconds + LIVE_TIMEOUT_S)
        return latencies(ages)

    async def group(self, stream: Any, task: Task) -> Answer:
        """A durable consumer: 500 at a time, each acknowledged; until the server has none unacknowledged."""
        consumer = await stream.pull_subscribe(_subject(task), durable="group", stream=task.topic)
        got, watch = 0, Stopwatch(task)
        while got < task.count:
            messages = await consumer.fetch(min(500, task.count - got))
            got += len(messages)
            for message in messages:
                await message.ack()
        while (await consumer.consumer_info()).num_ack_pending:
            pass
        return watch.answer(got)


async def _read(stream: Any, task: Task, take: Callable[[bytes], None], seconds: float) -> int:
    """How many messages came in that time, at most `task.count`."""
    got, complete = 0, asyncio.Event()

    async def on_message(message: Any) -> None:
        nonlocal got
        take(message.data)
        got += 1
        if got >= task.count:
            complete.set()

    await stream.subscribe(_subject(task), stream=task.topic, ordered_consumer=True, cb=on_message)
    try:
        await asyncio.wait_for(complete.wait(), seconds)
    except TimeoutError:
        pass
    return got


def _subject(task: Task) -> str:
    return f"{task.topic}.all"


CLIENTS = {"nats-py": Client}


class JetStream(Peer):
    """`$PEERS/bin/nats-server` where there is one, or Debian's."""

    name, module, clients = "NATS JetStream", "jetstream", tuple(CLIENTS)

    def __init__(self) -> None:
        self.program = shutil.which("nats-server", path=PLACES) or ""
        numbers = self.version().rpartition("v")[2].split(".")[:2] if self.program else ()
        self.syncs = tuple(map(int, numbers)) >= SYNCS_SINCE

    def missing(self) -> str | None:
        return package_missing("nats") if self.program else "nats-server"

    def version(self) -> str:
        text = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True).stdout
        return text.strip().replace("nats-server:", "NATS")

    def command(self, directory: Path, port: int, *, synced: bool) -> Command:
        configuration = directory / "nats.conf"
        always = ", sync_interval: always" if synced else ""
        configuration.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{directory}/jetstream", max_file_store: 20GB{always} }}\n'
        )
        return [self.program, "-c", configuration]


PEER = JetStream()
