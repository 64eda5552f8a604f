"""The next leader of a replica group has all that clients were promised: a broker in memory, and another one
on the copy of its log that a follower made by raw appends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, flush, read_queue
from tests.support.fake_loop import fake_time, turns
from tests.support.followers import commit, copy
from tests.support.memory_broker import ROOMY, TestBroker, message
from tests.unit.server.rocketmq.test_ending import deals, delayed, end, prepared
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, QueueId, QueueOffset
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem

pytestmark = fake_time

FROM_BEGIN = ConsumerSettings(new_group_start="begin")
NODE = replace(ROOMY, tables_in_log=True, tree_index_enable=True)


def first_leader() -> TestBroker:
    return TestBroker(NODE, consumers=FROM_BEGIN)


def next_leader(leader: TestBroker, later_ms: int = 0) -> TestBroker:
    """The leader's process is gone. A follower had its whole log, and leads `later_ms` later."""
    now_ms = EpochMs(leader.now_ms + later_ms)
    leader.events.flush(leader.now_ms)
    flush(leader.store)
    files = MemoryFileSystem()
    follower = MessageStore.open(files, NODE, now_ms, process_id=2, commit_limit=LOG_ORIGIN)
    copy(leader.store, follower)
    commit(follower, leader.store.end_offset)
    follower.close(now_ms)
    store = MessageStore.open(files, NODE, now_ms, process_id=3)
    made = TestBroker(opened=(store, ConsumerState.open(store, files, FROM_BEGIN, now_ms)))
    made.now_ms = now_ms
    return made


def handle_of(one: v2.Message) -> str:
    return str(one.system_properties.receipt_handle)


async def test_progress_and_messages_in_flight_are_at_the_next_leader() -> None:
    leader = first_leader()
    for number in range(3):
        await leader.send(message(b"%d" % number, message_id=f"M{number}"))
    await turns()
    settled, in_flight = await leader.messages(batch_size=2)
    await leader.acknowledge(handle_of(settled))
    again = next_leader(leader)
    third = {b"0", b"1", b"2"} - {settled.body, in_flight.body}
    assert {one.body for one in await again.messages()} == third, "the lease of the other one lasts"
    entries = (await again.acknowledge(handle_of(in_flight))).entries
    assert [one.status.code for one in entries] == [v2.OK], "its receipt is valid here"
    assert await next_leader(again, 60_000).messages() != [], "the lease of the third has ended"


async def test_a_message_group_has_one_holder_over_the_change() -> None:
    leader = first_leader()
    for number in range(2):
        await leader.send(message(b"%d" % number, "steps", message_id=f"M{number}", message_group="m"))
    await turns()
    (first,) = await leader.messages("steps", batch_size=1)
    again = next_leader(leader)
    assert await again.messages("steps") == [], "the first is not settled"
    await again.acknowledge(handle_of(first), topic="steps")
    assert [one.body for one in await again.messages("steps")] == [b"1"]


async def test_a_timer_fires_at_the_next_leader_and_can_be_recalled_there() -> None:
    leader = first_leader()
    await delayed(leader)
    again = next_leader(leader)
    again.timers.catch_up()
    assert again.timers.deliver_due(EpochMs(NOW_MS + 9_999)) == 0
    assert again.timers.deliver_due(EpochMs(NOW_MS + 10_000)) == 1
    again.store.dispatch()
    bodies = [one.body for q in range(4) for one in read_queue(again.store, "later", QueueId(q))]
    assert bodies == [b"soon"]


@pytest.mark.parametrize(("resolution", "read"), [(v2.COMMIT, [b"deal"]), (v2.ROLLBACK, [])])
async def test_an_open_transaction_ends_at_the_next_leader(resolution: int, read: list[bytes]) -> None:
    leader = first_leader()
    await prepared(leader)
    again = next_leader(leader)
    assert await end(again, resolution) == v2.OK
    await turns()
    assert deals(again) == read
    third = next_leader(again)
    assert await end(third, resolution) == v2.INVALID_TRANSACTION_ID, "it is settled there, too"


async def test_offsets_and_topics_are_at_the_next_leader() -> None:
    leader = first_leader()
    leader.store.topics.alter("orders", options={"deduplicate": "1h"})
    await leader.send(message(b"x", message_id="M1"))
    await turns()
    leader.store.offsets.commit("readers", "orders", QueueId(0), QueueOffset(0))
    leader.store.offsets.record_next("readers", "orders")
    assert leader.store.tables is not None
    leader.store.tables.record_offsets()
    again = next_leader(leader)
    assert again.store.offsets.get("readers", "orders", QueueId(0)) == 0
    assert {one for one in ("orders", "steps", "later", "deals") if again.store.topics.get(one)} == {
        *("orders", "steps", "later", "deals")
    }
    end_offset = again.store.end_offset
    await again.send(message(b"x", message_id="M1"))
    await turns()
    assert again.store.end_offset == end_offset, "the message is recognised"
