"""The session itself: this Python in the workers, UTC, loopback only."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def test_workers_run_this_python_and_know_the_codec(spark: SparkSession) -> None:
    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import trovemq_proto.records  # noqa: F401  # a worker needs it

        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([sys.executable] * batch.num_rows)], ["python"])

    rows = spark.range(3).mapInArrow(counted, "python string").collect()
    assert {row.python for row in rows} == {sys.executable}


def test_times_are_utc_and_the_driver_listens_on_loopback(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
