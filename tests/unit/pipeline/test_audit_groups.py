"""Which messages a group never acknowledged: against the test's own acknowledgements."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.delivery import Engine
from tests.support.golden import load_manifest, unpack
from tests.support.own_store import write_store
from trovemq_broker.filters.filter import parse_filter
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.audit import AuditArguments, audit
from trovemq_spark.tasks import OneProcess

Rows = dict[tuple[str, str, int], dict[str, object]]


def unacknowledged(root: Path, *groups: str) -> Rows:
    arguments = AuditArguments(str(root), checks=("groups",), groups=groups)
    rows = audit(OneProcess(NoProgress()), arguments).facts["unacknowledged"]
    assert isinstance(rows, list)
    return {(row["group"], row["topic"], row["queueId"]): row for row in rows}


@pytest.mark.parametrize("seed", range(6))
def test_unacknowledged_messages_are_reported_with_first_offsets(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    engine = Engine(queue_count=1)
    open_offsets: set[int] = set()
    in_flight = {}
    for step in range(60):
        engine.now_ms += 10
        if source.random() < 0.4:
            open_offsets.add(engine.send(str(step)))
        elif source.random() < 0.5:
            for one in engine.receive("workers", count=source.randrange(1, 4)):
                in_flight[one.queue_offset] = one
        elif in_flight:
            offset = source.choice(sorted(in_flight))
            engine.ack(in_flight.pop(offset))
            open_offsets.discard(offset)
    engine.events.flush(engine.now_ms)
    engine.store.dispatch()
    engine.store.close(engine.now_ms)
    row = unacknowledged(write_store(engine.files, tmp_path / "store")).get(("workers", "orders", 0))
    reported = (row["count"], row["firstOffsets"]) if row is not None else (0, [])
    assert reported == (len(open_offsets), sorted(open_offsets)[:10])


@pytest.mark.parametrize("seed", range(3))
def test_what_the_groups_filter_skipped_is_not_open(seed: int, tmp_path: Path) -> None:
    """Red messages are wanted; blue ones count as open only where the group has not looked at them yet."""
    source = random.Random(seed)
    engine = Engine(queue_count=1)
    red = parse_filter("tag", "red")
    wanted = [engine.send(str(n), tag="red") for n in range(2)]
    for number in range(30):
        tag = source.choice(["red", "blue"])
        offset = engine.send(str(number), tag=tag)
        wanted += [offset] if tag == "red" else []
    received = engine.receive("workers", filter=red)
    assert [one.queue_offset for one in received] == wanted
    acknowledged = source.sample(received[1:], len(received) // 2)
    engine.ack(*acknowledged)
    later = [engine.send("later", tag="blue"), engine.send("last", tag="red")]
    engine.events.flush(engine.now_ms)
    engine.store.dispatch()
    engine.store.close(engine.now_ms)
    (row,) = unacknowledged(write_store(engine.files, tmp_path / "store")).values()
    open_offsets = sorted({*wanted, *later} - {one.queue_offset for one in acknowledged})
    assert (row["count"], row["firstOffsets"]) == (len(open_offsets), open_offsets[:10])


def test_a_group_that_the_store_does_not_know_is_reported(tmp_path: Path) -> None:
    root = unpack("rollover", tmp_path)
    arguments = AuditArguments(str(root), checks=("groups",), groups=("Roll-lite", "wrokers"))
    report = audit(OneProcess(NoProgress()), arguments)
    assert report.notes == ["no committed offset of group wrokers is there"]


def test_a_store_of_rocketmq_is_compared_by_its_committed_offsets(tmp_path: Path) -> None:
    manifest = load_manifest("rollover")
    ends = {(queue["topic"], queue["queueId"]): queue["maxOffset"] for queue in manifest["queues"]}
    expected = {}
    for owner, offsets in manifest["consumerOffsets"].items():
        topic, group = owner.split("@")
        for queue_id, committed in offsets.items():
            if ends.get((topic, int(queue_id)), 0) > committed:
                expected[group, topic, int(queue_id)] = ends[topic, int(queue_id)] - committed
    reported = unacknowledged(unpack("rollover", tmp_path))
    assert {key: row["count"] for key, row in reported.items()} == expected
    assert unacknowledged(tmp_path / "rollover", "nobody") == {}
