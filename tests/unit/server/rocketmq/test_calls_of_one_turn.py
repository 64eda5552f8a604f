"""ReceiveMessage and AckMessage without a task: calls that arrive together are answered as each by itself."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.groups.consumer_settings import ConsumerSettings
from broker.server.rocketmq import receiving
from broker.server.rocketmq.polls import ENDS_A_TURN
from broker.server.rocketmq.service import RocketmqService
from tests.support.engine import append, record
from tests.support.fake_loop import run, turns
from tests.support.rocketmq_parts import Parts, message, receive_request
from tests.support.rpc_context import RpcContext
from trovemq_daemon.handler_guard import HandlerGuard
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits
from trovemq_proto.errors import TroveError
from trovemq_proto.records.layout import COMPRESSION_ZLIB, SYS_FLAG_COMPRESSED
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.events.codec import EventKind

RECEIVE, ACKNOWLEDGE = "ReceiveMessage", "AckMessage"
MESSAGES = 12


class Call(RpcContext):
    """A call on our own transport, whose request is complete."""

    def __init__(self, request: Any, client_id: str = "client-1") -> None:
        super().__init__(client_id)
        self.request = request.SerializeToString()
        self.over = self.is_left = False
        self.ends: list[Callable[[Any], None]] = []

    def keep(self) -> bytes:
        return bytes(self.request)

    def reply(self, reply: Any) -> None:
        self.reply_all([reply])

    def reply_all(self, replies: Sequence[Any]) -> None:
        assert not self.over, "a call is answered once"
        self.over = True
        for callback in self.ends:
            asyncio.get_running_loop().call_soon(callback, self)
        self.written += [one if isinstance(one, bytes) else one.SerializeToString() for one in replies]

    def in_task(self) -> None:
        self.is_left = True

    def done(self) -> bool:
        return self.over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.ends.append(callback)

    def end(self) -> None:
        """The client goes away."""
        self.over = self.is_done = True
        for callback in self.ends:
            callback(self)


class Door:
    """The handlers of one service on its parts. `turn` is the transport's: it has the calls of one turn."""

    def __init__(self, replies: ReplyBudget | None = None, **consumers: Any) -> None:
        self.parts = Parts(consumers=ConsumerSettings(new_group_start="begin", **consumers))
        metrics = RpcMetrics(new_registry("1.2.3"), cluster="c", node_type="t", node_id="n")
        self._guard = HandlerGuard(metrics, replies)
        self.metrics: Any = metrics
        self.handlers: dict[str, Any] = {}
        server: Any = self
        (made := RocketmqService(self.parts.rocketmq)).add_to(server)
        self.taken: Any = made.receiver._taken
        self.polls: Any = made.receiver._polls

    def add_registered_method_handlers(self, _service: str, handlers: dict[str, Any]) -> None:
        self.handlers |= handlers

    def turn(self, name: str, *calls: Call) -> None:
        waiting: Any = list(calls)
        self._guard.callbacks(name, self.handlers[name]).on_calls(waiting)

    async def in_task(self, name: str, call: Call) -> None:
        handler = self._guard.handler(name, self.handlers[name].coroutine)
        context: Any = call
        request = handler.request_deserializer(call.request)
        if name == RECEIVE:
            call.reply_all([reply async for reply in handler.unary_stream(request, context)])
        else:
            call.reply(await handler.unary_unary(request, context))

    async def send(self, count: int = MESSAGES, size: int = 5, **system: Any) -> None:
        for number in range(count):
            body = b"%04d" % number + bytes(size)
            await self.parts.send(message(body, message_id=f"M{number}", tag="ab"[number % 2], **system))
        await turns()

    def acknowledged(self) -> list[Any]:
        return [one for one in self.parts.events.view_pending() if one.kind is EventKind.ACKNOWLEDGED]


def acknowledgement(handles: Sequence[str], group: str = "g", topic: str = "orders") -> Call:
    entries = [service.AckMessageEntry(message_id=f"M{n}", receipt_handle=h) for n, h in enumerate(handles)]
    request = service.AckMessageRequest(
        group=v2.Resource(name=group), topic=v2.Resource(name=topic), entries=entries
    )
    return Call(request)


def statuses(call: Call) -> list[v2.Code]:
    (reply,) = call.written
    return [one.status.code for one in service.AckMessageResponse.FromString(reply).entries]


