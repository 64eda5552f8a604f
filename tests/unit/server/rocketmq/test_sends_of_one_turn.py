"""SendMessage: the calls of one iteration are checked, stored and answered as each alone."""

from __future__ import annotations

from dataclasses import replace
from gzip import compress
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, own_properties, read_queue
from tests.support.fake_loop import fake_time, run, turns
from tests.support.memory_broker import ROOMY, TOPICS, TestBroker, message
from tests.support.oracles import sender as oracle
from tests.support.rpc_context import RpcContext
from tests.support.sent_calls import answer, begin, outcomes, send_call
from trovemq_broker.server.native.producer_service import ProducerService
from trovemq_broker.server.wire.statuses import status_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records import Message
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

TEXTS = st.one_of(st.text(alphabet="k1 \t|_é\x01", max_size=4), st.sampled_from(["", "tag", "a" * 1_025]))
MESSAGES: Any = st.fixed_dictionaries(
    {"topic": st.sampled_from(["orders", "mixed", "mixed", "steps", "later", "deals", "nowhere", "a b"])},
    optional={
        "body": st.sampled_from([b"", b"x", bytes(2_000), compress(b"text", mtime=0)]),
        "message_id": st.one_of(st.sampled_from(["", "M1", "M" * 60, "é"]), TEXTS),
        "keys": st.lists(TEXTS, max_size=3),
        "properties": st.dictionaries(st.sampled_from(["p", "KEYS", ""]), TEXTS, max_size=1),
        "tag": TEXTS,
        "born_host": TEXTS,
        "trace_context": TEXTS,
        "message_type": st.sampled_from([v2.NORMAL, v2.FIFO, v2.LITE, v2.PRIORITY, v2.TRANSACTION]),
        "gzip": st.booleans(),
        "deliver_ms": st.sampled_from([NOW_MS - 1, NOW_MS, NOW_MS + 60_000, 1 << 45]),
        "message_group": st.sampled_from(["", "g"]),
        "priority": st.integers(-1, 3),
        "lite_topic": st.just(""),
        "born_timestamp": st.sampled_from([-1, 0, 1_700_000_000_123, 253_402_300_799_999]).map(
            lambda ms: Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)
        ),
        "body_digest": st.sampled_from([v2.Digest(), v2.Digest(type=v2.MD5, checksum="0")]),
        "orphaned_transaction_recovery_duration": st.sampled_from([-1, 5]).map(
            lambda seconds: Duration(seconds=seconds)
        ),
    },
)
REQUESTS = st.lists(MESSAGES, min_size=1, max_size=3) | MESSAGES.map(lambda one: [one])
TURNS = st.lists(st.lists(REQUESTS, min_size=1, max_size=5), min_size=1, max_size=3)


def made(*, gzip: bool = False, **fields: Any) -> v2.Message:
    sent = message(**fields)
    if gzip:
        sent.system_properties.body_encoding = v2.GZIP
    return sent


def status(error: TroveError) -> str:
    return str(service.SendMessageResponse(status=status_of(error)))


def plain(answers: list[Any]) -> str:
    (one,) = answers
    if isinstance(one, TroveError):
        return status(one)
    return str(service.SendMessageResponse.FromString(one) if isinstance(one, bytes) else one)


async def by_oracle(sender: oracle.Sender, *sent: v2.Message) -> str:
    try:
        return str(await sender.send(service.SendMessageRequest(messages=sent), RpcContext()))
    except TroveError as error:
        return status(error)


def stored(parts: TestBroker, topic: str) -> list[Message]:
    return [one for queue_id in range(4) for one in read_queue(parts.store, topic, QueueId(queue_id))]


def contents(parts: TestBroker) -> list[str]:
    """The messages of all topics with their places in their queues, as they are in the log of the topic."""
    return [
        repr((topic, one.queue_id, one.queue_offset, one.body, own_properties(one), one.born_timestamp))
        for topic in TOPICS
        for one in stored(parts, topic)
    ]


def counted(parts: TestBroker) -> Any:
    traffic = parts.traffic
    sizes = {topic: (one.counts, one.total) for topic, one in traffic.message_sizes.items()}
    return traffic.messages_in, traffic.bytes_in, sizes


