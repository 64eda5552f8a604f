"""Arguments of the job `stream`: refused combinations, and the effect of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.jobs.stream import StreamArguments, session_settings, trigger_options
from trovemq_spark.sinks.delta import EXTENSION, EXTENSIONS, delta_settings

LIVE = {"server": "127.0.0.1:1", "topics": ("T",)}


def refused(words: str) -> pytest.RaisesExc[TroveError]:
    return pytest.raises(TroveError, match=f"{errors.OPTION_ILLEGAL.symbol}.*{words}")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "one of --server and --store"),
        (LIVE | {"store": "s"}, "one of --server and --store"),
        (LIVE | {"pattern": "T.*"}, "one of topics and pattern"),
        ({"server": "127.0.0.1:1"}, "topics and pattern"),
        ({"store": "s", "consumer_group": "g"}, "consumer_group needs --server"),
        (LIVE | {"format": "iceberg"}, "parquet, delta"),
        (LIVE | {"compression": "lzo"}, "zstd"),
        (LIVE | {"trigger": "sometimes"}, "once, continuous or"),
        (LIVE | {"mode": "failsafe"}, "failfast"),
        (LIVE | {"max_batch_rows": 0}, "maxOffsetsPerTrigger"),
        (LIVE | {"starting_offsets": "erliest"}, "startingOffsets"),
        ({"store": "s", "starting_offsets": '{"T": {"b": {"0": 1}}}'}, "startingPhysicalOffset"),
        (LIVE | {"pattern": "(", "topics": ()}, "subscribePattern"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(given: dict[str, object], words: str) -> None:
    with refused(words):
        StreamArguments("out", **given)  # type: ignore[arg-type]


def test_the_rest_becomes_options_of_the_source() -> None:
    live = StreamArguments("out", **LIVE, max_batch_rows=5).source_options()  # type: ignore[arg-type]
    assert live["nameServer"] == "127.0.0.1:1"
    assert live["subscribe"] == "T"
    assert live["maxOffsetsPerTrigger"] == "5"
    assert "path" not in live
    assert "consumerGroup" not in live, "the job commits for the group, when the table has the rows"
    log = StreamArguments("out/", store="s", fail_on_data_loss=False)
    assert log.source_options()["path"] == "s"
    assert log.source_options()["failOnDataLoss"] == "false"
    assert str(log.checkpoint_place) == "out/_checkpoint"
    assert str(StreamArguments("out", store="s", checkpoint="c").checkpoint_place) == "c"


def test_triggers() -> None:
    assert trigger_options("once") == {"availableNow": True}
    assert trigger_options("continuous") == {"processingTime": "0 seconds"}
    assert trigger_options("10s") == {"processingTime": "10000 milliseconds"}


def test_delta_needs_its_jars(tmp_path: Path) -> None:
    arguments = StreamArguments("out", **LIVE, format="delta", jars=str(tmp_path))  # type: ignore[arg-type]
    with refused("make delta-jars"):
        session_settings(arguments)
    (tmp_path / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    with refused("delta-storage is missing"):
        delta_settings(tmp_path)
    (tmp_path / "delta-storage-4.4.0.jar").touch()
    settings = session_settings(arguments)
    assert settings[EXTENSIONS] == EXTENSION
    assert [Path(jar).name for jar in settings["spark.jars"].split(",")] == sorted(
        jar.name for jar in tmp_path.iterdir()
    )
    assert session_settings(StreamArguments("out", **LIVE)) == {}  # type: ignore[arg-type]
