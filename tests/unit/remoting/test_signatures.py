"""Signatures of remoting clients: theirs are accepted, and no changed request is."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.broker_here import broker_here
from tests.support.memory_broker import TestBroker
from tests.support.remoting_client import Answer, RemotingClient, remoting_client
from trovemq_broker.security import changes
from trovemq_broker.security.remoting import signed_fields, user_of_fields
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.server.access.gate import Gate
from trovemq_broker.server.access.needs import EVERY, Level
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_broker.server.remoting.broker_admin import DiskSpace, Surroundings
from trovemq_broker.server.remoting.gate import RemotingGate
from trovemq_broker.server.remoting.members import Member
from trovemq_broker.server.remoting.rights import ROWS
from trovemq_broker.server.remoting.service import ForTools, RemotingService
from trovemq_daemon.remoting.request import Request
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.headers import JSON, Header
from trovemq_proto.remoting.relayed import RELAYED, relayed_fields
from trovemq_store.files.memory import MemoryFileSystem

SECRET = "12345678"
FIELDS = {"topic": "orders", "Zone": "z", "_x": "u", "AccessKey": "rocketmq"}


def signature(fields: Mapping[str, str], body: bytes = b"", secret: str = SECRET) -> str:
    """As RocketMQ's AclUtils makes it: upper case before lower case, `_` between them."""
    text = "".join(fields[name] for name in sorted(fields)).encode() + body
    return base64.b64encode(hmac.digest(secret.encode(), text, "sha1")).decode()


@pytest.fixture(scope="module")
def table() -> SecurityTable:
    made = SecurityTable.load(MemoryFileSystem(), SealingKey(bytes(32)), bytes)
    user = new_user("rocketmq", UserKind.NORMAL, SECRET.encode(), salt=bytes(16), now_ms=0)
    change = made.begin(changes.add_user(made.state, user))
    change.run()
    made.finish(change)
    return made


def test_a_signature_of_java_is_accepted(table: SecurityTable) -> None:
    signed = {**FIELDS, "Signature": signature(FIELDS, b"body")}
    assert user_of_fields(table, signed, b"body").access_key == "rocketmq"


def test_a_signature_without_the_token_as_of_go_is_accepted(table: SecurityTable) -> None:
    signed = {**FIELDS, "SecurityToken": "t", "Signature": signature(FIELDS)}
    assert user_of_fields(table, signed, b"").access_key == "rocketmq"


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "other"},
        {"more": "x"},
        {"AccessKey": "nobody"},
        {"Signature": "AAAA"},
        {"Signature": "not base64!"},
        {"Signature": ""},
        {"Signature": "A" * 100_000},
        {"_UNIQUE_KEY_QUERY": "x", "topic": "other"},
    ],
)
def test_a_request_that_was_changed_is_refused(table: SecurityTable, change: dict[str, str]) -> None:
    signed = {**FIELDS, "Signature": signature(FIELDS, b"body"), **change}
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        user_of_fields(table, signed, b"body")


@pytest.mark.parametrize("body", [b"", b"bodY", b"body "])
def test_a_body_that_was_changed_is_refused(table: SecurityTable, body: bytes) -> None:
    signed = {**FIELDS, "Signature": signature(FIELDS, b"body")}
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        user_of_fields(table, signed, body)


