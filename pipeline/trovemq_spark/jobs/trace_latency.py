"""Makes histograms by stage from the values by key (trace_times.py), and rows with exact quantiles from the
histograms.

| stage                   | from               | to             | a row for each     |
|-------------------------|--------------------|----------------|--------------------|
| bornToStored            | the client's clock | store time     | topic, hour        |
| storedToDelivered       | store time         | first delivery | topic, group, hour |
| deliveredToAcknowledged | first delivery     | acknowledged   | topic, group, hour |
| bornToAcknowledged      | the client's clock | acknowledged   | topic, group, hour |

Quantiles are exact, by nearest rank: the q-quantile of n values is the ceil(q n)-th of them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_spark.audit.delivery_events import EVENT_DTYPE
from trovemq_spark.jobs.trace_times import (
    COPIES_DTYPE,
    HISTOGRAM_DTYPE,
    HOUR_MS,
    MESSAGE_DTYPE,
    Block,
    Key,
    histogram,
    merged,
)
from trovemq_store.events.codec import EventKind

BORN_TO_STORED: Final = "bornToStored"
STORED_TO_DELIVERED: Final = "storedToDelivered"
DELIVERED_TO_ACKNOWLEDGED: Final = "deliveredToAcknowledged"
BORN_TO_ACKNOWLEDGED: Final = "bornToAcknowledged"
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

Int64s = NDArray[np.int64]
StageKey = tuple[str, str, str, int]
"""(stage, topic, group, hour)."""


@dataclass(slots=True)
class Attempts:
    """For one topic and group: deliveries, redeliveries and their ends, counted by events."""

    delivered: int = 0
    redeliveries: int = 0
    attempts_max: int = 0
    acknowledged: int = 0
    dead_lettered: int = 0

    def add(self, other: Attempts) -> None:
        self.delivered += other.delivered
        self.redeliveries += other.redeliveries
        self.attempts_max = max(self.attempts_max, other.attempts_max)
        self.acknowledged += other.acknowledged
        self.dead_lettered += other.dead_lettered


@dataclass(slots=True)
class KeyResult:
    """The result of one key, merged on the driver: its size is that of the histograms, not of the log."""

    stages: dict[StageKey, bytes] = field(default_factory=dict)
    attempts: dict[tuple[str, str], Attempts] = field(default_factory=dict)
    copies: dict[tuple[str, str, str], bytes] = field(default_factory=dict)


def reduce_times(key: Key, blocks: list[Block]) -> Iterable[KeyResult]:
    """The result of one key from all its blocks."""
    result = KeyResult()
    if key[0] == "stored":
        parts = np.concatenate([np.frombuffer(data, HISTOGRAM_DTYPE) for _, data in blocks])
        result.stages[BORN_TO_STORED, str(key[1]), "", int(key[2])] = merged(parts).tobytes()
    elif key[0] == "copies":
        result.copies[str(key[1]), str(key[2]), str(key[3])] = b"".join(data for _, data in blocks)
    else:
        _queue(result, str(key[1]), blocks)
    return [result]


def _queue(result: KeyResult, topic: str, blocks: list[Block]) -> None:
    parts: dict[str, list[bytes]] = {}
    for group, data in blocks:
        parts.setdefault(group, []).append(data)
    messages = np.frombuffer(b"".join(parts.pop("", [])), MESSAGE_DTYPE)
    messages = messages[np.unique(messages["offset"], return_index=True)[1]]
    for group, datas in parts.items():
        events = np.frombuffer(b"".join(datas), EVENT_DTYPE)
        received = events[events["kind"] == EventKind.RECEIVED]
        acknowledged = events[events["kind"] == EventKind.ACKNOWLEDGED]
        dead = events[events["kind"] == EventKind.DEAD_LETTERED]
        first_times, ack_times = _first_times(messages, received), _first_times(messages, acknowledged)
        for stage_key, counted in _stages(topic, group, messages, first_times, ack_times):
            result.stages[stage_key] = counted.tobytes()
        result.attempts[topic, group] = Attempts(
            len(np.unique(received["offset"])),
            int(np.count_nonzero(received["attempt"] > 1)),
            int(received["attempt"].max(initial=0)),
            len(np.unique(acknowledged["offset"])),
            len(np.unique(dead["offset"])),
        )


def _first_times(messages: NDArray[np.void], events: NDArray[np.void]) -> Int64s:
    """The time of the first of these events of each message, epoch ms; -1: none."""
    times = np.full(len(messages), np.iinfo(np.int64).max)
    places = np.searchsorted(messages["offset"], events["offset"])
    known = places < len(messages)
    known[known] = messages["offset"][places[known]] == events["offset"][known]
    np.minimum.at(times, places[known], events["time_ms"][known])
    times[times == np.iinfo(np.int64).max] = -1
    return times


def _stages(
    topic: str, group: str, messages: NDArray[np.void], delivered: Int64s, acknowledged: Int64s
) -> Iterator[tuple[StageKey, NDArray[np.void]]]:
    hours = messages["stored"] // HOUR_MS
    is_delivered, is_acknowledged = delivered >= 0, acknowledged >= 0
    for stage, begin, end, known in (
        (STORED_TO_DELIVERED, messages["stored"], delivered, is_delivered),
        (DELIVERED_TO_ACKNOWLEDGED, delivered, acknowledged, is_delivered & is_acknowledged),
        (BORN_TO_ACKNOWLEDGED, messages["born"], acknowledged, is_acknowledged),
    ):
        for hour in np.unique(hours[known]).tolist():
            chosen = known & (hours == hour)
            yield (stage, topic, group, hour), histogram(end[chosen] - begin[chosen])


# --- together -----------------------------------------------------------------------------------------------


def put_together(
    parts: Iterable[KeyResult],
) -> tuple[list[dict[str, object]], list[dict[str, object]], list[dict[str, object]]]:
    """(latencies, deliveries, copies) as JSON-ready rows, sorted."""
    stages: dict[StageKey, list[bytes]] = {}
    attempts: dict[tuple[str, str], Attempts] = {}
    copies: dict[tuple[str, str, str], list[bytes]] = {}
    for part in parts:
        for stage_key, data in part.stages.items():
            stages.setdefault(stage_key, []).append(data)
        for pair, one in part.attempts.items():
            attempts.setdefault(pair, Attempts()).add(one)
        for copy_key, data in part.copies.items():
            copies.setdefault(copy_key, []).append(data)
    latencies = [_latency(key, b"".join(stages[key])) for key in sorted(stages, key=_by_topic)]
    return latencies, [_deliveries(pair, attempts[pair]) for pair in sorted(attempts)], _copies(copies)


def _by_topic(key: StageKey) -> tuple[str, str, int, str]:
    return key[1], key[2], key[3], key[0]


def _latency(key: StageKey, data: bytes) -> dict[str, object]:
    stage, topic, group, hour = key
    counted = merged(np.frombuffer(data, HISTOGRAM_DTYPE))
    reached = np.cumsum(counted["count"])
    total = int(reached[-1])
    ranks = {name: -(-total * round(part * 100) // 100) for name, part in QUANTILES.items()}
    at = {name: int(counted["value"][np.searchsorted(reached, rank)]) for name, rank in ranks.items()}
    return {
        "stage": stage,
        "topic": topic,
        "group": group,
        "hour": datetime.fromtimestamp(hour * HOUR_MS // 1000, UTC).strftime("%Y-%m-%dT%H:00:00Z"),
        "count": total,
        **{f"{name}Ms": value for name, value in at.items()},
        "maxMs": int(counted["value"][-1]),
    }


def _deliveries(pair: tuple[str, str], one: Attempts) -> dict[str, object]:
    return {
        "topic": pair[0],
        "group": pair[1],
        "delivered": one.delivered,
        "redeliveries": one.redeliveries,
        "attemptsMax": one.attempts_max,
        "acknowledged": one.acknowledged,
        "deadLettered": one.dead_lettered,
    }


def _copies(copies: Mapping[tuple[str, str, str], list[bytes]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for (kind, group, topic), parts in sorted(copies.items()):
        counted = np.frombuffer(b"".join(parts), COPIES_DTYPE)
        by_attempts = {
            str(attempts): int(counted["count"][counted["attempts"] == attempts].sum())
            for attempts in np.unique(counted["attempts"]).tolist()
        }
        row = {"kind": kind, "group": group, "topic": topic, "count": int(counted["count"].sum())}
        rows.append({**row, "byReconsumeTimes": by_attempts})
    return rows
