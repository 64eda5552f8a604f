"""The job `stream`: every row in the table once, whatever stops it; its offsets and its refusals."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.archive_logs import GrowingLog, archive_rows, glob_rows, log_rows
from tests.pipeline.stream_kill import QUEUES, ROOT, TOPIC, WATCHED, Driver, Producer
from tests.support.live_source import ask, make_topic, send
from tests.support.pipeline_size import PIPELINE_LONG
from trovemq.testing import BrokerProcess
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.archive.readers import arrow_dataset
from trovemq_spark.job import NoProgress, Report
from trovemq_spark.jobs.stream import StreamArguments, run

pytestmark = pytest.mark.slow
NAME = "b1"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(name=NAME) as process:
        yield process


def stream(spark: SparkSession, out: Path, **arguments: Any) -> Report:
    return run(spark, StreamArguments(str(out), **arguments), NoProgress())


def forget_last_batch(checkpoint: Path) -> None:
    """As a crash leaves it between the table's commit and the checkpoint's."""
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()


def group_offsets(broker: BrokerProcess, group: str, topic: str, count: int) -> list[int | None]:
    async def asked(client: Any) -> list[int | None]:
        return [await client.admin.get_offset(group, topic, queue_id) for queue_id in range(count)]

    return ask(broker.address, asked)


def places(out: Path) -> tuple[list[Any], list[Any]]:
    """(topic, queue, offset, body) of all rows, by the manifest and as a program finds them that knows no
    manifest."""
    columns = ["topic", "queueId", "queueOffset", "body"]
    tables = [arrow_dataset(out).to_table(columns)]
    linked = sorted(out.glob("topic=*/date=*/*.parquet"))
    tables.append([row for path in linked for row in pq.ParquetFile(path).read(columns).to_pylist()])
    rows = [tables[0].to_pylist(), tables[1]]
    by_manifest, by_links = (sorted(tuple(row.values()) for row in part) for part in rows)
    return by_manifest, by_links


def test_a_topic_becomes_a_table_and_the_group_knows(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    out = tmp_path / "table"
    arguments = {"server": broker.address, "pattern": "flow-.*", "consumer_group": "tables"}
    make_topic(broker.address, "flow-1", 2)
    sent = send(broker.address, "flow-1", QueueId(0), 50, NAME) + send(
        broker.address, "flow-1", QueueId(1), 10, NAME
    )
    first = stream(spark, out, **arguments, max_batch_rows=40)
    assert first.facts["rows"] == 60
    assert first.facts["batches"] == 2
    assert first.facts["offsets"] == {"flow-1": {NAME: {"0": 50, "1": 10, "topicIdentity": 0}}}
    assert not first.notes
    assert group_offsets(broker, "tables", "flow-1", 2) == [50, 10]

    forget_last_batch(out / "_checkpoint")
    make_topic(broker.address, "flow-2", 1)
    sent += send(broker.address, "flow-2", QueueId(0), 7, NAME) + send(
        broker.address, "flow-1", QueueId(1), 5, NAME
    )
    second = stream(spark, out, **arguments)
    assert (second.facts["rows"], second.facts["batchesReplayed"]) == (12, 1)
    wanted = sorted((m.topic, m.queue_id, m.queue_offset, m.body) for m in sent)
    assert places(out) == (wanted, wanted)

    # A run that was killed before it stored the group's offsets is made up for, though nothing is new.
    ask(broker.address, lambda client: client.admin.commit_offset("tables", "flow-1", 1, 3, NAME))
    third = stream(spark, out, **arguments)
    assert (third.facts["rows"], third.facts["batches"]) == (0, 0)
    assert group_offsets(broker, "tables", "flow-1", 2) == [50, 15]
    assert group_offsets(broker, "tables", "flow-2", 1) == [7]


def test_a_log_that_grows_is_the_table(spark: SparkSession, tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "store", 3, topics=("orders", "a|b"))
    out = tmp_path / "table"
    rows = 0
    for count in (30, 25):
        log.grow(count)
        report = stream(spark, out, store=str(log.store), max_batch_rows=20)
        rows += int(str(report.facts["rows"]))
        assert report.facts["offsets"] == {"physicalOffset": log.end}
        assert report.facts["files"]
    assert rows == 55
    assert archive_rows(out) == sorted(glob_rows(out)) == log_rows(log.store)

    with pytest.raises(TroveError, match=f"{errors.ARCHIVE_ILLEGAL.symbol}.*another checkpoint"):
        stream(spark, out, store=str(log.store), checkpoint=str(tmp_path / "other"))
    with Manifest.writing(out, "compact"), pytest.raises(TroveError, match=errors.JOB_RUNNING.symbol):
        stream(spark, out, store=str(log.store))
    assert archive_rows(out) == log_rows(log.store)


def test_a_damaged_record_ends_the_job_and_earlier_commits_stay(spark: SparkSession, tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "store", 4, topics=("orders",))
    log.grow(10)
    out = tmp_path / "table"
    stream(spark, out, store=str(log.store))
    whole, begin = log_rows(log.store), log.end
    log.grow(3)
    segment = log.directory / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[begin + 4] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(TroveError, match=errors.RECORD_DAMAGED.symbol):
        stream(spark, out, store=str(log.store))
    assert archive_rows(out) == sorted(glob_rows(out)) == whole


class StopAfter(NoProgress):
    """Sends this process a signal when a batch is written."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        self.rows: list[int] = []

    def advance(self, count: int = 1) -> None:
        self.rows.append(count)
        if len(self.rows) == 1:
            os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM] if PIPELINE_LONG else [signal.SIGTERM])
