"""Rights of the requests that stand for calls of TroveMQ's services: by the rows of those calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, cast

import pytest

from tests.support.memory_broker import TestBroker, message
from trovemq_broker.query.key_query import KeyQuery
from trovemq_broker.security import changes
from trovemq_broker.security.actions import Kind
from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.server.access.gate import Gate
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_broker.server.remoting import native_calls
from trovemq_broker.server.remoting.broker_admin import DiskSpace, Surroundings
from trovemq_broker.server.remoting.gate import RemotingGate
from trovemq_broker.server.remoting.rights import NATIVE, ROWS
from trovemq_broker.server.remoting.service import ForTools, RemotingService
from trovemq_broker.server.wire import tool_calls, tool_users
from trovemq_broker.server.wire.tool_calls import NativeCall
from trovemq_daemon.remoting.request import Request
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.remoting.codes import RequestCode, ResponseCode, response_code
from trovemq_proto.remoting.headers import JSON, Header
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.creators import Creator
from trovemq_store.topics.subscription_groups import SubscriptionGroup

TOPIC: Mapping[str, str] = {"topic": "new", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
USER: Mapping[str, str] = {"username": "a"}
SUBJECT: Mapping[str, str] = {"subject": "User:a"}
ACL = b'{"policies":[{"entries":[{"resource":"Topic:a","actions":["Pub"]}]}]}'
REQUESTS: Mapping[int, tuple[Mapping[str, str], bytes]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: (TOPIC, b""),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ({}, b'{"topicConfigList":[{"topicName":"new"}]}'),
    RequestCode.DELETE_TOPIC_IN_BROKER: ({"topic": "orders"}, b""),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ({}, b'{"groupName":"new"}'),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ({}, b'{"groupConfigList":[{"groupName":"new"}]}'),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ({"groupName": "readers"}, b""),
    RequestCode.QUERY_MESSAGE: ({"topic": "orders", "key": "k"}, b""),
    RequestCode.VIEW_MESSAGE_BY_ID: ({"offset": "0"}, b""),
    RequestCode.GET_BROKER_CONFIG: ({}, b""),
    RequestCode.UPDATE_BROKER_CONFIG: ({}, b"queries_max=7"),
    RequestCode.AUTH_CREATE_USER: (USER, b'{"password":"12345678"}'),
    RequestCode.AUTH_UPDATE_USER: (USER, b'{"password":"12345678"}'),
    RequestCode.AUTH_DELETE_USER: (USER, b""),
    RequestCode.AUTH_GET_USER: (USER, b""),
    RequestCode.AUTH_LIST_USER: ({}, b""),
    RequestCode.AUTH_CREATE_ACL: (SUBJECT, ACL),
    RequestCode.AUTH_UPDATE_ACL: (SUBJECT, ACL),
    RequestCode.AUTH_DELETE_ACL: (SUBJECT, b""),
    RequestCode.AUTH_GET_ACL: (SUBJECT, b""),
    RequestCode.AUTH_LIST_ACL: ({}, b""),
}
RULE = tool_users.ShownRule(0, "a", True, "Pub", "Topic:a", ())
CALLS = [
    tool_calls.create_topic("t", 1, "NORMAL", {}, "b"),
    tool_calls.alter_topic("t"),
    tool_calls.delete_topic("t"),
    tool_calls.create_group(SubscriptionGroup("g")),
    tool_calls.alter_group(SubscriptionGroup("g")),
    tool_calls.delete_group("g"),
    tool_calls.reset_group("g", "t", QueueId(0), offset=1),
    tool_calls.consume_directly("g", "c", "t", "id"),
    tool_calls.print_stacks("g", "c"),
    tool_calls.query_by_key(KeyQuery("t", "k")),
    tool_calls.get_message_at("t", QueueId(0), 0),
    tool_calls.list_settings(),
    tool_calls.set_setting("queries_max", "7"),
    tool_users.create_user("a", "Normal", "12345678"),
    tool_users.alter_user("a", enabled=True),
    tool_users.rotate_secret("a", "12345678"),
    tool_users.drop_old_secret("a"),
    tool_users.delete_user("a"),
    tool_users.list_users(),
    tool_users.create_rule(RULE),
    tool_users.delete_rule(1),
    tool_users.list_rules(),
]


class Denying:
    """Admits nothing, and notes each call."""

    def __init__(self) -> None:
        self.calls: list[NativeCall] = []
        self.queries = 0

    @asynccontextmanager
    async def admitted(self, _request: Request, call: NativeCall) -> AsyncIterator[None]:
        self.calls.append(call)
        if call.path:
            raise TroveError(errors.ACCESS_DENIED, "denied")
        yield

    @asynccontextmanager
    async def query(self, _request: Request) -> AsyncIterator[None]:
        self.queries += 1
        yield

    def may_see(self, _request: Request) -> Any:
        return lambda _kind, name: name == "orders"

    def has_secret(self, _name: str, _secret: str) -> bool:
        return False


class Caller:
    """A connection that keeps the last answer."""

    peer = "ipv4:127.0.0.1:5000"
    is_secure = is_lost = is_full = False

    def __init__(self) -> None:
        self.work: list[Coroutine[Any, Any, None]] = []
        self.code = -1
        self.body = b""

    def run(self, _request: Request, work: Coroutine[Any, Any, None]) -> None:
        self.work.append(work)

    def answered(self, _request: Request, code: int, _remark: str, _fields: Any, body: bytes) -> None:
        self.code, self.body = code, body

    async def ask(self, service: RemotingService, code: int, fields: Mapping[str, str], body: bytes) -> None:
        request = Request(cast("Any", self), Header(code, fields=dict(fields)), JSON, body, len(body))
        try:
            service.handlers[code](request)
            for work in self.work:
                await work
        except TroveError as error:
            request.answer(response_code(error), error.message)


def service_of(
    broker: TestBroker, placement: Mapping[str, int] | None = None
) -> tuple[RemotingService, Denying]:
    around = Surroundings(0, lambda: DiskSpace(0, 0), "")
    tools = ForTools(lambda _topic: placement or {}, nullcontext, around)
    service, denying = RemotingService(broker, lambda _topic: {}, dict, tools), Denying()
    service.calls.admission = denying
    return service, denying


def test_the_requests_of_this_test_are_all_of_their_kind() -> None:
    assert REQUESTS.keys() == {code for code, row in ROWS.items() if row is NATIVE}


@pytest.mark.parametrize("code", sorted(REQUESTS))
def test_a_request_does_nothing_before_its_call_is_admitted(code: int) -> None:
    async def main() -> None:
        broker = TestBroker()
        broker.groups.create(SubscriptionGroup("readers"))
        if code == RequestCode.VIEW_MESSAGE_BY_ID:
            await broker.send(message())
        service, denying = service_of(broker)
        caller = Caller()
        await caller.ask(service, code, *REQUESTS[code])
        assert (caller.code, caller.body) == (ResponseCode.NO_PERMISSION, b"")
        assert len(denying.calls) == 1
        assert "new" not in broker.store.topics
        assert "orders" in broker.store.topics
        assert broker.groups.names() == ["readers"]

    asyncio.run(main())


UPDATE: Mapping[str, str] = {**TOPIC, "topic": "orders", "readQueueNums": "6"}
DELETE: Mapping[str, str] = {"topic": "orders"}


@pytest.mark.parametrize(
    ("code", "fields", "placement", "method", "placed"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC, {}, "CreateTopic", {}),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, UPDATE, {}, "AlterTopic", {}),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, UPDATE, {"b": 2}, "AlterTopic", {"broker-a": 6}),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, UPDATE, {"broker-a": 4}, "AlterTopic", {"broker-a": 6}),
        (RequestCode.DELETE_TOPIC_IN_BROKER, DELETE, {}, "DeleteTopic", {}),
        (RequestCode.DELETE_TOPIC_IN_BROKER, DELETE, {"broker-a": 4, "b": 4}, "AlterTopic", {"broker-a": 0}),
        (RequestCode.DELETE_TOPIC_IN_BROKER, DELETE, {"b": 4}, "", {}),
    ],
)
def test_a_topic_of_a_cluster_is_placed_on_this_broker(
    code: int, fields: Mapping[str, str], placement: dict[str, int], method: str, placed: dict[str, int]
) -> None:
    """A tool names one broker; the others keep their queues."""

    async def main() -> None:
        service, denying = service_of(TestBroker(), placement)
        await Caller().ask(service, code, fields, b"")
        assert [call.path.rpartition("/")[2] for call in denying.calls] == [method][: bool(method)]
        for call in denying.calls:
            if method == "AlterTopic":
                assert dict(call.message.queues_on) == placed
                assert call.message.queue_count == (0 if placement else 6)

    asyncio.run(main())


SHOWN = (
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)


@pytest.mark.parametrize("code", SHOWN)
def test_names_that_the_caller_may_not_know_are_left_out(code: int) -> None:
    async def main() -> None:
        broker = TestBroker()
        broker.groups.create(SubscriptionGroup("readers"))
        service, _ = service_of(broker)
        caller = Caller()
        await caller.ask(service, code, {}, b"")
        assert caller.code == ResponseCode.SUCCESS
        assert not any(name in caller.body for name in (b"deals", b"readers", b"SCHEDULE"))

    asyncio.run(main())


@pytest.mark.parametrize(
    "code", [RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG]
)
def test_a_listing_checked_the_rights_for_all_names_at_once(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_calls, "NAMES_STEP", 2)
    asked: list[int] = []

    async def main() -> None:
        broker = TestBroker()
        for number in range(8):
            broker.groups.create(SubscriptionGroup(f"readers-{number}"))
        service, _ = service_of(broker)
        whole = service.calls.seen

        def seen(request: Request, kind: Kind, names: Iterable[str]) -> list[str]:
            some = list(names)
            asked.append(len(some))
            return whole(request, kind, some)

        monkeypatch.setattr(service.calls, "seen", seen)
        caller = Caller()
        await caller.ask(service, code, {}, b"")
        assert caller.code == ResponseCode.SUCCESS

    asyncio.run(main())
    assert len(asked) > 1
    assert max(asked) == 2


class Noted(dict[str, str]):
    """Fields, of which it notes the groups that are read."""

    def __init__(self) -> None:
        super().__init__(topic="orders", group="victim", consumerGroup="mine", isForce="true", timestamp="-1")
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.read |= {name} & {"group", "consumerGroup"}
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


GROUP_CODES = [
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.QUERY_TOPICS_BY_CONSUMER,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
]


@pytest.mark.parametrize("code", GROUP_CODES)
def test_a_request_for_one_group_showed_another(code: int) -> None:
    """It had both fields: the right was checked for one of them, and the answer was that of the other."""

    async def main() -> None:
        service, _ = service_of(TestBroker())
        caller, fields = Caller(), Noted()
        request = Request(cast("Any", caller), Header(code, fields=fields), JSON, b"", 0)
        list(cast("Any", ROWS[code].needs)(request))
        checked, fields.read = fields.read, set()
        with suppress(TroveError):
            service.handlers[code](request)
        for work in caller.work:
            work.close()
        assert checked
        assert fields.read == checked

    asyncio.run(main())


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.path.rpartition("/")[2])
def test_a_call_of_a_user_without_a_rule_is_refused(call: NativeCall) -> None:
    async def main() -> None:
        table = SecurityTable.load(MemoryFileSystem(), SealingKey(bytes(32)), bytes)
        user = new_user("rocketmq", UserKind.NORMAL, b"12345678", salt=bytes(16), now_ms=0)
        change = table.begin(changes.add_user(table.state, user))
        change.run()
        table.finish(change)
        gate = Gate(authorization=True, cluster="c", clock_ms=lambda: EpochMs(0))
        gate.open(table, cast("Any", object()))
        remoting = RemotingGate(gate, ServingGate())
        request = Request(cast("Any", Caller()), Header(0), JSON, b"", 0)
        token = set_creator(Creator("rocketmq"))
        try:
            with pytest.raises(TroveError, match="ACCESS_DENIED"):
                async with remoting.admitted(request, call):
                    pytest.fail("it was made")
            may_see = remoting.may_see(request)
            assert may_see is not None
            assert not may_see(Kind.TOPIC, "orders")
        finally:
            reset_creator(token)

    asyncio.run(main())
