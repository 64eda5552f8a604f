"""Very many delayed messages of one millisecond: each delivered once, in bounded turns. 50,000 in a soak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS
from tests.support.trials import SOAK
from tests.unit.timers.engine import ROOMY, Broker
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.track.delayed import FOUND_MAX, delayed_messages
from trovemq_proto.positions import EpochMs

COUNT = 50_000 if SOAK else 2_000
BATCH = 256
DUE_MS = EpochMs(NOW_MS + 100)


def broker_with_timers() -> Broker:
    settings = ConsumerSettings(timer_batch_max=BATCH)
    broker = Broker(settings=settings, store_settings=replace(ROOMY, commit_log_file_size=1 << 24))
    for number in range(COUNT):
        broker.schedule(b"%d" % number, DUE_MS, unique_key=f"U{number}", properties={"KEYS": "k"})
    return broker


@pytest.mark.untraced
def test_50_000_timers_of_one_millisecond_are_delivered_in_turns() -> None:
    broker = broker_with_timers()
    assert broker.timers.pending_count == COUNT
    turns = []
    while delivered := broker.timers.deliver_due(DUE_MS):
        turns.append(delivered)
    broker.dispatch()
    assert max(turns) <= BATCH
    assert sum(turns) == COUNT
    assert sorted(map(int, broker.bodies())) == list(range(COUNT))
    assert broker.timers.pending_count == 0


@pytest.mark.slow
def test_a_look_up_of_timers_of_one_millisecond_goes_in_steps() -> None:
    broker = broker_with_timers()
    steps = delayed_messages(broker.store, broker.timers, "orders", "k")
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found = stop.value
            break
        count += 1
    assert len(found.messages) == FOUND_MAX
    assert not found.complete
    assert count >= FOUND_MAX // 8, "each is looked for among all of its time"
