"""The scan of an open segment while its broker appends."""

from __future__ import annotations

from mmap import mmap

import pytest

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_proto.records import encode_record
from trovemq_spark.log import scan
from trovemq_spark.log.scan import ScanBounds, scan_segment
from trovemq_store.files.read_only import ReadOnlyFile
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.segments import Segment
from trovemq_store.log.tail import find_record


def test_a_record_that_was_seen_half_written_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan meets half of it; when it looks for later records, it and one more are there."""
    first = encode_record("T", b"first")
    second = encode_record("T", b"second" * 100, physical_offset=len(first))
    third = encode_record("T", b"third", physical_offset=len(first) + len(second))
    data = mmap(-1, 4096)
    data.write(first + second[:300])
    looked: list[int] = []

    def appended(segment: Segment, begin: int) -> int:
        data[: len(first + second + third)] = first + second + third
        looked.append(begin)
        return find_record(segment, PhysicalOffset(begin))

    monkeypatch.setattr(scan, "find_record", appended)
    segment = Segment(LOG_ORIGIN, ReadOnlyFile("commitlog/0", data))
    parts = list(scan_segment(segment, ScanBounds(0, len(data), is_last=True)))
    assert all(isinstance(part, DispatchBatch) for part in parts)
    assert sum(len(part.records) for part in parts if isinstance(part, DispatchBatch)) == 3
    assert looked
