"""The in-flight and ready messages of groups, against their next receives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.delivery import LEASE_MS, Engine
from trovemq_broker.groups.delivery.request import Delivered
from trovemq_broker.groups.lag.backlog import GroupBacklog, backlog_steps
from trovemq_proto.positions import QueueId
from trovemq_store.engine.steps import finished
from trovemq_store.topics.subscription_groups import SubscriptionGroup

ORDERLY = SubscriptionGroup("workers", orderly=True)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 5)),
        st.tuples(st.just("receive"), st.integers(1, 8)),
        st.tuples(st.just("acknowledge"), st.integers(0, 100)),
        st.tuples(st.just("wait"), st.sampled_from([1, LEASE_MS // 2, LEASE_MS])),
    ),
    max_size=16,
)


def standing(engine: Engine, topic: str = "orders") -> GroupBacklog:
    states = engine.delivery.group_topics.states()
    return finished(backlog_steps(engine.store, states, engine.now_ms, 10))["workers", topic]


@given(steps)
@settings(max_examples=40, deadline=None)
def test_what_is_ready_is_what_the_next_receives_get(taken: list[tuple[str, int]]) -> None:
    engine = Engine(queue_count=2)
    engine.receive()
    sent = acknowledged = 0
    held: list[Delivered] = []
    for name, value in taken:
        if name == "send":
            for number in range(sent, sent + value):
                engine.send(f"m{number}", queue_id=QueueId(number % 2))
            sent += value
        elif name == "receive":
            held += engine.receive(count=value)
        elif name == "acknowledge" and (valid := [one for one in held if one.until_ms > engine.now_ms]):
            engine.ack(chosen := valid[value % len(valid)])
            held.remove(chosen)
            acknowledged += 1
        elif name == "wait":
            engine.now_ms += value
    before = standing(engine)
    assert before.in_flight == sum(one.until_ms > engine.now_ms for one in held)
    assert before.in_flight + before.ready == sent - acknowledged
    received = 0
    while some := engine.receive():
        received += len(some)
    assert received == before.ready
    assert standing(engine) == GroupBacklog(sent - acknowledged, 0)


def test_the_oldest_is_the_first_that_was_never_delivered() -> None:
    engine = Engine()
    begin_ms = engine.now_ms
    for number in range(4):
        engine.send(f"m{number}")
        engine.now_ms += 1_000
    engine.receive(count=2, invisible_ms=10_000)
    assert standing(engine) == GroupBacklog(2, 2, begin_ms + 2_000)
    engine.now_ms += 10_000
    assert standing(engine) == GroupBacklog(0, 4, begin_ms + 2_000), "a returned message was delivered before"
    engine.receive()
    assert standing(engine) == GroupBacklog(4, 0)


def test_held_messages_of_an_orderly_group_are_not_in_flight() -> None:
    engine = Engine()
    begin_ms = engine.now_ms
    for number, key in enumerate("aab"):
        engine.send(f"m{number}", key=key)
        engine.now_ms += 1_000
    assert len(engine.receive(ORDERLY, count=1)) == 1
    assert len(engine.receive(ORDERLY)) == 1, "that of the other message group"
    assert standing(engine) == GroupBacklog(2, 1, begin_ms + 1_000)


def test_a_renewed_message_stays_in_flight() -> None:
    engine = Engine()
    engine.send("m")
    engine.receive(renewed=True)
    engine.now_ms += 3_600_000
    assert standing(engine).in_flight == 1


def test_no_more_than_so_many_rows() -> None:
    engine = Engine()
    for number in range(4):
        engine.receive(f"g{number}")
    found = finished(backlog_steps(engine.store, engine.delivery.group_topics.states(), engine.now_ms, 3))
    assert len(found) == 3
