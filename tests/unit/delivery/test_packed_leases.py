"""A million unacknowledged messages: packed leases behave as objects did, in little memory."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.delivery import LEASE_MS, Engine, bodies
from tests.support.engine import NOW_MS, send
from tests.support.settling import acknowledge, acknowledge_all, change_invisible
from tests.support.trials import SOAK
from tests.unit.delivery.test_delivery_model import DeliveryMachine
from tests.unit.delivery.test_priority_model import PriorityMachine
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery import group_topic, open_messages, packed_leases, priority_receiver
from trovemq_broker.groups.delivery.by_priority import ByPriority
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.lease_rows import NEVER, ROW_DTYPE
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.packed_leases import PackedLeases, can_pack
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.request import Delivered
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.events.receipt_handle import SourceKind

MANY = 1_000_000
STEP = 50_000 if SOAK else 25_000
"""As much as is loose is there by then; from there on memory grows by rows."""
BYTES_MAX = 64 << 20
OFFSET_SIZE = 8


@pytest.fixture
def small() -> Iterator[None]:
    """Nearly everything is packed, in small leaves."""
    with (
        patch.object(group_topic, "LOOSE_PAIR_MAX", 4),
        patch.object(group_topic, "LOOSE_MIN", 4),
        patch.object(open_messages, "LOOSE_MAX", 4),
        patch.object(packed_leases, "LEAF_ROWS_MAX", 4),
    ):
        yield


# --- memory ---------------------------------------------------------------------------------------------
@pytest.mark.untraced
@pytest.mark.parametrize(
    ("pattern", "by_priority"),
    [
        ("one lease each", False),
        ("every second", False),
        ("all expired", False),
        ("each changed", False),
        ("one lease each", True),
        ("all expired", True),
    ],
)
def test_a_million_unacknowledged_messages_of_a_group_fit_in_64_mib(pattern: str, by_priority: bool) -> None:
    """In the dearest form: each message under a separate lease, with a separate end."""
    size = 2 if pattern == "every second" else 1
    tracemalloc.start(1)
    try:
        both = GroupTopic("workers", "orders", "broker-a")
        states = [
            QueueState("workers", "orders", QueueId(number), SourceKind.TOPIC, 0) for number in range(4)
        ]
        for state in states:
            both.add(state)
            state.order = ByPriority(0) if by_priority else None
        for number in range(STEP):
            state, now_ms = states[number % 4], NOW_MS + number
            first = state.next_offset
            end, client = first + size, f"c{number % 9}"
            lease = Lease(
                state.take_lease_number(), 1, first, end, now_ms + 90, now_ms, client, renewed=False
            )
            state.open_under(lease, range(first, end))
            both.leases.push(lease, state)
            if size == 2:
                state.settle(first + number // 4 % 2)
            if pattern == "each changed":
                change(both, state, first, now_ms)
            if pattern == "all expired" and number % 1_000 == 999:
                both.end_leases(now_ms, 1 << 30)
                sort_what_ended(state)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(state.open) for state in states) == STEP
    packed = sum(state.open.packed.count for state in states)
    rows = sum(state.open.packed.byte_count for state in states)
    assert rows <= ROW_DTYPE.itemsize * packed
    each = ROW_DTYPE.itemsize + (OFFSET_SIZE if by_priority and pattern == "all expired" else 0)
    assert peak + 1.2 * each * (MANY - packed) < BYTES_MAX, "all further ones become rows"


def change(both: GroupTopic, state: QueueState, offset: int, now_ms: EpochMs) -> None:
    """Changes the lease in the steps of Delivery.change_invisible."""
    before = state.open.get(offset)
    assert before is not None
    number, until_ms = state.take_lease_number(), now_ms + 500
    lease = Lease(
        number, 1, offset, offset + 1, until_ms, before.received_ms, before.client_id, renewed=False
    )
    state.open_under(lease, range(offset, offset + 1))
    both.leases.push(lease, state)


def sort_what_ended(state: QueueState) -> None:
    """As PriorityReceiver does it."""
    if state.order is not None:
        for offsets in (state.ready, state.order.ended):
            while offsets:
                offset = offsets.pop()
                state.order.returned[offset % 10].push(offset)


# --- the same as objects --------------------------------------------------------------------------------
def leases_of(packed: PackedLeases) -> list[tuple[list[int], int, int, int, int, str, bool]]:
    return [
        (offsets, one.number, one.attempt, one.until_ms, one.received_ms, one.client_id, one.ended)
        for one, offsets in packed.take_all()
    ]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60)
def test_packed_leases_are_the_leases_that_were_packed(data: st.DataObject) -> None:
    """Against a dict of offsets: in any order, taken one by one, ended by time, saved and restored."""
    with patch.object(packed_leases, "LEAF_ROWS_MAX", 3):
        packed, model = PackedLeases(), dict[int, Lease]()
        for number in range(1, data.draw(st.integers(1, 25))):
            what = data.draw(st.sampled_from(["add", "add", "add", "take", "end", "ended", "restore"]))
            if what == "add":
                first = data.draw(st.integers(0, 400))
                free = [offset for offset in range(first, first + 70) if offset not in model]
                offsets = sorted(set(data.draw(st.lists(st.sampled_from(free), max_size=40)) if free else []))
                if offsets:
                    until_ms = data.draw(st.integers(0, 50))
                    lease = Lease(
                        number,
                        number % 5,
                        first,
                        first + 70,
                        EpochMs(until_ms),
                        EpochMs(7),
                        f"c{number % 3}",
                        False,
                    )
                    packed.add([(lease, offsets)])
                    model.update(dict.fromkeys(offsets, lease))
            elif what == "take":
                offset = data.draw(st.integers(0, 470))
                taken = packed.take(offset)
                assert (taken is None) == (offset not in model)
                if taken is not None:
                    assert offset in taken.offsets
                    assert {model.pop(one).number for one in taken.offsets} == {taken.lease.number}
            elif what == "end":
                now_ms = data.draw(st.integers(0, 50))
                due = [one for one in model.values() if not one.ended and one.until_ms <= now_ms]
                found_ended = array("q")
                assert packed.end_until(EpochMs(now_ms), found_ended) == bool(due)
                assert sorted(found_ended) == sorted(offset for offset in model if model[offset] in due)
                for lease in due:
                    lease.ended = True
            elif what == "ended":
                count = data.draw(st.integers(1, 20))
                ended = sorted(offset for offset, lease in model.items() if lease.ended)
                found = sorted(offset for taken in packed.take_ended(count) for offset in taken.offsets)
                assert len(found) >= min(count, len(ended))
                assert set(ended[: min(count, len(ended))]) <= set(found) <= set(ended)
                for offset in found:
                    del model[offset]
            else:
                saved = packed.save()
                packed = PackedLeases()
                packed.restore(*saved)
            assert list(packed.offsets()) == sorted(model)
            is_over = [offset for offset in sorted(model) if model[offset].ended]
            assert sorted(packed.ended_offsets()) == is_over
            assert [offset for offset in range(-1, 480) if packed.has_ended(offset)] == is_over
            assert packed.count == len(model)
            assert packed.lowest() == min(model, default=None)
            open_ends = [lease.until_ms for lease in model.values() if not lease.ended]
            assert bool(packed.clock.live) >= bool(open_ends)
            assert packed.clock.until_ms <= min(open_ends, default=NEVER)
            assert packed.ended_count(EpochMs(20)) == sum(
                one.ended or one.until_ms <= 20 for one in model.values()
            )
        for offsets, number, attempt, until_ms, received_ms, client_id, is_ended in leases_of(packed):
            for offset in offsets:
                one = model.pop(offset)
                assert (one.number, one.attempt, one.until_ms) == (number, attempt, until_ms)
                assert (one.received_ms, one.client_id, one.ended) == (received_ms, client_id, is_ended)
        assert not model
        assert packed.byte_count == 0


def test_names_of_clients_that_have_nothing_are_forgotten() -> None:
    packed = PackedLeases()
    with patch.object(packed_leases, "_CLIENTS_MIN", 4):
        for number in range(200):
            packed.add(
                [
                    (
                        Lease(1, 1, number, number + 1, EpochMs(9), EpochMs(9), f"client {number}", False),
                        [number],
                    )
                ]
            )
            if number >= 2:
                packed.take(number - 2)
    assert len(packed.save()[0]) < 20
    assert [one[5] for one in leases_of(packed)] == ["client 198", "client 199"]


def test_a_lease_that_a_row_cannot_say_is_not_packed() -> None:
    assert can_pack(Lease(1, 1, 0, 1, EpochMs(9), EpochMs(9), "c", renewed=False))
    assert not can_pack(Lease(1, 1, 0, 1, EpochMs(9), EpochMs(9), "c", renewed=True))
    assert not can_pack(Lease(1 << 32, 1, 0, 1, EpochMs(9), EpochMs(9), "c", renewed=False))
    released = Lease(1, 1, 0, 1, EpochMs(9), EpochMs(9), "c", renewed=False)
    released.until_ms = EpochMs(8)
    assert not can_pack(released)


def test_rows_of_a_snapshot_that_name_nothing_are_refused() -> None:
    packed = PackedLeases()
    packed.add([(Lease(1, 1, 0, 1, EpochMs(9), EpochMs(9), "c", renewed=False), [0])])
    _, leaves = packed.save()
    with pytest.raises(ValueError, match="client"):
        PackedLeases().restore([], leaves)


# --- the engine -----------------------------------------------------------------------------------------
def engine_with(count: int, queue_count: int = 2) -> Engine:
    engine = Engine(
        ConsumerSettings(new_group_start="begin", in_flight_max=1_000_000), queue_count=queue_count
    )
    for number in range(count):
        engine.send(f"m{number}", queue_id=QueueId(number % queue_count))
    return engine


def states_of(engine: Engine) -> list[QueueState]:
    return [one for one in engine.delivery.group_topics.states() if one.kind is SourceKind.TOPIC]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("how", ["restart", "crash"])
def test_out_of_order_acknowledgements_survive_a_restart_as_equal_ranges(seed: int, how: str) -> None:
    """By snapshot and replay, and by replay alone."""
    rng = random.Random(seed)
    engine = engine_with(300)
    got: list[Delivered] = []
    while len(got) < 300:
        engine.now_ms += 1
        got += engine.receive(
            count=rng.choice([1, 3, 32]), client_id=f"c{rng.randrange(5)}", invisible_ms=60_000
        )
    acked = rng.sample(got, 140)
    engine.ack(*acked[:70])
    if how == "restart":
        engine.restart()
    engine.ack(*acked[70:])
    before = [
        (one.committed, one.next_offset, one.consumed().ranges(), one.outstanding_offsets())
        for one in states_of(engine)
    ]
    assert any(one.open.packed.count for one in states_of(engine))
    if how == "restart":
        engine.restart()
    else:
        engine.crash(flushed=True)
    after = [
        (one.committed, one.next_offset, one.consumed().ranges(), one.outstanding_offsets())
        for one in states_of(engine)
    ]
    assert after == before
    left = {(one.queue_id, one.queue_offset) for one in got} - {
        (one.queue_id, one.queue_offset) for one in acked
    }
    assert engine.receive() == []
    engine.now_ms += 60_000
    again: list[Delivered] = []
    while some := engine.receive():
        again += some
    assert {(one.queue_id, one.queue_offset) for one in again} == left
    assert len(again) == len(left)
    assert {one.attempt for one in again} == {2}
    engine.ack(*again)
    assert [engine.committed(queue_id=QueueId(number)) for number in range(2)] == [150, 150]


@pytest.mark.usefixtures("small")
def test_packed_messages_come_back_lowest_first_when_their_time_is_over() -> None:
    engine = engine_with(60, queue_count=1)
    got = [one for _ in range(20) for one in engine.receive(count=3)]
    assert len(got) == 60
    assert engine.delivery.next_due_ms() == engine.now_ms + LEASE_MS
    engine.ack(got[7], got[30])
    assert engine.delivery.due_pairs(engine.now_ms) == []
    engine.now_ms += LEASE_MS
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    again = [one for _ in range(58) for one in engine.receive(count=1)]
    assert bodies(again) == [f"m{number}" for number in range(60) if number not in (7, 30)]
    for old in got:
        if old not in (got[7], got[30]):
            with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
                engine.ack(old)
    engine.ack(*reversed(again))
    assert engine.committed() == 60


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("restarted", [False, True])
def test_what_came_back_is_received_once_when_the_topic_changes_its_order(restarted: bool) -> None:
    engine = engine_with(60, queue_count=1)

    def receive_all(attempt: int) -> None:
        got = [one for _ in range(30) for one in engine.receive(count=2)]
        assert [one.queue_offset for one in got] == list(range(60)), "of one priority: in their own order"
        assert {one.attempt for one in got} == {attempt}
        assert engine.receive() == []
        (state,) = states_of(engine)
        assert state.open.packed.count > 40
        engine.now_ms += LEASE_MS
        assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
        if restarted:
            engine.restart()

    receive_all(1)
    engine.store.topics.alter("orders", options={"order": "priority"})
    receive_all(2)
    receive_all(3)
    engine.store.topics.alter("orders", options={"order": "log"})
    receive_all(4)
    engine.store.topics.alter("orders", options={"order": "priority"})
    receive_all(5)


def test_priority_sorted_messages_come_when_the_topic_returns_to_log_order() -> None:
    engine = engine_with(6, queue_count=1)
    engine.store.topics.alter("orders", options={"order": "priority"})
    assert len(engine.receive()) == 6
    engine.now_ms += LEASE_MS
    assert [one.queue_offset for one in engine.receive(count=1)] == [0]
    engine.store.topics.alter("orders", options={"order": "log"})
    again = engine.receive()
    assert [(one.queue_offset, one.attempt) for one in again] == [(offset, 2) for offset in range(1, 6)]
    assert engine.receive() == []


@pytest.mark.usefixtures("small")
def test_a_receive_reads_the_priority_of_a_bounded_number_that_came_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(priority_receiver, "SORTED_MAX", 25)
    engine = engine_with(0, queue_count=1)
    engine.store.topics.alter("orders", options={"order": "priority"})
    for number in range(60):
        properties = {"_SYS_MSG_PRIORITY_": str(number % 10)}
        send(engine.store, b"x", engine.now_ms, properties=properties)
    first = [one.queue_offset for _ in range(30) for one in engine.receive(count=2)]
    assert first == [offset for priority in range(9, -1, -1) for offset in range(priority, 60, 10)]
    engine.now_ms += LEASE_MS
    for _ in range(2):
        assert engine.receive(count=2) == [], "it is not sorted yet"
        assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")], "ask again"
    assert [one.queue_offset for _ in range(30) for one in engine.receive(count=2)] == first


@pytest.mark.usefixtures("small")
def test_packed_messages_can_be_changed_and_acknowledged_many_at_once() -> None:
    engine = engine_with(64, queue_count=1)
    got = [one for _ in range(32) for one in engine.receive(count=2)]
    (state,) = states_of(engine)
    assert state.open.packed.count
    handle = change_invisible(
        engine.delivery, "workers", "orders", got[5].receipt_handle, 30_000, engine.now_ms
    )
    handles = [one.receipt_handle for one in got if one is not got[5]]
    assert acknowledge_all(engine.delivery, "workers", "orders", handles, engine.now_ms) == [None] * 63
    assert engine.committed() == 5
    assert state.consumed().ranges() == [(6, 64)]
    assert state.open.in_flight_count(engine.now_ms) == 1
    acknowledge(engine.delivery, "workers", "orders", handle, engine.now_ms)
    assert engine.committed() == 64


@pytest.mark.usefixtures("small")
def test_a_reset_forgets_what_is_packed() -> None:
    engine = engine_with(40, queue_count=1)
    got = [one for _ in range(40) for one in engine.receive(count=1)]
    assert engine.delivery.reset("workers", "orders", {QueueId(0): 0}, engine.now_ms) == {0: 40}
    assert engine.delivery.in_flight_count == 0
    engine.now_ms += LEASE_MS
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")], "only for the reset's sake"
    assert bodies(engine.receive(count=40)) == [f"m{number}" for number in range(32)]
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        engine.ack(got[0])


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("machine", [DeliveryMachine, PriorityMachine])
def test_the_engine_is_as_its_model_while_nearly_everything_is_packed(
    machine: type[RuleBasedStateMachine],
) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=30))