class Signing:
    """A client that signs."""

    def __init__(self, client: RemotingClient, secret: str = SECRET) -> None:
        self._client = client
        self._secret = secret

    async def ask(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> Answer:
        texts = {name: str(value) for name, value in fields.items()} | {"AccessKey": "admin"}
        texts["Signature"] = signature(texts, body, self._secret)
        return await self._client.ask(code, texts, body)


def secured(path: Path, run: Callable[[RemotingClient], Awaitable[None]]) -> None:
    async def main() -> None:
        user = '{"username": "admin", "password": "12345678"}'
        settings = {
            "authentication_enable": True,
            "authorization_enable": True,
            "init_authentication_user": user,
        }
        async with (
            broker_here(path, remoting_enable=True, auto_create_topic_enable=True, **settings) as broker,
            remoting_client(broker.address) as client,
        ):
            await run(client)

    asyncio.run(main())


def test_every_request_has_its_rights() -> None:
    async def main() -> None:
        around = Surroundings(0, lambda: DiskSpace(0, 0), "")
        tools = ForTools(lambda _topic: {}, nullcontext, around)
        service = RemotingService(TestBroker(), lambda _topic: {}, dict, tools)
        assert ROWS.keys() == service.handlers.keys()

    asyncio.run(main())


class _Here:
    """The connection of a caller on this machine."""

    peer = "ipv4:127.0.0.1:5000"
    is_secure = is_lost = is_full = False


RIGHTS = sorted(code for code, row in ROWS.items() if row.needs is not Level.USER)


@pytest.mark.parametrize("code", sorted(set(RIGHTS) - {RequestCode.HEART_BEAT}))
def test_a_user_without_a_rule_is_refused(table: SecurityTable, code: int) -> None:
    gate = Gate(authorization=True, cluster="c", clock_ms=lambda: EpochMs(0))
    gate.open(table, cast("Any", object()))
    body = b'{"consumerGroup": "g", "clientId": "c", "mqSet": []}'
    signed = {**FIELDS, "Signature": signature(FIELDS, body)}
    request = Request(cast("Any", _Here()), Header(code, fields=signed), JSON, body, len(body))
    with pytest.raises(TroveError, match="ACCESS_DENIED"):
        RemotingGate(gate, ServingGate()).around(request, lambda _request: pytest.fail("it was served"))


class _Passed:
    """A connection that a node opens for a client."""

    is_lost = is_full = False

    def __init__(self) -> None:
        self.peer, self.is_secure = "ipv4:127.0.0.1:5000", False
        self.on_lost: list[Callable[[], None]] = []
        self.answers: list[int] = []

    def relayed(self, peer: str, *, is_secure: bool) -> None:
        self.peer, self.is_secure = peer, is_secure

    def answered(self, _request: Request, code: int, *_rest: object) -> None:
        self.answers.append(code)


CLIENT = relayed_fields("ipv4:10.9.9.9:5000", is_secure=True)


def asked(connection: _Passed, code: int, fields: Mapping[str, str], user: str = "node") -> Request:
    signed = signed_fields(fields, Credentials(user, SECRET))
    return Request(cast("Any", connection), Header(code, fields=signed), JSON, b"", 0)


def gate_of_users() -> tuple[RemotingGate, SecurityTable]:
    """`node` is a super user; `alice` may send to `orders` from 10.9.9.9."""
    made = SecurityTable.load(MemoryFileSystem(), SealingKey(bytes(32)), bytes)

    def run(change: Any) -> None:
        begun = made.begin(change)
        begun.run()
        made.finish(begun)

    for name in ("root", "node", "alice", "bob"):
        kind = UserKind.SUPER if name in ("root", "node") else UserKind.NORMAL
        run(changes.add_user(made.state, new_user(name, kind, SECRET.encode(), salt=bytes(16), now_ms=0)))
    changed, _ = changes.add_rule(
        made.state, "alice", allow=True, actions="Pub", resource="Topic:orders", sources=["10.9.9.9"]
    )
    run(changed)
    gate = Gate(authorization=True, cluster="c", clock_ms=lambda: EpochMs(0))
    gate.open(made, cast("Any", object()))
    return RemotingGate(gate, ServingGate()), made


def test_rules_hold_for_the_address_of_a_client_that_a_node_passes_on() -> None:
    gate, _ = gate_of_users()
    connection, served = _Passed(), list[Request]()
    send = asked(connection, RequestCode.SEND_MESSAGE_V2, {"b": "orders"}, "alice")
    with pytest.raises(TroveError, match="ACCESS_DENIED"):
        gate.around(send, served.append)
    gate.around(asked(connection, RELAYED, CLIENT), gate.relayed)
    assert connection.answers == [ResponseCode.SUCCESS]
    gate.around(send, served.append)
    assert served == [send]
    with pytest.raises(TroveError, match="ACCESS_DENIED"):
        gate.around(asked(connection, RequestCode.SEND_MESSAGE_V2, {"b": "orders"}, "bob"), served.append)
    unsigned = Request(cast("Any", connection), Header(310, fields={"b": "orders"}), JSON, b"", 0)
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        gate.around(unsigned, served.append)
    for callback in connection.on_lost:
        callback()


@pytest.mark.parametrize(
    ("user", "fields", "error"),
    [
        ("alice", CLIENT, "ACCESS_DENIED"),
        ("nobody", CLIENT, "AUTHENTICATION_FAILED"),
        ("node", {**CLIENT, "purpose": "x"}, "REQUEST_ILLEGAL"),
        ("node", {**CLIENT, "peer": "10.9.9.9"}, "REQUEST_ILLEGAL"),
        ("node", {"purpose": CLIENT["purpose"]}, "REQUEST_ILLEGAL"),
    ],
)
def test_only_a_super_user_passes_on_connections(user: str, fields: dict[str, str], error: str) -> None:
    gate, _ = gate_of_users()
    connection = _Passed()
    with pytest.raises(TroveError, match=error):
        gate.around(asked(connection, RELAYED, fields, user), gate.relayed)
    assert (connection.peer, connection.answers) == ("ipv4:127.0.0.1:5000", [])
    changed = asked(connection, RELAYED, CLIENT)
    changed.header.fields["peer"] = "ipv4:10.1.1.1:1"
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        gate.around(changed, gate.relayed)


def test_a_node_whose_user_is_gone_passes_on_no_more_requests() -> None:
    gate, table = gate_of_users()
    connection = _Passed()
    gate.around(asked(connection, RELAYED, CLIENT), gate.relayed)
    change = table.begin(changes.delete_user(table.state, "node"))
    change.run()
    table.finish(change)
    with pytest.raises(TroveError, match="ACCESS_DENIED"):
        gate.around(
            asked(connection, RequestCode.SEND_MESSAGE_V2, {"b": "orders"}, "alice"),
            lambda _request: pytest.fail("it was served"),
        )


def test_a_plain_client_of_another_machine_is_refused_behind_a_node() -> None:
    gate, _ = gate_of_users()
    connection = _Passed()
    plain = relayed_fields("ipv4:10.9.9.9:5000", is_secure=False)
    gate.around(asked(connection, RELAYED, plain), gate.relayed)
    send = asked(connection, RequestCode.SEND_MESSAGE_V2, {"b": "orders"}, "alice")
    with pytest.raises(TroveError, match="over TLS, or on loopback"):
        gate.around(send, lambda _request: pytest.fail("it was served"))


def test_without_users_no_node_passes_on_by_its_user() -> None:
    gate = RemotingGate(None, ServingGate())
    with pytest.raises(TroveError, match="AUTHENTICATION_DISABLED"):
        gate.around(asked(_Passed(), RELAYED, CLIENT), gate.relayed)


def test_a_request_without_a_signature_is_refused(tmp_path: Path) -> None:
    async def run(client: RemotingClient) -> None:
        refused = await client.send("orders", b"one")
        assert refused.code == ResponseCode.NO_PERMISSION
        topics = await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert (topics.code, topics.body) == (ResponseCode.NO_PERMISSION, b"")

    secured(tmp_path, run)


def test_a_user_sends_and_pulls(tmp_path: Path) -> None:
    async def run(client: RemotingClient) -> None:
        signing = Signing(client)
        fields = {"a": "p", "b": "orders", "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": ""}
        sent = await signing.ask(RequestCode.SEND_MESSAGE_V2, fields, b"one")
        assert sent.code == ResponseCode.SUCCESS, sent.header.remark
        asked = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32}
        found = await signing.ask(RequestCode.PULL_MESSAGE, {**asked, "sysFlag": 4, "commitOffset": 0})
        assert found.bodies == [b"one"]
        wrong = await Signing(client, "87654321").ask(RequestCode.SEND_MESSAGE_V2, fields, b"two")
        assert wrong.code == ResponseCode.NO_PERMISSION

    secured(tmp_path, run)


