"""Receives that wait for messages without a task: the usual state of a consumer that has consumed everything.

| event | then |
| --- | --- |
| a wake-up | the call begins again (AGAIN), with its place in the line, and looks |
| the end of the polling time | the answer: nothing came |
| the call is left to its coroutine | the coroutine continues in the same place of the line (`take`) |
| the client or its connection is gone | the poll ends; a wake-up that it has not used wakes the next one |

Invariants
- A poll is in the line of waiting receives from its begin to its end, which comes once.
- Polls that end at the same time share a timer, and a pass of the loop ends ENDS_A_TURN of them at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.server.core.clients import Client
from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.callback_handlers import AGAIN, Answer

ENDS_A_TURN: Final = 128


class Poll:
    """One receive that waits."""

    __slots__ = ("answer", "attempt", "client", "context", "is_last", "is_over", "until", "wait", "woken")

    def __init__(
        self, parts: RocketmqParts, attempt: ReceiveRequest, until: float, context: Context, answer: Answer
    ) -> None:
        """Raises TroveError LIMIT_EXCEEDED."""
        self.attempt = attempt
        self.until: Final = until
        """By the loop's clock."""
        self.context: Final = context
        self.answer = answer
        self.wait: Final = parts.waits.begin(attempt.group.name, attempt.topic, attempt.filter)
        self.client: Final[Client | None] = parts.registry.begin_receive(attempt.client_id, context)
        self.woken = False
        """Whether it has not looked since it was woken."""
        self.is_over = False
        """Whether the polling time has ended."""
        self.is_last = False
        """Whether the polling time ended after it was woken: it looks once more, and has no timer."""

    def wait_for_messages(self) -> None:
        self.woken = False
        self.wait.call_when_woken(self._on_wake)

    def _on_wake(self) -> None:
        if not self.context.done():
            self.woken = True
            self.answer(AGAIN)


class Polls:
    """All of them. `nothing` makes the answer to those to which no message came."""

    def __init__(self, parts: RocketmqParts, nothing: Callable[[], list[bytes]]) -> None:
        self._parts = parts
        self._nothing = nothing
        self._polls: dict[Context, Poll] = {}
        self._ends: dict[float, tuple[asyncio.TimerHandle, dict[Poll, None]]] = {}

    def __len__(self) -> int:
        return len(self._polls)

    def get(self, context: Context) -> Poll | None:
        """The poll of this call, which has begun again."""
        return self._polls.get(context)

    def begin(self, attempt: ReceiveRequest, until: float, context: Any, answer: Answer) -> None:
        """The receive has looked, and waits for messages until then. Raises TroveError LIMIT_EXCEEDED."""
        poll = Poll(self._parts, attempt, until, context, answer)
        self._polls[context] = poll
        context.add_done_callback(self._on_call_end)
        ends = self._ends.get(until)
        if ends is None:
            timer = asyncio.get_running_loop().call_at(until, self._end_polls, until)
            ends = self._ends[until] = (timer, {})
        ends[1][poll] = None
        poll.wait_for_messages()

    def take(self, context: Context) -> Poll | None:
        """The poll of this call for its coroutine, which calls `leave_line` at the end."""
        poll = self._polls.pop(context, None)
        if poll is not None:
            self._drop_timer(poll)
        return poll

    def end(self, poll: Poll) -> None:
        """The poll is answered now."""
        if self.take(poll.context) is not None:
            self.leave_line(poll)

    def leave_line(self, poll: Poll) -> None:
        self._parts.waits.end(poll.wait)
        self._parts.registry.end_receive(poll.client, poll.context)

    def _drop_timer(self, poll: Poll) -> None:
        ends = self._ends.get(poll.until)
        if ends is not None and ends[1].pop(poll, poll) is None and not ends[1]:
            ends[0].cancel()
            del self._ends[poll.until]

    def _end_polls(self, until: float) -> None:
        _, polls = self._ends.pop(until)
        nothing = self._nothing()
        for poll in list(polls)[:ENDS_A_TURN]:
            del polls[poll]
            if poll.wait.waiting:
                self._answer(poll, nothing)
            else:  # it is about to look
                poll.is_last = True
        if polls:
            self._ends[until] = (asyncio.get_running_loop().call_at(until, self._end_polls, until), polls)

    def _answer(self, poll: Poll, nothing: list[bytes]) -> None:
        poll.is_over = True
        poll.wait.stop_waiting()
        client, registry = poll.client, self._parts.registry
        if client is not None and registry.get(client.client_id) is not client:
            self._parts.waits.wake(poll.wait.pair)
        poll.answer(nothing)
        if poll.context.done():  # else it has begun again, because users or rules have changed meanwhile
            self.end(poll)

    def _on_call_end(self, context: Context) -> None:
        poll = self._polls.get(context)
        if poll is None:
            return
        unused = not poll.is_over and not poll.wait.waiting
        self.end(poll)
        if unused:
            self._parts.waits.wake(poll.wait.pair)
        poll.answer(())  # counts the end of the call