def test_a_signal_lets_the_batch_at_hand_finish(
    number: signal.Signals, spark: SparkSession, tmp_path: Path
) -> None:
    log = GrowingLog(tmp_path / "store", 6, topics=("orders",))
    log.grow(40)
    out = tmp_path / "table"
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    stopping = StopAfter(number)
    arguments = StreamArguments(str(out), store=str(log.store), trigger="continuous", max_batch_rows=1)
    report = run(spark, arguments, stopping)
    assert report.facts["stopped"] is True
    assert 1 <= len(stopping.rows) < 40, "it did not stop"
    assert report.facts["rows"] == sum(stopping.rows)
    assert archive_rows(out) == log_rows(log.store)[: sum(stopping.rows)]
    assert handlers == [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    rest = stream(spark, out, store=str(log.store))
    assert rest.facts["stopped"] is False
    assert archive_rows(out) == sorted(glob_rows(out)) == log_rows(log.store)


@pytest.mark.skipif(not PIPELINE_LONG, reason="separate drivers: PIPELINE_LONG=1")
def test_drivers_killed_while_a_producer_continues(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Kills fall after a step of a batch is seen on disk (which one: by the seed), and a moment more."""
    make_topic(broker.address, TOPIC, QUEUES)
    out = tmp_path / "table"
    source = random.Random(6)
    arguments = {"server": broker.address, "topics": TOPIC, "consumer_group": "kept-tables"}
    settings = [f"--set={name}={value}" for name, value in arguments.items() if name != "server"]
    with Producer(broker.address, 6) as producer:
        for _ in range(20):
            driver = Driver(
                tmp_path / "scratch",
                *("--server", broker.address, "--out", str(out)),
                *("--set=trigger=continuous", "--set=max_batch_rows=100"),
                *settings,
            )
            try:
                driver.wait_for_new(out / source.choice(WATCHED), source.randint(1, 4))
                threading.Event().wait(source.random() * 0.3)
                driver.kill(java_first=source.random() < 0.5)
            finally:
                driver.end()
            for rows in places(out):
                assert len({row[:3] for row in rows}) == len(rows), "a row is there twice"
    wanted = sorted((TOPIC, *place) for place in producer.acknowledged)
    before = len(places(out)[0])
    assert before, "no driver got as far as a commit"
    report = stream(spark, out, **(arguments | {"topics": (TOPIC,)}))
    assert places(out) == (wanted, wanted)
    assert report.facts["rows"] == len(wanted) - before
    counts = [sum(place[0] == queue for place in producer.acknowledged) for queue in range(QUEUES)]
    assert group_offsets(broker, "kept-tables", TOPIC, QUEUES) == counts


# --- Delta ---------------------------------------------------------------------------------------------


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    there = ROOT / "build" / "delta-jars"
    if any(there.glob("delta-spark*.jar")):
        return there
    if shutil.which("mvn") is None:
        pytest.skip("Delta's jars are not there, and no mvn to fetch them: `make delta-jars`")
    target = tmp_path / "jars"
    command = ["mvn", "-q", "-B", "-f", str(ROOT / "pipeline" / "delta" / "pom.xml")]
    try:
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("Delta's jars cannot be had from Maven here")
    return target


READ_DELTA = """
import sys
from pathlib import Path
from tests.pipeline.test_stream_job import forget_last_batch
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.stream import StreamArguments, run, session_settings
from trovemq_spark.session import make_session
store, out, jars = sys.argv[1:]
arguments = StreamArguments(out, store=store, format="delta", jars=jars, max_batch_rows=20)
session = make_session("delta", settings=dict(session_settings(arguments)))
reports = []
for _ in range(2):
    reports.append(run(session, arguments, NoProgress()).facts)
    forget_last_batch(Path(out, "_checkpoint"))
rows = session.read.format("delta").load(out).select("physicalOffset").collect()
import json
print(json.dumps({"reports": reports, "rows": sorted(row[0] for row in rows)}))
session.stop()
"""


@pytest.mark.skipif(not PIPELINE_LONG, reason="a separate session: PIPELINE_LONG=1")
def test_delta_has_each_row_once_though_a_batch_runs_again(jars: Path, tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "store", 8)
    log.grow(50)
    command = [sys.executable, "-c", READ_DELTA, str(log.store), str(tmp_path / "table"), str(jars)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["rows"] == [row[0] for row in log_rows(log.store)]
    assert reported["reports"][0]["rows"] == 50
    assert reported["reports"][1]["offsets"] == {"physicalOffset": log.end}


def test_a_session_without_delta_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TroveError, match=f"{errors.OPTION_ILLEGAL.symbol}.*make delta-jars"):
        stream(spark, tmp_path / "table", store=str(tmp_path), format="delta")
    assert not (tmp_path / "table").exists()
