"""The live source beside Spark's own Kafka connector: the same rows, read from a broker of each in turn.

Kafka and the connector come from Maven Central by kafka/pom.xml. Where that, or Java, is not to be had, the
comparison is left out and the report says so.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import trovemq
from bench.pipeline.scans import interleaved, noop
from bench.processes import answers
from bench.report import Report
from trovemq.testing import BrokerProcess
from trovemq_spark.java import find_java_home

ROWS: Final = 400_000
QUEUES: Final = 8
BODY_SIZE: Final = 1024
BATCH: Final = 1000
TOPIC: Final = "compared"
START_TIME_MAX_S: Final = 60
_POM: Final = Path(__file__).parent / "kafka" / "pom.xml"
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
num.partitions={queues}
"""


class KafkaMissingError(Exception):
    """Kafka, or the connector, cannot be had or does not start here; the text says why."""


def fetch_jars(profile: str, directory: Path) -> list[Path]:
    """The jars of a profile of the pom, by Maven. KafkaMissingError."""
    if shutil.which("mvn") is None:
        raise KafkaMissingError("there is no mvn")
    target = directory.resolve() / profile  # Maven would take it as relative to the pom
    command = ["mvn", "-q", "-B", "-f", str(_POM), f"-P{profile}", "dependency:copy-dependencies"]
    try:
        subprocess.run(
            [*command, f"-DoutputDirectory={target}"], check=True, capture_output=True, text=True, timeout=300
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise KafkaMissingError(f"its jars cannot be had from Maven Central ({profile})") from error
    return sorted(target.glob("*.jar"))


@contextmanager
def running_kafka(jars: list[Path], directory: Path) -> Iterator[str]:
    """A broker on loopback; gives its address. KafkaMissingError where it does not start."""
    port, controller = _free_ports(2)
    settings = directory / "kafka.properties"
    logs = directory / "kafka-logs"
    settings.write_text(_SETTINGS.format(port=port, controller=controller, logs=logs, queues=QUEUES))
    java = [str(find_java_home() / "bin" / "java"), "-Xmx1g", "-cp", ":".join(map(str, jars))]
    cluster = "A" * 21 + "w"
    formatted = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)],
        check=False,
        capture_output=True,
        timeout=60,
    )
    if formatted.returncode:
        raise KafkaMissingError(f"its storage cannot be made: {formatted.stderr.decode()[-200:]}")
    process = subprocess.Popen(
        [*java, "kafka.Kafka", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        if not answers(port, process, START_TIME_MAX_S):
            raise KafkaMissingError(f"it does not answer on port {port}: exit code {process.poll()}")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


async def fill_trovemq(address: str, rows: int) -> None:
    """`rows` messages of BODY_SIZE with a key, over QUEUES queues."""
    bodies = [random.Random(1).randbytes(BODY_SIZE)] * BATCH
    async with trovemq.connect(address) as client:
        await client.admin.create_topic(TOPIC, queue_count=QUEUES)
        async with client.producer(TOPIC) as producer:
            for number, start in enumerate(range(0, rows, BATCH)):
                keys = [[f"key{start + i}"] for i in range(BATCH)]
                await producer.send_batch(bodies, keys=keys, queue_id=number % QUEUES)


def fill_kafka(session: SparkSession, address: str, rows: int) -> None:
    """The same by the connector's own writer."""
    body = random.Random(1).randbytes(BODY_SIZE).hex()
    frame = session.range(rows).selectExpr("concat('key', id) AS key", f"unhex('{body}') AS value")
    options = {"kafka.bootstrap.servers": address, "topic": TOPIC}
    frame.write.format("kafka").options(**options).save()


def connector_settings(report: Report, directory: Path) -> dict[str, str]:
    """Spark's settings for the connector, which a session has from its start; none where there is none."""
    try:
        return {"spark.jars": ",".join(map(str, fetch_jars("connector", directory)))}
    except KafkaMissingError as missing:
        report.notes.append(f"Kafka was not compared: {missing}.")
        return {}


def measure_kafka(report: Report, session: SparkSession, directory: Path, *, quick: bool) -> None:
    """session: with connector_settings()."""
    rows = ROWS // 10 if quick else ROWS
    try:
        with running_kafka(fetch_jars("broker", directory), directory) as kafka:
            _measure(report, session, directory, kafka, rows)
    except KafkaMissingError as missing:
        report.notes.append(f"Kafka was not compared: {missing}.")


def _measure(report: Report, session: SparkSession, directory: Path, kafka: str, rows: int) -> None:
    fill_kafka(session, kafka, rows)
    with BrokerProcess(store=directory / "live", flushDiskType="ASYNC_FLUSH") as broker:
        asyncio.run(fill_trovemq(broker.address, rows))
        ours = {"server": broker.address, "topic": TOPIC}
        theirs = {"kafka.bootstrap.servers": kafka, "subscribe": TOPIC, "includeHeaders": "true"}
        seconds = interleaved(
            {
                "ours": lambda: noop(session.read.format("trovemq").options(**ours).load()),
                "two": lambda: noop(
                    session.read.format("trovemq").options(**ours, columns="keys,body").load()
                ),
                "theirs": lambda: noop(session.read.format("kafka").options(**theirs).load()),
            },
            rounds=5,
        )
    report.add("live source, all columns", rows / seconds["ours"] / 1e3, "k rows/s")
    report.add("live source, keys and body", rows / seconds["two"] / 1e3, "k rows/s")
    report.add("Spark's Kafka connector, the same rows", rows / seconds["theirs"] / 1e3, "k rows/s")
    ratio = seconds["theirs"] / seconds["two"]
    report.add("live source, keys and body / Kafka connector", ratio, "x", at_least=1.0)
