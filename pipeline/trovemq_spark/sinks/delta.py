"""Delta Lake as the table of the job `stream`. Its jars are not part of Spark: `make delta-jars` fetches them
(pipeline/delta/pom.xml has the versions), and a session needs them when it starts:

    make_session("…", settings=delta_settings("DIRECTORY OF THE JARS"))

A batch is one Delta transaction with the query's id and the batch's number as its `txn`. Delta does not write
a transaction twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trovemq_spark.option_kinds import option_error
from trovemq_spark.sinks.table_sink import BatchSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EXTENSIONS: Final = "spark.sql.extensions"
EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
JARS_DEFAULT: Final = "build/delta-jars"
JARS_NEEDED: Final = ("delta-spark_4.2_2.13", "delta-storage")
_ADVICE: Final = "`make delta-jars` fetches them; give their directory with --set jars=DIR"


def delta_settings(jars_directory: str | os.PathLike[str]) -> Mapping[str, str]:
    """The settings of a session that knows the format `delta`. Raises TroveError OPTION_ILLEGAL if jars are
    missing."""
    directory = Path(jars_directory)
    jars = sorted(directory.glob("*.jar"))
    for needed in JARS_NEEDED:
        if not any(jar.name.startswith(f"{needed}-") for jar in jars):
            raise option_error(
                f"Delta's jars are not in {directory} ({needed} is missing): {_ADVICE}", "jars"
            )
    return {
        "spark.jars": ",".join(str(jar.resolve()) for jar in jars),
        EXTENSIONS: EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def check_session(session: SparkSession) -> None:
    """Raises TroveError OPTION_ILLEGAL if the session was made without delta_settings()."""
    if EXTENSION not in (session.conf.get(EXTENSIONS, "") or ""):
        raise option_error(
            "format = delta: this session has no Delta. Make it with delta_settings(JARS), as jars are read "
            f"when it starts; {_ADVICE}",
            "format",
        )


class DeltaSink(BatchSink):
    """Appends batches to the Delta table in `out`, a path or URI. Delta reports neither whether it had a
    batch already nor its number of rows, so the rows that were read are counted."""

    def __init__(self, out: str, on_batch: Callable[[int], None]) -> None:
        super().__init__(on_batch)
        self._out = out
        self._observed = -1

    def process(self, rows: DataFrame, batch_id: int, query_id: str) -> int:
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", query_id)
            .option("txnVersion", batch_id)
            .save(self._out)
        )
        return 0

    def facts(self) -> dict[str, object]:
        return {"rows": self.rows, "batches": self.batches}

    def observe(self, query: StreamingQuery) -> None:
        for batch in query.recentProgress:
            if batch.batchId > self._observed:
                self._observed = batch.batchId
                self.rows += batch.numInputRows
