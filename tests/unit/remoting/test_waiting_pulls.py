"""Pulls that wait at the end of a queue: thousands do at an idle broker."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from tests.support.memory_broker import TestBroker, message
from trovemq_broker.server.remoting import pulling
from trovemq_broker.server.remoting.members import Members
from trovemq_broker.server.remoting.offsets import Offsets
from trovemq_broker.server.remoting.pulling import Pulls
from trovemq_daemon.remoting.request import Request
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.headers import JSON, Header

WAITS = {"sysFlag": "6", "subscription": "*", "expressionType": "TAG"}
PLACES = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}


class _Connection:
    peer = "ipv4:127.0.0.1:5000"
    is_lost = is_full = False

    def __init__(self) -> None:
        self.on_lost: list[Callable[[], None]] = []
        self.answer: asyncio.Future[tuple[int, Mapping[str, str]]] = asyncio.Future()

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    def answered(self, _request: Request, code: int, _remark: str, fields: Any, _body: bytes) -> None:
        self.answer.set_result((code, fields))


def pulls_of(core: TestBroker) -> Pulls:
    members = Members(core)
    return Pulls(core, members, Offsets(core, members))


def request(connection: _Connection, wait_ms: int) -> Request:
    fields = {"consumerGroup": "readers", "topic": "orders", "queueId": "0", "queueOffset": "0"}
    fields |= {"maxMsgNums": "32", "suspendTimeoutMillis": str(wait_ms), **WAITS}
    header = Header(RequestCode.PULL_MESSAGE, fields=fields)
    return Request(cast("Any", connection), header, JSON, b"", 300)


def waits() -> int:
    return sum(type(one) is pulling._Wait for one in gc.get_objects())


@pytest.mark.asyncio
async def test_a_wait_that_ended_was_kept_until_a_collection() -> None:
    core, connection = TestBroker(), _Connection()
    core.follow_loop()
    pulls = pulls_of(core)
    gc.collect()
    gc.disable()
    try:
        made = request(connection, 1)
        pulls.pull(made)
        assert (len(core.long_polls), waits()) == (1, 1)
        assert made.header.fields == {}, "they are read, and would be kept for the time of the wait"
        assert await connection.answer == (ResponseCode.PULL_NOT_FOUND, PLACES)
        assert (len(core.long_polls), waits()) == (0, 0)
    finally:
        gc.enable()


@pytest.mark.asyncio
async def test_a_message_ends_a_wait() -> None:
    core, connection = TestBroker(), _Connection()
    core.follow_loop()
    pulls_of(core).pull(request(connection, 600_000))
    syncs = asyncio.create_task(core.group_commit.run())
    for number in range(4):  # one for each queue
        await core.send(message(b"one", message_id=f"ID{number}"))
    code, fields = await connection.answer
    assert (code, fields["nextBeginOffset"]) == (ResponseCode.SUCCESS, "1")
    syncs.cancel()


@pytest.mark.asyncio
async def test_a_client_that_reads_nothing_got_the_ends_of_its_waits() -> None:
    """They would be kept for it without a bound."""
    core, connection = TestBroker(), _Connection()
    core.follow_loop()
    connection.is_full = False
    writable: list[Callable[[], None]] = []
    connection.when_writable = writable.append  # type: ignore[attr-defined]
    pulls_of(core).pull(request(connection, 1))
    connection.is_full = True
    while not writable:
        await asyncio.sleep(0)
    assert not connection.answer.done()
    connection.is_full = False
    writable.pop()()
    assert await connection.answer == (ResponseCode.PULL_NOT_FOUND, PLACES)
