"""Whose word counts at a start: our snapshot and the events after it, or RocketMQ's files."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.engine import NOW_MS, flush, open_store, send
from tests.support.settling import acknowledge
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.delivery import Delivered, ReceiveRequest
from trovemq_broker.state.consumer_state import SNAPSHOT_PATH, ConsumerState
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import state

pytestmark = pytest.mark.usefixtures("small_timer_wheel")

INVISIBLE_MS = 30_000
AFTER_MS = EpochMs(NOW_MS + INVISIBLE_MS)


def open_model(files: MemoryFileSystem) -> tuple[MessageStore, ConsumerState]:
    store = open_store(files)
    return store, ConsumerState.open(store, files, ConsumerSettings(), NOW_MS)


def receive(model: ConsumerState, now_ms: EpochMs = NOW_MS) -> list[Delivered]:
    group = model.groups.for_use("group", auto_create=True, now_ms=now_ms)
    request = ReceiveRequest(group=group, topic="orders", invisible_ms=INVISIBLE_MS, now_ms=now_ms)
    return model.delivery.receive(request)


def bodies(delivered: Sequence[Delivered]) -> list[bytes]:
    return sorted(
        body for one in delivered for body in (b"a", b"b", b"c") if b"-" + body in bytes(one.record)
    )


def worked(files: MemoryFileSystem) -> tuple[MessageStore, ConsumerState]:
    """Three messages: one acknowledged, two in flight."""
    store, model = open_model(files)
    for body in (b"-a", b"-b", b"-c"):
        send(store, body)
    first, *_ = receive(model)
    acknowledge(model.delivery, "group", "orders", first.receipt_handle, NOW_MS)
    model.events.flush(NOW_MS)
    return store, model


def stop(store: MessageStore, model: ConsumerState) -> None:
    model.export_to_rocketmq(NOW_MS)
    store.close(NOW_MS)


def test_after_a_kill_the_events_after_the_snapshot_are_replayed() -> None:
    files = MemoryFileSystem()
    worked(files)
    _, model = open_model(files.after_process_kill())
    assert receive(model) == []
    assert bodies(receive(model, AFTER_MS)) == [b"b", b"c"]


def test_a_snapshot_that_is_lost_or_damaged_costs_nothing_but_time() -> None:
    for damage in (b"", b"TROVEST\x01 this is not a snapshot"):
        files = MemoryFileSystem()
        worked(files)
        files = files.after_process_kill()
        files.write_atomic(SNAPSHOT_PATH, damage)
        _, model = open_model(files)
        assert receive(model) == []
        assert bodies(receive(model, AFTER_MS)) == [b"b", b"c"]


def test_a_snapshot_of_the_running_broker_spares_the_events_before_it() -> None:
    files = MemoryFileSystem()
    _, model = worked(files)
    work = model.begin_snapshot(NOW_MS, always=True)
    assert work is not None
    work.run()
    assert model.begin_snapshot(NOW_MS) is None, "nothing happened since"
    _, again = open_model(files.after_process_kill())
    assert bodies(receive(again, AFTER_MS)) == [b"b", b"c"]


def test_after_a_clean_stop_what_was_in_flight_comes_at_its_time_and_once() -> None:
    files = MemoryFileSystem()
    stop(*worked(files))
    store, model = open_model(files)
    assert receive(model) == []
    assert model.timers.pending_count == 2, "they wait as RocketMQ's timers"
    assert model.timers.deliver_due(AFTER_MS) == 2
    store.dispatch()
    found = receive(model, AFTER_MS)
    assert bodies(found) == [b"b", b"c"]
    assert [one.attempt for one in found] == [2, 2]


def test_a_log_that_continued_after_our_stop_was_rocketmqs() -> None:
    """Its offset counts then, and not our state."""
    files = MemoryFileSystem()
    store, model = open_model(files)
    for body in (b"-a", b"-b"):
        send(store, body)
    for one in receive(model):
        acknowledge(model.delivery, "group", "orders", one.receipt_handle, NOW_MS)
    stop(store, model)
    foreign = open_store(files)
    send(foreign, b"-c")
    foreign.offsets.commit("group", "orders", QueueId(0), QueueOffset(1))  # a reset
    foreign.close(NOW_MS)
    _, again = open_model(files)
    assert bodies(receive(again)) == [b"b", b"c"]


def prepare(model: ConsumerState, unique_key: str) -> None:
    record = NewRecord("orders", QueueId(0), b"-half", {"UNIQ_KEY": unique_key}, NOW_MS)
    model.transactions.prepare(record, NOW_MS)


def test_after_the_log_had_lost_its_end_every_half_message_was_refused() -> None:
    """The snapshot had open halves at offsets that the new ones got, too."""
    files = MemoryFileSystem()
    store, model = worked(files)
    for key in ("one", "two"):
        prepare(model, key)
    flush(store)
    model.transactions.catch_up()
    work = model.begin_snapshot(NOW_MS, always=True)
    assert work is not None
    flush(store)
    work.run()
    files = files.after_process_kill()
    for path in list(files._files):  # the operator gives up the lost files, as the refused start advises
        if path.startswith(("commitlog/", "consumequeue/", "index/")) or path == state.PATH:
            files.remove(path)
    store, model = open_model(files)
    prepare(model, "three")
    send(store, b"-a")
    flush(store)
    model.transactions.catch_up()
    assert model.transactions.open_count == 1
    assert bodies(receive(model)) == [b"a"]


def test_the_same_store_opened_by_us_again_keeps_our_state() -> None:
    files = MemoryFileSystem()
    stop(*worked(files))
    stop(*open_model(files))
    store, model = open_model(files)
    model.timers.deliver_due(AFTER_MS)
    store.dispatch()
    assert bodies(receive(model, AFTER_MS)) == [b"b", b"c"]
