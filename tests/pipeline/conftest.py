"""One Spark session for all tests of the pipeline that run in this process, in a JVM that does not live long.

Half of a JVM's work in such a run was its second compiler's, for code that runs a few times. The variables
reach separate drivers, too, and say nothing on the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.warm_python import warm_python
from tests.support.golden import unpack
from trovemq_spark.session import make_session

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_name, SHORT_LIVED)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`--dist loadgroup` runs all tests of the session on one worker, which alone starts Spark."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`; its files lie in a temporary directory."""
    scratch = tmp_path_factory.mktemp("spark")
    with warm_python(scratch) as python:
        with pytest.MonkeyPatch.context() as environment:  # the JVM keeps it
            for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
                environment.setenv(name, str(python))
            session = make_session(
                "tests",
                settings={
                    "spark.local.dir": str(scratch),
                    "spark.sql.warehouse.dir": str(scratch / "warehouse"),
                    "spark.driver.memory": "1g",
                    "spark.sql.shuffle.partitions": "2",
                },
            )
        yield session
        session.stop()


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    """Gives a fresh copy of a golden store by its name."""
    return lambda name: unpack(name, tmp_path)
