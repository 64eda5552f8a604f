"""Runs Apache RocketMQ 5.4.0 itself on a store directory: its name server, broker and client in one JVM.

The jars come from Maven Central, once, into build/interop (with a separate Maven repository). `run_probe`
starts RocketMqProbe.java on 127.0.0.1, lets it carry out steps, and returns its results.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trovemq.testing import free_port

HERE: Final = Path(__file__).parent
BUILD: Final = HERE.parents[1] / "build" / "interop"
DOWNLOAD_SECONDS: Final = 300
RUN_SECONDS: Final = 300
_PORT_TRIES: Final = 50


class NotHereError(Exception):
    """Java, Maven or the packages are not to be had."""


@dataclass(frozen=True)
class Seen:
    """The lines of one run: messages and queues by step."""

    lines: list[dict[str, Any]]
    log: str

    def messages(self, step: str) -> list[dict[str, Any]]:
        return [line["message"] for line in self.lines if line["step"] == step and "message" in line]

    def troubles(self, step: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["step"] == step and "status" in line]

    def queues(self, step: str) -> dict[tuple[str, int], tuple[int, int]]:
        return {
            (line["queue"], line["queueId"]): (line["min"], line["max"])
            for line in self.lines
            if line["step"] == step and "max" in line
        }


def classpath() -> str:
    """Downloads and compiles missing classes. Raises NotHereError."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise NotHereError(f"{program} is not installed")
    jars, classes = BUILD / "jars", BUILD / "classes"
    pom = HERE / "pom.xml"
    if _older(jars / ".done", pom):
        _run(
            [
                *("mvn", "-q", "-B", "-f", str(pom), f"-Dmaven.repo.local={BUILD / 'repository'}"),
                *("dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime"),
            ],
            "the packages are not to be had",
        )
        (jars / ".done").touch()
    source = HERE / "src" / "RocketMqProbe.java"
    if _older(classes / ".done", source):
        classes.mkdir(parents=True, exist_ok=True)
        _run(["javac", "-nowarn", "-d", str(classes), "-cp", f"{jars}/*", str(source)], "javac failed")
        (classes / ".done").touch()
    return f"{classes}:{jars}/*"


def _older(made: Path, source: Path) -> bool:
    return not made.exists() or made.stat().st_mtime < source.stat().st_mtime


def _run(command: list[str], trouble: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    if done.returncode:
        raise NotHereError(f"{trouble}: {(done.stdout + done.stderr).strip()[-500:]}")


def run_probe(store: Path, broker_config: Mapping[str, str], steps: Sequence[str], directory: Path) -> Seen:
    """RocketMQ starts on the store (and changes it), carries out the steps and stops cleanly."""
    java_path = classpath()
    name_server_port, port = _free_ports((0,)), _free_ports((0, 1, -2))
    home = directory / "home"
    home.mkdir(parents=True, exist_ok=True)
    results = directory / "results.jsonl"
    results.write_text("")
    broker_conf = _write_properties(
        directory / "broker.conf",
        {
            "autoCreateTopicEnable": "false",
            "transactionCheckInterval": "86400000",
            "fileReservedTime": "876000",
            "diskMaxUsedSpaceRatio": "95",
            "timerPrecisionMs": "1000",
            "flushDiskType": "ASYNC_FLUSH",
            **broker_config,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
        },
    )
    name_server_conf = _write_properties(
        directory / "namesrv.conf", {"listenPort": str(name_server_port), "bindAddress": "127.0.0.1"}
    )
    command = [
        "java",
        "-Xms256m",
        "-Xmx1g",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Duser.home={home}",
        f"-Drocketmq.home.dir={home}",
        "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        "-cp",
        java_path,
        "RocketMqProbe",
        str(broker_conf),
        str(name_server_conf),
        f"127.0.0.1:{name_server_port}",
        str(results),
        *steps,
    ]
    environment = {**os.environ, "ROCKETMQ_HOME": str(home)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:  # run() has killed it
        raise AssertionError(f"RocketMQ did not end:\n{_text(error.stdout)}\n{_logs(home)}") from error
    log = done.stdout + done.stderr + _logs(home)
    if done.returncode:
        raise AssertionError(
            f"RocketMQ ended with {done.returncode}:\n{done.stderr[-4_000:]}\n{log[-4_000:]}"
        )
    return Seen([json.loads(line) for line in results.read_text().splitlines()], log)


def _text(output: bytes | str | None) -> str:
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def _logs(home: Path) -> str:
    """Warnings and errors of RocketMQ's own logs."""
    found = []
    for path in sorted(home.rglob("*.log")):
        lines = path.read_text("utf-8", "replace").splitlines()
        found += [f"{path.name}: {line}" for line in lines if " WARN " in line or " ERROR " in line]
    return "\n".join(found)


def _write_properties(path: Path, values: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return path


def _free_ports(offsets: Sequence[int]) -> int:
    """A port of 127.0.0.1 that is free, with those at the offsets from it."""
    for _ in range(_PORT_TRIES):
        port = free_port()
        try:
            for offset in offsets:
                socket.create_server(("127.0.0.1", port + offset)).close()
        except OSError:
            continue
        return port
    raise AssertionError("no free ports")
