"""A property that is computed once, at its first use.

Like functools.cached_property, without the lock that it takes in Python 3.11: at its first use that costs a
microsecond, which a batch of a single record would pay for each of its columns. The columns of a batch depend
on its bytes alone, so that two threads that compute one at the same time find the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class cached_property(Generic[Value]):  # noqa: N801 (it reads as functools')
    """The instance's `__dict__` has the value afterwards."""

    def __init__(self, function: Callable[[Any], Value]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Value:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value
