"""Quotas before a handler: who waits, who is refused, and what is counted until when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.support.call_forms import grpc_form
from tests.support.fake_loop import fake_time, turns
from tests.unit.server.access.access_here import CLUSTER, AccessHere, Context, rocketmq_metadata, signed
from tests.unit.server.access.test_guard import FETCH, RECEIVE, SEND, TELEMETRY
from trovemq_broker.security import changes
from trovemq_broker.security.creators import present_creator
from trovemq_broker.security.quotas import Quota
from trovemq_broker.server.access.gate import HELD_FEW, HELD_MAX, HOLD_GROWTH_MAX, HOLD_S, HOLD_STEP_S, Gate
from trovemq_broker.server.access.guard import AccessGuard
from trovemq_broker.server.core.refused_message import RefusedMessage
from trovemq_broker.server.wire.statuses import reader
from trovemq_daemon.grpc_transport import is_end
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.authentication.calls import message_signer
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import admin_pb2, message_pb2, search_pb2, security_pb2
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.topics import TopicTable

pytestmark = fake_time


AUTHENTICATE = "/trovemq.v1.SecurityService/Authenticate"
SEARCH = "/trovemq.v1.SearchService/Search"
CREATE = "/trovemq.v1.AdminService/CreateTopic"
WATCH = "/trovemq.v1.RouteService/WatchRoutes"
REQUEST = message_pb2.SendRequest(topic="orders").SerializeToString()


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Door:
    """A gate whose clock is the loop's, and alice, who may do everything of a user."""

    def __init__(self) -> None:
        self.here = AccessHere()
        self.here.user("alice")
        self.here.rule("alice", "All", "*")
        self.gate = Gate(
            authorization=True, cluster=CLUSTER, clock_ms=lambda: EpochMs(round(now_s() * 1_000))
        )
        self.gate.open(self.here.table, self.here.sessions)
        self.key = self.here.log_in("alice")
        self.calls = 0

    def quota(self, subject: str, **limits: int) -> None:
        self.here.apply(changes.set_quota(self.here.table.state, subject, Quota(**limits)))

    def guarded(self, path: str, handler: Any) -> Any:
        return grpc_form(AccessGuard(self.gate).handler(path, handler))

    def context(self, path: str, *messages: bytes) -> Context:
        number, self.calls = self.calls, self.calls + 1
        sign = message_signer(self.key, number)
        return Context(signed(self.key, number, path), [sign(message) for message in messages])

    async def send(self, handler: Any) -> str:
        """One call of Send: the error's symbol, or an empty text."""
        number = self.calls
        context = self.context(SEND)
        try:
            await self.guarded(SEND, handler).unary_unary(self.key.sign(number, 0, REQUEST), context)
        except TroveError as error:
            return error.symbol
        return ""


def sender(behaviour: Callable[[], Awaitable[Any]]) -> Any:
    async def send(_request: Any, _context: Any) -> Any:
        return await behaviour()

    return grpc.unary_unary_rpc_method_handler(
        send, request_deserializer=message_pb2.SendRequest.FromString, response_serializer=None
    )


async def answered() -> Any:
    return message_pb2.AppendReply()


async def test_requests_wait_first_and_are_refused_after() -> None:
    door, handler = Door(), sender(answered)
    door.quota("User:alice", requests_per_s=1)
    begun = now_s()
    outcomes = await asyncio.gather(*(door.send(handler) for _ in range(5)))
    assert outcomes == ["", "", "", "LIMIT_EXCEEDED", "LIMIT_EXCEEDED"]
    assert now_s() - begun == pytest.approx(HOLD_S * 1.5, abs=HOLD_S / 2)
    assert door.gate.refusals.counts == {"LIMIT_EXCEEDED": 2}
    await asyncio.sleep(3)
    begun = now_s()
    assert await door.send(handler) == ""
    assert now_s() == begun