@pytest.mark.parametrize(
    ("code", "topic"),
    [
        (RequestCode.SEND_MESSAGE, "long"),
        (RequestCode.SEND_MESSAGE_V2, "short"),
        (RequestCode.SEND_BATCH_MESSAGE, "short"),
    ],
)
def test_a_send_needs_the_right_for_the_topic_that_it_writes(code: int, topic: str) -> None:
    """A request may have both fields; its handler reads one."""
    header = Header(code, fields={"b": "short", "topic": "long"})
    needs = ROWS[code].needs
    assert callable(needs)
    request = Request(cast("Any", _Here()), header, JSON, b"", 0)
    assert [need.name for need in needs(request)] == [topic]


@pytest.mark.parametrize("fields", [{}, {"originTopic": ""}])
def test_a_message_of_a_topic_that_is_not_named_needs_a_rule_for_all(fields: dict[str, str]) -> None:
    header = Header(RequestCode.CONSUMER_SEND_MSG_BACK, fields={"group": "g", **fields})
    needs = ROWS[header.code].needs
    assert callable(needs)
    request = Request(cast("Any", _Here()), header, JSON, b"", 0)
    assert [need.name for need in needs(request)] == ["g", EVERY]


@pytest.mark.parametrize("user", ["rocketmq", "nobody", ""])
def test_a_producer_without_the_right_to_send_is_given_no_half_message(
    table: SecurityTable, user: str
) -> None:
    gate = Gate(authorization=True, cluster="c", clock_ms=lambda: EpochMs(0))
    gate.open(table, cast("Any", object()))
    producer = Member(cast("Any", _Here()), "one", user)
    assert RemotingGate(gate, ServingGate()).may_send(producer, "orders") is False
    assert RemotingGate(None, ServingGate()).may_send(producer, "orders")


@pytest.mark.parametrize("topics", [[1_025], [1_024] * 4 + [1]])
def test_a_heartbeat_of_too_many_topics_is_refused_before_its_rights(topics: list[int]) -> None:
    consumers = [
        {"groupName": f"g{at}", "subscriptionDataSet": [{"topic": "t"}] * count}
        for at, count in enumerate(topics)
    ]
    body = json.dumps({"clientID": "c", "consumerDataSet": consumers}).encode()
    request = Request(cast("Any", _Here()), Header(RequestCode.HEART_BEAT), JSON, body, 0)
    needs = ROWS[RequestCode.HEART_BEAT].needs
    assert callable(needs)
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        next(iter(needs(request)))
