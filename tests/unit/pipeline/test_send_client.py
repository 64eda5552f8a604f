"""A task's chunks: none is forgotten, whatever sending it ends with; all tasks of a process share a loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.sinks import topic_writer
from trovemq_spark.sinks.options import parse_sink_options
from trovemq_spark.sinks.rows_out import Chunk
from trovemq_spark.sinks.send_client import ChunkSender


class FakeClient:
    """Stores its messages; `failure` is raised for the body `bad`."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.stored: list[bytes] = []

    def producer(self, topic: str, **others: object) -> FakeClient:
        return self

    async def send_batch(self, bodies: list[bytes], **others: object) -> Any:
        await asyncio.sleep(0)
        if b"bad" in bodies:
            assert self.failure is not None
            raise self.failure
        self.stored += bodies
        return type("Receipt", (), {"queue_offsets": [len(self.stored) - 1]})


def chunk(body: bytes, row: int) -> Chunk:
    return Chunk("t", None, np.array([row]), [body])


@pytest.mark.parametrize(
    "failure", [RuntimeError("no memory"), TroveError(errors.BROKER_UNREACHABLE, "away")]
)
@pytest.mark.parametrize("behind", [0, 1, 20])
def test_a_chunk_that_fails_in_any_way_is_not_taken_for_sent(failure: Exception, behind: int) -> None:
    """An error that was none of the SDK's was forgotten with the chunk, when others came after it."""
    client = FakeClient(failure)

    async def send() -> None:
        sender = ChunkSender(client, in_flight_bytes=1)  # type: ignore[arg-type]
        await sender.submit(chunk(b"bad", 0))
        for row in range(1, behind + 1):
            await asyncio.sleep(0)
            await sender.submit(chunk(b"good", row))
        await sender.drain()

    with pytest.raises(type(failure), match=r"no memory|away"):
        asyncio.run(send())


def test_tasks_of_one_process_send_on_one_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a loop for each, gRPC logged `Event loop is closed` for work that it finished after it."""
    loops = set()
    client = FakeClient()

    @asynccontextmanager
    async def connected(*_: object, **__: object) -> AsyncIterator[FakeClient]:
        loops.add(asyncio.get_running_loop())
        yield client

    monkeypatch.setattr(topic_writer, "connect", connected)
    options = parse_sink_options({"nameServer": "127.0.0.1:9", "topic": "t"})
    rows = pa.RecordBatch.from_pydict({"body": [b"one", b"two"]})
    for _ in range(3):
        assert topic_writer.write_rows(iter([rows]), options, "query", "0").messages == 2
    assert client.stored == [b"one", b"two"] * 3
    assert len(loops) == 1
    assert not loops.pop().is_closed()
