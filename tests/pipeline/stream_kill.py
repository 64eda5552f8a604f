"""For tests of the job `stream`: a producer that continues sending, and drivers that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trovemq import connect

ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "kept"
QUEUES: Final = 3
WATCHED: Final = ("_checkpoint/offsets", "_files", "_manifest", "_checkpoint/commits")
"""Where something new is to be seen at each step of a batch: planned, written, committed, done."""
_WAIT_MS: Final = 60_000
_PACE_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.01
_TIME_MAX_SECONDS: Final = 300.0

Place = tuple[int, int, bytes]


class Producer:
    """Sends small batches to random queues until the block ends; `acknowledged`: (queue, offset, body)."""

    def __init__(self, address: str, seed: int) -> None:
        self.acknowledged: list[Place] = []
        self._address = address
        self._source = random.Random(seed)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._send_on())
        except BaseException as error:
            self._failure = error

    async def _send_on(self) -> None:
        async with connect(self._address, wait_ms=_WAIT_MS) as client, client.producer(TOPIC) as producer:
            while not self._stop.is_set():
                queue = self._source.randrange(QUEUES)
                bodies = [self._source.randbytes(20) for _ in range(self._source.randint(1, 40))]
                receipt = await producer.send_batch(bodies, queue_id=queue)
                self.acknowledged += [
                    (queue, one.queue_offset, body) for one, body in zip(receipt, bodies, strict=True)
                ]
                await asyncio.sleep(_PACE_SECONDS)


class Driver:
    """`trovemq-pipeline stream` in a separate process. scratch: for Spark's files that stay when it is
    killed."""

    def __init__(self, scratch: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trovemq_spark.cli", "stream", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"SPARK_LOCAL_DIRS": str(scratch)},
        )

    def wait_for_new(self, directory: Path, count: int) -> None:
        """Until `count` names more than now are there."""
        known = _names(directory)
        timer = threading.Event()
        for _ in range(int(_TIME_MAX_SECONDS / _LOOK_SECONDS)):
            if len(_names(directory) - known) >= count:
                return
            assert self._process.poll() is None, self._process.communicate()
            timer.wait(_LOOK_SECONDS)
        raise AssertionError(f"{directory}: no {count} new names in {_TIME_MAX_SECONDS} s")

    def kill(self, *, java_first: bool) -> None:
        """kill -9, of Python alone or of its Java before it; ends when both are gone."""
        children = _children(self._process.pid)
        if java_first:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()
        for pid in children:  # it ends without its Python; the next driver must not meet it
            _wait_gone(pid)

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill(java_first=True)


def _names(directory: Path) -> set[str]:
    with suppress(FileNotFoundError):
        return {entry.name for entry in os.scandir(directory) if not entry.name.startswith(".")}
    return set()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _wait_gone(pid: int) -> None:
    timer = threading.Event()
    for _ in range(int(_TIME_MAX_SECONDS / _LOOK_SECONDS)):
        if not _runs(pid):
            return
        timer.wait(_LOOK_SECONDS)
    os.kill(pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
