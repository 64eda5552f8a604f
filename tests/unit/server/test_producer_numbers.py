"""GetProducer: the number with which a producer that starts again continues."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.support.engine import flush, record, with_crc_property
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import ROOMY, TestBroker, open_both
from tests.support.rpc_context import RpcContext
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.native.message_service import MessageService
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import message_pb2


@fake_time
async def test_a_producer_skipped_numbers_of_messages_that_a_power_cut_took() -> None:
    settings = replace(ROOMY, flush_mode="sync", tree_index_enable=True)
    broker = TestBroker(opened=open_both(settings, ConsumerSettings()))
    broker.store.topics.create("once", 1, options={"deduplicate": "1h"})
    numbered = {"TROVEMQ_PRODUCER": "p", "TROVEMQ_SEQUENCE": "0", "UNIQ_KEY": "U0"}
    sent = with_crc_property(record(b"x", topic="once", properties=numbered))
    broker.appender.append("once", QueueId(0), sent, None)
    asked = message_pb2.GetProducerRequest(topic="once", producer_id="p")
    answers = asyncio.create_task(MessageService(broker).get_producer(asked, RpcContext()))
    await turns(10)
    assert not answers.done(), "the message with the number 0 is not on disk"
    flush(broker.store)
    broker.group_commit._resolve_up_to(broker.store.flushed_offset)
    reply: Any = await answers
    assert reply.next_sequence == 1
