"""Receives that wait without a task get the messages that they would get with one, in the same order."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import append, record
from tests.support.fake_loop import turns
from tests.support.rocketmq_door import RECEIVE, Call, Door, messages, receive, scene
from tests.support.settling import change_invisible
from trovemq_broker.server.rocketmq.polls import ENDS_A_TURN
from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service


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
        assert not call.is_in_task
        assert door.parts.traffic.messages_out["orders"] == 1
        assert door.metrics._streams == {RECEIVE: 0}
        assert (len(door.parts.waits), len(door.polls)) == (0, 0)

    scene(play)


def test_a_new_receive_waits_behind_those_of_its_filter() -> None:
    async def play() -> None:
        door = Door()
        first = asyncio.create_task(door.by_itself(RECEIVE, one := receive(polling_ms=5_000)))
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
        assert second.is_in_task
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


def test_a_poll_that_is_woken_as_its_time_ends_is_answered() -> None:
    async def play() -> None:
        door, loop = Door(), asyncio.get_running_loop()
        door.turn(RECEIVE, call := receive(polling_ms=5_000))
        (until,) = door.polls._ends
        same_pass = math.nextafter(until, 0)
        loop.call_at(same_pass, door.parts.waits.wake, ("g", "orders"))
        await asyncio.sleep(6)
        assert [status(call)] == [v2.MESSAGE_NOT_FOUND]
        assert (len(door.parts.waits), len(door.polls), len(door.polls._ends)) == (0, 0, 0)

    scene(play)


def test_polls_that_are_woken_between_the_steps_of_their_end_are_answered() -> None:
    async def play() -> None:
        door, loop = Door(), asyncio.get_running_loop()
        calls = [receive(polling_ms=5_000) for _ in range(ENDS_A_TURN + 3)]
        door.parts.waits._waiters_max = len(calls)
        door.turn(RECEIVE, *calls)
        (until,) = door.polls._ends
        loop.call_at(until, loop.call_soon, door.parts.waits.wake_group, "g")  # before the second step
        await asyncio.sleep(6)
        assert [status(call) for call in calls] == [v2.MESSAGE_NOT_FOUND] * len(calls)
        assert (len(door.parts.waits), len(door.polls), len(door.polls._ends)) == (0, 0, 0)

    scene(play)


def status(call: Call) -> Any:
    assert call.over, "it is answered"
    return service.ReceiveMessageResponse.FromString(call.written[0]).status.code


def test_a_wake_up_of_a_client_that_left_wakes_the_next_one() -> None:
    async def play() -> None:
        door = Door()
        door.turn(RECEIVE, first := receive(), second := receive())
        door.parts.waits.wake(("g", "orders"))
        first.end()
        append(door.parts.store, record(b"late"))
        door.parts.store.dispatch()  # without a notice
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
        await turns()
        assert not call.written
        budget.release(unread)
        await turns()
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
            if in_tasks:
                tasks.append(asyncio.create_task(door.by_itself(RECEIVE, call)))
            else:
                door.turn(RECEIVE, call)
        elif what == "send":
            await door.send(how)
        elif what == "return":
            got = [one for call in calls for one in messages(call)][how : how + 1]
            for one in got:
                handle = one.system_properties.receipt_handle
                with contextlib.suppress(TroveError):
                    change_invisible(door.parts.delivery, "g", "orders", handle, 0, door.parts.now_ms)
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
