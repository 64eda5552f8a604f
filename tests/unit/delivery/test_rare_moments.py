"""Rare cases: limits reached, topics deleted in between, queues with holes, many leases."""

from __future__ import annotations

import pytest

from tests.support.delivery import LEASE_MS, Engine, attempts, bodies
from tests.support.settling import acknowledge, change_invisible, dead_letter
from trovemq_broker.filters.filter import parse_filter
from trovemq_broker.groups.delivery import group_topic as pair_module
from trovemq_broker.groups.delivery import receives
from trovemq_broker.groups.delivery.due_watch import NOW
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.index.consume_queue import BLANK_UNIT
from trovemq_store.topics.subscription_groups import SubscriptionGroup

POP_RETRY = "%RETRY%workers_orders"
POP_RETRY_V2 = "%RETRY%workers+orders"


@pytest.fixture
def engine() -> Engine:
    return Engine()


def sent(engine: Engine, count: int) -> None:
    for number in range(count):
        engine.send(f"m{number}")


def spoil_queue(engine: Engine, offset: int, unit: bytes) -> None:
    """Another unit stands there."""
    engine.files._files[f"consumequeue/orders/0/{0:020d}"].data[offset * 20 : offset * 20 + 20] = unit


# --- which queue comes first --------------------------------------------------------------------------
def test_retries_are_not_starved_by_a_topic_that_has_always_more(engine: Engine) -> None:
    for topic in (POP_RETRY, POP_RETRY_V2):
        engine.store.topics.ensure_internal(topic, 1)
        record = NewRecord(topic, QueueId(0), topic[-7:].encode(), {}, reconsume_times=1)
        engine.writer.append([record], engine.now_ms)
    sent(engine, 12)
    turns = [bodies(engine.receive(count=1))[0] for _ in range(10)]
    assert turns[4] == "_orders"
    assert turns[9] == "+orders"
    assert all(turn.startswith("m") for at, turn in enumerate(turns) if at not in (4, 9))


def test_a_large_message_ends_one_batch_and_begins_the_next(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receives, "RECEIVE_BYTES_MAX", 4_000)
    for body in ("a" * 500, "b" * 500, "c" * 5_000, "d"):
        engine.send(body)
    got = [bodies(engine.receive()) for _ in range(3)]
    assert [[body[0] for body in batch] for batch in got] == [["a", "b"], ["c"], ["d"]]


def test_a_message_too_large_for_a_batch_leaves_space_for_another_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receives, "RECEIVE_BYTES_MAX", 2_000)
    engine = Engine(queue_count=3)
    for queue_id, body in ((1, "a"), (2, "b" * 1_900), (0, "c")):
        engine.send(body, queue_id=QueueId(queue_id))
    assert [body[0] for body in bodies(engine.receive())] == ["a", "c"]
    assert [body[0] for body in bodies(engine.receive())] == ["b"]


# --- limits -------------------------------------------------------------------------------------------
def test_a_filter_that_takes_nothing_of_a_long_queue_stops_and_continues(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receives, "RECEIVE_UNITS_MAX", 600)
    sent(engine, 1_100)
    engine.send("last", tag="red")
    red = parse_filter("tag", "red")
    assert engine.receive(filter=red) == []
    assert engine.delivery.next_due_ms() == NOW
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    assert bodies(engine.receive(filter=red)) == ["last"]


def test_a_filter_that_takes_nothing_of_an_orderly_group_stops_and_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receives, "RECEIVE_READS_MAX", 3)
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    sent(engine, 5)
    engine.send("last", tag="red")
    red = parse_filter("tag", "red")
    assert engine.receive(filter=red) == []
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    assert bodies(engine.receive(filter=red)) == ["last"]


def test_a_group_that_has_no_space_for_its_offsets_begins_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(engine, 1)

    def refuse(*_: object) -> None:
        raise TroveError(errors.LIMIT_EXCEEDED, "too many groups")

    with monkeypatch.context() as patch:
        patch.setattr(engine.store.offsets, "commit", refuse)
        with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
            engine.receive()
        assert engine.delivery.pairs() == []
    assert bodies(engine.receive()) == ["m0"]


def test_an_attempt_is_remembered_while_there_are_not_too_many(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_module, "ATTEMPTS_KEPT_MAX", 2)
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    for key in "abc":
        engine.send(key, key=key)
        assert bodies(engine.receive(attempt_id=f"try {key}")) == [key]
    assert engine.receive(attempt_id="try a") == [], "forgotten: a stays invisible until its time is over"
    assert bodies(engine.receive(attempt_id="try c")) == ["c"]
    engine.now_ms += LEASE_MS
    again = engine.receive(attempt_id="try b")
    assert (bodies(again), attempts(again)) == (["a", "b", "c"], [2, 2, 2]), "b's lease was over before"


