"""The Spark session that the jobs run in, with the settings that the data sources need.

For `spark-submit`, `with_settings(SparkSession.builder)` adds these settings to any builder.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from trovemq_spark.java import find_java_home

MASTER_DEFAULT: Final = "local[2]"
LOOPBACK: Final = "127.0.0.1"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties").as_uri()

SETTINGS: Final[Mapping[str, str]] = {
    # A store's times are epoch milliseconds; days are days of UTC.
    "spark.sql.session.timeZone": "UTC",
    # Without it Spark filters after every record was read and transferred.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
}
LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    # Spark would use an external interface if the host's name resolves to loopback.
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.driver.memory": "2g",
    # Spark would write a dozen lines to standard error before its log level can be set.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS}",
}


def with_settings(builder: SparkSession.Builder, *, master: str = MASTER_DEFAULT) -> SparkSession.Builder:
    """The builder with master and settings. With `local` masters the driver listens on loopback only."""
    settings = dict(SETTINGS) | (dict(LOCAL_SETTINGS) if master.startswith("local") else {})
    builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def make_session(
    name: str, *, master: str = MASTER_DEFAULT, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A new session of this name, or the existing one. Raises JavaMissingError if no Java is found."""
    prepare_environment(master)
    builder = with_settings(SparkSession.builder, master=master).appName(name)
    # Spark would create these in the working directory.
    builder = builder.config("spark.sql.warehouse.dir", f"{tempfile.gettempdir()}/trovemq-warehouse")
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register_sources(session)
    return session


def prepare_environment(master: str) -> None:
    """Sets the environment of the JVM and the workers: Java, and the Python of this process."""
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)


def register_sources(session: SparkSession) -> None:
    """Registers the formats `trovemq` and `trovemq-log`, also if the packages that Spark looks for
    (`pyspark_trovemq…`) are not installed."""
    from trovemq_spark.sources.live_batch import TroveDataSource
    from trovemq_spark.sources.log_batch import TroveLogDataSource

    for source in (TroveDataSource, TroveLogDataSource):
        session.dataSource.register(source)
