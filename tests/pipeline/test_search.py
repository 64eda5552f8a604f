"""The job `search` in Spark's tasks, and with a live broker: the same answers as reading every message."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.broker_process import running_broker
from tests.support.golden import unpack
from tests.support.pipeline_size import PIPELINE_LONG
from tests.support.search_oracle import archive_half, expected, living_messages, make_store, questions
from trovemq_proto.errors import TroveError
from trovemq_spark.job import NoProgress, Report
from trovemq_spark.jobs.search import SearchArguments, run
from trovemq_spark.search import reading

pytestmark = pytest.mark.slow

SIZES = (
    "mappedFileSizeCommitLog=12288",
    "mappedFileSizeConsumeQueue=400",
    "maxHashSlotNum=64",
    "maxIndexNum=256",
)


def found(report: Report, topics: tuple[str, ...] | None = None) -> list[str]:
    rows: Any = report.facts["rows"]
    return [row["offsetMsgId"] for row in rows if topics is None or row["topic"] in topics]


def test_tasks_find_what_is_found_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, archive = unpack("rollover", tmp_path), tmp_path / "archive"
    messages = living_messages(store)
    archive_half(store, archive)
    monkeypatch.setattr(reading, "HERE_BYTES_MAX", 0)
    by_tasks = 0
    for wanted in questions(messages, 5, 60 if PIPELINE_LONG else 6):
        arguments = SearchArguments(store=str(store), archive=str(archive), **wanted)
        report = run(lambda: spark, arguments, NoProgress())
        by_tasks += bool(report.facts["sources"]["spark"])  # type: ignore[index]
        assert found(report) == expected(messages, arguments), wanted
    assert by_tasks, "else nothing was shown"


def test_tasks_report_damage(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = unpack("rollover", tmp_path)
    victim = living_messages(store)[10]
    segment = min((store / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[victim.physical_offset + victim.record.index(victim.stored_body)] ^= 0xFF
    segment.write_bytes(data)
    monkeypatch.setattr(reading, "HERE_BYTES_MAX", 0)
    report = run(spark, SearchArguments(store=str(store), topic=victim.topic), NoProgress())
    assert any(f"at {victim.physical_offset}:" in note for note in report.notes)
    assert victim.offset_msg_id not in found(report)


@pytest.mark.parametrize("indexed", [True, False])
def test_archive_and_live_broker_answer_together(indexed: bool, tmp_path: Path) -> None:
    store, archive = make_store(tmp_path / "store", 11), tmp_path / "archive"
    messages = living_messages(store)
    archived = tmp_path / "copy"
    shutil.copytree(store, archived)
    archive_half(archived, archive)
    index = f"messageIndexEnable={str(indexed).lower()}"
    with running_broker(store, *SIZES, index) as broker:
        for wanted in questions(messages, 6, 60 if PIPELINE_LONG else 20):
            places = {"archive": str(archive), "server": broker.address}
            arguments = SearchArguments(**places, **(wanted | {"limit": 10_000}))  # type: ignore[arg-type]
            report = run(None, arguments, NoProgress())
            # the broker's system topics have records, too
            assert found(report, ("orders", "flights")) == expected(messages, arguments), wanted
            assert report.facts["complete"]
        nothing = run(None, SearchArguments(server=broker.address, topic="no-such"), NoProgress())
        assert nothing.notes == ["the server has no topic no-such"]
    with pytest.raises(TroveError, match="BROKER_UNREACHABLE"):
        run(None, SearchArguments(server=broker.address, topic="orders"), NoProgress())
