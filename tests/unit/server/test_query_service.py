"""QueryService: the number of running queries, and the offsets of the records in an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.engine import SMALL, flush, open_store, send
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.query_service import QueryService
from trovemq_broker.server.wire.native_messages import moved_offsets
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, QueueOffset
from trovemq_proto.v1 import query_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem

CONTEXT: Any = None


@pytest.fixture
def store() -> MessageStore:
    opened = open_store(MemoryFileSystem(), SMALL)
    for number in range(3):
        send(opened, b"body", keys="k", unique_key=f"U{number}")
    flush(opened)
    return opened


def service(store: MessageStore, queries_max: int = 1) -> QueryService:
    return QueryService(store, queries_max, Traffic(), Turns())


@pytest.mark.asyncio
async def test_after_look_ups_that_failed_every_other_one_was_refused(store: MessageStore) -> None:
    of = service(store)
    for _ in range(2):
        with pytest.raises(TroveError) as caught:
            await of.get_message(query_pb2.GetMessageRequest(id="unknown"), CONTEXT)
        assert caught.value.spec is errors.MESSAGE_NOT_FOUND
    assert of.running == 0
    assert (await of.get_message(query_pb2.GetMessageRequest(id="U1"), CONTEXT)).records


@pytest.mark.asyncio
async def test_a_query_that_its_client_left_counted_for_ever(store: MessageStore) -> None:
    of = service(store)
    pages: Any = of.query_by_key(query_pb2.QueryByKeyRequest(topic="orders", key="k"), CONTEXT)
    await anext(pages)
    assert of.running == 1
    with pytest.raises(TroveError, match="queries_max"):
        await of.get_message(query_pb2.GetMessageRequest(id="U1"), CONTEXT)
    await asyncio.wait_for(pages.aclose(), 10)
    assert of.running == 0


def test_records_elsewhere_in_their_queue_had_their_own_offsets(
    store: MessageStore,
) -> None:
    """A record may say another queue offset than that of its unit, after an import from RocketMQ."""
    record = store.record_at(LOG_ORIGIN)
    assert record is not None
    assert moved_offsets([record], [QueueOffset(0)]) == b""
    assert moved_offsets([record], [QueueOffset(7)]) == (7).to_bytes(8, "little")
