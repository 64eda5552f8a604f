"""Offsets for which no client waits, while the log takes its time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.support.memory_broker import TestBroker
from trovemq_broker.server.remoting.members import Members
from trovemq_broker.server.remoting.offsets import Offsets
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.remoting.headers import JSON, Header


class _Keeper:
    """Stores offsets when the test says so."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.go = asyncio.Event()

    async def commit(self, _group: str, _topic: str, queue_id: int, offset: int) -> None:
        self.begun.append((queue_id, offset))
        await self.go.wait()
        if queue_id == 1:
            raise TroveError(errors.OFFSET_OUT_OF_RANGE)

    def get(self, *_key: object) -> None:
        return None


class _Connection:
    is_lost = False
    found = ""

    def answered(
        self, _request: Request, _code: int, _remark: str, fields: dict[str, str], _body: Any
    ) -> None:
        self.found = fields["offset"]


def test_an_offset_is_found_while_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        core, keeper, connection = TestBroker(), _Keeper(), _Connection()
        monkeypatch.setattr(core, "offsets", keeper)
        offsets = Offsets(core, Members(core))

        def store(queue_id: int, offset: int) -> None:
            offsets.store_soon("readers", "orders", QueueId(queue_id), QueueOffset(offset))

        def found() -> str:
            fields = {"consumerGroup": "readers", "topic": "orders", "queueId": "0"}
            offsets.query(Request(cast("Any", connection), Header(14, fields=fields), JSON, b"", 0))
            return connection.found

        for queue_id in range(3):
            store(queue_id, 5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert keeper.begun == [(0, 5), (1, 5), (2, 5)], "together"
        assert found() == "5"
        store(0, 6)
        keeper.go.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert keeper.begun[3:] == [(0, 6)]
        assert found() == "0", "of the queue, which has its first message"

    asyncio.run(main())
