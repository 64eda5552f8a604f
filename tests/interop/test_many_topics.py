"""1,000 topics of 8 queues, a message in each, after a clean stop: Apache RocketMQ reads them as we do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.ours import (
    BROKER_CONFIG,
    CONSUMERS,
    all_messages,
    assert_same_messages,
    now_ms,
    open_ours,
    sync,
)
from tests.interop.probe import run_probe
from tests.support.engine import append, record
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.positions import QueueId
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics.topics import NewTopic

pytestmark = pytest.mark.slow

TOPICS, QUEUES = 1_000, 8


def make_store(root: Path) -> dict[int, dict[str, object]]:
    """Its messages, by physical offset."""
    store = open_ours(root, ())
    model = ConsumerState.open(store, RealFileSystem(root), CONSUMERS, now_ms())
    names = [f"topic-{number:04}" for number in range(TOPICS)]
    change, _ = store.topics.begin_create_all([NewTopic(name, QUEUES) for name in names])
    assert change is not None
    change.run()
    store.topics.finish(change)
    for name in names:
        for queue_id in range(QUEUES):
            body = f"{name} {queue_id}".encode()
            append(
                store,
                record(body, topic=name, queue_id=QueueId(queue_id)),
                topic=name,
                queue_id=QueueId(queue_id),
            )
        sync(store)
        store.dispatch()
    model.export_to_rocketmq(now_ms())
    messages = all_messages(store)
    store.close(now_ms())
    return messages


def test_rocketmq_reads_a_thousand_topics_after_a_clean_stop(tmp_path: Path) -> None:
    ours = make_store(tmp_path / "store")
    assert len(ours) == TOPICS * QUEUES
    seen = run_probe(tmp_path / "store", BROKER_CONFIG, ["dump:all"], tmp_path)
    assert_same_messages(seen.messages("dump:all"), ours)
    again = open_ours(tmp_path / "store", ())
    assert again.recovery.clean
    assert all_messages(again) == ours
    again.close(now_ms())
