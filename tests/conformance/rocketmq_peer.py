"""RocketMQ's own nameserver and broker, 5.4.0, as processes: our brokers register there, or are compared."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.interop.probe import NotHereError, classpath
from tests.support.remoting_client import remoting_client
from trovemq.testing import free_port
from trovemq_proto.remoting.codes import RequestCode

START_S_MAX: Final = 120
_OPTIONS: Final = (
    *("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC"),
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
NO_SETTINGS: Final[Mapping[str, object]] = MappingProxyType({})
_PACKAGE: Final = "org.apache.rocketmq"


def why_missing() -> str:
    """Why RocketMQ cannot run here; "" where it can."""
    try:
        classpath()
    except NotHereError as error:
        return str(error)
    return ""


class RocketMq:
    """Its processes end with `processes`. NotHereError."""

    def __init__(self, processes: ExitStack, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self._classpath = classpath()
        self.nameserver = ""

    def start_nameserver(self) -> str:
        """Its address."""
        port = free_port()
        self._start(
            "namesrv.NamesrvStartup", "namesrv", {"listenPort": port, "bindAddress": "127.0.0.1"}, port
        )
        self.nameserver = f"127.0.0.1:{port}"
        return self.nameserver

    def start_broker(self, name: str, store: Path, settings: Mapping[str, object] = NO_SETTINGS) -> str:
        """The address of a broker that is registered with the nameserver."""
        port = _free_row()
        values: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": name,
            "brokerId": 0,
            "autoCreateTopicEnable": False,
            "enablePropertyFilter": True,
            "transactionCheckInterval": 3_000,
            "transactionTimeOut": 10_000,
            "diskMaxUsedSpaceRatio": 95,
            "fileReservedTime": 876_000,
            **settings,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
        }
        self._start("broker.BrokerStartup", name, values, port, "-n", self.nameserver)
        return f"127.0.0.1:{port}"

    def _start(self, main: str, name: str, values: Mapping[str, object], port: int, *more: str) -> None:
        home = self._folder / f"home-{name}"
        home.mkdir(parents=True, exist_ok=True)
        conf = home / "settings.conf"
        texts = {key: str(one).lower() if isinstance(one, bool) else str(one) for key, one in values.items()}
        conf.write_text("".join(f"{key}={text}\n" for key, text in texts.items()))
        own = (f"-Duser.home={home}", f"-Drocketmq.home.dir={home}")
        command = [
            "java",
            *_OPTIONS,
            *own,
            "-cp",
            self._classpath,
            f"{_PACKAGE}.{main}",
            "-c",
            str(conf),
            *more,
        ]
        log = self._processes.enter_context((home / "log").open("wb"))
        process = self._processes.enter_context(
            subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "ROCKETMQ_HOME": str(home)})
        )
        self._processes.callback(process.kill)
        _await_port(port, process, home / "log")


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """RuntimeError: it ended, or does not listen in time."""
    end = time.monotonic() + START_S_MAX
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"RocketMQ does not listen on {port}: {log.read_text(errors='replace')[-2000:]}")


def _free_row() -> int:
    """A port that is free with the next one and with the one 2 below, which RocketMQ takes, too."""
    while True:
        port = free_port()
        try:
            for offset in (-2, 0, 1):
                socket.create_server(("127.0.0.1", port + offset)).close()
        except OSError:
            continue
        return port


def create_topic(address: str, name: str, queues: int, message_type: str = "NORMAL") -> None:
    """At one broker, as tools do. RuntimeError."""

    async def ask() -> None:
        async with remoting_client(address) as client:
            fields = {
                "topic": name,
                "defaultTopic": "TBW102",
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
                "attributes": f"+message.type={message_type}",
            }
            answer = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            if answer.code:
                raise RuntimeError(f"{name} at {address}: {answer.header.remark}")

    asyncio.run(ask())


@contextmanager
def rocketmq(folder: Path) -> Iterator[RocketMq]:
    """With its nameserver."""
    with ExitStack() as processes:
        made = RocketMq(processes, folder)
        made.start_nameserver()
        yield made
