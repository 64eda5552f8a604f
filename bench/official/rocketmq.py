"""RocketMQ's nameserver, broker and proxy, as `bench/peers/setup.sh` installs them: three processes.

Async flush and RocketMQ's defaults, on loopback: a preloaded library (bench/peers/loopback.c) narrows the
sockets that would listen on every address.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.peers.peer import HOME
from bench.processes import answers
from trovemq.testing import free_port

JARS: Final = HOME / "rocketmq" / "libs"
LOOPBACK: Final = HOME / "rocketmq" / "loopback.so"
CLUSTER: Final = "DefaultCluster"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
BROKER: Final = """brokerClusterName={cluster}
brokerName=broker-a
brokerId=0
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
bindAddress=127.0.0.1
listenPort={port}
fastListenPort={fast_port}
haListenPort={replication_port}
namesrvAddr=127.0.0.1:{nameserver_port}
storePathRootDir={store}
autoCreateSubscriptionGroup=true
diskMaxUsedSpaceRatio=95
"""
LOGBACK: Final = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %p %logger{20} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
LOGGING: Final = ("rmq.logback.configurationFile", "logback.configurationFile")
OPENED: Final = ("jdk.internal.ref", "java.nio", "sun.nio.ch", "java.util")


class RocketMqError(Exception):
    """A process did not start, or a command failed; the message says how."""


def missing() -> str | None:
    """The part that is not installed, or None."""
    if not shutil.which("java"):
        return "Java"
    return None if list(JARS.glob("rocketmq-proxy-*.jar")) and LOOPBACK.exists() else "RocketMQ"


def version() -> str:
    (jar,) = JARS.glob("rocketmq-broker-*.jar")
    return f"RocketMQ {jar.stem.rpartition('-')[2]}"


@contextmanager
def serving(directory: Path, topic: str) -> Iterator[str]:
    """The proxy's address; the topic has 8 queues. RocketMqError."""
    directory = directory.resolve()
    directory.mkdir()
    nameserver, broker, fast, replication, proxy, remoting = (free_port() for _ in range(6))
    (directory / "nameserver.conf").write_text(
        f"listenPort={nameserver}\nbindAddress=127.0.0.1\nkvConfigPath={directory}/kv.json\n"
    )
    (directory / "broker.conf").write_text(
        BROKER.format(
            cluster=CLUSTER,
            port=broker,
            fast_port=fast,
            replication_port=replication,
            nameserver_port=nameserver,
            store=directory / "store",
        )
    )
    _write_proxy(directory, nameserver, proxy, remoting)
    (directory / "logback.xml").write_text(LOGBACK)
    with ExitStack() as running:
        name, conf = "namesrv.NamesrvStartup", directory / "nameserver.conf"
        running.enter_context(_process(directory, name, "-c", conf, port=nameserver, memory="256m"))
        name, conf = "broker.BrokerStartup", directory / "broker.conf"
        running.enter_context(_process(directory, name, "-c", conf, port=broker, memory="2g"))
        create = ["updateTopic", "-b", f"127.0.0.1:{broker}", "-t", topic, "-r", "8", "-w", "8"]
        _run(directory, "tools.command.MQAdminStartup", *create, "-n", f"127.0.0.1:{nameserver}")
        name, conf = "proxy.ProxyStartup", directory / "rmq-proxy.json"
        running.enter_context(_process(directory, name, "-pc", conf, port=proxy, memory="1g"))
        yield f"127.0.0.1:{proxy}"


def _write_proxy(directory: Path, nameserver_port: int, port: int, remoting_port: int) -> None:
    (directory / "rmq-proxy.json").write_text(
        json.dumps(
            {
                "rocketMQClusterName": CLUSTER,
                "namesrvAddr": f"127.0.0.1:{nameserver_port}",
                "proxyMode": "CLUSTER",
                "grpcServerPort": port,
                "remotingListenPort": remoting_port,
                "localServeAddr": "127.0.0.1",
            }
        )
    )


def _command(directory: Path, name: str, memory: str) -> list[str]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    logging = [f"-D{name}={directory}/logback.xml" for name in LOGGING]
    start = ["java", f"-Xmx{memory}", "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Duser.home={directory}"]
    return [*start, *logging, *opened, "-cp", f"{JARS}/*", f"org.apache.rocketmq.{name}"]


def _environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "LD_PRELOAD": str(LOOPBACK), "ROCKETMQ_HOME": str(directory)}


def _run(directory: Path, name: str, *arguments: str) -> None:
    done = subprocess.run(
        [*_command(directory, name, "256m"), *arguments],
        env=_environment(directory),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    if done.returncode or "success" not in done.stdout:
        raise RocketMqError(f"{name} {arguments[0]}: {(done.stdout + done.stderr)[-1000:]}")


@contextmanager
def _process(directory: Path, name: str, *arguments: str | Path, port: int, memory: str) -> Iterator[None]:
    """Runs while its context does; entered when it listens."""
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_command(directory, name, memory), *arguments],
            env=_environment(directory),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            if not answers(port, process, START_TIMEOUT_S):
                said = log.read_text(errors="replace")[-1000:]
                raise RocketMqError(f"port {port} does not answer: {said}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
