"""The figures of timers for metrics: they agree with the waiting messages, whatever happened."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from tests.unit.timers.engine import Broker
from trovemq_proto.positions import EpochMs

TOPICS = ("orders", "bills")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), st.integers(0, 1), st.integers(1, 20_000)),
        st.tuples(st.just("recall"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("deliver"), st.just(0), st.integers(0, 10_000)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=20,
)


@given(steps)
@settings(max_examples=30, deadline=None)
def test_what_was_taken_waits_or_was_delivered_or_recalled(taken: list[tuple[str, int, int]]) -> None:
    broker = Broker(topics=TOPICS)
    now_ms = NOW_MS
    waiting: dict[str, tuple[str, int]] = {}
    enqueued: Counter[str] = Counter()
    dequeued: Counter[str] = Counter()
    recalled_count = 0
    for number, (name, which, delay_ms) in enumerate(taken):
        if name == "schedule":
            topic, key = TOPICS[which], f"U{number}"
            waiting[key] = topic, now_ms + delay_ms
            broker.schedule(b"m", now_ms + delay_ms, now_ms, topic=topic, unique_key=key)
            enqueued[topic] += 1
        elif name == "recall" and waiting:
            key = sorted(waiting)[which % len(waiting)]
            topic, deliver_ms = waiting.pop(key)
            broker.timers.recall(topic, EpochMs(deliver_ms), key, now_ms)
            broker.dispatch()
            recalled_count += 1
        elif name == "deliver":
            now_ms += delay_ms
            broker.deliver(now_ms)
            for key in [key for key, (_, deliver_ms) in waiting.items() if deliver_ms <= now_ms]:
                dequeued[waiting.pop(key)[0]] += 1
        elif name == "restart":
            state, events_from = broker.stop(now_ms)
            broker = Broker(broker.files, state=state, events_from=events_from, topics=TOPICS, now_ms=now_ms)
            enqueued, dequeued, recalled_count = Counter(), Counter(), 0
        pending = Counter(topic for topic, _ in waiting.values())
        timers = broker.timers
        assert +Counter(timers.pending_by_topic()) == pending
        assert timers.pending_count == pending.total()
        assert (timers.enqueued, timers.dequeued) == (enqueued, dequeued)
        assert timers.recalled_count == recalled_count


def test_a_deleted_topic_takes_its_figures_with_it() -> None:
    broker = Broker(topics=TOPICS)
    for topic in TOPICS:
        broker.schedule(b"soon", NOW_MS + 1_000, topic=topic, unique_key="U1")
        broker.schedule(b"late", NOW_MS + 5_000, topic=topic, unique_key="U2")
    broker.deliver(NOW_MS + 1_000)
    assert broker.timers.forget_topic("bills", NOW_MS + 1_000) == 1
    assert broker.timers.enqueued == {"orders": 2}
    assert broker.timers.dequeued == {"orders": 1}
    assert broker.timers.pending_by_topic() == {"orders": 1, "bills": 0}
