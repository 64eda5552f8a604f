"""SendMessage of usual messages, whose checks are made together: as those of any other message."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, own_properties, read_queue
from tests.support.fake_loop import run, turns
from tests.support.rocketmq_parts import ROOMY, Parts, message
from tests.support.rpc_context import RpcContext
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records import Message
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service


def begin(parts: Parts, sent: v2.Message) -> list[Any] | None:
    """The answers so far; None if the send was left to a task."""
    request, answers = service.SendMessageRequest(messages=[sent]), list[Any]()
    try:
        begun = parts.sender.begin_send(request, usual_context(), answers.append)
    except TroveError as error:
        return [error]
    return answers if begun else None


def stored(parts: Parts, topic: str) -> list[Message]:
    return [one for queue_id in range(4) for one in read_queue(parts.store, topic, QueueId(queue_id))]


TEXTS = st.one_of(st.text(alphabet="k1 \t|_é\x01", max_size=4), st.sampled_from(["", "tag", "a" * 1_025]))
SENT_AT_ONCE: Any = st.lists(
    st.fixed_dictionaries(
        {"topic": st.sampled_from(["orders", "mixed", "steps", "nowhere", "a b"])},
        optional={
            "body": st.sampled_from([b"", b"x", bytes(2_000), gzip.compress(b"text", mtime=0)]),
            "message_id": st.one_of(st.sampled_from(["", "M1", "M" * 60, "é"]), TEXTS),
            "keys": st.lists(TEXTS, max_size=3),
            "properties": st.dictionaries(st.sampled_from(["p", "KEYS", ""]), TEXTS, max_size=1),
            "tag": TEXTS,
            "born_host": TEXTS,
            "trace_context": TEXTS,
            "message_type": st.sampled_from([v2.NORMAL, v2.FIFO, v2.LITE, v2.PRIORITY]),
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
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@given(st.lists(SENT_AT_ONCE, min_size=1, max_size=3), st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_usual_message_is_checked_stored_and_answered_as_any(blocks: Any, drained: bool) -> None:
    """Sends of some blocks, by the short way where they may take it, and by none of them."""

    async def scene() -> None:
        short, long = Parts(), Parts()
        found: list[list[Any]] = []
        for parts in (short, long):
            if parts is long:
                vars(parts.sender.usual)["_known"] = NeverKnown()
            answers: list[Any] = []
            for number, block in enumerate([[{"topic": "orders"}], *blocks]):
                if drained and number == len(blocks):
                    parts.appender.hold(TroveError(errors.SERVICE_NOT_AVAILABLE, "planted"))
                with parts.coalescer.together():
                    answers += [begin(parts, message(**fields)) for fields in block]
                await turns()
            found.append([plain(answer) for answer in answers])
        assert found[0] == found[1]
        for topic in ("orders", "mixed", "steps"):
            assert stored(short, topic) == stored(long, topic)
        assert counted(short) == counted(long)
        assert short.store.end_offset == long.store.end_offset

    run(scene())


class Call(RpcContext):
    """A call with its request, as the transport hands it over."""

    def __init__(self, sent: v2.Message, client_id: str = "client-1") -> None:
        super().__init__(client_id)
        self._request = service.SendMessageRequest(messages=[sent]).SerializeToString()

    def keep(self) -> bytes:
        return self._request


def begin_together(parts: Parts, sent: list[v2.Message]) -> list[list[Any] | None]:
    """The answers to the sends of one turn: as the daemon's guard gets them."""
    replies = parts.sender.usual.answer([Call(one) for one in sent])
    return [begin(parts, one) if reply is None else [reply] for one, reply in zip(sent, replies, strict=True)]


@pytest.mark.slow
@given(st.lists(SENT_AT_ONCE, min_size=1, max_size=3), st.booleans())
@settings(max_examples=50, deadline=None)
def test_usual_messages_of_a_turn_are_stored_together_as_each_by_itself(blocks: Any, drained: bool) -> None:
    """They may come before the others of their turn."""

    async def scene() -> None:
        together, alone = Parts(), Parts()
        found: list[list[Any]] = []
        for parts in (together, alone):
            answers: list[Any] = []
            for number, block in enumerate([[{"topic": "orders"}], *blocks]):
                if drained and number == len(blocks):
                    parts.appender.hold(TroveError(errors.SERVICE_NOT_AVAILABLE, "planted"))
                sent = [message(**fields) for fields in block]
                with parts.coalescer.together():
                    if parts is together:
                        answers += begin_together(parts, sent)
                    else:
                        answers += [begin(parts, one) for one in sent]
                await turns()
            found.append([without_offsets(answer) for answer in answers])
        assert found[0] == found[1]
        for topic in ("orders", "mixed", "steps"):
            assert contents(together, topic) == contents(alone, topic)
        assert counted(together) == counted(alone)
        assert together.store.end_offset == alone.store.end_offset

    run(scene())


def without_offsets(answers: list[Any] | None) -> Any:
    """The answers in a form that can be compared."""
    if not answers or isinstance(answers[0], Exception):
        return plain(answers)
    (answer,) = answers
    parsed = service.SendMessageResponse.FromString(answer) if isinstance(answer, bytes) else answer
    for entry in parsed.entries:
        entry.offset = 0
    return str(parsed)


def contents(parts: Parts, topic: str) -> Any:
    """The messages of a topic, without their places."""
    found = [
        (one.queue_id, one.body, own_properties(one), one.born_timestamp) for one in stored(parts, topic)
    ]
    return sorted(map(repr, found))


