"""Batches that had arrived and were not confirmed when their stream ended."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_loop import fake_time, turns
from tests.unit.sdk.records_made import record_at
from tests.unit.sdk.test_group_stream import RECEIPT, Scene
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import consumer_pb2


@fake_time
async def test_a_batch_of_a_deleted_topic_came_with_the_first_of_the_new_one() -> None:
    here = Scene()
    await turns(10)
    one = consumer_pb2.ConsumeRun(first_offset=7, count=1, attempt=1, receipt=RECEIPT)
    batch = consumer_pb2.ConsumeReply(batch=1, runs=[one], records=record_at(7))
    here.now._replies.put_nowait(batch.SerializeToString())
    await here.now.reply(TroveError(errors.TOPIC_NOT_FOUND, "deleted"))  # before it is confirmed
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        await here.running
    here.running = asyncio.ensure_future(here.stream.run())
    (message,) = await here.opened(1)
    assert message.queue_offset == 0
    assert here.inbox.take() is None
    await here.over()
