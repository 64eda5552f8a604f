"""A store replayed to a broker: each message once and in order, also when it was stopped in between.

The source is the store of the target's own broker, read while it is in use: other topics, the same process.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.pipeline_size import PIPELINE_LONG
from tests.support.stored_messages import ask, stored
from trovemq import Client
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import Message
from trovemq_spark.job import NoProgress, Report
from trovemq_spark.jobs.archive import ArchiveArguments
from trovemq_spark.jobs.archive import run as run_archive
from trovemq_spark.jobs.replay import ReplayArguments, run, shares
from trovemq_spark.replay import sender as sender_module
from trovemq_spark.replay.ledger import Ledger, SourceQueue
from trovemq_spark.replay.messages import COLUMNS
from trovemq_spark.replay.sender import ReplayTarget
from trovemq_spark.replay.task import ReplayTask
from trovemq_spark.report import error_of
from trovemq_spark.table.columns import arrow_batch

pytestmark = pytest.mark.slow
SOURCES = {"orders": 3, "billing": 2}
"""Topic -> queues."""
MESSAGES = 300
"""In each queue."""
KEY = "key-7"
CRC = "__CRC32#"
"""Of the whole record, with its place."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def broker(store: Path) -> Iterator[BrokerProcess]:
    with running_broker(store) as running:
        ask(running, fill)
        yield running


async def fill(client: Client) -> None:
    for topic, queues in SOURCES.items():
        await client.admin.create_topic(topic, queues)
        async with client.producer(topic) as producer:
            for queue in range(queues):
                await producer.send_batch(
                    [f"{topic}/{queue}/{i}".encode() for i in range(MESSAGES)],
                    keys=[f"key-{i % 100}" for i in range(MESSAGES)],
                    tags=["even" if i % 2 == 0 else "odd" for i in range(MESSAGES)],
                    properties=[{"number": str(i)} for i in range(MESSAGES)],
                    queue_id=queue,
                )


def replay(
    spark: SparkSession, broker: BrokerProcess, path: Path, ledger: Path, target: str, **others: Any
) -> Report:
    arguments = ReplayArguments(
        server=broker.address,
        out=str(ledger),
        store=str(path),
        topics=tuple(SOURCES),
        target_topic=target,
        create_topics=True,
    )
    return run(spark, replace(arguments, **others), NoProgress())


def origin(message: Message) -> tuple[SourceQueue, int]:
    own = message.properties
    source = SourceQueue(
        own["TROVE_REPLAY_TOPIC"], own.get("TROVE_REPLAY_BROKER", ""), int(own["TROVE_REPLAY_QUEUE"])
    )
    return source, int(own["TROVE_REPLAY_OFFSET"])


def check_once_and_in_order(messages: list[Message], ledger: Path) -> None:
    """By counting the target, and by the ledger."""
    seen: defaultdict[SourceQueue, list[int]] = defaultdict(list)
    places: defaultdict[SourceQueue, set[int]] = defaultdict(set)
    for message in messages:
        source, offset = origin(message)
        seen[source].append(offset)
        places[source].add(message.queue_id)
        assert message.body == f"{source.topic}/{source.queue_id}/{offset}".encode()
    assert set(seen) == {
        SourceQueue(topic, "", queue) for topic, queues in SOURCES.items() for queue in range(queues)
    }
    for source, offsets in seen.items():
        assert offsets == list(range(MESSAGES)), source
        assert len(places[source]) == 1, "a queue stays together"
        state = Ledger(str(ledger)).load(source)
        assert state is not None
        assert (state.sent, state.source_offset, state.in_flight) == (MESSAGES, MESSAGES - 1, False)


def test_every_message_is_replayed_once_in_order_with_its_properties(
    spark: SparkSession, broker: BrokerProcess, store: Path, tmp_path: Path
) -> None:
    report = replay(spark, broker, store, tmp_path, "copy")
    total = MESSAGES * sum(SOURCES.values())
    assert (report.facts["messages"], report.facts["sent"]) == (total, total)
    copies = stored(broker, "copy")
    check_once_and_in_order(copies, tmp_path)
    originals = {(m.topic, m.queue_id, m.queue_offset): m for topic in SOURCES for m in stored(broker, topic)}
    for message in copies:
        source, offset = origin(message)
        first = originals[source.topic, QueueId(source.queue_id), QueueOffset(offset)]
        own = {name: text for name, text in message.properties.items() if "TROVE_REPLAY" not in name}
        assert own.keys() == first.properties.keys()
        assert own | {CRC: ""} == first.properties | {CRC: ""}
        assert message.properties["TROVE_REPLAY_MSG_ID"] == first.offset_msg_id
        assert message.properties["TROVE_REPLAY_STORE_TIMESTAMP"] == str(first.store_timestamp)
        assert message.properties["TROVE_REPLAY_BORN_TIMESTAMP"] == str(first.born_timestamp)

    again = replay(spark, broker, store, tmp_path, "copy")
    assert (again.facts["sent"], again.facts["before"]) == (0, total)
    with pytest.raises(TroveError, match="its targetTopic is"):
        replay(spark, broker, store, tmp_path, "elsewhere")
    with Ledger(str(tmp_path)).locked(), pytest.raises(TroveError) as caught:
        replay(spark, broker, store, tmp_path, "copy")
    assert caught.value.symbol == "JOB_RUNNING"


