"""How many messages wait of each priority: counted on from round to round, never guessed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, ROOMY, Engine
from tests.support.engine import flush, send
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery import priority_waiting
from trovemq_broker.groups.delivery.priority_waiting import waiting_steps
from trovemq_proto.positions import QueueId
from trovemq_store.engine.steps import finished

KEY = ("workers", "orders")


def engine(*, trees: bool, queue_count: int = 1) -> Engine:
    made = Engine(
        ConsumerSettings(new_group_start="begin"),
        store_settings=replace(ROOMY, tree_index_enable=trees),
        queue_count=queue_count,
    )
    made.store.topics.alter("orders", options={"order": "priority"})
    return made


def put(target: Engine, priority: int, queue_id: QueueId = QueueId(0)) -> None:
    properties = {"_SYS_MSG_PRIORITY_": str(priority)}
    send(target.store, b"x", target.now_ms, queue_id=queue_id, properties=properties)


def waiting(target: Engine, messages_max: int = 1_000, entries_max: int = 10) -> list[int] | None:
    delivery = target.delivery
    states = delivery.group_topics.states()
    return finished(waiting_steps(delivery.context, states, entries_max, messages_max)).get(KEY)


@pytest.mark.parametrize("seed", range(8))
def test_what_waits_is_what_was_sent_and_not_handed_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random sends, receives, resets and restarts, with and without trees; counted in small steps."""
    monkeypatch.setattr(priority_waiting, "_STEP", 3)
    rng = random.Random(seed)
    target = engine(trees=seed % 2 == 0, queue_count=2)
    sent: list[list[int]] = [[], []]
    handed: list[set[int]] = [set(), set()]
    assert target.receive() == []
    for _ in range(80):
        what = rng.choice(["send", "send", "receive", "receive", "trees", "reset", "restart", "count"])
        if what == "send":
            for _ in range(rng.randrange(1, 12)):
                queue_id, priority = rng.randrange(2), rng.randrange(10)
                put(target, priority, QueueId(queue_id))
                sent[queue_id].append(priority)
        elif what == "receive":
            for one in target.receive(count=rng.randrange(1, 9)):
                handed[one.queue_id].add(one.queue_offset)
                if rng.random() < 0.8:
                    target.ack(one)
        elif what == "trees":
            flush(target.store)
            target.store.catch_up_trees()
            target.now_ms += LEASE_MS
        elif what == "reset" and rng.random() < 0.3:
            offset = rng.randrange(len(sent[0]) + 1)
            target.delivery.reset("workers", "orders", {QueueId(0): offset}, target.now_ms)
            handed[0] = set(range(offset))
        elif what == "restart" and rng.random() < 0.5:
            target.restart()
        expected = [0] * 10
        for priorities, gone in zip(sent, handed, strict=True):
            for offset, priority in enumerate(priorities):
                expected[priority] += offset not in gone
        found = None
        for _ in range(1 if what == "count" else 2_000):  # some rounds look at a little and are not whole yet
            found = waiting(target, 5)
            if found is not None:
                break
        else:
            assert what == "count"
        assert found in (None, expected)


def test_a_round_looks_at_a_bounded_number_and_the_next_continues() -> None:
    target = engine(trees=False)
    for number in range(100):
        put(target, number % 2)
    assert target.receive(count=1)
    assert waiting(target, 40) is None
    for _ in range(5):
        found = waiting(target, 40)
    assert found == [50, 49, *[0] * 8]
    put(target, 7)
    assert waiting(target, 20) == [50, 49, 0, 0, 0, 0, 0, 1, 0, 0]


def test_groups_beyond_the_limit_and_those_in_log_order_are_left_out() -> None:
    target = engine(trees=False)
    put(target, 3)
    assert waiting(target) is None
    target.receive(count=1)
    assert waiting(target) == [0] * 10
    assert waiting(target, entries_max=0) is None
