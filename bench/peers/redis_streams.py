"""Redis streams, append-only file; synced: `appendfsync always`, pipelines of as many as are in flight."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.peers.peer import Command, Peer, package_missing
from bench.peers.task import (
    GROUP_TIMEOUT_S,
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

GROUP = "group"


@asynccontextmanager
async def connected(task: Task) -> AsyncIterator[Any]:
    import redis

    yield redis.Redis(port=int(task.address.rpartition(":")[2]))


class Client:
    """redis-py with hiredis."""

    def make_topic(self, redis: Any, task: Task) -> Answer:
        return {"count": redis.xadd(task.topic, {b"b": b""}) and redis.xtrim(task.topic, maxlen=0)}

    async def one_at_a_time(self, redis: Any, task: Task) -> Answer:
        return await timed(task, lambda number: redis.xadd(task.topic, {b"b": body(number)}))

    def produce(self, redis: Any, task: Task) -> Answer:
        done, watch = 0, Stopwatch(task)
        while done < task.count and not watch.over:
            pipeline = redis.pipeline(transaction=False)
            for number in range(done, done + task.in_flight):
                pipeline.xadd(task.topic, {b"b": body(number)})
            done += len(pipeline.execute())
        return watch.answer(done)

    def consume(self, redis: Any, task: Task) -> Answer:
        got, last, watch = 0, b"0", Stopwatch(task)
        while got < task.count and not watch.over:
            messages = _messages(redis.xread({task.topic: last}, count=1000))
            got, last = got + len(messages), messages[-1][0]
        return watch.answer(got)

    async def live_send(self, redis: Any, task: Task) -> None:
        await paced(task, lambda number: redis.xadd(task.topic, {b"b": stamped(number)}))

    def live_read(self, redis: Any, task: Task) -> Answer:
        last, ages = b"0", list[float]()
        while len(ages) < task.count:
            messages = _messages(redis.xread({task.topic: last}, count=1000, block=5000))
            ages += [age_us(fields[b"b"]) for _, fields in messages]
            last = messages[-1][0]
        return latencies(ages)

    def group(self, redis: Any, task: Task) -> Answer:
        """A round trip acknowledges all ids of the last batch one by one, and takes the next batch."""
        redis.xgroup_create(task.topic, GROUP, id="0")
        got, ids, watch = 0, list[bytes](), Stopwatch(task)
        while True:
            pipeline = redis.pipeline(transaction=False)
            if ids:
                pipeline.xack(task.topic, GROUP, *ids)
            pipeline.xreadgroup(GROUP, "member", {task.topic: ">"}, count=500)
            ids = [number for number, _ in _messages(pipeline.execute()[-1])]
            got += len(ids)
            if not ids:
                return watch.answer(got)


class Copied(Client):
    """Each XADD with a WAIT for all other servers, in one round trip."""

    def make_topic(self, redis: Any, task: Task) -> Answer:
        deadline = time.monotonic() + GROUP_TIMEOUT_S
        while redis.info("replication")["connected_slaves"] < task.copies - 1:
            if time.monotonic() > deadline:
                raise RuntimeError("the other servers do not follow")
            time.sleep(0.2)
        return super().make_topic(redis, task)

    async def one_at_a_time(self, redis: Any, task: Task) -> Answer:
        others = task.copies - 1

        def send(number: int) -> None:
            pipeline = redis.pipeline(transaction=False)
            pipeline.xadd(task.topic, {b"b": body(number)})
            pipeline.execute_command("WAIT", others, 0)
            assert pipeline.execute()[-1] >= others

        return await timed(task, send)


def _messages(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Of the one stream, in both versions of the protocol."""
    if not answer:
        return []
    return list(answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))[0])


CLIENTS = {"redis-py": Client, "redis-py-wait": Copied}


class Redis(Peer):
    """Debian's redis-server."""

    name, module, clients = "Redis streams", "redis_streams", tuple(CLIENTS)

    def missing(self) -> str | None:
        return package_missing("redis") if shutil.which("redis-server") else "redis-server"

    def version(self) -> str:
        text = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        ).stdout
        return "Redis " + text.split("v=")[1].split()[0]

    def command(self, directory: Path, port: int, *, synced: bool) -> Command:
        mode = "always" if synced else "everysec"
        settings = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync {mode} --daemonize no"
        return ["redis-server", *settings.split(), "--save", "", "--dir", directory]


PEER = Redis()
