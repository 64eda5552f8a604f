"""Real daemons for tests, and a pytest fixture that starts a broker in a temporary directory.

`BrokerProcess` and `NameserverProcess` start a broker and a nameserver, as `trovemq server` does, on free
loopback ports and stop them by their own process id. They are synchronous and need neither pytest
nor an event loop:

    with NameserverProcess() as nameserver, BrokerProcess(nameservers=[nameserver]) as broker:
        ...  # trovemq.connect(nameserver.address)

As a pytest plug-in (loaded automatically if the distribution is installed) it provides the fixtures
`trovemq_broker` (a broker without topics and groups for each test) and `trovemq_client`:

    async def test_an_order_is_billed(trovemq_broker):
        async with trovemq.connect(trovemq_broker.address) as client:
            ...

`broker(faults=…)` tests a program with duplicates, delays and redeliveries. Needs the daemons: `pip install
trovemq[testing]`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest

from trovemq._common.loopback_ports import LOOPBACK, kept_port, port_of

if TYPE_CHECKING:  # imported when they are first needed: the plug-in is loaded by every run of pytest
    from trovemq import sync
    from trovemq.faults import Faults

READY_POLL_SECONDS = 0.02
REGISTERED_SECONDS_MAX = 10.0
EMPTIED_TOGETHER_MAX = 8
# Small files make a start cheap. Neither the store's age nor the machine's disk removes or refuses anything,
# and no acknowledgement fails because a busy machine syncs slowly.
# Every setting can be overridden.
BROKER_TEST_SETTINGS: Mapping[str, object] = {
    "fileReservedTime": 876_000,
    "disk_warning_percent": 100,
    "cleanFileForciblyEnable": "false",
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 30_000,
    "maxHashSlotNum": 20_000,
    "maxIndexNum": 80_000,
    "syncFlushTimeout": 60_000,
}


def free_port() -> int:
    """A loopback TCP port that was free a moment ago. Linux does not use it for outgoing connections, so it
    stays free while its daemon restarts."""
    with kept_port() as kept:
        return port_of(kept)


class DaemonProcess:
    """One daemon as a child process. Its ports, and so its addresses, stay the same over restarts.

    Args:
        module: The argument of `python -m`.
        arguments: Further command-line arguments.
        environment: Variables added to this process's own.
        port: gRPC port; a free one by default.
        http_port: Port of /readyz; a free one by default.
        ready_timeout: Seconds that a start may take.
    """

    _popen: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen
    """Starts the process. Our own tests fork it from a process that has done the imports."""

    def __init__(
        self,
        module: str,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        http_port: int | None = None,
        ready_timeout: float = 60.0,
    ) -> None:
        self.module = module
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self._kept: list[socket.socket] = []
        self.port = port or self._keep_port()
        self.http_port = http_port or self._keep_port()
        self.ready_timeout = ready_timeout
        self.process: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix=f"{module}-")
        self.log_path = Path(self._directory.name) / "log"

    def _keep_port(self) -> int:
        self._kept.append(kept_port())
        return port_of(self._kept[-1])

    @property
    def address(self) -> str:
        """HOST:PORT of the gRPC services."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def http_address(self) -> str:
        """HOST:PORT of /readyz, /healthz and /metrics."""
        return f"{LOOPBACK}:{self.http_port}"

    @property
    def pid(self) -> int:
        """The running daemon's process id. Raises RuntimeError if it does not run."""
        if self.process is None:
            raise RuntimeError(f"{self.module} was not started")
        return self.process.pid

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self.process is not None and self.process.poll() is None

    def command(self) -> list[str]:
        """The whole command line."""
        addresses = ["--listen", self.address, "--http", self.http_address]
        # -P: nothing in the directory of the tests is imported.
        return [sys.executable, "-P", "-m", self.module, *addresses, *self.arguments]

    def log(self) -> str:
        """The daemon's output so far, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self, *, wait: bool = True) -> Self:
        """Starts the daemon and waits until it is ready (unless `wait` is False)."""
        if self.running:
            raise RuntimeError(f"{self.module} runs already as {self.pid}")
        with self.log_path.open("ab") as log:
            self.process = self._popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        if wait:
            self.wait_ready()
        return self

    def ready(self) -> bool:
        """Whether /readyz answers 200 now."""
        return self._readyz()[0] == 200

    def _readyz(self) -> tuple[int, bytes]:
        """The status and body of /readyz; 0 if there is no answer."""
        connection = http.client.HTTPConnection(LOOPBACK, self.http_port, timeout=1.0)
        try:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def wait_ready(self) -> None:
        """Returns once /readyz answers 200.

        Raises:
            RuntimeError: The daemon ended, or was not ready in time; the message has its log.
        """
        deadline = time.monotonic() + self.ready_timeout
        while not self.ready():
            if not self.running:
                code = self.process.returncode if self.process else None
                raise RuntimeError(f"{self.module} ended with exit code {code}:\n{self.log()}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.module} was not ready in {self.ready_timeout} s:\n{self.log()}")
            time.sleep(READY_POLL_SECONDS)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to this daemon only."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, timeout: float = 30.0) -> int:
        """Waits for the end of the process. Returns its exit code. Raises subprocess.TimeoutExpired."""
        if self.process is None:
            raise RuntimeError(f"{self.module} was not started")
        return self.process.wait(timeout)

    def stop(self, timeout: float = 30.0) -> int:
        """Ends the daemon cleanly (SIGTERM) and returns its exit code; kills it after `timeout` seconds."""
        self.send_signal(signal.SIGTERM)
        try:
            return self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends the daemon at once (SIGKILL), as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self, *, kill: bool = False) -> Self:
        """Stops (or kills) the daemon, and starts it again on the same ports and store."""
        if self.running:
            if kill:
                self.kill()
            else:
                self.stop()
        return self.start()

    def close(self) -> None:
        """Stops the daemon if it runs, and removes its temporary directory."""
        try:
            if self.running:
                self.stop()
        finally:
            self._directory.cleanup()
            for kept in self._kept:
                kept.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


class NameserverProcess(DaemonProcess):
    """A nameserver as a child process.

    Args:
        arguments: Further command-line arguments.
        environment: Variables added to this process's own.
        port: gRPC port; a free one by default.
        http_port: Port of /readyz; a free one by default.
        ready_timeout: Seconds that a start may take.
        settings: Settings by name; they are passed as `--set NAME=VALUE`.
    """

    def __init__(
        self,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        http_port: int | None = None,
        ready_timeout: float = 60.0,
        **settings: object,
    ) -> None:
        super().__init__(
            "trovemq_nameserver",
            arguments=[*_set_arguments(settings), *arguments],
            environment=environment,
            port=port,
            http_port=http_port,
            ready_timeout=ready_timeout,
        )


class BrokerProcess(DaemonProcess):
    """A broker with small files as a child process, in a temporary directory unless `store` is given.

    Args:
        name: The broker's name.
        store: The store directory, which stays when this object is closed. Default: a temporary one.
        nameservers: NameserverProcess objects or addresses to register with. A start waits until each of the
            objects that runs lists the broker, for REGISTERED_SECONDS_MAX at most.
        cluster: The cluster's name; None for the daemon's default.
        arguments: Further command-line arguments.
        environment: Variables added to this process's own.
        port: gRPC port; a free one by default.
        http_port: Port of /readyz; a free one by default.
        ready_timeout: Seconds that a start may take.
        faults: The faults of clients that connect to `url`.
        settings: Settings by name (`mappedFileSizeCommitLog=65536`); they are passed as `--set NAME=VALUE`
            and override BROKER_TEST_SETTINGS. True and False are written as RocketMQ does.
    """

    def __init__(
        self,
        *,
        name: str = "broker-test",
        store: Path | str | None = None,
        nameservers: Sequence[DaemonProcess | str] = (),
        cluster: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        http_port: int | None = None,
        ready_timeout: float = 60.0,
        faults: Faults | None = None,
        **settings: object,
    ) -> None:
        super().__init__(
            "trovemq_broker",
            environment=environment,
            port=port,
            http_port=http_port,
            ready_timeout=ready_timeout,
        )
        self.name = name
        self.nameservers = tuple(server for server in nameservers if not isinstance(server, str))
        self.faults = faults
        self._client: sync.Client | None = None
        self.store = Path(store) if store is not None else Path(self._directory.name) / "store"
        addresses = [server if isinstance(server, str) else server.address for server in nameservers]
        self.arguments = [
            *("--store", str(self.store), "--name", name),
            *(("--nameserver", ",".join(addresses)) if addresses else ()),
            *(("--cluster", cluster) if cluster is not None else ()),
            *_set_arguments({**BROKER_TEST_SETTINGS, **settings}),
            *arguments,
        ]

    def wait_ready(self) -> None:
        """Returns once /readyz answers 200, and the nameservers list the broker. RuntimeError as for every
        daemon."""
        super().wait_ready()
        deadline = time.monotonic() + REGISTERED_SECONDS_MAX
        while self._unlisted() and time.monotonic() < deadline:
            time.sleep(READY_POLL_SECONDS)

    def _unlisted(self) -> bool:
        """Whether one of the nameservers that run does not list the broker yet."""
        addresses = [server.address for server in self.nameservers if server.running]
        if not addresses:
            return False
        _, body = self._readyz()
        missing = str(json.loads(body or b"{}").get("warnings", {}).get("nameservers", ""))
        return any(f"{address} " in f"{missing} ".replace(";", " ") for address in addresses)

    @property
    def url(self) -> str:
        """The URL for `trovemq.connect`, with the broker's faults."""
        return self.url_with(self.faults)

    def url_with(self, faults: Faults | None) -> str:
        """The broker's URL with these faults."""
        return f"trovemq://{self.address}" + (f"?faults={faults.text()}" if faults is not None else "")

    @property
    def client(self) -> sync.Client:
        """A synchronous client, without faults. It lives until this object is closed, or until it has to
        start its broker again."""
        if self._client is None:
            from trovemq import sync

            self._client = sync.connect(self.address)
        return self._client

    def empty(self) -> None:
        """Deletes all topics and groups; starts the broker if it does not run."""
        if not self.running:
            self._close_client()  # it may wait for its next attempt to connect
            self.start()
        admin = self.client.admin
        topics = {one.topic for one in admin.list_topics(include_system=True) if _is_of_a_user(one.topic)}
        groups = {one.group for one in admin.groups.list_all()}
        with ThreadPoolExecutor(EMPTIED_TOGETHER_MAX) as threads:
            list(threads.map(admin.groups.delete, groups))
            list(threads.map(admin.delete_topic, topics))

    def close(self) -> None:
        """Stops the daemon if it runs, and removes its temporary directory."""
        self._close_client()
        super().close()

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


