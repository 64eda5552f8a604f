"""The order of the answers: with a sync for each message, its sender comes before the waiting readers."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.engine import SMALL, SMALL_SYNC, append, flush, record
from tests.support.fake_loop import fake_time
from tests.support.memory_broker import TestBroker
from trovemq_proto.positions import QueueId
from trovemq_store.settings import StoreSettings


@fake_time
@pytest.mark.parametrize("settings", [SMALL, SMALL_SYNC])
async def test_readers_hear_of_a_message_after_its_sender(settings: StoreSettings) -> None:
    answered: list[str] = []
    parts = TestBroker(settings)
    store = parts.store
    parts.long_polls.wait("orders", QueueId(0), 60_000, lambda _grown: answered.append("reader"))
    append(store, record(b"x"))
    if parts.appender.sync:
        assert store.dispatch() == [], "nothing is visible before its sync"
        flush(store)
    parts.on_messages_available([("orders", QueueId(0))] if parts.appender.sync else store.dispatch())
    answered.append("sender" if parts.appender.sync else "next iteration")
    await asyncio.sleep(0)

    assert answered == (["sender", "reader"] if settings is SMALL_SYNC else ["reader", "next iteration"])
