"""A broker that leads a replica group: its answers at the commit, its refusals, and its readers before it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from tests.support.engine import NOW_MS, read_queue, record, send, with_crc_property
from tests.support.fake_copies import FakeCopies
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import ROOMY, TestBroker, message, open_both
from tests.support.rpc_context import RpcContext
from tests.support.sent_calls import answer, outcomes, send_call
from trovemq_broker.atomic.open_transactions import AtomicTransaction
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.fetch.pull import Puller, PullRequest, PullResult, PullSettings
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.produce.replicated_commit import Ack, ReplicaAckSettings
from trovemq_broker.query.get_message import get_message
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.server.native.append_stream import AppendStream
from trovemq_broker.server.native.message_service import MessageService
from trovemq_broker.server.native.producer_service import ProducerService
from trovemq_broker.server.native.transaction_service import TransactionService
from trovemq_broker.server.wire.frames import AppendFrame
from trovemq_broker.state.consumer_state import SNAPSHOT_PATH, ConsumerState
from trovemq_broker.transactions.records import HALF_TOPIC
from trovemq_broker.transactions.transaction_log import TRANSACTION_GROUP
from trovemq_daemon.calls import AwaitedCall
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import common_pb2, message_pb2, producer_pb2, transaction_pb2
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.settings import FlushMode
from trovemq_store.topics.subscription_groups import SubscriptionGroup

ACK_TIMEOUT_S = 3.0


class Leader(TestBroker):
    """Its syncs and commits are made by the test."""

    __test__ = False

    def __init__(self, flush_mode: FlushMode = "sync", ack: Ack = "replicated") -> None:
        opened = open_both(replace(ROOMY, flush_mode=flush_mode, tree_index_enable=True), ConsumerSettings())
        self.copies = FakeCopies(commit_offset=opened[0].end_offset)
        acks = ReplicaAckSettings(ack=ack, ack_timeout_ms=int(ACK_TIMEOUT_S * 1000))
        super().__init__(opened=opened, replicated=self.copies, replica_acks=acks)
        self.natives = MessageService(self)
        self.producers = ProducerService(self)

    def sync(self) -> None:
        """A whole sync."""
        self.accumulator.append_all()
        work = self.store.begin_flush()
        if work is not None:
            work.run()
            self.group_commit._work = work
            assert self.group_commit._finish(None)

    def commit(self) -> None:
        """Every copy has everything, on disk."""
        self.sync()
        self.copies.commit(self.store.end_offset)

    def begin_native(self, body: bytes = b"x", **fields: Any) -> AwaitedCall:
        """A native Send."""
        request = message_pb2.SendRequest(topic="orders", messages=[{"body": body, **fields}])
        call = AwaitedCall(RpcContext(), None, request)
        self.natives.on_sends([call])
        return call

    async def send_delayed(self) -> producer_pb2.SendDelayedReply:
        sent = {"body": b"x", "unique_key": "K1"}
        request = producer_pb2.SendDelayedRequest(
            topic="later", message=sent, deliver_timestamp=NOW_MS + 60_000
        )
        reply: producer_pb2.SendDelayedReply = await self.producers.send_delayed(request, _rpc())
        return reply

    async def prepare_half(self) -> producer_pb2.PrepareHalfReply:
        sent = {"body": b"half", "unique_key": "T1"}
        request = producer_pb2.PrepareHalfRequest(topic="deals", message=sent)
        reply: producer_pb2.PrepareHalfReply = await self.producers.prepare_half(request, _rpc())
        return reply


def _rpc() -> Any:
    return RpcContext("p")


def bodies(leader: Leader) -> list[bytes]:
    return [
        one.body for queue_id in range(4) for one in read_queue(leader.store, "orders", QueueId(queue_id))
    ]


# --- acknowledgements -----------------------------------------------------------------------------------
@fake_time
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_an_official_client_was_answered_before_the_commit(flush_mode: FlushMode) -> None:
    leader = Leader(flush_mode)
    call = send_call(message(b"hello"))
    leader.sender.on_calls([call])
    await turns(10)
    leader.sync()
    assert (outcomes(call), bodies(leader)) == ([], [])
    leader.commit()
    (reply,) = outcomes(call)
    assert service.SendMessageResponse.FromString(reply).status.code == v2.OK
    assert bodies(leader) == [b"hello"]


@fake_time
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_a_native_reply_names_its_copies(flush_mode: FlushMode) -> None:
    leader = Leader(flush_mode)
    call = leader.begin_native()
    await turns(10)
    leader.sync()
    assert not call.ending.done()
    leader.commit()
    reply = call.ending.result()
    durability = common_pb2.DISK if flush_mode == "sync" else common_pb2.MEMORY
    assert (reply.status, reply.copies, reply.durability) == (common_pb2.PUT_OK, 3, durability)


@fake_time
async def test_delayed_and_half_messages_wait_for_the_commit() -> None:
    leader = Leader()
    waits = [asyncio.create_task(leader.send_delayed()), asyncio.create_task(leader.prepare_half())]
    await turns(10)
    leader.sync()
    await turns(10)
    assert not any(one.done() for one in waits)
    leader.commit()
    replies: list[Any] = await asyncio.gather(*waits)
    assert [reply.copies for reply in replies] == [3, 3]


@fake_time
async def test_with_ack_leader_one_copy_is_acknowledged() -> None:
    leader = Leader(ack="leader")
    call = leader.begin_native()
    await turns(10)
    leader.sync()
    assert call.ending.result().copies == 0, "one"
    assert bodies(leader) == []
    leader.commit()
    assert bodies(leader) == [b"x"]


@fake_time
async def test_a_weaker_topic_does_not_wait_for_the_copies() -> None:
    leader = Leader()
    leader.store.topics.alter("orders", options={"acknowledge": "leader"})
    leader.store.topics.alter("later", options={"acknowledge": "leader"})
    call, delayed = leader.begin_native(), asyncio.create_task(leader.send_delayed())
    official = send_call(message(b"hello"))
    leader.sender.on_calls([official])
    await turns(10)
    leader.sync()
    assert (call.ending.result().copies, (await delayed).copies, len(outcomes(official))) == (0, 0, 1)
    assert bodies(leader) == [], "readers wait all the same"


@fake_time
async def test_a_stronger_topic_waits_for_the_copies() -> None:
    leader = Leader("async", ack="leader")
    leader.store.topics.alter("orders", options={"acknowledge": "replicated"})
    call, half = leader.begin_native(), asyncio.create_task(leader.prepare_half())
    await turns(10)
    assert half.done(), "its topic is as the group"
    assert not call.ending.done()
    leader.commit()
    assert call.ending.result().copies == 3


@fake_time
async def test_a_late_commit_was_reported_as_a_refusal() -> None:
    leader = Leader()
    native, official = leader.begin_native(), send_call(message(b"hello"))
    leader.sender.on_calls([official])
    await turns(10)
    leader.sync()
    await asyncio.sleep(ACK_TIMEOUT_S)
    reply = native.ending.result()
    assert (reply.status, reply.error.symbol) == (common_pb2.FLUSH_SLAVE_TIMEOUT, "REPLICA_TIMEOUT")
    assert (reply.durability, reply.record_count, reply.copies) == (common_pb2.DISK, 1, 0)
    (other,) = outcomes(official)
    response = service.SendMessageResponse.FromString(other)
    assert response.status.code == v2.SLAVE_PERSISTENCE_TIMEOUT == 50402
    assert [entry.message_id for entry in response.entries] == ["01AA"]
    assert leader.traffic.refusals["REPLICA_TIMEOUT"] == 2
    leader.commit()
    assert sorted(bodies(leader)) == [b"hello", b"x"], "both are in the log"


# --- refusals -------------------------------------------------------------------------------------------
@fake_time
async def test_without_enough_copies_something_was_stored() -> None:
    leader = Leader()
    end = leader.store.end_offset
    leader.copies.refuse()
    native = leader.begin_native()
    (response,) = answer(leader, send_call(message(b"hello")))
    assert response.status.code == v2.HA_NOT_AVAILABLE == 50002
    refused = [leader.send_delayed(), leader.prepare_half()]
    found = await asyncio.gather(*refused, return_exceptions=True)
    assert [getattr(one, "symbol", None) for one in found] == ["NOT_ENOUGH_REPLICAS"] * 2
    await turns(10)
    failure = native.ending.exception()
    assert isinstance(failure, TroveError)
    assert failure.spec is errors.NOT_ENOUGH_REPLICAS
    assert leader.store.end_offset == end


@fake_time
async def test_without_enough_copies_the_broker_writes_nothing_itself() -> None:
    leader = Leader()
    leader.copies.refuse()
    record = NewRecord("orders", QueueId(0), b"x", {}, NOW_MS, bytes(8))
    with pytest.raises(TroveError, match="NOT_ENOUGH_REPLICAS"):
        leader.model.writer.append([record], NOW_MS)
    leader.copies.refusal = None
    assert leader.model.writer.append([record], NOW_MS)
    assert leader.copies.events == ["appended"]


@fake_time
async def test_a_store_that_was_led_took_no_records_afterwards() -> None:
    leader = Leader()
    leader.copies.refuse()
    leader.stop_work()
    await leader.settle()
    assert send(leader.store, b"x").record_count == 1, "the next role's"


# --- readers before the commit --------------------------------------------------------------------------
@fake_time
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_a_reader_found_a_message_before_its_commit(flush_mode: FlushMode) -> None:
    leader = Leader(flush_mode)
    call = leader.begin_native(unique_key="01AA", keys=["k"])
    await turns(10)
    leader.sync()
    store = leader.store
    query = KeyQuery("orders", "k", KeyType.KEY)

    def found(identifier: str) -> bool:
        try:
            return bool(get_message(store, identifier).records)
        except TroveError as error:
            return error.spec is not errors.MESSAGE_NOT_FOUND

    def seen() -> list[bool]:
        by_key = any(page.records for page in query_pages(store, query))
        return [bool(bodies(leader)), found("01AA"), found(offset_msg_id), by_key]

    place = leader.copies.commit_offset
    offset_msg_id = f"0A00000100001F91{place:016X}"
    assert seen() == [False] * 4
    assert await leader.messages() == []
    leader.commit()
    assert call.ending.result().physical_offset == place
    assert seen() == [True] * 4
    assert len(await leader.messages()) == 1


def pull(leader: Leader, offset: int) -> PullResult:
    request = PullRequest("orders", QueueId(0), QueueOffset(offset))
    return Puller(leader.store, PullSettings()).pull(request)


@fake_time
async def test_an_offset_before_its_commit_was_out_of_range() -> None:
    leader = Leader()
    for _ in range(2):
        send(leader.store, b"x")
    leader.sync()
    result = pull(leader, 2)
    assert (result.message_count, result.next_offset, result.max_offset) == (0, 2, 0)
    assert result.at_end, "a consumer waits for it"
    with pytest.raises(TroveError, match="OFFSET_OUT_OF_RANGE"):
        pull(leader, 3)
    leader.commit()
    assert pull(leader, 0).message_count == 2


@fake_time
@pytest.mark.parametrize("ack", ["leader", "replicated"])
async def test_a_consumer_offset_was_stored_ahead_of_the_commit(ack: Ack) -> None:
    leader = Leader(ack=ack)
    send(leader.store, b"x")
    leader.sync()
    commits = asyncio.create_task(leader.offsets.commit("g", "orders", QueueId(0), QueueOffset(1)))
    await turns(10)
    assert not commits.done()
    assert leader.store.offsets.get("g", "orders", QueueId(0)) is None
    leader.commit()
    await commits
    assert leader.store.offsets.get("g", "orders", QueueId(0)) == 1


@fake_time
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_offsets_were_stored_ahead_of_a_letter_that_they_need(flush_mode: FlushMode) -> None:
    leader = Leader(flush_mode)
    send(leader.store, b"x")
    leader.commit()
    send(leader.store, b"letter")
    leader.store.offsets.needs_log(leader.store.end_offset)
    leader.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(1))
    leader.sync()
    persisted = asyncio.create_task(leader.offsets.persist())
    await turns(10)
    assert not persisted.done()
    assert leader.store.offsets.dirty
    leader.commit()
    await persisted
    assert not leader.store.offsets.dirty


@fake_time
async def test_a_store_that_closes_stored_offsets_ahead_of_their_letter() -> None:
    leader = Leader()
    send(leader.store, b"x")
    leader.commit()
    send(leader.store, b"letter")
    leader.store.offsets.needs_log(leader.store.end_offset)
    leader.store.offsets.commit("g", "orders", QueueId(0), QueueOffset(1))
    leader.store.close(NOW_MS)
    assert leader.store.offsets.dirty


@fake_time
async def test_an_uncommitted_end_of_a_half_moved_its_stored_position() -> None:
    leader = Leader()
    prepared = asyncio.create_task(leader.prepare_half())
    await turns(10)
    leader.commit()
    await prepared
    request = producer_pb2.EndHalfRequest(topic="deals", transaction_id="T1", commit=True)
    ends = asyncio.create_task(leader.producers.end_half(request, RpcContext("p")))
    await turns(10)
    leader.sync()
    leader.transactions.catch_up()
    leader.transactions.save_positions()
    assert position_of_halves(leader) in (None, 0)
    leader.commit()
    await ends
    leader.transactions.catch_up()
    assert position_of_halves(leader) == 1


def position_of_halves(leader: Leader) -> QueueOffset | None:
    return leader.store.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, QueueId(0))


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_start_saved_a_snapshot_of_records_that_may_be_cut(is_committed: bool) -> None:
    store, _ = open_both(ROOMY, ConsumerSettings())
    store.files.remove(SNAPSHOT_PATH)
    store.limit_commits(store.end_offset)
    send(store, b"x")
    if is_committed:
        store.limit_commits(store.end_offset)
    model = ConsumerState.open(store, store.files, ConsumerSettings(), NOW_MS)
    assert store.files.exists(SNAPSHOT_PATH) == is_committed
    assert (model.begin_snapshot(NOW_MS) is None) == is_committed


@fake_time
async def test_a_repeated_recall_was_answered_before_the_commit() -> None:
    leader = Leader()
    sent = asyncio.create_task(leader.send_delayed())
    await turns(10)
    leader.commit()
    handle = (await sent).recall_handle
    request = producer_pb2.RecallRequest(topic="later", recall_handle=handle)
    first = asyncio.create_task(leader.producers.recall(request, _rpc()))
    await turns(10)
    again = asyncio.create_task(leader.producers.recall(request, _rpc()))
    await turns(10)
    leader.sync()
    assert not first.done()
    assert not again.done()
    leader.commit()
    await asyncio.gather(first, again)


@fake_time
async def test_a_producer_was_asked_about_an_uncommitted_half() -> None:
    leader = Leader(ack="leader")
    prepared = asyncio.create_task(leader.prepare_half())
    await turns(10)
    leader.sync()
    await prepared
    due_ms = EpochMs(NOW_MS + 60_000)
    assert leader.transactions.due_checks(due_ms) == []
    leader.commit()
    (check,) = leader.transactions.due_checks(EpochMs(due_ms + 60_000))
    assert check.transaction_id == "T1"
    assert leader.transactions.due_checks(due_ms) == []


@fake_time
async def test_a_producer_skipped_numbers_that_were_not_committed() -> None:
    leader = Leader()
    leader.store.topics.create("once", 1, options={"deduplicate": "1h"})
    numbered = {"TROVEMQ_PRODUCER": "p", "TROVEMQ_SEQUENCE": "0", "UNIQ_KEY": "U0"}
    sent = record(b"x", topic="once", properties=numbered)
    result = leader.appender.append("once", QueueId(0), with_crc_property(sent), None)
    asked = message_pb2.GetProducerRequest(topic="once", producer_id="p")
    answers = asyncio.create_task(leader.natives.get_producer(asked, RpcContext()))
    again = leader.appender.append("once", QueueId(0), with_crc_property(sent), None)
    assert (again.record_count, again.end) == (0, result.end), "its answer waits for the original"
    await turns(10)
    leader.sync()
    await turns(10)
    assert not answers.done(), "a producer that starts again does not send them again"
    leader.commit()
    reply: Any = await answers
    assert reply.next_sequence == 1


# --- atomic transactions, streams, and the broker's own records -----------------------------------------
class Frames(RpcContext):
    """An Append stream's call, whose replies are read."""

    @property
    def replies(self) -> list[message_pb2.AppendReply]:
        return [message_pb2.AppendReply.FromString(one) for one in self.written]


