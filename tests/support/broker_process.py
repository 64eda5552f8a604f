"""A real broker (or any daemon of ours) as a process on free loopback ports, and raw stubs to talk to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import pytest

from tests.support.fork_server import popen
from tests.support.stubs import ADMIN, MESSAGES, QUERIES, ROUTES, stub_of
from trovemq_proto.errors import TroveError, from_wire
from trovemq_proto.v1 import (
    common_pb2,
    message_pb2,
)

ROOT = Path(__file__).resolve().parents[2]
STOP_TIME_MAX_S = 240
LOG_LINES_MAX = 1_000
SMALL_FILES = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=5000",
    "maxIndexNum=20000",
)


class BrokerProcess:
    """A started broker; `address` and `http` are where it listens. `lines`: its log up to its start."""

    def __init__(
        self,
        store: Path,
        settings: Sequence[str] = (),
        arguments: Sequence[str] = (),
        *,
        small_files: bool = True,
    ) -> None:
        sizes = SMALL_FILES if small_files else ()
        options = [f"--set={setting}" for setting in (*sizes, *settings)]
        self.process = popen(
            [
                *(sys.executable, "-m", "trovemq_broker", "--store", str(store), "--log-format", "json"),
                *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
                *options,
                *arguments,
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[dict[str, Any]] = []
        self.address = self.http = ""
        self._later: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._reader = Thread(target=self._read_log, name="broker-log", daemon=True)
        self._wait_until_started()
        self._reader.start()

    def _wait_until_started(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            entry = json.loads(line) if line.startswith("{") else {"event": line}
            self.lines.append(entry)
            if entry["event"] == "broker.started":
                self.address, self.http = entry["listen"], entry["http"]
                return
        self.process.wait(STOP_TIME_MAX_S)

    def _read_log(self) -> None:
        """A broker whose log is not read stands still once the pipe is full."""
        assert self.process.stderr is not None
        self._later.extend(self.process.stderr)

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        try:
            return self.process.wait(STOP_TIME_MAX_S)
        finally:
            self.end()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Drains and stops; the exit code."""
        if self.process.poll() is None:
            self.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """As a power cut to the process: nothing is closed."""
        self.process.kill()
        self.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_TIME_MAX_S)
        self._reader.join()
        if self.process.stderr is not None and not self.process.stderr.closed:
            # shown where a test fails
            print(f"exit code {self.process.returncode}; the log:", *self._later)
            self.process.stderr.close()

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the operations HTTP."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@contextmanager
def running_broker(store: Path, *settings: str, arguments: Sequence[str] = ()) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(store, settings, arguments)
    try:
        assert broker.address, f"the broker did not start: {broker.lines}"
        yield broker
    finally:
        broker.end()


class Stubs:
    """A connection to one server, with every service's stub. Use as an async context manager."""

    def __init__(self, address: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.messages: Any = stub_of(MESSAGES, self.channel)
        self.queries: Any = stub_of(QUERIES, self.channel)
        self.admin: Any = stub_of(ADMIN, self.channel)
        self.routes: Any = stub_of(ROUTES, self.channel)

    async def __aenter__(self) -> Stubs:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.channel.close()


def error_of(failure: grpc.aio.AioRpcError) -> TroveError:
    """The error of our table that a failed call carries."""
    for key, value in failure.trailing_metadata() or ():
        if key == "trovemq-error-bin":
            wire = common_pb2.Error.FromString(value)
            return from_wire(wire.symbol, wire.message, dict(wire.fields))
    pytest.fail(f"no error of ours: {failure}")


async def refused(call: Any) -> TroveError:
    """The error with which a unary call is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value)


async def send_when_there_is_space(stubs: Stubs, request: message_pb2.SendRequest) -> message_pb2.AppendReply:
    """After a disk was full: the broker looks for space every second."""
    async with asyncio.timeout(240):
        while True:
            try:
                reply: message_pb2.AppendReply = await stubs.messages.Send(request)
            except grpc.aio.AioRpcError as failure:
                if error_of(failure).symbol != "DISK_FULL":
                    raise
            else:
                return reply
            await asyncio.sleep(0.05)
