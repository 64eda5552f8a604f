"""However many queues there are, a run of retention takes the event loop for no more than 20 ms on end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import fake_loop
from tests.support.engine import NOW_MS
from tests.support.loop_time import loop_time, slowness
from tests.support.retention import FREE, HOUR_MS, SETTINGS, Broker
from tests.support.trials import SOAK
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.consume_queue import UNIT_DTYPE, ConsumeQueue

pytestmark = pytest.mark.untraced  # times are measured

TOPICS, QUEUES = (10_000 if SOAK else 2_500), 8
STEP_MAX_S = 0.020
TRIES = 3


class Files(MemoryFileSystem):
    """Where all files are synced at once, and it costs nothing."""

    def sync_all(self) -> bool:
        return True


def with_many_queues(broker: Broker) -> list[ConsumeQueue]:
    """Each has units of a message in the first segment and of one further on, as if both were sent to it."""
    queues = broker.store.consume_queues
    units = np.array([(0, 100, 0), (broker.store.end_offset - 100, 100, 0)], UNIT_DTYPE)
    made = []
    for number in range(TOPICS):
        for queue_id in range(QUEUES):
            queue = queues._queue(f"topic-{number:06}", QueueId(queue_id))
            queue.append(QueueOffset(0), units)
            made.append(queue)
    return made


def longest_step_of_a_run() -> float:
    broker = Broker(Files(), settings=replace(SETTINGS, consume_queue_file_size=400))
    broker.fill(3)
    made = with_many_queues(broker)
    broker.store.flush_projections()
    broker.now_ms = NOW_MS + 2 * HOUR_MS
    segments = len(broker.store.closed_segments())

    async def scene() -> float:
        with loop_time() as measured:
            assert await broker.task.clean(FREE) == segments
            return measured.longest_s

    longest_s = fake_loop.run(scene())
    assert {queue.min_offset for queue in made} == {1}
    return longest_s


@pytest.mark.slow
def test_retention_of_many_queues_stopped_everybody() -> None:
    """What is long each time is long, whatever else the machine did."""
    assert any(longest_step_of_a_run() <= STEP_MAX_S * slowness() for _ in range(TRIES))
