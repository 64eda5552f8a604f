"""A broadcast reader's outages, seen by several queues."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_loop import fake_time
from trovemq._consume.broadcast import BroadcastConsumer
from trovemq._net.outages import Outages
from trovemq._net.routes import Slot
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

NOT_FOUND = TroveError(errors.TOPIC_NOT_FOUND)
BEGUN, ENDED = "waits for topic", "receives from topic"


class Reader(BroadcastConsumer):
    """Each pull asks, waits a second, and gets the answer that the topic does not exist."""

    def __init__(self) -> None:
        self._outages, self._topic = Outages("t", "g"), "t"
        pool: Any = SimpleNamespace(options=SimpleNamespace(backoff=SimpleNamespace(seconds=lambda _: 9.0)))
        self._pool = pool

    async def _pull_once(self, slot: Slot) -> None:
        await asyncio.sleep(1)
        raise NOT_FOUND


def lines_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [text for record in log.records for text in (BEGUN, ENDED) if text in record.getMessage()]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "trovemq")
    return caplog


@fake_time
@pytest.mark.parametrize("also_gone_at_b", [False, True])
async def test_a_late_answer_about_a_topic_that_is_back_began_an_outage(
    log: pytest.LogCaptureFixture, also_gone_at_b: bool
) -> None:
    reader = Reader()
    reader._outages.begin("a", NOT_FOUND)
    if also_gone_at_b:
        reader._outages.begin("b", NOT_FOUND)
    pulling = asyncio.ensure_future(reader._pull(Slot("a", 1)))
    await asyncio.sleep(0.5)
    reader._outages.end("a")  # another queue of the broker has a batch
    await asyncio.sleep(1)
    reader._outages.end("b")
    assert lines_of(log) == [BEGUN, ENDED]
    await asyncio.sleep(10)
    assert lines_of(log) == [BEGUN, ENDED, BEGUN], "the topic is gone again"
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)


def test_an_end_at_another_broker_left_an_answer_unreported(log: pytest.LogCaptureFixture) -> None:
    outages = Outages("t", "g")
    asked_after = outages.ended("a")
    outages.begin("b", NOT_FOUND)
    outages.end("b")
    outages.begin("a", NOT_FOUND, asked_after)
    assert lines_of(log) == [BEGUN, ENDED, BEGUN]