def messages(call: Call) -> list[v2.Message]:
    replies = map(service.ReceiveMessageResponse.FromString, call.written)
    return [reply.message for reply in replies if reply.HasField("message")]


def handles(calls: Sequence[Call]) -> list[str]:
    return [one.system_properties.receipt_handle for call in calls for one in messages(call)]


def receive(**fields: Any) -> Call:
    return Call(receive_request("orders", **fields))


def scene(play: Callable[[], Awaitable[None]]) -> None:
    async def played() -> None:
        await play()

    run(played())


# --- acknowledgements -----------------------------------------------------------------------------------
def test_neighbours_acknowledged_by_many_calls_are_one_event() -> None:
    async def play() -> None:
        door = Door()
        await door.send()
        door.turn(RECEIVE, first := receive(batch_size=MESSAGES))
        found = handles([first])
        assert len(found) == MESSAGES
        by_queue = Counter(one.system_properties.queue_id for one in messages(first))
        calls = [acknowledgement([handle]) for handle in reversed(found)]
        door.turn(ACKNOWLEDGE, *calls)
        assert [statuses(call) for call in calls] == [[v2.OK]] * MESSAGES
        assert {one.queue_id: one.count for one in door.acknowledged()} == by_queue
        assert len(door.acknowledged()) == len(by_queue)
        assert door.parts.delivery.in_flight_count == 0

    scene(play)


CHOICES = st.one_of(
    st.tuples(st.just("g"), st.integers(0, MESSAGES - 1)),
    st.tuples(st.just("h"), st.integers(0, MESSAGES - 1)),
    st.tuples(st.just("returned"), st.integers(0, 2)),
    st.tuples(st.just("never"), st.sampled_from(["", "x", "0.0.1.1.0.1.00000000", "é", "." * 600])),
)
CALLS = st.lists(
    st.tuples(st.sampled_from("ghi"), st.lists(CHOICES, min_size=1, max_size=5)), min_size=1, max_size=8
)


async def some_delivered() -> tuple[Door, dict[str, list[str]]]:
    """Messages that two groups have; the handles of some were replaced."""
    door = Door()
    await door.send()
    found = {}
    for group in "gh":
        calls = [receive(group=group, batch_size=size) for size in (5, MESSAGES)]
        door.turn(RECEIVE, *calls)
        found[group] = handles(calls)
        assert len(found[group]) == MESSAGES
    found["returned"] = found["g"][:3]
    for handle in found["returned"]:
        door.parts.delivery.change_invisible("g", "orders", handle, 0, door.parts.now_ms)
    door.turn(RECEIVE, again := receive(batch_size=3))
    found["g"][:3] = handles([again])
    return door, found


def request_of(group: str, choices: Sequence[tuple[str, Any]], found: dict[str, list[str]]) -> Call:
    return acknowledgement([value if of == "never" else found[of][value] for of, value in choices], group)


def consumed(door: Door) -> Counter[tuple[Any, ...]]:
    """Each message of the events."""
    return Counter(
        (one.group, one.topic, one.queue_id, offset, one.attempt, one.lease)
        for one in door.acknowledged()
        for offset in range(one.offset, one.offset + one.count)
    )


@pytest.mark.slow
@given(drawn=CALLS)
@settings(max_examples=40, deadline=None)
def test_calls_of_one_turn_are_answered_as_one_after_the_other(drawn: Any) -> None:
    """Handles of another group, twice in one call or in two, replaced, never handed out."""

    async def play() -> None:
        (alone, some), (together, same) = await some_delivered(), await some_delivered()
        assert some == same
        one_by_one = [request_of(group, choices, some) for group, choices in drawn]
        of_a_turn = [request_of(group, choices, same) for group, choices in drawn]
        for call in one_by_one:
            await alone.in_task(ACKNOWLEDGE, call)
        together.turn(ACKNOWLEDGE, *of_a_turn)
        assert [call.written for call in of_a_turn] == [call.written for call in one_by_one]
        assert consumed(together) == consumed(alone)
        assert max(consumed(together).values(), default=1) == 1
        assert len(together.acknowledged()) <= len(alone.acknowledged())
        for group in "gh":
            progress = [
                door.parts.delivery.progress(group, "orders", door.parts.now_ms) for door in (alone, together)
            ]
            assert progress[0] == progress[1]

    scene(play)


