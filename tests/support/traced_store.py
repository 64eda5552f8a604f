"""A store whose messages were on their way for chosen times, and those times by stage, in plain lists."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.delivery import Engine
from tests.support.own_store import write_store
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import decode_message
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.topics.retry_policy import RetryPolicy
from trovemq_store.topics.subscription_groups import SubscriptionGroup

HOUR_MS: Final = 3_600_000
LONG_MS: Final = 12 * HOUR_MS
TOPIC: Final = "orders"
SLOW: Final = SubscriptionGroup("slow", retry_policy=RetryPolicy("customized", (1_000,)), retry_max=2)


@dataclass
class Times:
    """(stage, topic, group, hour since 1970) -> milliseconds, one for each message."""

    stages: dict[tuple[str, str, str, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    def rows(self) -> list[dict[str, object]]:
        """The right result of a trace: quantiles by sorting."""
        rows: list[dict[str, object]] = []
        for (stage, topic, group, hour), values in self.stages.items():
            ordered = sorted(values)
            quantiles = {f"p{q}Ms": ordered[(len(ordered) * q + 99) // 100 - 1] for q in (50, 90, 99)}
            row = {"stage": stage, "topic": topic, "group": group, "hour": hour, "count": len(ordered)}
            rows.append({**row, **quantiles, "maxMs": ordered[-1]})
        return rows


class TracedStore:
    """Messages are appended first; then `deliver` delivers them to a group, which acknowledges some of
    them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = Engine(topic=TOPIC, queue_count=1)
        self.times = Times()
        self.born: list[int] = []
        self.stored: list[int] = []

    def append(self, bodies: Sequence[bytes], delays_ms: Sequence[int], every_ms: int) -> None:
        """A message each `every_ms`; born that time before it was stored."""
        for body, delay in zip(bodies, delays_ms, strict=True):
            self.engine.now_ms += every_ms
            stored = self.engine.now_ms
            properties = {"UNIQ_KEY": f"id-{len(self.born)}"}
            record = NewRecord(TOPIC, QueueId(0), body, properties, born_timestamp=EpochMs(stored - delay))
            self.engine.writer.append([record], stored)
            self.born.append(stored - delay)
            self.stored.append(stored)
            self.times.stages["bornToStored", TOPIC, "", stored // HOUR_MS].append(delay)

    def deliver(self, group: str, *, acknowledged: float) -> None:
        """One message after the other, in order; this share of them is acknowledged, in another order."""
        delivered = {}
        for number, stored in enumerate(self.stored):
            self.engine.now_ms += self.random.randrange(1, 5_000)
            (one,) = self.engine.receive(group, count=1, invisible_ms=LONG_MS)
            delivered[number] = (one, self.engine.now_ms)
            self._add("storedToDelivered", group, number, self.engine.now_ms - stored)
        chosen = self.random.sample(sorted(delivered), int(len(delivered) * acknowledged))
        for number in chosen:
            self.engine.now_ms += self.random.randrange(1, 3_000)
            one, at = delivered[number]
            self.engine.ack(one, group=group)
            self._add("deliveredToAcknowledged", group, number, self.engine.now_ms - at)
            self._add("bornToAcknowledged", group, number, self.engine.now_ms - self.born[number])

    def exhaust(self, count: int) -> tuple[int, int]:
        """The group `slow` takes the first messages and acknowledges none, until their attempts are over:
        (deliveries that were not the first, highest attempt)."""
        again, highest, first_at = 0, 0, {}
        for turn in range(4):
            for one in self.engine.receive(SLOW, count=count if turn == 0 else 32, invisible_ms=10_000):
                number = int(decode_message(one.record).properties["UNIQ_KEY"].removeprefix("id-"))
                if one.attempt == 1 and turn == 0:
                    first_at[number] = self.engine.now_ms
                if one.attempt == 1 and turn > 0:
                    self.engine.ack(one, group="slow")
                    first_at[number] = self.engine.now_ms
                    self._add("deliveredToAcknowledged", "slow", number, 0)
                    acked = self.engine.now_ms - self.born[number]
                    self._add("bornToAcknowledged", "slow", number, acked)
                again += one.attempt > 1
                highest = max(highest, one.attempt)
            self.engine.now_ms += 60_000
        for number, at in first_at.items():
            self._add("storedToDelivered", "slow", number, at - self.stored[number])
        return again, highest

    def _add(self, stage: str, group: str, number: int, taken: int) -> None:
        self.times.stages[stage, TOPIC, group, self.stored[number] // HOUR_MS].append(taken)

    def close(self, root: Path) -> Path:
        self.engine.events.flush(self.engine.now_ms)
        self.engine.store.dispatch()
        self.engine.store.close(self.engine.now_ms)
        return write_store(self.engine.files, root)