def test_the_sends_of_official_clients_are_answered_together() -> None:
    async def scene() -> None:
        parts = Parts()
        sent = [message(message_id=f"M{number}", tag="t", keys=[f"k{number}"]) for number in range(5)]
        calls: list[Any] = [Call(one) for one in sent]
        assert parts.sender.usual.answer(calls) == [None] * 5, "the topic has accepted none yet"
        begin(parts, sent[0])
        await turns()
        strange: list[Any] = [Call(message(tag="a b")), Call(sent[0], client_id="")]
        replies = parts.sender.usual.answer([*calls[1:], *strange])
        assert replies[4:] == [None, None], "by themselves, they get their answers"
        answers = [service.SendMessageResponse.FromString(reply or b"") for reply in replies[:4]]
        assert [one.entries[0].message_id for one in answers] == ["M1", "M2", "M3", "M4"]
        await turns()
        found = {one.unique_key: (one.queue_id, one.queue_offset) for one in stored(parts, "orders")}
        queue_id, first = found["M1"]
        assert [found[f"M{number}"] for number in range(1, 5)] == [(queue_id, first + n) for n in range(4)]
        assert [one.entries[0].offset for one in answers] == [first + number for number in range(4)]

    run(scene())


@pytest.mark.parametrize("address", ["ipv4:10.0.0.2:50123", "ipv6:%5B2001:db8::7%5D:50123", "unix:"])
def test_a_sender_by_ipv6_to_two_topics_had_its_records_overwritten(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store time and hosts lay 12 bytes too early, where the born host is."""
    monkeypatch.setattr(RpcContext, "address", address)

    async def scene() -> None:
        parts = Parts()
        topics = ("orders", "mixed")
        for number in range(8):  # each queue gets a message by itself, before both topics share appends
            for topic in topics:
                begin(parts, message(topic=topic, message_id=f"{topic}{number}"))
                await turns()
        for number in range(4):
            sent = [message(topic=topic, message_id=f"{topic}-{number}", body=b"x") for topic in topics]
            assert None not in parts.sender.usual.answer([Call(one) for one in sent])
            await turns()
        for topic in topics:
            found = stored(parts, topic)
            assert len(found) == 12
            assert len({(one.born_host, one.store_host, one.store_timestamp) for one in found}) == 1

    run(scene())


@pytest.mark.parametrize("reason", ["sync flush", "more than a batch", "refused"])
def test_sends_that_cannot_be_stored_together_begin_by_themselves(reason: str) -> None:
    async def scene() -> None:
        parts = Parts(replace(ROOMY, flush_mode="sync" if reason == "sync flush" else "async"))
        sent = [message(message_id=f"M{number}", body=bytes(1_000)) for number in range(3)]
        begin(parts, sent[0])
        await turns()
        if reason == "more than a batch":
            parts.coalescer._batch_size_max = 2_000
        elif reason == "refused":
            parts.appender.refuse(TroveError(errors.SERVICE_NOT_AVAILABLE, "planted"))
        end = parts.store.end_offset
        assert parts.sender.usual.answer([Call(one) for one in sent]) == [None] * 3
        assert parts.store.end_offset == end

    run(scene())


def test_usual_messages_went_on_to_a_topic_that_was_made_read_only() -> None:
    async def scene() -> None:
        parts = Parts()
        sent = [message(message_id=f"M{number}") for number in range(3)]
        assert begin(parts, sent[0]) is not None
        await turns()
        parts.store.topics.alter("orders", perm=4)
        (refused,) = begin(parts, sent[1]) or [None]
        assert isinstance(refused, TroveError)
        assert refused.spec is errors.PERMISSION_MISSING
        assert parts.sender.usual.answer([Call(sent[2])]) == [None]
        await turns()
        assert [one.unique_key for one in stored(parts, "orders")] == ["M0"]

    run(scene())


def test_a_usual_message_overtook_another_of_its_queue() -> None:
    """One that came before it in the same turn, and was not usual."""

    async def scene() -> None:
        parts = Parts()
        begin(parts, message(message_id="M0"))
        await turns()
        sent = [message(message_id="M1", properties={"p": "1"}), message(message_id="M2")]
        with parts.coalescer.together():
            begin_together(parts, sent)
        await turns()
        found = {one.unique_key: (one.queue_id, one.queue_offset) for one in stored(parts, "orders")}
        assert found["M1"] < found["M2"]

    run(scene())


def counted(parts: Parts) -> Any:
    traffic = parts.traffic
    sizes = {topic: (one.counts, one.total) for topic, one in traffic.message_sizes.items()}
    return traffic.messages_in, traffic.bytes_in, traffic.refusals, sizes


class NeverKnown(dict[str, Any]):
    """Topics none of which has accepted a usual message."""

    def get(self, *_: Any) -> None:
        return None


def plain(answers: list[Any] | None) -> Any:
    """The answers in a form that can be compared."""
    return answers and [str(one) if isinstance(one, Exception) else one for one in answers]


def test_the_short_way_is_the_one_of_official_clients() -> None:
    async def scene() -> None:
        parts = Parts()
        sent = message(tag="t", keys=["k"], born_host="host", message_type=v2.NORMAL)
        sent.system_properties.born_timestamp.FromMilliseconds(NOW_MS)
        assert not parts.sender._begin_usual(sent, usual_context(), [].append, accepting=False)
        assert begin(parts, sent) == []
        await turns()
        assert parts.sender._begin_usual(sent, usual_context(), [].append, accepting=False)

    run(scene())


def usual_context() -> Any:
    return RpcContext()
