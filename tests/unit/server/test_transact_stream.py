"""TransactionService: how a stream of an atomic transaction ends, and when its commit is answered."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from tests.support import fake_loop
from tests.support.engine import record, with_crc_property
from tests.support.services_here import BrokerServices, in_process, small_broker_settings
from trovemq_proto.v1 import admin_pb2, transaction_pb2
from trovemq_store.files.memory import MemoryFileSystem

TRANSACT: Final = "trovemq.v1.TransactionService.Transact"
CREATE: Final = "trovemq.v1.AdminService.CreateTopic"
BEGIN: Final = transaction_pb2.TransactionFrame(begin={"transaction_id": "t"})
COMMIT: Final = transaction_pb2.TransactionFrame(commit={})
ROLLBACK: Final = transaction_pb2.TransactionFrame(rollback={})


def messages(topic: str = "orders") -> transaction_pb2.TransactionFrame:
    records = with_crc_property(record(b"body", topic=topic, unique_key="U1"))
    return transaction_pb2.TransactionFrame(messages={"topic": topic, "queue_id": 0, "records": records})


def scene(steps: Callable[[BrokerServices], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        with in_process():
            broker = BrokerServices(MemoryFileSystem(), small_broker_settings())
            async with broker.working():
                create = admin_pb2.CreateTopicRequest(topic="orders", queue_count=1)
                await broker.call(CREATE, [create.SerializeToString()])
                await steps(broker)

    fake_loop.run(whole())


async def transact(broker: BrokerServices, *frames: transaction_pb2.TransactionFrame) -> Any:
    """The reply; the error's symbol if it is refused."""
    outcome = await broker.call(TRANSACT, [frame.SerializeToString() for frame in frames])
    return outcome.symbol or broker.parse(TRANSACT, outcome.replies[0])


def is_free(broker: BrokerServices) -> bool:
    opened = broker.core.atomic
    return (len(opened), opened.bytes) == (0, 0)


def test_a_commit_was_answered_before_it_was_on_disk() -> None:
    async def steps(broker: BrokerServices) -> None:
        reply = await transact(broker, BEGIN, messages(), COMMIT)
        assert (reply.committed, list(reply.queue_offsets)) == (True, [0])
        assert broker.store.flushed_offset >= broker.store.end_offset > reply.physical_offsets[0]
        assert is_free(broker)

    scene(steps)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([BEGIN, messages()], "REQUEST_ILLEGAL"),
        ([BEGIN, messages(), BEGIN], "REQUEST_ILLEGAL"),
        ([BEGIN, messages(), messages("nowhere"), COMMIT], "TOPIC_NOT_FOUND"),
        ([BEGIN, messages(), ROLLBACK], ""),
    ],
)
def test_a_transaction_whose_stream_ended_kept_its_memory(
    frames: list[transaction_pb2.TransactionFrame], expected: str
) -> None:
    async def steps(broker: BrokerServices) -> None:
        end = broker.store.end_offset
        reply = await transact(broker, *frames)
        assert reply == expected if expected else not reply.committed
        assert is_free(broker)
        assert broker.store.end_offset == end, "nothing of it is in the log"

    scene(steps)
