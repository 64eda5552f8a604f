"""Which producers are asked about a half message."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.memory_broker import TestBroker
from trovemq_broker.server.remoting.members import Heard, Member, Members
from trovemq_broker.server.remoting.transactions import Transactions, client_id_of_group
from trovemq_proto.positions import EpochMs


class _Connection:
    def __init__(self) -> None:
        self.asked = 0

    def notify(self, *_request: object) -> None:
        self.asked += 1


def check_of(**properties: str) -> Any:
    half = SimpleNamespace(properties=properties, queue_offset=0, physical_offset=0, offset_msg_id="")
    return SimpleNamespace(message=half, topic="deals", transaction_id="t")


def producers(
    monkeypatch: pytest.MonkeyPatch, group: str, *users: str
) -> tuple[Transactions, dict[str, _Connection]]:
    core = TestBroker()
    members = Members(core)
    connections = {user: _Connection() for user in users}
    members.producers[group] = {
        Member(cast("Any", one), user, user): Heard("JAVA", 493, EpochMs(0))
        for user, one in connections.items()
    }
    found = Transactions(core, members)
    monkeypatch.setattr(found, "_body", lambda *_check: b"")
    found.may_send = lambda member, _topic: member.user.startswith("own")
    return found, connections


def test_a_stranger_in_the_group_of_a_producer_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        found, connections = producers(monkeypatch, "deals", "stranger", "own-1", "own-2")
        for _ in range(4):
            assert found.ask(check_of(PGROUP="deals"))
        assert [one.asked for one in connections.values()] == [0, 2, 2]
        assert found.may_ask(client_id_of_group("deals"), "deals")
        alone, _ = producers(monkeypatch, "deals", "stranger")
        assert not alone.ask(check_of(PGROUP="deals"))
        assert not alone.may_ask(client_id_of_group("deals"), "deals")

    asyncio.run(main())


def test_half_messages_without_a_group_are_of_no_remoting_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        found, connections = producers(monkeypatch, "", "own")
        assert not found.ask(check_of())
        assert connections["own"].asked == 0

    asyncio.run(main())
