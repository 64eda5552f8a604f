"""One Spark session for all tests of the pipeline that run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.golden import unpack
from trovemq_spark.session import make_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`; what it writes for itself lies in a directory of its own."""
    scratch = tmp_path_factory.mktemp("spark")
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
