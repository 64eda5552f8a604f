"""Receives that wait for messages without a task, as consumers that have consumed everything do.

| event | then |
| --- | --- |
| a wake-up | the receive looks again, with its place in the queue |
| the end of the polling time | the answer: nothing came |
| the receive continues in a task | it keeps its place in the queue (`take`) |
| the client or its connection is gone | the poll ends; a wake-up that it has not used wakes the next one |

Invariants
- A poll is in the queue of waiting receives from `begin` to its end, which comes once.
- Polls that end at the same time share a timer, and a pass of the loop ends ENDS_A_TURN of them at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.clients import Client
from trovemq_daemon.calls import Call

ENDS_A_TURN: Final = 128


class Poll:
    """One receive that waits."""

    __slots__ = ("_context", "attempt", "call", "client", "is_last", "name", "until", "wait", "woken")

    def __init__(
        self,
        core: BrokerCore,
        attempt: ReceiveRequest,
        until: float,
        call: Call,
        name: Any,
    ) -> None:
        """`name`: the topic as the client names it, where that is not its stored name. Raises TroveError
        LIMIT_EXCEEDED."""
        self.attempt = attempt
        self.until: Final = until
        """By the loop's clock."""
        self.call: Final = call
        self.name: Final[Any] = name
        self.wait: Final = core.waits.begin(attempt.group.name, attempt.topic, attempt.filter)
        self.client: Final[Client | None] = core.registry.begin_receive(attempt.client_id, call.context)
        self.woken = False
        """Whether it has not looked since it was woken."""
        self.is_last = False
        """Whether the polling time ended after it was woken: it looks once more, and has no timer."""
        self._context: Final = copy_context()  # of its caller; a wake-up comes in that of another one

    def wait_for_messages(self, look: Callable[[Poll], None]) -> None:
        """Calls `look` after the next wake-up."""
        self.woken = False
        self.wait.call_when_woken(partial(self._context.run, self._on_wake, look))

    def _on_wake(self, look: Callable[[Poll], None]) -> None:
        if not self.call.context.done():
            self.woken = True
            look(self)


class Polls:
    """All waiting polls. `nothing` makes the answer to a poll to which no message came; `look` is called with
    one that was woken."""

    def __init__(
        self, core: BrokerCore, nothing: Callable[[], list[bytes]], look: Callable[[Poll], None]
    ) -> None:
        self._core = core
        self._nothing = nothing
        self._look = look
        self._polls: dict[Call, Poll] = {}
        self._ends: dict[float, tuple[asyncio.TimerHandle, dict[Poll, None]]] = {}

    def __len__(self) -> int:
        return len(self._polls)

    def begin(self, attempt: ReceiveRequest, until: float, call: Call, name: Any) -> None:
        """The receive has looked, and waits for messages until then. Raises TroveError LIMIT_EXCEEDED."""
        poll = Poll(self._core, attempt, until, call, name)
        self._polls[call] = poll
        call.on_end(self._on_call_end)
        ends = self._ends.get(until)
        if ends is None:
            timer = asyncio.get_running_loop().call_at(until, self._end_polls, until)
            ends = self._ends[until] = (timer, {})
        ends[1][poll] = None
        poll.wait_for_messages(self._look)

    def wait_again(self, poll: Poll) -> None:
        """The poll was woken and has found nothing."""
        poll.wait_for_messages(self._look)

    def take(self, poll: Poll) -> bool:
        """The poll continues in a task, which calls `leave_line` at the end. False: it has ended."""
        taken = self._polls.pop(poll.call, None) is not None
        if taken:
            self._drop_timer(poll)
        return taken

    def end(self, poll: Poll) -> None:
        """The poll is answered now."""
        if self.take(poll):
            self.leave_line(poll)

    def leave_line(self, poll: Poll) -> None:
        self._core.waits.end(poll.wait)
        self._core.registry.end_receive(poll.client, poll.call.context)

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
        poll.wait.stop_waiting()
        client, registry = poll.client, self._core.registry
        if client is not None and registry.get(client.client_id) is not client:
            self._core.waits.wake(poll.wait.pair)
        self.end(poll)
        if poll.call.may_answer():
            poll.call.answer(nothing)

    def _on_call_end(self, call: Call) -> None:
        poll = self._polls.get(call)
        if poll is None:
            return
        unused = not poll.wait.waiting
        self.end(poll)
        if unused:
            self._core.waits.wake(poll.wait.pair)
        call.answer(asyncio.CancelledError())
