"""Deliveries, timers and transactions together: opened, saved, exported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, SMALL, open_store, read_queue, send
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

ROOMY = replace(SMALL, commit_log_file_size=1 << 20)


def test_every_clean_stop_with_messages_in_flight_failed_in_async_mode() -> None:
    """export_to_rocketmq() runs in a thread: listeners to appends need the event loop."""
    files = MemoryFileSystem()
    store = open_store(files, ROOMY)
    model = ConsumerState.open(store, files, ConsumerSettings(new_group_start="begin"), NOW_MS)
    send(store, b"m")
    request = ReceiveRequest(
        group=SubscriptionGroup("workers"), topic="orders", invisible_ms=10_000, now_ms=NOW_MS
    )
    assert len(model.delivery.receive(request)) == 1
    model.on_append = lambda: pytest.fail("there is no loop any more")
    model.export_to_rocketmq(NOW_MS)
    assert [one.body for one in read_queue(store, "rmq_sys_wheel_timer")] == [b"m"]