# --- states of a queue --------------------------------------------------------------------------------
@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("how", ["blank", "no size", "another place", "another segment"])
def test_a_unit_that_names_no_record_costs_no_other_message(engine: Engine, how: str, orderly: bool) -> None:
    engine.groups.create(SubscriptionGroup("workers", orderly=orderly))
    sent(engine, 3)
    at = engine.store.end_offset // 3
    unit = {
        "blank": BLANK_UNIT.tobytes(),
        "no size": at.to_bytes(8) + bytes(12),
        "another place": (at + 1).to_bytes(8) + at.to_bytes(4) + bytes(8),
        "another segment": (1 << 40).to_bytes(8) + at.to_bytes(4) + bytes(8),
    }[how]
    spoil_queue(engine, 1, unit)
    got = [*engine.receive(), *engine.receive()]  # a blank ends a batch
    assert bodies(got) == ["m0", "m2"]
    assert engine.delivery.damaged_count == (0 if how == "blank" else 1)
    engine.ack(*got)
    assert engine.committed() == 3


def test_bytes_that_are_no_record_have_no_properties_to_be_filtered_by(engine: Engine) -> None:
    sent(engine, 2)
    engine.files._files[f"commitlog/{0:020d}"].data[84:88] = b"\x7f\xff\xff\xff"  # m0's body size
    assert engine.receive(filter=parse_filter("sql", "TAGS IS NOT NULL")) == []
    assert engine.committed() == 2


# --- returned messages ---------------------------------------------------------------------------------
def test_a_forwarded_message_that_cannot_be_read_is_skipped_and_counted(engine: Engine) -> None:
    sent(engine, 2)
    first, second = engine.receive()
    engine.spoil(0)
    for one in (first, second):
        dead_letter(engine.delivery, "workers", "orders", one.receipt_handle, engine.now_ms)
    assert engine.delivery.damaged_count == 1
    assert [letter.body for letter in engine.messages("%DLQ%workers")] == [b"m1"]
    assert engine.committed() == 2


def test_a_message_that_was_settled_while_it_was_ready_does_not_come_again(engine: Engine) -> None:
    sent(engine, 3)
    got = engine.receive()
    handle = got[0].receipt_handle
    engine.now_ms += LEASE_MS - 1
    kept = change_invisible(engine.delivery, "workers", "orders", handle, 5_000, engine.now_ms)
    engine.now_ms += 1
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(2))
    state = engine.delivery.group_topics.state("workers", "orders", QueueId(0))
    assert state is not None
    state.drop_below(2)  # as a stored offset that is further does at a start
    assert bodies(engine.receive()) == ["m2"]
    acknowledge(engine.delivery, "workers", "orders", kept, engine.now_ms)


def test_an_orderly_group_skips_what_its_new_filter_does_not_take(engine: Engine) -> None:
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    for body in ("a0", "a1", "a2"):
        engine.send(body, key="a", tag="red" if body == "a2" else "blue")
    assert bodies(engine.receive(count=1)) == ["a0"]
    assert engine.receive() == [], "a1 and a2 are held"
    engine.now_ms += LEASE_MS
    got = engine.receive(filter=parse_filter("tag", "red"))
    assert (bodies(got), attempts(got)) == (["a2"], [1])
    engine.ack(*got)
    assert engine.committed() == 3


def test_refused_dead_letters_of_two_message_groups_are_one_try(engine: Engine) -> None:
    group = engine.groups.create(SubscriptionGroup("workers", orderly=True, retry_max=0))
    for key in ("a", "b"):
        engine.send(key, key=key)
    engine.receive(group)
    engine.now_ms += LEASE_MS
    engine.store.mark_failed()
    assert engine.receive(group) == []
    assert engine.delivery.dead_letter_failures == 1
    engine.store._marked_failed = False
    assert engine.receive(group) == []
    assert [letter.body for letter in engine.messages("%DLQ%workers")] == [b"a", b"b"]


def test_a_topic_that_is_gone_is_not_received_from_and_one_made_again_is(engine: Engine) -> None:
    sent(engine, 1)
    (one,) = engine.receive()
    engine.store.delete_topic("orders", now_ms=engine.now_ms)
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        engine.receive()
    engine.delivery.forget_topic("orders", engine.now_ms)
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        engine.ack(one)
    engine.store.topics.create("orders", queue_count=1)
    engine.send("new")
    assert bodies(engine.receive()) == ["new"]


def test_a_handle_longer_than_any_is_refused(engine: Engine) -> None:
    sent(engine, 1)
    (one,) = engine.receive()
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        engine.ack(replace_handle := one._replace(receipt_handle="0" * 200 + one.receipt_handle))
    assert replace_handle.receipt_handle != one.receipt_handle
    engine.ack(one)


def test_a_delivery_suspended_twice_kept_every_later_event_from_the_log(engine: Engine) -> None:
    sent(engine, 1)
    handle = engine.receive()[0].receipt_handle
    for _ in range(3):
        handle = change_invisible(
            engine.delivery, "workers", "orders", handle, 1_000, engine.now_ms, suspend=True
        )
    engine.crash(flushed=True)
    engine.now_ms += 1_000
    assert attempts(engine.receive()) == [1]
