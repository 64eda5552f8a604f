"""Makes blocking methods from those of the asyncio client, with the same name, arguments, documentation and
types.

class Groups(SyncWrapper[aio.Groups]):
    create = waits(aio.Groups.create)          # async def -> def
    dead_letters = iterates(aio.Groups.dead_letters)   # async generator -> generator
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from trovemq.sync._loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")
Made = TypeVar("Made")


class SyncWrapper(Generic[Inner]):
    """An object of the asyncio client, for threads. Any thread may call it, also several at a time."""

    def __init__(self, inner: Inner, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread


def waits(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The method as a blocking one."""

    @wraps(method)
    def call(self: SyncWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._inner, *args, **kwargs))

    return call


def iterates(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Generator[T, None, None]]:
    """The method as a generator."""

    @wraps(method)
    def call(self: SyncWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self._thread.iterate(method(self._inner, *args, **kwargs))

    return call


def makes(
    method: Callable[Concatenate[Any, P], Any], made: Callable[[Any, LoopThread], Made]
) -> Callable[Concatenate[Any, P], Made]:
    """The method, whose result is wrapped for threads."""

    @wraps(method)
    def call(self: SyncWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> Made:
        return made(self._thread.call(lambda: method(self._inner, *args, **kwargs)), self._thread)

    return call
