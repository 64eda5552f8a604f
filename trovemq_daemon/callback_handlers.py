"""Handlers of methods that are called very often: most calls need no task.

`begin` answers a call by a callback, at once or when a sync or an append made its answer. Our own transport
calls it for all calls of one turn of the loop; grpcio, and a call that has to wait, get the coroutine. Both
stand on the same steps, so there is one implementation of the method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

Answer: TypeAlias = Callable[[Any], None]
"""Called once with the reply, or with the exception that it is instead."""
Begin: TypeAlias = Callable[[Any, Any, Answer], bool]
"""(request, context, answer); False: nothing was done, the call has to wait and needs the coroutine. What it
raises is the answer."""


@dataclass(frozen=True, slots=True)
class CallbackHandler:
    """A unary method. `together` stands around the calls of one turn."""

    begin: Begin
    coroutine: grpc.RpcMethodHandler[Any, Any]
    together: Callable[[], AbstractContextManager[None]] = nullcontext


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