async def test_who_tries_again_at_once_comes_round_slowly() -> None:
    door, handler, times = Door(), sender(answered), list[float]()
    door.quota("User:alice", requests_per_s=1)
    door.here.user("bob")
    await asyncio.gather(*(door.send(handler) for _ in range(3)))  # the last one waits a second

    async def storm() -> None:
        assert await door.send(handler) == "LIMIT_EXCEEDED"
        times.append(now_s())

    begun = now_s()
    door.gate.quotas.uses("alice", is_super=False, source="", client_id="", now_ms=door.gate.now_ms())[
        0
    ].take_request(0)
    await asyncio.gather(*(storm() for _ in range(HELD_MAX + 10)))
    assert times[:10] == [begun] * 10, "more of them would occupy all calls"
    late = Counter(int(time - begun - HOLD_S * HOLD_GROWTH_MAX) for time in times[10:])
    longest = [late[second] for second in range(HOLD_GROWTH_MAX)]
    assert sum(longest) > HELD_MAX * 0.9, "over four seconds, after four"
    assert max(longest) - min(longest) <= 2 * HELD_FEW, "evenly: together they would take the loop"
    delayed = sorted(times[10:])
    between = [later - earlier for earlier, later in pairwise(delayed)]
    assert min(between) > HOLD_STEP_S * 0.99, "another user's request meets one of them at most"
    assert not door.gate._held


