"""Records of another node's frame that are found to be alike have the units and entries of any records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.engine import NOW_MS
from tests.support.projections import stored
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.alike import as_alike
from trovemq_proto.records.layout import QUEUE_ID_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT
from trovemq_proto.records.queue_units import units_of

COUNT = 50
ODD = 30


def record(number: int, **more: str) -> bytearray:
    fields: dict[str, Any] = {"topic": "orders", "queue_id": 1, "tag": "new", "keys": f"k{number:03}"}
    fields |= more
    made = bytearray(stored(0, 0, NOW_MS, **fields))
    made[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = (7 + number).to_bytes(8)
    return made


def frame(odd: Callable[[bytearray], bytearray] = lambda one: one) -> memoryview:
    records = [record(number) for number in range(COUNT)]
    records[ODD] = odd(records[ODD])
    return memoryview(b"".join(records))


def test_a_producers_batch_is_found_to_be_alike() -> None:
    before = RecordBatch.split(frame())
    found = as_alike(before)
    assert found.alike is not None
    assert found.topic == "orders"
    assert found.special, "nothing is known about its properties"
    assert units_of(found, LOG_ORIGIN, LOG_ORIGIN, None) == units_of(before, LOG_ORIGIN, LOG_ORIGIN, None)
    for one, other in zip(found.index_entries(), before.index_entries(), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found.tags_codes(), before.tags_codes())


def _with(at: int, value: int) -> Callable[[bytearray], bytearray]:
    def change(one: bytearray) -> bytearray:
        one[at] = value
        return one

    return change


@pytest.mark.parametrize(
    "odd",
    [
        _with(QUEUE_ID_AT + 3, 2),
        _with(QUEUE_OFFSET_AT + 7, 200),
        _with(SYS_FLAG_AT + 3, 0x8),
        lambda _one: record(ODD, topic="others"),
        lambda _one: record(ODD, keys="longer than the others"),
        lambda one: bytearray(one.replace(b"KEYS", b"KEYZ")),
        lambda one: bytearray(one.replace(b"orders", b"orderz")),
    ],
)
def test_one_other_record_leaves_all_as_they_are(odd: Callable[[bytearray], bytearray]) -> None:
    batch = RecordBatch.split(frame(odd))
    assert as_alike(batch) is batch
