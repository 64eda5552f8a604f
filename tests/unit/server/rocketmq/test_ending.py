"""EndTransaction and RecallMessage: each status, and the visible messages afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.engine import NOW_MS, flush, read_queue
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import BROKER, ROOMY, TestBroker, message
from tests.support.rpc_context import RpcContext
from trovemq_broker.server.wire.statuses import code_of
from trovemq_broker.timers.recall_handle import encode_recall_handle
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.files.files import StorageError

pytestmark = fake_time


async def prepared(parts: TestBroker, transaction_id: str = "T1") -> None:
    await parts.send(
        message(b"deal", "deals", message_id=transaction_id, message_type=v2.TRANSACTION),
        context=RpcContext("producer"),
    )
    await turns()


async def end(
    parts: TestBroker, resolution: int, transaction_id: str = "T1", topic: str = "deals"
) -> v2.Code:
    request = service.EndTransactionRequest(
        topic=v2.Resource(name=topic),
        message_id=transaction_id,
        transaction_id=transaction_id,
        source=v2.SOURCE_CLIENT,
        resolution=resolution,  # type: ignore[arg-type]
    )
    return await code(parts.ender.end_transaction(request, RpcContext()))


async def recall(parts: TestBroker, handle: str, topic: str = "later") -> Any:
    request = service.RecallMessageRequest(topic=v2.Resource(name=topic), recall_handle=handle)
    return await parts.ender.recall(request, RpcContext())


async def code(call: Any) -> v2.Code:
    """The code of the reply, or of the refusal."""
    try:
        found: v2.Code = (await call).status.code
    except TroveError as error:
        return code_of(error)
    return found


def deals(parts: TestBroker) -> list[bytes]:
    return [one.body for queue_id in range(4) for one in read_queue(parts.store, "deals", QueueId(queue_id))]


async def delayed(parts: TestBroker, deliver_ms: EpochMs = NOW_MS + 10_000, topic: str = "later") -> str:
    """The recall handle of a message that waits."""
    response = await parts.send(message(b"soon", topic, message_id="D1", deliver_ms=deliver_ms))
    await turns()
    parts.timers.catch_up()
    handle: str = response.entries[0].recall_handle
    return handle


# --- EndTransaction -------------------------------------------------------------------------------------
async def test_a_commit_makes_the_message_visible() -> None:
    parts = TestBroker()
    await prepared(parts)
    assert await end(parts, v2.COMMIT) == v2.OK
    await turns()
    assert deals(parts) == [b"deal"]
    assert await end(parts, v2.COMMIT) == v2.INVALID_TRANSACTION_ID, "it is settled"


async def test_a_rollback_drops_the_message() -> None:
    parts = TestBroker()
    await prepared(parts)
    assert await end(parts, v2.ROLLBACK) == v2.OK
    await turns()
    assert deals(parts) == []
    assert await end(parts, v2.COMMIT) == v2.INVALID_TRANSACTION_ID


async def test_an_undecided_transaction_stays_open() -> None:
    parts = TestBroker()
    await prepared(parts)
    assert await end(parts, v2.TRANSACTION_RESOLUTION_UNSPECIFIED) == v2.OK
    assert parts.transactions.open_count == 1
    assert await end(parts, v2.COMMIT) == v2.OK


@pytest.mark.parametrize(
    ("resolution", "transaction_id", "topic", "expected"),
    [
        (v2.COMMIT, "", "deals", v2.INVALID_TRANSACTION_ID),
        (v2.COMMIT, " \t", "deals", v2.INVALID_TRANSACTION_ID),
        (v2.COMMIT, "unknown", "deals", v2.INVALID_TRANSACTION_ID),
        (v2.ROLLBACK, "T1", "orders", v2.INVALID_TRANSACTION_ID),
        (v2.COMMIT, "T1", "a b", v2.ILLEGAL_TOPIC),
        (9, "T1", "deals", v2.BAD_REQUEST),
    ],
)
async def test_an_end_that_is_refused(
    resolution: int, transaction_id: str, topic: str, expected: v2.Code
) -> None:
    parts = TestBroker()
    await prepared(parts)
    assert await end(parts, resolution, transaction_id, topic) == expected
    assert parts.transactions.open_count == 1


async def test_in_sync_mode_a_commit_waits_for_the_disk() -> None:
    parts = TestBroker(replace(ROOMY, flush_mode="sync"))
    sending = asyncio.ensure_future(prepared(parts))
    await turns(10)
    flush(parts.store)
    parts.group_commit._resolve_up_to(parts.store.flushed_offset)
    await sending
    ending = asyncio.ensure_future(end(parts, v2.COMMIT))
    await turns(10)
    assert not ending.done()
    flush(parts.store)
    parts.group_commit._resolve_up_to(parts.store.flushed_offset)
    assert await ending == v2.OK
    assert deals(parts) == [b"deal"]


async def test_a_write_that_fails_is_refused_and_the_store_continues() -> None:
    parts = TestBroker()
    await prepared(parts)

    def broken(*_: Any, **__: Any) -> Any:
        raise StorageError("write", "commitlog", 5)

    parts.transactions.end = broken  # type: ignore[method-assign]
    assert await end(parts, v2.COMMIT) == v2.INTERNAL_SERVER_ERROR
    assert parts.group_commit.failure is None


# --- RecallMessage --------------------------------------------------------------------------------------
async def test_a_recalled_message_is_not_delivered() -> None:
    parts = TestBroker()
    handle = await delayed(parts)
    for _ in range(2):
        response = await recall(parts, handle)
        assert response.status.code == v2.OK, "to recall it once more changes nothing"
        assert response.message_id == "D1"
        await turns()
        parts.timers.catch_up()
    parts.now_ms += 60_000
    parts.timers.deliver_due(parts.now_ms)
    await turns()
    assert [one for queue_id in range(4) for one in read_queue(parts.store, "later", QueueId(queue_id))] == []


async def test_a_message_that_was_delivered_cannot_be_recalled() -> None:
    parts = TestBroker()
    handle = await delayed(parts)
    parts.now_ms += 10_000
    assert await code(recall(parts, handle)) == v2.BAD_REQUEST


@pytest.mark.parametrize("topic", ["orders", "steps", "deals"])
async def test_a_topic_without_delayed_messages(topic: str) -> None:
    parts = TestBroker()
    handle = encode_recall_handle(topic, BROKER, NOW_MS + 1_000, "D1")
    assert await code(recall(parts, handle, topic)) == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_a_mixed_topic_has_delayed_messages() -> None:
    parts = TestBroker()
    handle = await delayed(parts, topic="mixed")
    assert (await recall(parts, handle, "mixed")).status.code == v2.OK


@pytest.mark.parametrize(
    ("handle", "topic", "expected"),
    [
        ("", "later", v2.BAD_REQUEST),
        ("not a handle", "later", v2.BAD_REQUEST),
        ("é" * 5_000, "later", v2.BAD_REQUEST),
        (encode_recall_handle("mixed", BROKER, NOW_MS + 10_000, "D1"), "later", v2.BAD_REQUEST),
        (encode_recall_handle("later", "broker-b", NOW_MS + 10_000, "D1"), "later", v2.BAD_REQUEST),
        ("x", "nowhere", v2.TOPIC_NOT_FOUND),
        ("x", "a b", v2.ILLEGAL_TOPIC),
    ],
)
async def test_a_recall_that_is_refused(handle: str, topic: str, expected: v2.Code) -> None:
    assert await code(recall(TestBroker(), handle, topic)) == expected
