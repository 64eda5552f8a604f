"""The job `trace` on Spark: flights replayed with known delays."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from deploy.demo.flights import flight_messages
from tests.support.traced_store import HOUR_MS, TracedStore
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.trace import OUT_FILE, TraceArguments, run, trace
from trovemq_spark.tasks import OneProcess

pytestmark = pytest.mark.slow

FLIGHTS = 120


def test_flights_replayed_with_known_delays(spark: SparkSession, tmp_path: Path) -> None:
    """A message reaches the broker as many seconds after it was born as its flight's minutes of delay."""
    bodies = [message.body for message in itertools.islice(flight_messages(), FLIGHTS)]
    delays = [1_000 * max(0, json.loads(body)["dep_delay"] or 0) for body in bodies]
    assert len(set(delays)) > 10
    store = TracedStore(7)
    store.append(bodies, delays, every_ms=45_000)
    store.deliver("arrivals", acknowledged=0.8)
    store.exhaust(3)
    root = store.close(tmp_path / "store")
    arguments = TraceArguments(str(root), out=str(tmp_path / "out"))
    report = run(spark, arguments, NoProgress())
    rows = pq.read_table(tmp_path / "out" / OUT_FILE).to_pylist()
    assert rows == report.facts["latencies"]
    expected = [{**row, "hour": _iso(int(str(row["hour"])))} for row in store.times.rows()]
    assert sorted(rows, key=_key) == sorted(expected, key=_key)
    assert report.to_json() == trace(OneProcess(NoProgress()), arguments).to_json()


def _iso(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR_MS // 1000, UTC).isoformat().replace("+00:00", "Z")


def _key(row: dict[str, object]) -> tuple[str, ...]:
    return str(row["topic"]), str(row["group"]), str(row["hour"]), str(row["stage"])
