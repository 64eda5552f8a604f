"""Handlers of methods that are called very often: most calls need no task.

`begin` starts a call and answers it through a callback: at once, or when an append or a sync has ended. Our
own transport uses `begin`. grpcio uses the coroutine, and so does our transport for a call that has to wait.
Both run the same code of the method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc

Answer: TypeAlias = Callable[[Any], None]
"""Called once, with the reply or with an exception; of a stream of replies, with a list of them all."""
Begin: TypeAlias = Callable[[Any, Any, Answer], bool]
"""(request, context, answer). False: the call has to wait: use the coroutine, with the same context. An
exception that it raises is the answer."""
Usual: TypeAlias = Callable[[list[Any]], list[bytes | None]]
"""(the calls of one turn). The serialised replies to those that are usual, which it handles together. None
for any other call: nothing was done for it, and it begins by itself. A reply is so small that it takes no
space of the budget of replies."""
AGAIN: Final = object()
"""Instead of an answer: the call has waited, and begins again, by `begin` with the same context."""


@dataclass(frozen=True, slots=True)
class CallbackHandler:
    """A method with one request. The calls of one turn of the loop begin within `together`; `usual` gets them
    first."""

    begin: Begin
    coroutine: grpc.RpcMethodHandler[Any, Any]
    together: Callable[[], AbstractContextManager[None]] = nullcontext
    usual: Usual | None = None


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
