"""The task that asks producers about open transactions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.support import fake_loop
from tests.support.delivery import ROOMY
from tests.support.engine import NOW_MS
from tests.support.logs import logged
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.maintenance.consumer_tasks import check_transactions
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.memory import MemoryFileSystem


def test_a_transaction_was_given_up_without_a_line_in_the_log() -> None:
    files = MemoryFileSystem()
    store = MessageStore.open(files, replace(ROOMY, flush_mode="async"), NOW_MS)
    store.topics.create("orders", 1)
    model = ConsumerState.open(store, files, ConsumerSettings(transaction_check_max=1), NOW_MS)
    half = NewRecord("orders", QueueId(0), b"x", {"UNIQ_KEY": "A1"})
    model.transactions.prepare(half, NOW_MS, client_id="client-1")
    store.dispatch()
    model.transactions.catch_up()
    asked: list[str] = []

    async def ask(transaction: Any) -> None:
        asked.append(transaction.transaction_id)

    async def check() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(
            check_transactions(
                model,
                lambda _client_id, _topic: loop.time() > 200,  # it connects later
                ask,
                lambda: EpochMs(NOW_MS + round(loop.time() * 1000)),
            )
        )
        await asyncio.sleep(200)
        assert model.transactions.open_count == 1
        await asyncio.sleep(100)
        task.cancel()

    with logged() as log:
        fake_loop.run(check())
    assert asked == ["A1"]
    (line,) = [line for line in log.getvalue().splitlines() if "transaction.given_up" in line]
    assert "topic=orders" in line
    assert "transaction_id=A1" in line
    store.close(EpochMs(NOW_MS + 300_000))
