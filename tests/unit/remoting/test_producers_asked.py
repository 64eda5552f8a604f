"""Which producers are asked about a half message, and which get a reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.memory_broker import TestBroker
from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_broker.server.remoting.members import Heard, Member, Members
from trovemq_broker.server.remoting.transactions import Transactions, client_id_of_group
from trovemq_daemon.remoting.request import Request
from trovemq_proto.positions import EpochMs
from trovemq_proto.remoting.codes import RequestCode
from trovemq_proto.remoting.headers import JSON, Header
from trovemq_store.topics.creators import Creator


class _Connection:
    is_secure = is_lost = is_full = False

    def __init__(self) -> None:
        self.asked = 0
        self.on_lost: list[Callable[[], None]] = []
        self.codes: list[int] = []

    def answered(self, _request: Request, code: int, *_rest: object) -> None:
        self.codes.append(code)

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


def produce(members: Members, connection: _Connection, user: str, client_id: str, group: str) -> None:
    body = json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": group}]}).encode()
    token = set_creator(Creator(user))
    try:
        members.heartbeat(
            Request(cast("Any", connection), Header(RequestCode.HEART_BEAT), JSON, body, len(body))
        )
    finally:
        reset_creator(token)


def test_replies_to_one_user_were_given_to_another() -> None:
    """A client of the second user said that it had the first one's client id."""

    async def main() -> None:
        members = Members(TestBroker())
        first, again, second = _Connection(), _Connection(), _Connection()
        produce(members, first, "shop", "r1", "g")
        produce(members, second, "thief", "r1", "h")
        found = members.producer("r1")
        assert found is not None
        assert found.connection is cast("Any", first)
        produce(members, again, "shop", "r1", "g")
        found = members.producer("r1")
        assert found is not None
        assert found.connection is cast("Any", again)
        again.on_lost[0]()
        produce(members, second, "thief", "r1", "h")
        assert members.producer("r1") is not None

    asyncio.run(main())


def test_client_ids_of_lost_connections_were_kept() -> None:
    """Each producer of the connection had its id; that of the last one alone was forgotten."""

    async def main() -> None:
        members, connection = Members(TestBroker()), _Connection()
        produce(members, connection, "shop", "r1", "g")
        produce(members, connection, "shop", "r2", "h")
        connection.on_lost[0]()
        assert [members.producer(one) for one in ("r1", "r2")] == [None, None]

    asyncio.run(main())


def test_the_end_of_a_connection_failed_when_a_later_one_had_its_client_id() -> None:
    """Its other members, and waiting pulls, were then kept."""

    async def main() -> None:
        members, former, later = Members(TestBroker()), _Connection(), _Connection()
        for connection in (former, later):
            members.requests(cast("Any", connection), "r1")
        found = members.producer("r1")
        assert found is not None
        assert found.connection is cast("Any", later)
        later.on_lost[0]()
        assert members.producer("r1") is None
        former.on_lost[0]()

    asyncio.run(main())