@contextmanager
def broker(faults: Faults | None = None, **arguments: Any) -> Iterator[BrokerProcess]:
    """A running broker, which is stopped at the block's end; `arguments`: those of BrokerProcess. With
    `faults`, a client that connects to its `url` meets them: duplicates, delays, reorderings, redeliveries,
    disconnects, a slow disk. The same seed gives the same faults."""
    with BrokerProcess(faults=faults, **arguments) as process:
        yield process


def _is_of_a_user(topic: str) -> bool:
    return topic.startswith("%DLQ%") or not topic.startswith(("%", "rmq_", "SCHEDULE_", "TRANS_", "RMQ_"))


def _set_arguments(settings: Mapping[str, object]) -> Iterator[str]:
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        yield from ("--set", f"{name}={text}")


@pytest.fixture(scope="session")
def trovemq_session_broker() -> Iterator[BrokerProcess]:
    """The broker that all tests of the session share; use `trovemq_broker`."""
    with BrokerProcess() as process:
        yield process


@pytest.fixture
def trovemq_broker(trovemq_session_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """A running broker without topics and groups; connect to its `.address`, or with faults to
    `.url_with(…)`. One process serves all tests of a session: the topics and groups of a test are deleted
    after it."""
    yield trovemq_session_broker
    trovemq_session_broker.empty()


@pytest.fixture
def trovemq_client(trovemq_broker: BrokerProcess) -> sync.Client:
    """A synchronous client of `trovemq_broker`."""
    return trovemq_broker.client
