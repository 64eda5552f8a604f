"""Requests that wait for replies: the first reply ends one, later ones are dropped and counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from trovemq import replies
from trovemq.replies import Reply, ReplyCounts, ReplyMetrics, WaitingRequests
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

pytestmark = pytest.mark.asyncio


def reply(request_id: str, body: bytes = b"") -> Reply:
    return Reply(body=body, request_id=request_id, message_id="", broker="")


async def test_a_reply_ends_its_request_and_no_other() -> None:
    waiting = WaitingRequests()
    one, two = waiting.begin("1"), waiting.begin("2")
    waiting.put(reply("2", b"for two"))
    assert (await two).body == b"for two"
    assert not one.done()
    assert waiting.counts == ReplyCounts(1, 0, 0)


async def test_late_and_double_replies_are_counted() -> None:
    waiting = WaitingRequests()
    waiting.begin("1")
    waiting.begin("2")
    waiting.put(reply("1"))
    waiting.end("1")
    waiting.end("2")
    for request_id in ("1", "1", "2", "of an earlier process"):
        waiting.put(reply(request_id))
    assert waiting.counts == ReplyCounts(waiting=0, late=2, double=2)


async def test_a_cancelled_request_takes_no_reply() -> None:
    waiting = WaitingRequests()
    waiting.begin("1").cancel()
    waiting.put(reply("1"))
    assert waiting.counts == ReplyCounts(0, 1, 0)


async def test_a_failure_ends_all() -> None:
    waiting = WaitingRequests()
    futures = [waiting.begin(str(number)) for number in range(3)]
    waiting.fail(TroveError(errors.CLIENT_CLOSED))
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [TroveError] * 3
    assert waiting.counts.waiting == 0


async def test_both_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "WAITING_MAX", 2)
    monkeypatch.setattr(replies, "ENDED_MAX", 2)
    waiting = WaitingRequests()
    waiting.begin("1")
    waiting.begin("2")
    with pytest.raises(TroveError, match="send fewer at once") as raised:
        waiting.begin("3")
    assert raised.value.spec is errors.LIMIT_EXCEEDED
    waiting.put(reply("1"))
    waiting.put(reply("2"))
    waiting.begin("3")
    waiting.put(reply("3"))
    for request_id in "123":
        waiting.put(reply(request_id))
    assert waiting.counts == ReplyCounts(waiting=0, late=1, double=2), "the oldest is forgotten, and is late"


async def test_the_counts_are_exported_as_metrics() -> None:
    registry, client = CollectorRegistry(), SimpleNamespace(reply_counts=ReplyCounts(3, 0, 0))
    ReplyMetrics(client).prometheus(registry)
    client.reply_counts = ReplyCounts(waiting=2, late=5, double=7)
    values = {
        (one.name, one.labels.get("reason")): one.value for f in registry.collect() for one in f.samples
    }
    assert values == {
        ("trovemq_client_requests_waiting", None): 2,
        ("trovemq_client_replies_dropped_total", "late"): 5,
        ("trovemq_client_replies_dropped_total", "double"): 7,
    }
