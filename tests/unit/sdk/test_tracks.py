"""Client.track: which brokers are asked, whose answer counts, and how answers are merged."""

from __future__ import annotations

from typing import Any, cast

import pytest

from trovemq import MessageCopy, MessageTrack, ReplicaLag, TrackEvent
from trovemq._lookup import tracks
from trovemq._lookup.tracks import ask_all
from trovemq._wire.tracks import track
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.v1 import biography_pb2 as pb

from .test_groups import BROKERS, ConnectionPool


def answer(broker: str, *times: int, complete: bool = True) -> MessageTrack:
    """A message a time: stored, with an event, then."""
    copies = [
        MessageCopy(
            broker, n, "message", "orders", 0, 0, 0, 1, "", "k", "", "", 0, "", t, "", 0, "", "", "", 0
        )
        for n, t in enumerate(times, 1)
    ]
    events = [
        TrackEvent(broker, n, t, "stored", "", "", 0, 0, 1, "orders", 0, 0, "")
        for n, t in enumerate(times, 1)
    ]
    notes = () if complete else (f"{broker}: too much",)
    return MessageTrack(tuple(copies), tuple(events), (), complete, (), notes)


async def ask(
    monkeypatch: pytest.MonkeyPatch, *answers: MessageTrack | ErrorSpec, identifier: Any = "k"
) -> MessageTrack:
    """Each broker's answer, merged."""
    by_name = dict(zip(BROKERS, answers, strict=True))

    async def one(_connection: object, broker: str, *_: object) -> MessageTrack:
        found = by_name[broker]
        if isinstance(found, ErrorSpec):
            raise TroveError(found, f"{broker} says so")
        return found

    pool = ConnectionPool()
    monkeypatch.setattr(pool, "connection", lambda info: None, raising=False)
    monkeypatch.setattr(tracks, "track", one)
    return await ask_all(cast(Any, pool), identifier, "", None)


NOT_FOUND, UNREACHABLE = errors.MESSAGE_NOT_FOUND, errors.BROKER_UNREACHABLE


@pytest.mark.asyncio
async def test_answers_are_one_timeline_and_messages_are_numbered_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await ask(monkeypatch, answer("broker-a", 5, 9), NOT_FOUND, answer("broker-c", 7))
    assert [(copy.broker, copy.message) for copy in found.copies] == [
        ("broker-a", 1),
        ("broker-c", 3),
        ("broker-a", 2),
    ]
    assert [event.timestamp for event in found.events] == [5, 7, 9]
    assert found.complete


@pytest.mark.asyncio
async def test_a_broker_that_does_not_answer_or_leaves_something_out_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await ask(monkeypatch, answer("broker-a", 5, complete=False), UNREACHABLE, NOT_FOUND)
    assert not found.complete
    assert found.unreachable == ("broker-b",)
    assert found.notes == ("broker-a: too much", "broker-b: no answer")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answers", "spec"),
    [
        ((NOT_FOUND, NOT_FOUND, NOT_FOUND), NOT_FOUND),
        ((errors.TOPIC_NOT_FOUND, NOT_FOUND, errors.TOPIC_NOT_FOUND), NOT_FOUND),
        ((errors.TOPIC_NOT_FOUND,) * 3, errors.TOPIC_NOT_FOUND),
        ((NOT_FOUND, UNREACHABLE, NOT_FOUND), UNREACHABLE),
        ((answer("broker-a", 5), errors.RECORD_DAMAGED, NOT_FOUND), errors.RECORD_DAMAGED),
    ],
)
async def test_an_error_is_never_an_empty_answer(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Any, ...], spec: ErrorSpec
) -> None:
    with pytest.raises(TroveError) as refused:
        await ask(monkeypatch, *answers)
    assert refused.value.spec is spec


class Connection:
    """Answers with a reply; remembers the request."""

    max_lag_ms = 7

    def __init__(self, reply: pb.BiographyReply) -> None:
        self.reply = reply
        self.request = pb.BiographyRequest()

    async def ask(self, method: str, request: pb.BiographyRequest, decode: Any) -> pb.BiographyReply:
        assert method == "BiographyService/Biography"
        self.request = request
        found = decode(self.reply.SerializeToString())
        assert isinstance(found, pb.BiographyReply)
        return found


@pytest.mark.asyncio
async def test_what_is_unknown_is_none() -> None:
    reply = pb.BiographyReply(
        verdicts=[
            pb.GroupVerdict(message=1, group="g", reason="ready", blocked_by=-1, committed=-1, next_offset=0)
        ],
        complete=True,
        notes=["short"],
    )
    connection = Connection(reply)
    found = await track(cast(Any, connection), "broker-a", ("orders", 1, 7), "")
    (status,) = found.statuses
    assert (status.blocked_by, status.committed, status.next_offset) == (None, None, 0)
    assert found.notes == ("broker-a: short",)
    assert connection.request.location.queue_offset == 7
    await track(cast(Any, connection), "broker-a", "key", "orders")
    assert (connection.request.id, connection.request.topic) == ("key", "orders")
    assert connection.request.max_lag_ms == 7
    assert found.replica is None
    reply.replica.ms = 40
    found = await track(cast(Any, connection), "broker-a", "key", "orders")
    assert found.replica == ReplicaLag(None, 40)
