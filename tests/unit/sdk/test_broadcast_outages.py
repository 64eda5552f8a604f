"""A broadcast reader's outages, seen by several queues."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.support.fake_loop import run
from trovemq._consume.broadcast import BroadcastConsumer
from trovemq._net.outages import Outages
from trovemq._net.routes import Slot
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

SLOT = Slot("a", 1)


class Reader(BroadcastConsumer):
    """Whose pulls ask, wait a second, and learn that the topic does not exist."""

    def __init__(self) -> None:
        self._outages, self._asked = Outages("t", "g"), {}
        self._topic, self.begun = "t", 0
        pool: Any = SimpleNamespace(options=SimpleNamespace(backoff=SimpleNamespace(seconds=lambda _: 9.0)))
        self._pool = pool
        self._outages.begin = self._begun  # type: ignore[method-assign]

    def _begun(self, place: str, error: TroveError) -> None:
        self.begun += 1

    async def _pull_once(self, slot: Slot) -> None:
        self._asked[slot] = self._outages.ended
        await asyncio.sleep(1)
        raise TroveError(errors.TOPIC_NOT_FOUND)


def test_a_late_answer_about_the_topic_that_was_gone_was_a_second_outage() -> None:
    async def scene() -> None:
        reader = Reader()
        pulling = asyncio.ensure_future(reader._pull(SLOT))
        await asyncio.sleep(0.5)
        reader._outages.ended += 1  # another queue has a batch
        await asyncio.sleep(1)
        assert reader.begun == 0
        await asyncio.sleep(10)
        assert reader.begun == 1, "the topic is gone again"
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)

    run(scene())