def test_a_caller_that_is_gone_has_acknowledged_and_others_are_answered() -> None:
    async def play() -> None:
        door = Door()
        await door.send(3)
        door.turn(RECEIVE, got := receive())
        calls = [acknowledgement([handle]) for handle in handles([got])]
        calls[1].over = True
        door.turn(ACKNOWLEDGE, *calls)
        assert [len(call.written) for call in calls] == [1, 0, 1]
        assert sum(one.count for one in door.acknowledged()) == 3

    scene(play)


def test_a_call_that_is_malformed_costs_the_others_nothing() -> None:
    async def play() -> None:
        door = Door()
        await door.send(3)
        door.turn(RECEIVE, got := receive())
        calls = [acknowledgement([handle]) for handle in handles([got])]
        calls[1].request = b"\xff"
        door.turn(ACKNOWLEDGE, *calls)
        (refused,) = calls[1].written
        assert service.AckMessageResponse.FromString(refused).status.code == v2.BAD_REQUEST
        assert [statuses(calls[0]), statuses(calls[2])] == [[v2.OK], [v2.OK]]
        assert sum(one.count for one in door.acknowledged()) == 2

    scene(play)


# --- receives -------------------------------------------------------------------------------------------
RECEIVES = st.lists(
    st.fixed_dictionaries(
        {
            "group": st.sampled_from("gh"),
            "batch_size": st.integers(0, 40),
            "expression": st.sampled_from(["*", "a", "b", "a || b", "a >", ""]),
            "invisible_ms": st.sampled_from([30_000, 1, 60_000]),
        }
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@given(drawn=RECEIVES, size=st.sampled_from([5, 4_000]))
@settings(max_examples=15, deadline=None)
def test_receives_of_one_turn_get_what_they_get_by_themselves(drawn: Any, size: int) -> None:
    async def play() -> None:
        doors = []
        for _ in range(2):
            doors.append(Door())
            await doors[-1].send(MESSAGES * 3, size)
        alone, together = doors
        calls = [receive(**fields) for fields in drawn]
        together.turn(RECEIVE, *calls)
        for fields, call in zip(drawn, calls, strict=True):
            if call.is_left:
                if call not in together.taken:
                    break  # it waits for messages; who comes later may get others by then
                await together.in_task(RECEIVE, call)
            await alone.in_task(RECEIVE, by_itself := receive(**fields))
            assert call.written == by_itself.written

    scene(play)


def test_a_receive_without_messages_waits_without_a_task() -> None:
    async def play() -> None:
        door = Door()
        door.turn(RECEIVE, call := receive(polling_ms=5_000))
        assert (len(door.parts.waits), len(door.polls)) == (1, 1)
        await turns()
        assert call.written == []
        assert door.metrics._streams == {RECEIVE: 1}
        await door.send(1)
        assert [one.body[:4] for one in messages(call)] == [b"0000"]
        assert not call.is_left
        assert door.parts.traffic.messages_out["orders"] == 1
        assert door.metrics._streams == {RECEIVE: 0}
        assert (len(door.parts.waits), len(door.polls)) == (0, 0)

    scene(play)


def test_a_new_receive_waits_behind_those_of_its_filter() -> None:
    async def play() -> None:
        door = Door()
        first = asyncio.create_task(door.in_task(RECEIVE, one := receive(polling_ms=5_000)))
        await turns()
        before = len(door.parts.events.view_pending())
        door.turn(RECEIVE, two := receive())
        assert len(door.parts.events.view_pending()) == before
        for _ in range(2):
            await door.send(1)
        await first
        assert [len(messages(call)) for call in (one, two)] == [1, 1]

    scene(play)


def test_a_poll_that_messages_overtake_looks_after_those_that_were_woken() -> None:
    async def play() -> None:
        door = Door()
        door.turn(RECEIVE, first := receive())
        append(door.parts.store, record(b"one"))
        door.parts.waits.on_messages_available(door.parts.store.dispatch())
        door.turn(RECEIVE, second := receive())
        assert second.is_left
        await turns()
        assert [len(messages(call)) for call in (first, second)] == [1, 0]

    scene(play)


def test_polls_of_one_time_end_together_in_steps() -> None:
    async def play() -> None:
        door, loop = Door(), asyncio.get_running_loop()
        calls = [receive(group=f"g{number % 7}", polling_ms=5_000) for number in range(2 * ENDS_A_TURN + 5)]
        door.parts.waits._waiters_max = len(calls)
        door.turn(RECEIVE, *calls)
        early = receive(polling_ms=5_000)
        door.turn(RECEIVE, early)
        early.end()
        await asyncio.sleep(4.99)
        assert not any(call.written for call in calls)
        await asyncio.sleep(0.02)
        assert loop.time() < 5.1
        expected = [v2.MESSAGE_NOT_FOUND] * len(calls)
        found = [service.ReceiveMessageResponse.FromString(call.written[0]).status.code for call in calls]
        assert found == expected
        assert all(len(call.written) == 2 for call in calls)
        assert (len(door.parts.waits), len(door.polls), len(door.polls._ends)) == (0, 0, 0)
        assert door.metrics._streams == {RECEIVE: 0}

    scene(play)


def test_a_wake_up_of_a_client_that_left_wakes_the_next_one() -> None:
    async def play() -> None:
        door = Door()
        door.turn(RECEIVE, first := receive(), second := receive())
        door.parts.waits.wake(("g", "orders"))
        first.end()
        append(door.parts.store, record(b"late"))
        door.parts.store.dispatch()  # nobody hears of it by itself
        await turns()
        assert [len(messages(call)) for call in (first, second)] == [0, 1]
        assert door.metrics._streams == {RECEIVE: 0}

    scene(play)


def test_a_poll_of_a_deleted_topic_says_so() -> None:
    async def play() -> None:
        door = Door()
        door.turn(RECEIVE, call := receive())
        door.parts.store.delete_topic("orders", door.parts.now_ms)
        door.parts.waits.wake_topic("orders")
        await turns()
        (reply,) = call.written
        assert service.ReceiveMessageResponse.FromString(reply).status.code == v2.TOPIC_NOT_FOUND
        assert (len(door.parts.waits), len(door.polls)) == (0, 0)

    scene(play)


def test_a_poll_without_space_for_its_reply_continues_in_its_coroutine() -> None:
    async def play() -> None:
        budget = ReplyBudget(
            ReplyLimits(total_max=4_096, connection_max=4_096, reply_size_expected=9), transport_counts=True
        )
        door = Door(budget)
        door.turn(RECEIVE, call := receive())
        unread = budget.budget.force(call.peer(), 5_000)
        await door.send(1)
        assert call.is_left
        waiting = asyncio.create_task(door.in_task(RECEIVE, call))
        await turns()
        assert not call.written
        budget.release(unread)
        await waiting
        assert len(messages(call)) == 1
        assert (len(door.parts.waits), len(door.polls)) == (0, 0)

    scene(play)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("receive"),
            st.fixed_dictionaries(
                {
                    "group": st.sampled_from("gh"),
                    "batch_size": st.sampled_from([1, 3, 32]),
                    "expression": st.sampled_from(["*", "a", "b"]),
                    "polling_ms": st.sampled_from([5_000, 6_000]),
                }
            ),
        ),
        st.tuples(st.just("send"), st.sampled_from([1, 2, 5])),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("return"), st.integers(0, 5)),
        st.tuples(st.just("sleep"), st.sampled_from([0.5, 3.0])),
    ),
    max_size=25,
)