def test_a_preview_counts_by_topic_queue_and_time_and_sends_nothing(
    spark: SparkSession, broker: BrokerProcess, store: Path, tmp_path: Path
) -> None:
    before = {topic.topic for topic in ask(broker, lambda client: client.admin.list_topics())}
    arguments = ReplayArguments(store=str(store), topics=("orders",), keys=(KEY, "key-8"), dry_run=True)
    facts = run(spark, arguments, NoProgress()).facts
    wanted = [m for m in stored(broker, "orders") if m.properties["KEYS"] in {KEY, "key-8"}]
    assert facts["messages"] == len(wanted)
    shown: Any = facts["topics"]
    assert list(shown) == ["orders"]
    for entry in shown["orders"]["queues"]:
        own = [m for m in wanted if m.queue_id == entry["queueId"]]
        assert entry["messages"] == len(own)
        assert [entry["firstOffset"], entry["lastOffset"]] == [own[0].queue_offset, own[-1].queue_offset]
        assert entry["firstStoreTimestamp"] == own[0].store_timestamp
    assert before == {topic.topic for topic in ask(broker, lambda client: client.admin.list_topics())}
    assert not list(tmp_path.iterdir())


def test_an_archive_and_a_live_topic_are_sources_too_and_filters_choose(
    spark: SparkSession, broker: BrokerProcess, store: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    run_archive(spark, ArchiveArguments(store=str(store), out=str(archive)), NoProgress())
    bound = stored(broker, "billing")[0].store_timestamp
    chosen: dict[str, dict[str, Any]] = {
        "archive": {"store": "", "archive": str(archive), "keys": (KEY,)},
        "live": {"store": "", "source_server": broker.address, "begin_timestamp": bound},
    }
    for kind, others in chosen.items():
        replay(spark, broker, store, tmp_path / kind, f"from-{kind}", topics=("billing",), **others)
        expected = [
            (m.queue_id, m.queue_offset)
            for m in stored(broker, "billing")
            if m.properties["KEYS"] in others.get("keys", (m.properties["KEYS"],))
            and m.store_timestamp >= others.get("begin_timestamp", 0)
        ]
        found = [(origin(m)[0].queue_id, origin(m)[1]) for m in stored(broker, f"from-{kind}")]
        assert sorted(found) == expected
        assert expected


@pytest.mark.skipif(not PIPELINE_LONG, reason="a separate driver: PIPELINE_LONG=1")
def test_killed_at_random_moments_and_resumed_every_message_is_there_once(
    spark: SparkSession, broker: BrokerProcess, store: Path, tmp_path: Path
) -> None:
    total = MESSAGES * sum(SOURCES.values())
    kills = 20
    chances = random.Random(20_260_131)
    moments = sorted(chances.sample(range(1, total - 200), kills))
    ask(broker, lambda client: client.admin.create_topic("resumed", 4))
    for moment in moments:
        driver = subprocess.Popen(
            [
                *(sys.executable, "-m", "trovemq_spark.cli", "replay", "--store", str(store)),
                *("--server", broker.address, "--out", str(tmp_path), "--set", "target_topic=resumed"),
                *("--set", f"topics={','.join(SOURCES)}", "--set", "rate=600"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            ask(broker, partial(until, count=moment, driver=driver))
        finally:
            driver.kill()
            driver.wait()
    report = replay(spark, broker, store, tmp_path, "resumed", create_topics=False)
    check_once_and_in_order(stored(broker, "resumed"), tmp_path)
    assert report.facts["before"] >= moments[-1] - report.facts["settled"]  # type: ignore[operator]


async def until(client: Client, count: int, driver: subprocess.Popen[bytes]) -> None:
    """Waits until this many messages are in the target."""
    while sum(queue.max_offset for queue in await client.queue_offsets("resumed")) < count:
        assert driver.poll() is None, f"the replay ended before its kill, with {driver.returncode}"
        await asyncio.sleep(0.005)


# --- tasks without Spark ------------------------------------------------------------------------------


def rows_of(broker: BrokerProcess, topic: str) -> pa.Table:
    """The topic as a task gets it."""

    async def read(client: Client) -> list[pa.RecordBatch]:
        return [
            arrow_batch(batch.records, COLUMNS)
            for queue in await client.queue_offsets(topic)
            async for batch in client.pull_batches(topic, queue_id=queue.queue_id)
        ]

    return pa.Table.from_batches(ask(broker, read))


def send(
    broker: BrokerProcess,
    rows: pa.Table,
    ledger: Path,
    target: str,
    run_name: str = "run-1",
    rate: float = 0.0,
    skip_unsendable: bool = False,
) -> pa.RecordBatch:
    own = ReplayTarget(broker.address, target, "", Ledger(str(ledger)), run_name, rate, skip_unsendable)
    task = ReplayTask(own)
    (result,) = task.run(iter(rows.to_batches(max_chunksize=70)))
    return result


@pytest.mark.parametrize("seed", range(20 if PIPELINE_LONG else 4))
def test_what_was_stored_but_not_noted_is_found_and_not_sent_again(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """As a kill between the broker's append and the ledger's note leaves it; other messages are there."""
    monkeypatch.setattr(sender_module, "SETTLE_SECONDS", 0.0)
    chances = random.Random(seed)
    target = f"doubt-{seed}"
    ask(broker, lambda client: client.admin.create_topic(target, 2))
    rows = rows_of(broker, "orders")
    some = rows.slice(0, chances.randrange(1, rows.num_rows))
    send(broker, some, tmp_path, target)
    # Another replay into the same queues.
    send(broker, rows.slice(0, 50), tmp_path / "other", target, "run-2")
    ledger = Ledger(str(tmp_path))
    last = SourceQueue("orders", "", int(some.column("queueId")[-1].as_py()))
    state = ledger.load(last)
    assert state is not None
    noted = chances.randrange(-1, state.source_offset + 1)
    lost = state.source_offset - noted
    state.source_offset, state.sent, state.target_offset, state.in_flight = noted, noted + 1, 0, True
    ledger.save(last, state)
    result = send(broker, rows, tmp_path, target)
    assert sum(result.column("settled").to_pylist()) == lost
    assert sum(result.column("sent").to_pylist()) == rows.num_rows - some.num_rows
    own = [origin(m) for m in stored(broker, target) if m.properties["TROVE_REPLAY_RUN"] == "run-1"]
    assert len(own) == rows.num_rows
    for queue in range(SOURCES["orders"]):
        assert [offset for source, offset in own if source.queue_id == queue] == list(range(MESSAGES))


def test_a_task_is_not_faster_than_its_rate(broker: BrokerProcess, tmp_path: Path) -> None:
    """A lower bound of time: a slow machine cannot break it."""
    ask(broker, lambda client: client.admin.create_topic("slowly", 1))
    rows = rows_of(broker, "orders").slice(0, 200)
    begin = time.monotonic()
    send(broker, rows, tmp_path, "slowly", rate=150.0)
    assert time.monotonic() - begin >= 200 / 150
    assert len(stored(broker, "slowly")) == 200


@pytest.mark.parametrize("rate", [0.0, 0.5, 1000.0])
@pytest.mark.parametrize(("parallelism", "queues"), [(1, 1), (2, 5), (8, 3), (200, 1000)])
def test_tasks_that_may_run_at_once_share_the_rate(rate: float, parallelism: int, queues: int) -> None:
    own, partitions = shares(rate, parallelism, queues)
    assert own * partitions == pytest.approx(rate) if rate else own == 0
    assert partitions == (min(parallelism, queues) if rate else queues)


def test_a_target_that_lost_what_it_had_acknowledged_is_reported(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "SETTLE_SECONDS", 0.0)
    ask(broker, lambda client: client.admin.create_topic("lost", 1))
    rows = rows_of(broker, "orders").slice(0, 10)
    send(broker, rows, tmp_path, "lost")
    ledger, queue = Ledger(str(tmp_path)), SourceQueue("orders", "", 0)
    state = ledger.load(queue)
    assert state is not None
    state.in_flight, state.target_offset = True, 11
    ledger.save(queue, state)
    with pytest.raises(TroveError) as caught:
        send(broker, rows, tmp_path, "lost")
    assert caught.value.symbol == "DATA_LOST"


def test_rows_that_come_twice_are_sent_once_and_sharding_keys_are_kept(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    ask(broker, lambda client: client.admin.create_topic("groups", 2))
    rows = rows_of(broker, "orders").slice(0, 120)
    groups = [
        dict(own) | {"__SHARDINGKEY": f"g{i % 3}"}
        for i, own in enumerate(rows.column("properties").to_pylist())
    ]
    kind = rows.schema.field("properties").type
    rows = rows.set_column(rows.schema.get_field_index("properties"), "properties", pa.array(groups, kind))
    twice = rows.take([i // 2 for i in range(240)])
    result = send(broker, twice, tmp_path, "groups")
    assert (result.column("sent").to_pylist(), result.column("repeated").to_pylist()) == ([120], [120])
    found = stored(broker, "groups")
    assert [origin(m)[1] for m in found] == list(range(120))
    assert [m.properties["__SHARDINGKEY"] for m in found] == [f"g{i % 3}" for i in range(120)]


def test_what_cannot_be_sent_is_named_and_the_ledger_stays_before_it(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    ask(broker, lambda client: client.admin.create_topic("refusing", 1))
    rows = rows_of(broker, "orders").slice(0, 100)
    tags = ["fine"] * 90 + ["not|fine"] * 10
    rows = rows.set_column(rows.schema.get_field_index("tags"), "tags", pa.array(tags))
    with pytest.raises(TroveError, match=r"topic orders, queue 0, offset 90: .*skip_unsendable") as caught:
        send(broker, rows, tmp_path, "refusing")
    assert caught.value.symbol == "TAG_ILLEGAL"
    state = Ledger(str(tmp_path)).load(SourceQueue("orders", "", 0))
    assert state is not None
    assert state.source_offset == len(stored(broker, "refusing")) - 1 < 90


@pytest.mark.parametrize("grouped", [False, True], ids=["columns", "sharding keys"])
def test_an_unsendable_original_that_may_be_left_out_holds_up_no_other(
    broker: BrokerProcess, tmp_path: Path, grouped: bool
) -> None:
    target = f"without-{grouped}"
    ask(broker, lambda client: client.admin.create_topic(target, 1))
    rows = rows_of(broker, "orders").slice(0, 100)
    columns = {name: rows.column(name).to_pylist() for name in ("tags", "body", "properties")}
    columns["tags"][3] = columns["tags"][99] = "not|fine"
    columns["body"][50] = bytes(5 << 20)  # more than the broker takes
    if grouped:
        columns["properties"] = [dict(own) | {"__SHARDINGKEY": "g"} for own in columns["properties"]]
        columns["properties"][20]["__SHARDINGKEY"] = "g" * 1000
    for name, column in columns.items():
        number = rows.schema.get_field_index(name)
        rows = rows.set_column(number, name, pa.array(column, rows.schema.field(name).type))
    bad = [3, 20, 50, 99] if grouped else [3, 50, 99]
    left = [offset for offset in range(100) if offset not in bad]
    with pytest.raises(TroveError, match=r"topic orders, queue 0, offset \d+: .*skip_unsendable"):
        send(broker, rows, tmp_path, target)
    result = send(broker, rows, tmp_path, target, skip_unsendable=True)
    before = result.column("before")[0].as_py()
    assert result.column("unsendable").to_pylist() == [len(bad)]
    assert result.column("sent")[0].as_py() + before == len(left)
    assert [origin(message)[1] for message in stored(broker, target)] == left
    state = Ledger(str(tmp_path)).load(SourceQueue("orders", "", 0))
    assert state is not None
    assert (state.source_offset, state.sent) == (99, len(left))
    again = send(broker, rows, tmp_path, target, skip_unsendable=True)
    assert again.column("sent").to_pylist() == [0]


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"store": ""}, "give one source"),
        ({"archive": "/a"}, "give one source"),
        ({"server": ""}, "server is missing"),
        ({"out": ""}, "out is missing"),
        ({"rate": -1.0}, "below 0"),
        ({"store": "", "source_server": "S", "server": "S", "target_topic": ""}, "same topic"),
        (
            {"store": "", "source_server": "S", "server": "S", "target_topic": "a", "topics": ("a",)},
            "same topic",
        ),
    ],
)
def test_arguments_that_make_no_replay_are_refused(
    spark: SparkSession, tmp_path: Path, others: dict[str, Any], words: str
) -> None:
    arguments = ReplayArguments(server="127.0.0.1:9", out=str(tmp_path), store="/s", target_topic="t")
    with pytest.raises(TroveError, match=words) as caught:
        run(spark, replace(arguments, **others), NoProgress())
    assert caught.value.symbol == "OPTION_ILLEGAL"


def test_a_missing_topic_is_reported_before_anything_is_sent(
    spark: SparkSession, broker: BrokerProcess, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(TroveError, match="create_topics") as caught:
        replay(spark, broker, store, tmp_path, "nowhere", create_topics=False)
    assert error_of(caught.value).symbol == "TOPIC_NOT_FOUND"
    assert sorted(json.loads((tmp_path / "replay.json").read_text())) == ["form", "replay", "run"]
