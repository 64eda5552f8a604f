"""Sends while the disk takes no more."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.support.memory_broker import TestBroker
from trovemq_broker.server.remoting.retries import Retries
from trovemq_broker.server.remoting.sending import Sends
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.headers import JSON, Header


class _Disk:
    """A group commit that is full until the test says otherwise."""

    def __init__(self) -> None:
        self.full = True
        self.error: TroveError | None = None
        self._free = asyncio.Event()

    async def wait_for_capacity(self) -> None:
        await self._free.wait()
        if self.error is not None:
            raise self.error

    def free(self) -> None:
        self.full = False
        self._free.set()


class _Connection:
    is_lost = False

    def __init__(self) -> None:
        self.failed: list[int] = []

    def answered(self, request: Request, code: int, *_rest: Any) -> None:
        self.failed.append(request.header.opaque)

    def response_of(self, _request: Request, _error: BaseException) -> tuple[int, str]:
        return 2, ""


class _WaitingSends:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        core = TestBroker()
        self.disk, self.connection = _Disk(), _Connection()
        self.stored: list[int] = []
        monkeypatch.setattr(core, "group_commit", self.disk)
        self.sends = Sends(core, Retries(core))
        monkeypatch.setattr(self.sends, "_store", self._store)

    def _store(self, request: Request, *_names: Any, **_more: Any) -> None:
        self.stored.append(request.header.opaque)

    def send(self, number: int) -> None:
        header = Header(10, number, fields={"batch": "false"})
        self.sends.send(Request(cast("Any", self.connection), header, JSON, b"", 0))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_send_does_not_overtake_those_that_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        here = _WaitingSends(monkeypatch)
        for number in range(600):
            here.send(number)
        await settled()
        assert here.stored == []
        here.disk.free()
        here.send(600)  # before those that wait have had their turn
        await settled()
        assert here.stored == list(range(601))
        here.send(601)
        assert here.stored[-1] == 601

    asyncio.run(main())


def test_sends_that_waited_too_long_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        here = _WaitingSends(monkeypatch)
        here.send(1)
        here.send(2)
        here.disk.error = TroveError(errors.OS_PAGE_CACHE_BUSY)
        here.disk.free()
        await settled()
        assert (here.stored, here.connection.failed) == ([], [1, 2])

    asyncio.run(main())