@fake_time
async def test_a_stream_answers_its_frames_at_their_commit_in_order() -> None:
    leader, context = Leader(), Frames()
    stream = AppendStream(leader, context)
    serving = asyncio.create_task(stream.serve())
    for number in (1, 2):
        records = with_crc_property(record(b"%d" % number))
        context.requests.put_nowait(AppendFrame(number, "orders", QueueId(0), records))
    await turns(10)
    leader.sync()
    await turns(10)
    assert context.replies == []
    leader.copies.copies = 2
    leader.commit()
    await turns(10)
    assert [(one.frame_id, one.copies) for one in context.replies] == [(1, 2), (2, 2)]
    context.requests.put_nowait(grpc.aio.EOF)
    await serving


def transaction(leader: Leader) -> AtomicTransaction:
    opened = leader.atomic.begin("t", 60_000)
    sent = with_crc_property(record(b"x"))
    batch = leader.appender.checked_batch("orders", QueueId(0), sent, of_open_transaction=True)
    leader.atomic.add(opened, "orders", QueueId(0), batch, None)
    return opened


@fake_time
async def test_an_atomic_transaction_is_answered_at_its_commit() -> None:
    leader = Leader()
    service_ = TransactionService(leader)
    leader.atomic.commit(transaction(leader), leader.now_ms)
    asked = transaction_pb2.GetTransactionRequest(transaction_id="t")
    answers = asyncio.create_task(service_.get_transaction(asked, RpcContext()))
    await turns(10)
    leader.sync()
    await turns(10)
    assert not answers.done()
    leader.commit()
    reply: Any = await answers
    assert (reply.committed, reply.copies) == (True, 3)


