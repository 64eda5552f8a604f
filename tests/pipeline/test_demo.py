"""The demo's query and picture, over a few flights; the whole demo is `make pipeline-demo`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from deploy.pipeline_demo.delays import delays_by_carrier, draw

pytestmark = pytest.mark.slow


def test_delays_by_carrier_are_what_pandas_says(spark: SparkSession, tmp_path: Path) -> None:
    source = random.Random(5)
    flights = [
        {"carrier": source.choice(["UA", "AA", "B6"]), "arr_delay": source.choice([None, *range(-20, 90, 7)])}
        for _ in range(300)
    ]
    bodies = [(json.dumps(flight).encode(),) for flight in flights]
    delays = delays_by_carrier(spark.createDataFrame(bodies, "body binary"))
    arrived = pd.DataFrame(flights).dropna()
    assert len(delays) == 3
    for carrier, minutes in arrived.groupby("carrier")["arr_delay"]:
        found = next(delay for delay in delays if delay.carrier == carrier)
        assert found.flight_count == len(minutes)
        assert found.mean_minutes == pytest.approx(minutes.mean())
        assert found.p90_minutes == pytest.approx(np.percentile(minutes, 90))
    assert [delay.mean_minutes for delay in delays] == sorted(
        (delay.mean_minutes for delay in delays), reverse=True
    )
    picture = tmp_path / "delays.png"
    draw(delays, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
