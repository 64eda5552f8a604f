"""When the daemon delivers due messages: at their time, several in a batch, a full batch followed by the
next."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.delivery import ROOMY
from tests.support.engine import NOW_MS, read_queue
from tests.support.fake_loop import fake_time
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.maintenance.consumer_tasks import TimerTask
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.positions import QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.memory import MemoryFileSystem


@fake_time
@pytest.mark.parametrize(
    ("due", "delivered"),
    [
        ([100], [100]),
        ([100, 103, 108, 200], [100, 110, 110, 200]),
        ([100, 100, 100, 100, 100, 101], [100, 100, 100, 100, 100, 110]),
    ],
    ids=["alone", "close to each other", "more than a batch takes"],
)
async def test_when_timers_are_delivered(due: list[int], delivered: list[int]) -> None:
    files = MemoryFileSystem()
    store = MessageStore.open(files, replace(ROOMY, flush_mode="async"), NOW_MS)
    store.topics.create("orders", 1)
    model = ConsumerState.open(store, files, ConsumerSettings(timer_batch_max=2), NOW_MS)
    for after_ms in due:
        model.timers.schedule(NewRecord("orders", QueueId(0), b"x"), NOW_MS + after_ms, NOW_MS)
    store.dispatch()
    model.timers.catch_up()
    loop = asyncio.get_running_loop()
    timers = TimerTask(model, lambda: NOW_MS + round(loop.time() * 1000))
    task = asyncio.create_task(timers.run())
    await asyncio.sleep(0.5)
    task.cancel()

    store.dispatch()
    assert [message.store_timestamp - NOW_MS for message in read_queue(store, "orders")] == delivered
    assert timers.delivered_count == len(due)
    store.close(NOW_MS)


@fake_time
async def test_messages_without_a_timer_do_not_wake_the_task() -> None:
    files = MemoryFileSystem()
    store = MessageStore.open(files, replace(ROOMY, flush_mode="async"), NOW_MS)
    store.topics.create("orders", 1)
    model = ConsumerState.open(store, files, ConsumerSettings(), NOW_MS)
    timers = TimerTask(model, lambda: NOW_MS)
    task = asyncio.create_task(timers.run())
    await asyncio.sleep(0)
    timers.changed()
    assert not timers._changed.is_set()
    model.timers.schedule(NewRecord("orders", QueueId(0), b"x"), NOW_MS + 100, NOW_MS)
    store.dispatch()
    model.timers.catch_up()
    timers.changed()
    assert timers._changed.is_set()
    task.cancel()

    store.close(NOW_MS)
