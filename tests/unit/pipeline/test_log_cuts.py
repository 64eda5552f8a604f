"""Format `trovemq-log`: how a reading is cut and bounded, and its reports of unreadable parts."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from pyspark.sql import types

from tests.support.log_files import LogFiles, plan, read, rows_of
from trovemq_proto.errors import TroveError
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED


def test_an_open_segment_that_is_nearly_empty_is_cut_where_its_records_are(tmp_path: Path) -> None:
    """Its zeros counted as rows to share out, so that one task got them all."""
    log = LogFiles(tmp_path, segment_size=1 << 20)
    for _ in range(80):
        log.append("t", bytes(100), properties={"p": "q"})
    found = read({"path": str(tmp_path), "minPartitions": "8"})
    assert [row["physicalOffset"] for row in found.rows] == [row["physicalOffset"] for row in log.rows]
    assert 8 <= found.part_count <= 10


def test_a_whole_log_is_planned_without_looking_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a segment is read by the planner")

    monkeypatch.setattr("trovemq_spark.sources.log_batch.boundaries", refuse)
    LogFiles(tmp_path).append("t", b"b")
    plan({"path": str(tmp_path)})


@pytest.mark.parametrize("mode", ["permissive", "dropmalformed"])
def test_bodies_that_inflate_a_thousandfold_come_in_bounded_batches(mode: str, tmp_path: Path) -> None:
    """All of a run's came in one batch: gigabytes, of a few megabytes of the log."""
    log = LogFiles(tmp_path, segment_size=1 << 20)
    sizes = [3 << 20, 10, 1 << 20, 5 << 20, 0, None, 1 << 20, 2 << 20, None]
    for number, size in enumerate(sizes):
        log.append("t", b"plain", properties={"p": "q"})
        body = b"no stream" if size is None else zlib.compress(bytes([number]) * size)
        log.append("t", body, sys_flag=SYS_FLAG_COMPRESSED, properties={"p": "q"})
    reader, (partition,), _ = plan({"path": str(tmp_path), "mode": mode})
    batches = list(reader.read(partition))
    rows = [row for batch in batches for row in rows_of(batch)]
    expected: list[bytes | None] = []
    for number, size in enumerate(sizes):
        expected.append(b"plain")
        if size is not None or mode == "permissive":
            expected.append(None if size is None else bytes([number]) * size)
    assert [row["body"] for row in rows] == expected
    assert all((row["damage"] is None) == (row["body"] is not None) for row in rows if "damage" in row)
    largest = [sum(len(body or b"") for body in batch.column("body").to_pylist()) for batch in batches]
    assert sorted(largest)[-2] <= (4 << 20) + 100 < sorted(largest)[-1] <= (5 << 20) + 100


def test_a_schema_whose_map_has_no_nulls_is_refused_in_words_that_say_so(tmp_path: Path) -> None:
    """It was "map<string,string>, not map<string,string>"."""
    schema = types.StructType()
    text = types.StringType()
    schema.add("properties", types.MapType(text, text, valueContainsNull=False))
    with pytest.raises(TroveError, match="and its values may be null"):
        plan({"path": str(tmp_path)}, schema=schema)


def test_a_uri_in_hadoops_spelling_gets_the_right_one_as_a_hint() -> None:
    """It was Arrow's error, without a remedy."""
    with pytest.raises(TroveError, match=r"s3:// \(not s3a://\)") as caught:
        read({"path": "s3a://bucket/store"})
    assert caught.value.symbol == "STORE_FAILED"