@fake_time
async def test_an_atomic_transaction_without_enough_copies_is_open_still() -> None:
    leader = Leader()
    opened, end = transaction(leader), leader.store.end_offset
    leader.copies.refuse()
    with pytest.raises(TroveError, match="NOT_ENOUGH_REPLICAS"):
        leader.atomic.commit(opened, leader.now_ms)
    assert leader.store.end_offset == end


@fake_time
async def test_the_end_of_a_half_message_waits_for_the_commit() -> None:
    leader = Leader()
    prepared = asyncio.create_task(leader.prepare_half())
    await turns(10)
    leader.commit()
    await prepared
    request = producer_pb2.EndHalfRequest(topic="deals", transaction_id="T1", commit=True)
    ends = asyncio.create_task(leader.producers.end_half(request, RpcContext("p")))
    await turns(10)
    leader.sync()
    await turns(10)
    assert not ends.done()
    leader.commit()
    await ends


@fake_time
async def test_a_timer_and_the_deliveries_wait_for_copies_and_lose_nothing() -> None:
    leader = Leader()
    sends = asyncio.create_task(leader.send_delayed())
    await turns(10)
    leader.commit()
    await sends
    leader.copies.refuse()
    due_ms = EpochMs(NOW_MS + 60_000)
    with pytest.raises(TroveError, match="NOT_ENOUGH_REPLICAS"):
        leader.timers.deliver_due(due_ms)
    leader.copies.refusal = None
    assert leader.timers.deliver_due(due_ms) == 1
    leader.sync()
    assert await leader.messages("later") == [], "not before its commit"
    leader.commit()
    assert len(await leader.messages("later")) == 1


@fake_time
async def test_a_leader_without_its_lease_hands_out_no_message() -> None:
    leader = Leader()
    leader.begin_native()
    await turns(10)
    leader.commit()
    leader.copies.no_delivery = TroveError(errors.NOT_LEADER, "the lease is over")
    ordered = SubscriptionGroup("ordered", orderly=True)
    requests = [
        ReceiveRequest(
            group=one, topic="orders", count_max=8, invisible_ms=60_000, now_ms=NOW_MS, client_id="c"
        )
        for one in (SubscriptionGroup("workers"), ordered)
    ]
    for request in requests:
        with pytest.raises(TroveError, match="the lease is over"):
            leader.delivery.receive(request)
    assert leader.copies.asked_in_order == [False, True]
    leader.copies.no_delivery = None
    assert [len(leader.delivery.receive(one)) for one in requests] == [1, 1]