async def test_refusals_of_one_caller_with_many_calls_took_the_loop_from_others() -> None:
    door, handler, times = Door(), sender(answered), list[float]()
    door.quota("User:alice", requests_per_s=1)
    await asyncio.gather(*(door.send(handler) for _ in range(3)))
    end = now_s() + 30

    async def storm() -> None:
        while now_s() < end:
            times.extend([now_s()] * (await door.send(handler) == "LIMIT_EXCEEDED"))

    for calls, few in ((HELD_FEW // 2, True), (64, False)):
        times.clear()
        end = now_s() + 30
        await asyncio.gather(*(storm() for _ in range(calls)))
        assert len(times) / 30 <= (calls / HOLD_S if few else 64 / HOLD_GROWTH_MAX), "refusals a second"


@pytest.mark.parametrize(("remaining_s", "at_most_s"), [(3.0, 2.0), (5.0, 4.0), (None, 8.0)])
async def test_a_refusal_comes_before_its_caller_gives_up(
    remaining_s: float | None, at_most_s: float
) -> None:
    error = TroveError(errors.LIMIT_EXCEEDED, "too many", quota="User:alice")
    gate = Door().gate
    await asyncio.gather(*(gate.hold(error, "alice", lambda: remaining_s) for _ in range(HELD_MAX)))
    assert at_most_s - 0.1 < now_s() <= at_most_s


async def test_a_refused_request_does_not_reach_its_handler() -> None:
    door, seen = Door(), []

    async def note() -> Any:
        seen.append(now_s())
        return message_pb2.AppendReply()

    door.quota("User:alice", bytes_in_per_s=1)
    assert await door.send(sender(note)) == ""
    assert await door.send(sender(note)) == "LIMIT_EXCEEDED"
    assert len(seen) == 1


async def test_open_calls_are_given_back_however_they_end() -> None:
    door, ending = Door(), asyncio.Event()

    async def wait() -> Any:
        await ending.wait()
        raise ValueError("a fault of the handler")

    door.quota("User:alice", calls_max=2)
    calls = [asyncio.ensure_future(door.send(sender(wait))) for _ in range(2)]
    await turns()
    assert await door.send(sender(answered)) == "LIMIT_EXCEEDED"
    calls[0].cancel()
    await turns()
    assert await door.send(sender(answered)) == ""
    ending.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert door.gate.quotas.open_calls() == {"User:alice": 0}


async def test_a_call_cancelled_as_it_met_a_quota_counted_as_open_for_ever() -> None:
    """The task that delays its refusal was cancelled before it had begun."""
    door = Door()
    calls: list[asyncio.Future[str]] = []

    async def refuse() -> Any:
        asyncio.get_running_loop().call_soon(calls[0].cancel)
        raise TroveError(errors.LIMIT_EXCEEDED, "too many topics", quota="User:alice")

    door.quota("User:alice", calls_max=2)
    calls.append(asyncio.ensure_future(door.send(sender(refuse))))
    await asyncio.gather(*calls, return_exceptions=True)
    await turns()
    assert door.gate.quotas.open_calls() == {"User:alice": 0}


async def test_a_frame_above_the_quota_is_refused_alone() -> None:
    door, seen = Door(), []

    async def serve(_requests: Any, context: Any) -> None:
        while not is_end(message := await context.read()):
            seen.append(message)
            await context.write(message_pb2.FetchReply())

    handler = grpc.stream_stream_rpc_method_handler(
        serve, request_deserializer=message_pb2.FetchRequest.FromString
    )
    door.quota("User:alice", bytes_in_per_s=100)
    topics = ("a" * 600, "b", "c")
    messages = [message_pb2.FetchRequest(topic=topic).SerializeToString() for topic in topics]
    context = door.context(FETCH, *messages)
    await door.guarded(FETCH, handler).stream_stream(None, context)
    assert [isinstance(message, RefusedMessage) for message in seen] == [False, True, True]
    assert {message.error.symbol for message in seen[1:]} == {"LIMIT_EXCEEDED"}
    assert len(context.written) == 3


async def test_a_quota_counts_for_a_stream_that_was_open_before() -> None:
    door, times = Door(), []

    async def serve(_requests: Any, context: Any) -> None:
        while not is_end(await context.read()):
            times.append(now_s())
            if len(times) == 1:
                door.quota("User:*", requests_per_s=2)
            if len(times) == 5:
                door.quota("User:*")

    handler = grpc.stream_stream_rpc_method_handler(
        serve, request_deserializer=message_pb2.FetchRequest.FromString
    )
    message = message_pb2.FetchRequest(topic="a").SerializeToString()
    await door.guarded(FETCH, handler).stream_stream(None, door.context(FETCH, *[message] * 7))
    assert times == pytest.approx([0, 0, 0, 0, 0.5, 0.5, 0.5])
    assert door.gate.current_quotas().open_calls()["User:*"] == 0


async def test_large_replies_slow_the_next_ones_down() -> None:
    door = Door()

    async def watch(_request: Any, _context: Any) -> AsyncIterator[Any]:
        for _ in range(4):
            yield message_pb2.FetchReply(records=bytes(2_000))

    handler = grpc.unary_stream_rpc_method_handler(
        watch, request_deserializer=message_pb2.SendRequest.FromString
    )
    door.quota("Address:127.0.0.1", bytes_out_per_s=1_000)
    number, context = door.calls, door.context(SEND)
    guarded = door.guarded(SEND, handler)
    stream = guarded.unary_stream(door.key.sign(number, 0, REQUEST), context)
    times = [now_s() async for _ in stream]
    assert times == pytest.approx([0, 1, 3, 5], abs=0.1)
    assert await door.send(sender(answered)) == "LIMIT_EXCEEDED", "and those who ask later"


async def test_rocketmqs_clients_read_it_in_the_reply() -> None:
    door = Door()

    async def receive(_request: Any, _context: Any) -> AsyncIterator[Any]:
        for _ in range(3):
            yield service_pb2.ReceiveMessageResponse(message=v2.Message(body=bytes(5_000)))

    handler = grpc.unary_stream_rpc_method_handler(
        receive, request_deserializer=reader(service_pb2.ReceiveMessageRequest)
    )
    door.quota("Client:c", bytes_out_per_s=1_000)
    queue = v2.MessageQueue(topic=v2.Resource(name="orders"))
    request = service_pb2.ReceiveMessageRequest(
        group=v2.Resource(name="billing"), message_queue=queue
    ).SerializeToString()

    async def asked() -> list[Any]:
        context = Context(rocketmq_metadata("alice"))
        return [one async for one in door.guarded(RECEIVE, handler).unary_stream(request, context)]

    assert [len(one.message.body) for one in await asked()] == [5_000] * 3
    assert now_s() == 0, "messages that were leased come at once"
    assert [one.status.code for one in await asked()] == [v2.TOO_MANY_REQUESTS]
    door.quota("User:alice", calls_max=1)
    door.gate.current_quotas()
    (use, *_) = door.gate.quotas.uses(
        "alice", is_super=False, source="127.0.0.1", client_id="", now_ms=EpochMs(0)
    )
    use.open("another")
    context = Context(rocketmq_metadata("alice"), [b""])
    telemetry = grpc.stream_stream_rpc_method_handler(
        receive, request_deserializer=reader(service_pb2.TelemetryCommand)
    )
    await door.guarded(TELEMETRY, telemetry).stream_stream(None, context)
    assert [one.status.code for one in context.written] == [v2.TOO_MANY_REQUESTS]


async def outcome(attempt: Awaitable[Any]) -> str:
    try:
        await attempt
    except TroveError as error:
        return error.symbol
    return ""


async def test_unknown_callers_wait_and_are_refused_by_their_address() -> None:
    door = Door()
    door.quota("Address:127.0.0.1", requests_per_s=1)

    async def authenticate(_request: Any, _context: Any) -> Any:
        return security_pb2.AuthenticateReply()

    handler = door.guarded(
        AUTHENTICATE,
        grpc.unary_unary_rpc_method_handler(
            authenticate, request_deserializer=security_pb2.AuthenticateRequest.FromString
        ),
    )
    request = security_pb2.AuthenticateRequest()
    outcomes = await asyncio.gather(*(outcome(handler.unary_unary(request, Context())) for _ in range(5)))
    assert outcomes == ["", "", "", "LIMIT_EXCEEDED", "LIMIT_EXCEEDED"]
    assert now_s() == pytest.approx(HOLD_S * 1.5, abs=HOLD_S / 2)
    guessing = door.guarded(SEND, sender(answered))
    begun = now_s()
    guesses = await asyncio.gather(*(outcome(guessing.unary_unary(REQUEST, Context())) for _ in range(4)))
    assert guesses == ["AUTHENTICATION_FAILED"] + ["LIMIT_EXCEEDED"] * 3
    assert now_s() > begun, "wrong credentials cost time"
    assert door.gate.quotas.open_calls() == {"Address:127.0.0.1": 0}


async def test_a_query_above_the_quota_waits_for_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("trovemq_daemon.turns.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    door, turns_of_all = Door(), Turns()

    def pages() -> Iterator[int]:
        for number in range(2):
            clock[0] += 0.0125
            yield number

    async def search(_request: Any, _context: Any) -> AsyncIterator[Any]:
        async for _ in turns_of_all.each(pages()):
            yield search_pb2.SearchPage()

    handler = grpc.unary_stream_rpc_method_handler(
        search, request_deserializer=search_pb2.SearchRequest.FromString
    )
    door.quota("User:alice", query_ms_per_s=10)
    request = search_pb2.SearchRequest(topic="orders").SerializeToString()

    async def asked() -> str:
        number, context = door.calls, door.context(SEARCH)
        stream = door.guarded(SEARCH, handler).unary_stream(door.key.sign(number, 0, request), context)
        try:
            return "".join([str(reply) async for reply in stream])
        except TroveError as error:
            return error.symbol

    assert await asked() == ""
    assert now_s() == 0.0
    assert await asked() == "LIMIT_EXCEEDED", "25 ms of 10 a second"
    assert await door.send(sender(answered)) == "", "sends do not wait"
    assert HOLD_S <= now_s() <= 2 * HOLD_S
    assert await asked() == ""
    await asyncio.sleep(10)
    outcomes = await asyncio.gather(*(asked() for _ in range(16)))
    assert outcomes.count("") == 1, "those that begin together do not all pass before one has paid"
    await asyncio.sleep(10)
    assert await asked() == "", "none of them is under way any more"


async def test_what_a_request_makes_is_its_users_up_to_the_quota() -> None:
    door = Door()
    door.quota("User:alice", topics_max=2)
    table, reached = TopicTable.load(MemoryFileSystem()), []

    async def create(request: Any, _context: Any) -> Any:
        reached.append(request.topic)
        table.create(request.topic, 1, creator=present_creator())
        return admin_pb2.TopicDescription()

    handler = grpc.unary_unary_rpc_method_handler(
        create, request_deserializer=admin_pb2.CreateTopicRequest.FromString
    )

    async def asked(topic: str) -> str:
        number, context = door.calls, door.context(CREATE)
        request = admin_pb2.CreateTopicRequest(topic=topic).SerializeToString()
        guarded = door.guarded(CREATE, handler)
        return await outcome(guarded.unary_unary(door.key.sign(number, 0, request), context))

    assert [await asked(name) for name in "abc"] == ["", "", "LIMIT_EXCEEDED"]
    assert table.made_by("alice") == 2
    table.delete("a")
    assert [await asked(name) for name in "cd"] == ["", "LIMIT_EXCEEDED"]
    assert door.gate.quotas.refused == {"User:alice": 2}
    door.gate.open(door.here.table, door.here.sessions, {"topic": table})
    del reached[:]
    assert [await asked(name) for name in "dc"] == ["LIMIT_EXCEEDED", "TOPIC_EXISTS"]
    assert reached == ["c"], "refused before it is audited as an act"


async def test_a_call_without_quotas_waits_for_nothing() -> None:
    door = Door()
    assert [await door.send(sender(answered)) for _ in range(100)] == [""] * 100
    assert now_s() == 0