@pytest.mark.slow
@given(TURNS, st.booleans(), st.booleans())
@settings(max_examples=50, deadline=None)
def test_sends_of_a_turn_are_stored_as_each_by_itself(sent: Any, together: bool, drained: bool) -> None:
    async def scene() -> None:
        ours, theirs = TestBroker(), TestBroker()
        sender = oracle.Sender(theirs)
        for number, turn in enumerate([[[{"topic": "orders"}]], *sent]):
            requests = [[made(**fields) for fields in request] for request in turn]
            if drained and number == len(sent):
                for parts in (ours, theirs):
                    parts.appender.hold(TroveError(errors.SERVICE_NOT_AVAILABLE, "planted"))
            expected = [await by_oracle(sender, *request) for request in requests]
            sender.at_once.end_turn()
            if together:
                found = [str(one) for one in answer(ours, *(send_call(*request) for request in requests))]
            else:
                found = [plain(begin(ours, *request)) for request in requests]
            assert found == expected
            await turns()
        assert contents(ours) == contents(theirs)
        assert counted(ours) == counted(theirs)
        assert ours.store.end_offset == theirs.store.end_offset

    run(scene())


@fake_time
async def test_the_sends_of_official_clients_are_answered_together() -> None:
    parts = TestBroker()
    sent = [message(message_id=f"M{number}", tag="t", keys=[f"k{number}"]) for number in range(5)]
    replies = answer(
        parts, *map(send_call, sent), send_call(message(tag=" ")), send_call(sent[0], client_id="")
    )
    assert [one.status.code for one in replies[5:]] == [v2.ILLEGAL_MESSAGE_TAG, v2.CLIENT_ID_REQUIRED]
    assert parts.traffic.refusals == {"TAG_ILLEGAL": 1, "CLIENT_ID_MISSING": 1}
    assert [one.entries[0].message_id for one in replies[:5]] == [f"M{number}" for number in range(5)]
    await turns()
    found = {one.unique_key: (one.queue_id, one.queue_offset) for one in stored(parts, "orders")}
    queue_id, first = found["M0"]
    assert [found[f"M{number}"] for number in range(5)] == [(queue_id, first + n) for n in range(5)]
    assert [one.entries[0].offset for one in replies[:5]] == [first + number for number in range(5)]


