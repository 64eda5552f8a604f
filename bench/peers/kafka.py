"""Apache Kafka, one node (KRaft), acks=all; synced: `flush.messages=1` of the topic."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import AsyncIterator
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
    until_input_ends,
)

JARS = HOME / "kafka" / "libs"
GROUP = "group"
IN_SYNC_MIN = 2
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/logs
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""
JAVA = ["java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:-UsePerfData"]
JAVA += [
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-cp",
    f"{JARS}/*",
]


@asynccontextmanager
async def connected(task: Task) -> AsyncIterator[dict[str, Any]]:
    """The settings of a client, which connects on its own."""
    yield {"bootstrap.servers": task.address, "log_level": 0}


class Client:
    """confluent-kafka (librdkafka)."""

    def make_topic(self, settings: dict[str, Any], task: Task) -> Answer:
        """in_flight 1: every message is synced before its acknowledgement. Two of several copies do."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin, config = AdminClient(settings), {"flush.messages": "1"} if task.in_flight else {}
        if task.copies > 1:
            config["min.insync.replicas"] = str(IN_SYNC_MIN)
        deadline = time.monotonic() + GROUP_TIMEOUT_S
        while len(admin.list_topics(timeout=10).brokers) < task.copies and time.monotonic() < deadline:
            time.sleep(0.2)
        for future in admin.create_topics([NewTopic(task.topic, 1, task.copies, config=config)]).values():
            future.result()
        return {"count": 1}

    async def one_at_a_time(self, settings: dict[str, Any], task: Task) -> Answer:
        producer = _Producer(settings, task, at_once=True)

        def send(number: int) -> None:
            producer.send(body(number))
            producer.wait_until(number + 1)

        return await timed(task, send)

    async def steady(self, settings: dict[str, Any], task: Task) -> Answer:
        producer = _Producer(settings, task, at_once=True)

        def send(number: int) -> None:
            producer.send(body(number))
            producer.wait_until(number + 1)

        return await until_input_ends(send)

    def leader(self, settings: dict[str, Any], task: Task) -> Answer:
        """The broker that leads the topic's partition, and how many copies are in sync."""
        from confluent_kafka.admin import AdminClient

        found = AdminClient(settings).list_topics(task.topic, timeout=10).topics[task.topic].partitions[0]
        return {"count": 1, "leader": found.leader, "in_sync": len(found.isrs)}

    def produce(self, settings: dict[str, Any], task: Task) -> Answer:
        """in_flight 0: as many as the client takes."""
        producer, sent, watch = _Producer(settings, task, at_once=task.in_flight > 0), 0, Stopwatch(task)
        while sent < task.count and not watch.over:
            for _ in range(64):
                producer.send(body(sent))
                sent += 1
                producer.wait_until(sent - task.in_flight + 1 if task.in_flight else 0)
            producer.poll()
        producer.wait_until(sent)
        return watch.answer(sent)

    def consume(self, settings: dict[str, Any], task: Task) -> Answer:
        got, watch, consumer = 0, Stopwatch(task), _assigned(settings, task)
        while got < task.count and not watch.over:
            got += len(consumer.consume(2000, 1.0))
        return watch.answer(got)

    async def live_send(self, settings: dict[str, Any], task: Task) -> None:
        producer = _Producer(settings, task, at_once=True)
        await paced(task, lambda number: producer.send(stamped(number)))
        producer.wait_until(task.count)

    def live_read(self, settings: dict[str, Any], task: Task) -> Answer:
        consumer, ages, until = _assigned(settings, task), list[float](), task.seconds + LIVE_TIMEOUT_S
        watch = Stopwatch(Task(task.address, task.topic, task.count, until))
        while len(ages) < task.count and not watch.over:
            message = consumer.poll(1.0)
            if message is not None and not message.error():
                ages.append(age_us(message.value()))
        return latencies(ages)


class _Producer:
    """Counts the acknowledgements."""

    def __init__(self, settings: dict[str, Any], task: Task, *, at_once: bool) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(settings | {"acks": "all"} | ({"linger.ms": 0} if at_once else {}))
        self._producer.list_topics(timeout=10)
        self._topic, self._acknowledged = task.topic, 0

    def send(self, content: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, content, on_delivery=self._on_delivery)
                return self.poll()
            except BufferError:
                self.poll(0.05)

    def poll(self, seconds: float = 0.0) -> None:
        self._producer.poll(seconds)

    def wait_until(self, acknowledged: int) -> None:
        while self._acknowledged < acknowledged:
            self._producer.poll(1.0)

    def _on_delivery(self, error: object, _message: object) -> None:
        assert error is None, error
        self._acknowledged += 1


def _assigned(settings: dict[str, Any], task: Task) -> Any:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(settings | {"group.id": GROUP, "enable.auto.commit": False})
    consumer.assign([TopicPartition(task.topic, 0, 0)])
    return consumer


CLIENTS = {"confluent-kafka": Client}


class Kafka(Peer):
    """Its jars, from Maven (`kafka.pom.xml`)."""

    name, module, clients = "Kafka", "kafka", tuple(CLIENTS)

    def missing(self) -> str | None:
        if not shutil.which("java"):
            return "java"
        return package_missing("confluent_kafka") if self._jars() else "Kafka's jars"

    def version(self) -> str:
        return f"Kafka {self._jars()[0].stem.rpartition('-')[2]}"

    def _jars(self) -> list[Path]:
        return list(JARS.glob("kafka_2.13-*.jar"))

    def command(self, directory: Path, port: int, *, synced: bool) -> Command:
        del synced  # a topic's setting
        properties = directory / "server.properties"
        properties.write_text(PROPERTIES.format(port=port, controller=port + 1, directory=directory))
        store = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run([*JAVA, *store], check=True, capture_output=True)
        return [*JAVA, "kafka.Kafka", properties]


PEER = Kafka()
