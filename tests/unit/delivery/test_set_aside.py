"""A record that cannot be copied is counted, logged once by its place, and holds up no other."""

from __future__ import annotations

import pytest

from tests.support.delivery import LEASE_MS, Engine, bodies
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import encode_record
from trovemq_store.engine.copy_failures import KNOWN_MAX, CopyFailures
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.events.sources import source_topic
from trovemq_store.topics.retry_policy import RetryPolicy
from trovemq_store.topics.subscription_groups import SubscriptionGroup

ORDERLY = SubscriptionGroup(
    "workers", orderly=True, retry_policy=RetryPolicy("customized", (1_000,)), retry_max=0
)


def broken(engine: Engine) -> None:
    """A first message whose record goes bad in memory, where the process's own records are not checked."""
    engine.send("A", key="a")
    ((at, _, _),) = engine.store.consume_queues.get("orders", QueueId(0)).units(QueueOffset(0), 1).tolist()  # type: ignore[union-attr]
    engine.send("B", key="a")
    engine.files._files[f"commitlog/{0:020d}"].data[at + 88] ^= 0xFF


def test_a_message_that_cannot_be_dead_lettered_stopped_its_group() -> None:
    engine = Engine()
    broken(engine)
    assert len(engine.receive(ORDERLY, count=1)) == 1
    engine.now_ms += 2 * LEASE_MS
    assert bodies(engine.receive(ORDERLY)) == ["B"], "A has no attempt left, and no copy"
    failures = engine.writer.copy_failures
    assert failures.count == 1
    (failure,) = failures.take()
    assert (failure.purpose, failure.topic, failure.queue_offset) == ("dead letter", "orders", 0)
    assert failures.take() == []
    assert engine.delivery.dead_letter_failures == 0


def test_a_record_that_cannot_be_carried_stopped_retention_and_clean_stop() -> None:
    engine = Engine()
    broken(engine)
    engine.receive()
    for _ in range(3):
        assert engine.delivery.reappend_live_records_before(engine.store.end_offset, engine.now_ms) <= 1
    assert engine.writer.copy_failures.count == 1, "told once"
    engine.now_ms += 2 * LEASE_MS
    engine.export_to_rocketmq()
    name = source_topic(SourceKind.POP_RETRY, "workers", "orders")
    assert [message.body for message in engine.messages(name)] == [b"B"]


def test_what_may_pass_is_not_a_fault_of_the_record() -> None:
    failures = CopyFailures()

    def full() -> None:
        raise TroveError(errors.DISK_FULL)

    with pytest.raises(TroveError):
        failures.copied("retention", b"", full)
    assert failures.count == 0


def test_what_is_remembered_is_bounded() -> None:
    failures = CopyFailures()
    for place in range(KNOWN_MAX + 10):
        failures.note("retention", encode_record("t", b"", physical_offset=place), "why")
        failures.note("retention", encode_record("t", b"", physical_offset=place), "why")
    assert failures.count == KNOWN_MAX + 10
    assert len(failures.take()) == KNOWN_MAX
    failures.note("retention", b"short", "why")
    assert failures.take()[0].physical_offset == -1