async def waited(steps: Any, *, in_tasks: bool) -> tuple[list[list[bytes]], Any]:
    """The replies to each receive, and the progress at the end."""
    door, calls, tasks = Door(), [], []
    for what, how in [*steps, ("sleep", 7.0)]:
        if what == "receive":
            calls.append(call := receive(**how))
            if not in_tasks:
                door.turn(RECEIVE, call)
            if in_tasks or call.is_left:
                tasks.append(asyncio.create_task(door.in_task(RECEIVE, call)))
        elif what == "send":
            await door.send(how)
        elif what == "return":
            got = [one for call in calls for one in messages(call)][how : how + 1]
            for one in got:
                handle = one.system_properties.receipt_handle
                with contextlib.suppress(TroveError):
                    door.parts.delivery.change_invisible("g", "orders", handle, 0, door.parts.now_ms)
                    door.parts.waits.wake(("g", "orders"))
        elif what == "sleep":
            await asyncio.sleep(how)
        await turns(12)
    assert all(call.over for call in calls)
    await asyncio.gather(*tasks)
    assert (len(door.parts.waits), len(door.polls), len(door.polls._ends)) == (0, 0, 0)
    assert door.metrics._streams[RECEIVE] == 0
    progress = [door.parts.delivery.progress(group, "orders", door.parts.now_ms) for group in "gh"]
    return [call.written for call in calls], progress


