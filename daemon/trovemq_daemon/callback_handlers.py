"""Handlers that begin a call and answer it through a callback, in the form of trovemq_daemon.calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

from trovemq_daemon.calls import Call
from trovemq_daemon.logging import get_logger

Answer: TypeAlias = Callable[[Any], None]
"""Called once, with the reply or with an exception."""
Begin: TypeAlias = Callable[[Any, Any, Answer], bool]
"""(request, context, answer). False: the call has to wait: use the coroutine, with the same context. An
exception that it raises is the answer."""
Usual: TypeAlias = Callable[[list[Any]], list[bytes | None]]
"""(calls of one turn). The serialised replies to those that are usual, which it handles together. None for
any other call: nothing was done for it."""


@dataclass(frozen=True, slots=True)
class CallbackHandler:
    """Such a handler. The calls of one turn of the loop begin within `together`; `usual` gets them first.
    `read`: the request of a call; raises the refusal of one that is malformed."""

    method: str
    begin: Begin
    coroutine: Callable[[Any, Any], Coroutine[Any, Any, Any]]
    read: Callable[[Call], Any]
    together: Callable[[], AbstractContextManager[None]] = nullcontext
    usual: Usual | None = None

    def on_calls(self, calls: Sequence[Call]) -> None:
        with self.together():
            if self.usual is not None and calls[0].parsed is None:  # else the check of access has read them
                calls = self._answer_together(calls, self.usual)
            for call in calls:
                try:
                    request = self.read(call)
                    if not self.begin(request, call.context, call.answer):
                        call.run(self._answer_in_task(call, request))
                except Exception as error:
                    call.answer(error)

    async def _answer_in_task(self, call: Call, request: Any) -> None:
        call.answer(await self.coroutine(request, call.context))

    def _answer_together(self, calls: Sequence[Call], usual: Usual) -> list[Call]:
        """Answers the usual calls, which begin and end together. Returns the others."""
        try:
            replies = usual(list(calls))
        except Exception as error:  # begun by themselves, those at fault meet it, and no others
            get_logger().error("rpc.unexpected_error", method=self.method, exc_info=error)
            return list(calls)
        others = []
        for call, reply in zip(calls, replies, strict=True):
            if reply is None:
                others.append(call)
            else:
                call.answer(reply)
        return others


def answer_into(future: asyncio.Future[Any]) -> Answer:
    """An answer for a coroutine that waits for it."""

    def answer(outcome: Any) -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    return answer
