"""The core of a broker: what its parts have in common."""

from __future__ import annotations

from typing import Any

from tests.support import fake_loop
from tests.support.engine import read_queue
from tests.support.services_here import BrokerServices, in_process, small_broker_settings
from trovemq_proto.rocketmq.v2 import admin_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import message_pb2
from trovemq_store.files.memory import MemoryFileSystem

CLIENT: tuple[tuple[str, Any], ...] = (("x-mq-client-id", "console"),)


def test_a_native_send_and_admin_send_message_made_the_same_unique_key() -> None:
    """Of the first ones in a second: each had a generator that started with the broker."""

    async def scene() -> None:
        with in_process():
            broker = BrokerServices(MemoryFileSystem(), small_broker_settings(flush_mode="async"))
            broker.store.topics.create("orders", 1)
            sent = message_pb2.SendRequest(topic="orders", messages=[{"body": b"native"}])
            admin = admin_pb2.AdminSendMessageRequest(topic=v2.Resource(name="orders"), body=b"admin")
            for method, request in (
                ("trovemq.v1.MessageService.Send", sent),
                ("trovemq.rocketmq.v2.Admin.AdminSendMessage", admin),
            ):
                outcome = await broker.call(method, [request.SerializeToString()], CLIENT)
                assert outcome.code == "OK", outcome
            native, other = (message.unique_key for message in read_queue(broker.store))
            assert len({native, other}) == 2, native

    fake_loop.run(scene())
