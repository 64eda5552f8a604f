"""Audit records in a store: acts before they are done, others by minute, a full disk, their own retention."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL_SYNC, flush, open_store
from tests.support.retention import AUDIT_AGE_MS, HOUR_MS, Broker
from trovemq_broker.security import audit_trail
from trovemq_broker.security.audit_trail import INTERVAL_MS, AuditTrail
from trovemq_proto import errors
from trovemq_proto.audit import AUDIT_TOPIC, AuditRecord, decode_audit
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.record_writer import RecordWriter
from trovemq_store.files.memory import MemoryFileSystem

DROP = "/trovemq.v1.AdminService/DeleteTopic"
AGE_MS = 1_000_000


def records_of(store: MessageStore) -> list[AuditRecord]:
    flush(store)
    store.dispatch()
    found = (
        decode_audit(one.body) for _, one in messages_from(store, AUDIT_TOPIC, QueueId(0), QueueOffset(0))
    )
    return [one for one in found if one is not None]


@dataclass
class Here:
    """A trail of a store in memory. `full`: what the disk reserve says."""

    store: MessageStore
    trail: AuditTrail

    @classmethod
    def made(cls) -> Here:
        store = open_store(MemoryFileSystem(), SMALL_SYNC)
        return cls(store, AuditTrail(store, RecordWriter(store, lambda: None), AGE_MS, "p"))

    def fill_disk(self, full: bool) -> None:
        self.store.reserve._files.short = full

    def records(self) -> list[AuditRecord]:
        return records_of(self.store)


def test_an_act_has_a_record_before_it_and_one_at_its_end() -> None:
    here = Here.made()
    begun, end = here.trail.begin_act("alice", "10.0.0.1", DROP, "Topic:orders", NOW_MS)
    assert end == here.store.end_offset
    here.trail.end_act(begun, "OK", NOW_MS + 5)
    first, last = here.records()
    assert (first.phase, first.outcome, first.act) == ("begun", "", first.id)
    assert (last.phase, last.outcome, last.act) == ("ended", "OK", first.id)
    assert (last.user, last.source, last.method, last.resources) == (
        "alice",
        "10.0.0.1",
        DROP,
        "Topic:orders",
    )
    assert (first.time, last.time) == (NOW_MS, NOW_MS + 5)
    (message, _) = [one for _, one in messages_from(here.store, AUDIT_TOPIC, QueueId(0), QueueOffset(0))]
    assert (message.keys, message.tags) == (("alice",), "act")


def test_an_act_that_cannot_be_recorded_is_refused() -> None:
    here = Here.made()
    begun, _ = here.trail.begin_act("alice", "", DROP, "", NOW_MS)
    here.store.mark_failed()
    with pytest.raises(TroveError) as refused:
        here.trail.begin_act("alice", "", DROP, "", NOW_MS)
    assert refused.value.spec is errors.STORE_FAILED
    here.trail.end_act(begun, "OK", NOW_MS)
    assert here.trail.failures == 1


def test_denials_of_a_subject_are_counted_by_minute() -> None:
    here = Here.made()
    for second in range(70):
        now_ms = NOW_MS + 1_000 * second
        here.trail.denied("alice", "10.0.0.1", DROP, f"Topic:t{second}", "ACCESS_DENIED", now_ms)
        here.trail.denied("", "10.0.0.9", DROP, "", "AUTHENTICATION_FAILED", now_ms)
    here.trail.write_counts(NOW_MS + 70_000)
    counts: dict[str, list[int]] = {}
    for one in here.records():
        counts.setdefault(one.user or one.source, []).append(one.count)
    assert {subject: sum(found) for subject, found in counts.items()} == {"alice": 70, "10.0.0.9": 70}
    assert all(len(found) == 4 for found in counts.values())
    assert here.trail.written == {"denied": 8}


@example([("a", 0), ("a", 0), ("a", 30_000), ("a", 30_000)])  # a minute ends on a full disk
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 30_000)), max_size=60))
def test_no_denial_is_lost_or_counted_twice(steps: list[tuple[str, int]]) -> None:
    here, now_ms, expected = Here.made(), NOW_MS, Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_trail, "KINDS_MAX", 3)
        for number, (user, pause_ms) in enumerate(steps):
            now_ms += pause_ms
            here.fill_disk(number % 7 == 3)
            here.trail.denied(user, "", DROP, "", "ACCESS_DENIED", now_ms)
            expected[user] += 1
        here.fill_disk(False)
        here.trail.write_counts(now_ms)
    found = Counter[str]()
    for one in here.records():
        found[one.user] += one.count
    assert found.total() == expected.total()
    assert all(found[user] <= count for user, count in expected.items())


def test_on_a_full_disk_acts_are_recorded_and_the_rest_waits() -> None:
    here = Here.made()
    here.fill_disk(True)
    here.trail.begin_act("alice", "", DROP, "", NOW_MS)
    for _ in range(5):
        here.trail.note("read", "bob", "", DROP, "Topic:orders", "OK", NOW_MS)
    here.trail.flush(NOW_MS + INTERVAL_MS)
    assert [one.kind for one in here.records()] == ["act"]
    here.fill_disk(False)
    here.trail.flush(NOW_MS + 2 * INTERVAL_MS)
    assert [(one.kind, one.count) for one in here.records()] == [("act", 1), ("read", 5)]
    assert here.trail.failures == 0


def test_young_records_are_appended_again_once_and_old_ones_are_not() -> None:
    here = Here.made()
    here.trail.begin_act("old", "", DROP, "", NOW_MS)
    for number in range(300):
        here.trail.begin_act(f"young{number}", "", DROP, "", NOW_MS + AGE_MS)
    before = {one.id: one for one in here.records() if one.user != "old"}
    now_ms, end = NOW_MS + AGE_MS + 5, here.store.end_offset
    assert list(here.trail.carry(end, now_ms)) == [256, 44]
    flush(here.store)
    here.store.dispatch()
    later = [
        decode_audit(one.body)
        for _, one in messages_from(here.store, AUDIT_TOPIC, QueueId(0), QueueOffset(0))
        if one.physical_offset >= end
    ]
    assert [one.id for one in later if one] == list(before)
    assert [one for one in later if one] == list(before.values())
    assert list(here.trail.carry(end, now_ms)) == []


def test_retention_keeps_records_longer_than_messages() -> None:
    broker = Broker(MemoryFileSystem())
    begun, _ = broker.audit.begin_act("alice", "", DROP, "Topic:orders", broker.now_ms)
    broker.audit.end_act(begun, "OK", broker.now_ms)
    broker.sync()
    for _ in range(3):
        broker.fill(3)
        broker.now_ms += 2 * HOUR_MS
        first = broker.store.min_offset
        broker.clean()
        assert broker.store.min_offset > first
        assert [one.phase for one in records_of(broker.store)] == ["begun", "ended"]
    broker.fill(3)
    broker.now_ms += AUDIT_AGE_MS
    broker.clean()
    assert records_of(broker.store) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"id": 5}', b"\xff", b'"text"'])
def test_malformed_bytes_are_no_audit_record(body: bytes) -> None:
    assert decode_audit(body) is None


def test_a_record_of_a_later_form_is_read() -> None:
    record = AuditRecord("a", EpochMs(5), "read", "u", "s", "m", "r", "OK", count=3)
    assert decode_audit(record.encode()) == record
    assert decode_audit(record.encode()[:-1] + b',"more":1}') == record
    assert decode_audit(record.encode().replace(b'"count":3', b'"count":"3"')) is None
