"""Batches that messages may join, without a network: one that has ended takes no more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import fake_loop
from tests.support.fake_loop import fake_time
from trovemq import ClientOptions
from trovemq._net.routes import RouteTable
from trovemq._produce.outgoing import Batch
from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState, TopicRoute
from trovemq.producer import Producer
from trovemq.receipts import AppendOutcome
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.v1 import message_pb2

DELIVERY_TIMEOUT_MS = 1_000


class Pool:
    """A broker with one queue, whose stream keeps the batches and writes none of them unasked."""

    closed = False
    suspect_until: dict[str, float] = {}  # noqa: RUF012  never written

    def check_loop(self) -> None:
        """It has one loop."""

    def has_nodes(self, broker: str) -> bool:
        """It is no replica group."""
        return False

    def __init__(self) -> None:
        self.options = ClientOptions(delivery_timeout_ms=DELIVERY_TIMEOUT_MS)
        self.routes = RouteTable()
        topics = (TopicRoute("orders", 1),)
        self.routes.apply(ClusterState((BrokerRoute(BrokerInfo("c", "b", "127.0.0.1:1"), topics),)))
        self.submitted: list[Batch] = []

    def connection(self, broker: BrokerInfo) -> Any:
        return SimpleNamespace(address=broker.address)

    def stream(self, _broker: BrokerInfo) -> Any:
        return SimpleNamespace(submit=self.submitted.append)


def written(batch: Batch, frame_id: int) -> message_pb2.AppendFrame:
    """Its frame."""
    data = batch.take(frame_id)
    assert data is not None
    return message_pb2.AppendFrame.FromString(data)


@pytest.mark.parametrize(
    ("error", "waited_s"),
    [(errors.REQUEST_TIMEOUT, DELIVERY_TIMEOUT_MS / 1_000), (errors.TLS_FAILED, 0)],
    ids=["too late", "no other attempt"],
)
@pytest.mark.parametrize("given", [{}, {"queue_id": 0}, {"ordering_key": "k"}], ids=str)
def test_messages_joined_a_batch_that_had_failed_and_waited_for_ever(
    error: ErrorSpec, waited_s: float, given: dict[str, Any]
) -> None:
    """It was given up before it was written."""

    async def scene() -> None:
        pool: Any = Pool()
        producer = Producer(pool, "orders")
        first = producer.send_nowait(b"one", **given)
        joined = producer.send_nowait(b"two", **given)
        (batch,) = pool.submitted
        await asyncio.sleep(waited_s)
        batch.failed(TroveError(error, "never written"), in_doubt=False)
        for future in (first, joined):
            failure = future.exception()
            assert isinstance(failure, TroveError)
            assert failure.spec is error
        assert producer.in_flight_bytes == 0
        later = producer.send_nowait(b"three", **given)
        assert len(pool.submitted) == 2, "it has a separate batch"
        frame = written(pool.submitted[1], 1)
        assert b"three" in frame.records
        assert b"one" not in frame.records
        pool.submitted[1].answered(AppendOutcome(1, "PUT_OK", None, 5, 1000, 1, 1, "disk", bytes(8), "b"))
        assert later.result().queue_offset == 5
        assert producer.in_flight_bytes == 0

    fake_loop.run(scene())


@fake_time
async def test_one_way_messages_joined_a_batch_that_had_failed() -> None:
    pool: Any = Pool()
    producer = Producer(pool, "orders")
    producer.send_oneway(b"one")
    pool.submitted[0].failed(TroveError(errors.TLS_FAILED, "never written"), in_doubt=False)
    assert (producer.one_way_dropped, producer.in_flight_bytes) == (1, 0)
    producer.send_oneway(b"two")
    assert len(pool.submitted) == 2, "it has a separate batch"
    assert written(pool.submitted[1], 1).one_way
    pool.submitted[1].written()
    assert (producer.one_way_dropped, producer.in_flight_bytes) == (1, 0)
