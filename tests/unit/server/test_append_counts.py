"""The counts of answered appends."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from broker.server.monitoring.traffic import Traffic
from broker.server.native.append_counts import AppendCounts
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.log.commit_log import AppendStatus


def result(records: int, size: int) -> AppendResult:
    positions = np.arange(records, dtype=np.int64) * (size // max(records, 1))
    place = (PhysicalOffset(0), size, EpochMs(1), QueueOffset(0), records)
    return AppendResult(AppendStatus.PUT_OK, *place, bytes(8), positions)


@pytest.mark.asyncio
async def test_the_appends_of_a_turn_are_counted_in_the_next() -> None:
    observed: list[tuple[str, str, float]] = []
    traffic = Traffic(
        lambda method, response, ms, is_long_polling=False: observed.append((method, response, ms))
    )
    counts = AppendCounts(traffic)
    for _ in range(2):
        counts.answered("orders", result(2, 300), "OK", 1.5, "peer")
    counts.answered("bills", result(1, 100), "FLUSH_DISK_TIMEOUT", 5_000.0, "peer")
    assert (dict(traffic.messages_in), observed) == ({}, [])
    await asyncio.sleep(0)
    assert traffic.messages_in == {"orders": 4, "bills": 1}
    assert traffic.bytes_in == {"orders": 600, "bills": 100}
    assert observed == [("Append", "OK", 1.5)] * 2 + [("Append", "FLUSH_DISK_TIMEOUT", 5_000.0)]
    counts.answered("orders", result(1, 100), "OK", 1.0, "peer")
    await asyncio.sleep(0)
    assert traffic.messages_in["orders"] == 5


@pytest.mark.asyncio
async def test_duplicates_are_answered_and_not_counted_as_messages() -> None:
    traffic = Traffic()
    counts = AppendCounts(traffic)
    counts.answered("orders", result(0, 0), "OK", 1.0, "peer")
    await asyncio.sleep(0)
    assert not traffic.messages_in