@fake_time
@pytest.mark.parametrize(
    ("address", "born_host"),
    [
        ("ipv4:10.0.0.2:50123", "10.0.0.2:50123"),
        ("ipv6:%5B2001:db8::7%5D:50123", "[2001:db8:0:0:0:0:0:7]:50123"),
        ("unix:", "0.0.0.0:0"),
    ],
)
async def test_a_sender_by_ipv6_to_two_topics_had_its_records_overwritten(
    address: str, born_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store time and hosts lay 12 bytes too early, where the born host is."""
    monkeypatch.setattr(RpcContext, "address", address)
    parts = TestBroker()
    topics = ("orders", "mixed")
    for number in range(8):  # each queue gets a message alone, before both topics share appends
        for topic in topics:
            begin(parts, message(topic=topic, message_id=f"{topic}{number}"))
            await turns()
    for number in range(4):
        sent = [message(topic=topic, message_id=f"{topic}-{number}", body=b"x") for topic in topics]
        answer(parts, *map(send_call, sent))
        await turns()
    for topic in topics:
        found = stored(parts, topic)
        assert len(found) == 12
        store_host = parts.store.settings.store_host
        assert {(one.born_host, one.store_host, one.store_timestamp) for one in found} == {
            (born_host, store_host, NOW_MS)
        }


@fake_time
async def test_with_sync_flush_the_calls_are_answered_after_one_sync() -> None:
    parts = TestBroker(replace(ROOMY, flush_mode="sync"))
    calls = [send_call(message(message_id=f"M{number}")) for number in range(3)]
    parts.sender.on_calls(calls)
    await turns()
    assert not outcomes(*calls)
    assert parts.group_commit.waiting == 1
    (waiter,) = parts.group_commit._waiters
    waiter.resolve(None)
    replies = [service.SendMessageResponse.FromString(reply) for reply in outcomes(*calls)]
    assert [(one.entries[0].message_id, one.entries[0].offset) for one in replies] == [
        (f"M{number}", number) for number in range(3)
    ]


@fake_time
async def test_a_sync_that_fails_is_reported_to_each_call() -> None:
    parts = TestBroker(replace(ROOMY, flush_mode="sync"))
    calls = [send_call(message(message_id=f"M{number}")) for number in range(3)]
    parts.sender.on_calls(calls)
    (waiter,) = parts.group_commit._waiters
    waiter.resolve(TroveError(errors.FLUSH_DISK_TIMEOUT))
    replies = [service.SendMessageResponse.FromString(reply) for reply in outcomes(*calls)]
    assert [(one.status.code, one.entries[0].offset) for one in replies] == [
        (v2.MASTER_PERSISTENCE_TIMEOUT, number) for number in range(3)
    ]
    assert parts.traffic.refusals == {"FLUSH_DISK_TIMEOUT": 3}


@fake_time
async def test_a_refusal_of_all_is_that_of_the_one_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = TestBroker()
    append = parts.appender.append

    def refusing(topic: str, queue_id: QueueId, records: Any, *rest: Any, **options: Any) -> Any:
        if b"fault" in bytes(records):
            raise TroveError(errors.PRODUCER_SEQUENCE_ILLEGAL)
        return append(topic, queue_id, records, *rest, **options)

    monkeypatch.setattr(parts.appender, "append", refusing)
    bodies = [b"a", b"fault", b"b"]
    replies = answer(parts, *(send_call(message(body)) for body in bodies))
    assert [one.status.code for one in replies] == [v2.OK, v2.BAD_REQUEST, v2.OK]
    await turns()
    assert [one.body for one in stored(parts, "orders")] == [b"a", b"b"]
    assert [one.entries[0].offset for one in (replies[0], replies[2])] == [0, 1]


@fake_time
async def test_sends_that_are_more_than_a_batch_are_several_appends() -> None:
    parts = TestBroker()
    parts.accumulator._batch_size_max = 2_500
    parts.accumulator.encoder.batch_size_max = 3_000  # type: ignore[misc]
    replies = answer(
        parts, *(send_call(message(message_id=f"M{number}", body=bytes(1_000))) for number in range(5))
    )
    assert [one.entries[0].offset for one in replies] == [0, 1, 2, 3, 4]


@fake_time
async def test_a_closed_topic_takes_no_messages_until_it_is_open() -> None:
    parts = TestBroker()
    begin(parts, message(message_id="M0"))
    await turns()
    parts.store.topics.alter("orders", options={"writes": "closed"})
    (refused,) = begin(parts, message(message_id="M1"))
    assert isinstance(refused, TroveError)
    assert (refused.spec, refused.retriable) == (errors.TOPIC_CLOSED, True)
    with pytest.raises(TroveError, match="TOPIC_CLOSED"):
        parts.appender.topic_for_write("orders")
    with pytest.raises(TroveError, match="TOPIC_CLOSED"):
        ProducerService(parts)._topic("orders", "NORMAL")
    parts.store.topics.alter("orders", options={"writes": "open"})
    begin(parts, message(message_id="M2"))
    await turns()
    assert [one.unique_key for one in stored(parts, "orders")] == ["M0", "M2"]


@fake_time
async def test_sends_went_on_to_a_topic_that_was_made_read_only() -> None:
    parts = TestBroker()
    begin(parts, message(message_id="M0"))
    await turns()
    parts.store.topics.alter("orders", perm=4)
    (refused,) = begin(parts, message(message_id="M1"))
    assert isinstance(refused, TroveError)
    assert refused.spec is errors.PERMISSION_MISSING
    (reply,) = answer(parts, send_call(message(message_id="M2")))
    assert str(reply) == status(refused)
    await turns()
    assert [one.unique_key for one in stored(parts, "orders")] == ["M0"]


@fake_time
async def test_a_send_overtook_another_of_its_queue() -> None:
    """One that came before it in the same iteration, and was read by protobuf."""
    parts = TestBroker()
    sent = [message(message_id="M1", properties={"p": "1"}), message(message_id="M2")]
    answer(parts, *map(send_call, sent))
    await turns()
    found = {one.unique_key: (one.queue_id, one.queue_offset) for one in stored(parts, "orders")}
    assert found["M1"] < found["M2"]