@pytest.mark.slow
@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_receives_without_a_task_get_what_those_of_tasks_get(steps: Any) -> None:
    async def play() -> None:
        assert await waited(steps, in_tasks=False) == await waited(steps, in_tasks=True)

    scene(play)


def test_large_replies_are_written_as_they_are_read() -> None:
    async def play() -> None:
        door = Door()
        await door.send(MESSAGES, 8_000)
        door.turn(RECEIVE, call := receive())
        assert call.is_left
        assert door.parts.delivery.in_flight_count == MESSAGES
        await door.in_task(RECEIVE, call)
        call.end()
        got = messages(call)
        assert [len(one.body) for one in got] == [8_004] * MESSAGES
        assert [one.system_properties.delivery_attempt for one in got] == [1] * MESSAGES
        assert door.parts.traffic.messages_out["orders"] == MESSAGES
        assert not door.taken

    scene(play)


def test_bodies_that_inflate_are_written_as_they_are_read() -> None:
    """Ten kilobytes of the log are ten megabytes of replies: not in one step."""

    async def play() -> None:
        door = Door()
        flag = SYS_FLAG_COMPRESSED | COMPRESSION_ZLIB
        body = zlib.compress(bytes(1 << 20))
        append(door.parts.store, *(record(body, unique_key=f"U{n}", sys_flag=flag) for n in range(10)))
        door.parts.store.dispatch()
        door.turn(RECEIVE, call := receive())
        assert call.is_left
        await door.in_task(RECEIVE, call)
        assert [len(one.body) for one in messages(call)] == [1 << 20] * 10

    scene(play)


def test_large_replies_come_back_where_the_client_left_before_they_began() -> None:
    async def play() -> None:
        door = Door()
        await door.send(MESSAGES, 8_000)
        door.turn(RECEIVE, call := receive())
        call.end()
        door.turn(RECEIVE, again := receive())
        await door.in_task(RECEIVE, again)
        got = messages(again)
        assert len(got) == MESSAGES
        assert {one.system_properties.delivery_attempt for one in got} == {1}, "no attempt was counted"

    scene(play)


def test_an_answer_that_was_refused_gives_its_messages_back() -> None:
    async def play() -> None:
        door = Door()
        await door.send(2)
        call = receive()

        def refused(_replies: Sequence[Any]) -> None:
            call.over = call.is_done = True

        vars(call)["reply_all"] = refused
        door.turn(RECEIVE, call)
        door.turn(RECEIVE, again := receive())
        assert len(messages(again)) == 2

    scene(play)


def test_messages_come_back_where_their_replies_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        door = Door()
        await door.send(2)

        def fails(*_arguments: object) -> bytes:
            raise ValueError("planted")

        with monkeypatch.context() as patched:
            patched.setattr(receiving, "received", fails)
            door.turn(RECEIVE, call := receive())
        (reply,) = call.written
        assert service.ReceiveMessageResponse.FromString(reply).status.code == v2.INTERNAL_SERVER_ERROR
        door.turn(RECEIVE, again := receive())
        assert len(messages(again)) == 2

    scene(play)


def test_without_space_for_replies_a_receive_takes_nothing() -> None:
    async def play() -> None:
        door = Door(ReplyBudget(ReplyLimits(total_max=4_096, connection_max=4_096), transport_counts=True))
        await door.send(40, 1_000)
        calls = [receive(batch_size=4) for _ in range(6)]
        door.turn(RECEIVE, *calls)
        answered = [call for call in calls if not call.is_left]
        assert len(answered) == 1, "the reply of the first fills it until the client has read"
        assert door.parts.delivery.in_flight_count == 4

    scene(play)


def test_a_refused_receive_says_its_status() -> None:
    async def play() -> None:
        door = Door()
        door.turn(
            RECEIVE,
            call := Call(receive_request("nowhere")),
            anonymous := Call(receive_request("orders"), ""),
        )
        for refused, code in ((call, v2.TOPIC_NOT_FOUND), (anonymous, v2.CLIENT_ID_REQUIRED)):
            (reply,) = refused.written
            assert service.ReceiveMessageResponse.FromString(reply).status.code == code
        assert door.metrics._streams == {RECEIVE: 0}

    scene(play)
