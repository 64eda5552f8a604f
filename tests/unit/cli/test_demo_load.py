"""A load that is ended anywhere and started again: neither a duplicate nor a gap."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.demo import flights, load
from trovemq.models.cluster import QueueOffsets
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ROWS = [
    flights.FlightMessage(
        i, flights.queue_of(f"N{i % 37}"), b"{}", (f"N{i % 37}", f"B6{i % 11}"), "B6", {"origin": "JFK"}
    )
    for i in range(3_000)
]


@dataclass
class FakeRecords:
    keys: list[str]

    def property_values(self, name: str) -> list[str]:
        assert name == "UNIQ_KEY"
        return self.keys


@dataclass
class FakeBatch:
    records: FakeRecords

    def __len__(self) -> int:
        return len(self.records.keys)


@dataclass
class FakeStore:
    """Unique keys by queue. After `remaining_batches` it refuses, and may keep a part of that batch."""

    queues: list[list[str]] = field(default_factory=lambda: [[] for _ in range(flights.QUEUE_COUNT)])
    remaining_batches: int = 1 << 30
    kept_of_last: float = 0.0
    created: int = 0

    @property
    def admin(self) -> FakeStore:
        return self

    async def create_topic(self, name: str, *, queue_count: int) -> None:
        self.created += 1
        if self.created > 1:
            raise TroveError(errors.TOPIC_EXISTS)

    async def queue_offsets(self, topic: str) -> list[QueueOffsets]:
        return [QueueOffsets("b", i, 0, len(keys)) for i, keys in enumerate(self.queues)]

    async def pull_batches(self, topic: str, *, queue_id: int, offset: int) -> AsyncIterator[FakeBatch]:
        keys = self.queues[queue_id]
        for first in range(offset, len(keys), 700):
            yield FakeBatch(FakeRecords(keys[first : first + 700]))

    def producer(self, topic: str) -> FakeStore:
        return self

    async def __aenter__(self) -> FakeStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def abort(self) -> None:
        return None

    async def send_batch(self, bodies: Sequence[bytes], **columns: Any) -> list[None]:
        keys = columns["message_ids"]
        assert (
            len(bodies)
            == len(keys)
            == len(columns["keys"])
            == len(columns["tags"])
            == len(columns["properties"])
        )
        queue = self.queues[columns["queue_id"]]
        if self.remaining_batches <= 0:
            queue += keys[: int(len(keys) * self.kept_of_last)]
            self.kept_of_last = 0.0
            raise TroveError(errors.BROKER_UNREACHABLE)
        self.remaining_batches -= 1
        queue += keys
        await asyncio.sleep(0)
        return [None] * len(keys)


def check_whole(store: FakeStore) -> None:
    stored = [key for queue in store.queues for key in queue]
    assert len(stored) == len(set(stored)) == len(ROWS)
    for queue_id, queue in enumerate(store.queues):
        assert queue == [row.message_id for row in ROWS if row.queue_id == queue_id]


async def run_load(store: Any) -> load.Loaded:
    return await load.load_flights(store, lambda count: None, ROWS)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1)), max_size=4))
def test_interrupted_loads_complete_without_duplicate_or_gap(interruptions: list[tuple[int, float]]) -> None:
    async def scenario() -> None:
        store = FakeStore()
        for batches, kept in interruptions:
            store.remaining_batches, store.kept_of_last = batches, kept
            try:
                await run_load(store)
            except TroveError:
                continue
        store.remaining_batches = 1 << 30
        await run_load(store)
        check_whole(store)
        assert (await run_load(store)).sent == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "BATCH_MESSAGES", 100)
        asyncio.run(scenario())


def test_a_hole_in_the_middle_and_strangers_in_the_topic_are_no_hindrance() -> None:
    async def scenario() -> None:
        store = FakeStore()
        await run_load(store)
        chosen = random.Random(2)
        for queue in store.queues:
            queue[:] = [key for key in queue if chosen.random() < 0.8] + ["a-stranger"]
        before = sum(len(queue) for queue in store.queues) - len(store.queues)
        loaded = await run_load(store)
        assert (loaded.found, loaded.sent) == (before, len(ROWS) - before)
        stored = [key for queue in store.queues for key in queue if key != "a-stranger"]
        assert sorted(stored) == [row.message_id for row in ROWS]

    asyncio.run(scenario())


def test_progress_adds_up_to_what_is_there() -> None:
    async def scenario() -> None:
        counts: list[int] = []
        store: Any = FakeStore()
        await load.load_flights(store, counts.append, ROWS)
        assert sum(counts) == len(ROWS)

    asyncio.run(scenario())
