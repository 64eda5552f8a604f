"""Exceptions with grpc.aio's names.

`except grpc.RpcError`, `except grpc.aio.AioRpcError` and `except grpc.aio.AbortError` catch ours
too: where grpcio was imported, our errors derive from both. Nothing here imports grpcio on its own.
"""

from __future__ import annotations

import sys
from typing import Any, Final, TypeVar

from trovemq_rpc.wire.metadata import Metadata
from trovemq_rpc.wire.status import StatusCode


class BaseError(Exception):
    """The base of errors that are not a call's status."""


class UsageError(BaseError):
    """The package is used in a way that it does not allow; the message says which."""


class InternalError(BaseError):
    """A fault of this package."""


class AbortError(BaseError):
    """Raised by `context.abort`: ends the handler. Let it pass."""


class EndOfStream:
    """`read` returns it after the last message."""

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return type(other).__name__ in {"EndOfStream", "_EOF"}  # grpcio's

    def __hash__(self) -> int:
        return hash("EndOfStream")

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "<grpc.aio.EOF>"


EOF: Final = EndOfStream()


class AioRpcError(Exception):
    """A call ended with another status than OK."""

    def __init__(
        self,
        code: StatusCode,
        initial_metadata: Metadata | None = None,
        trailing_metadata: Metadata | None = None,
        details: str | None = None,
        debug_error_string: str | None = None,
    ) -> None:
        Exception.__init__(self)
        self._code = code
        self._details = details
        self._initial_metadata = initial_metadata or Metadata()
        self._trailing_metadata = trailing_metadata or Metadata()
        self._debug_error_string = debug_error_string

    def code(self) -> Any:
        return self._code

    def details(self) -> str | None:
        return self._details

    def initial_metadata(self) -> Metadata:
        return self._initial_metadata

    def trailing_metadata(self) -> Metadata:
        return self._trailing_metadata

    def debug_error_string(self) -> str | None:
        return self._debug_error_string

    def __str__(self) -> str:
        return (
            f"<AioRpcError of RPC that terminated with: status = {self._code}, details = {self._details!r}>"
        )

    __repr__ = __str__

    def __reduce__(self) -> Any:
        return make_error, (
            self._code,
            tuple(self._initial_metadata),
            tuple(self._trailing_metadata),
            self._details,
            self._debug_error_string,
        )


def register_as_grpcs(**classes: type[Any]) -> None:
    """Where grpcio is loaded, isinstance with its abstract classes of these names holds for ours."""
    aio = sys.modules.get("grpc.aio")
    if aio is not None:
        for name, own in classes.items():
            getattr(aio, name).register(own)


E = TypeVar("E", AioRpcError, AbortError)

_like_grpc: dict[type[Any], type[Any]] = {}


def like_grpc(own: type[E]) -> type[E]:
    """The class, or one below it and grpcio's of the same name where grpcio is loaded."""
    found = _like_grpc.get(own)
    if found is None:
        base = getattr(sys.modules.get("grpc.aio"), own.__name__, None)
        if base is None:
            return own
        found = _like_grpc[own] = type(own.__name__, (own, base), {"__module__": __name__})
    return found


def public_code(code: StatusCode) -> Any:
    """grpcio's member where grpcio is loaded, so that `is` works too; else ours."""
    grpc = sys.modules.get("grpc")
    theirs = getattr(grpc, "StatusCode", None)
    return theirs[code.name] if theirs is not None else code


def make_error(
    code: StatusCode, initial: Any, trailing: Any, details: str | None, debug: str | None = None
) -> AioRpcError:
    return like_grpc(AioRpcError)(
        public_code(code), Metadata.from_tuple(initial), Metadata.from_tuple(trailing), details, debug
    )
