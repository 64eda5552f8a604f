"""gRPC services registered from their descriptors, without generated code.

The servicer of a service has one method for each of its RPCs, whose name is the RPC's in snake case
(`CreateTopic` is `create_topic`): `async def (request, context)`, or an async generator of the replies. Of a
stream of requests it gets the iterator. A reply is a message, or the bytes of one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from trovemq_daemon.calls import CallHandler, OnCalls
from trovemq_daemon.request_bounds import BoundedReader

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Reader: TypeAlias = Callable[[bytes], Any]

_WORD_BEGIN: Final = re.compile("(?<=[a-z])(?=[A-Z])")


class _ReplyWriter:
    """A response serializer that passes replies that are serialised already."""

    passes_bytes: Final = True
    """Our own transport does not call it for these."""

    def __call__(self, reply: Message | bytes) -> bytes:
        return reply if isinstance(reply, bytes) else reply.SerializeToString()


write_reply: Final = _ReplyWriter()


def method_handler(
    method: MethodDescriptor, behaviour: Callable[..., Any], read: Reader | None = None
) -> Handler:
    """The handler of one RPC: unary or a stream on each side, as its descriptor says.

    Args:
        read: The request deserializer; without it, a BoundedReader of the RPC's request.
    """
    kind = "_".join(
        "stream" if streaming else "unary" for streaming in (method.client_streaming, method.server_streaming)
    )
    make: Callable[..., Handler] = getattr(grpc, f"{kind}_rpc_method_handler")
    reader = read or BoundedReader(GetMessageClass(method.input_type))
    return make(behaviour, request_deserializer=reader, response_serializer=write_reply)


def calls_handler(
    method: MethodDescriptor, on_calls: OnCalls, read: Reader | None = None, *, small: bool = False
) -> CallHandler:
    """The handler of one RPC with one request that takes calls that arrived together. `read`:
    instead of protobuf's reader of the request. `small`: replies are small as a rule."""
    return CallHandler(
        on_calls=on_calls,
        read=read or BoundedReader(GetMessageClass(method.input_type)),
        write=write_reply,
        streams=method.server_streaming,
        small=small,
    )


def service_handlers(
    service: ServiceDescriptor,
    servicer: object,
    readers: Mapping[str, Reader] | None = None,
    on_calls: Mapping[str, OnCalls] | None = None,
) -> dict[str, Any]:
    """The handlers of all RPCs of the service, by name.

    Args:
        readers: The request deserializers of RPCs, by name, where a BoundedReader of the request is not
            enough.
        on_calls: The functions of RPCs that take calls that arrived together, by name.

    Raises:
        TypeError: The servicer has no coroutine function or async generator function for an RPC.
    """
    own, of_turns = readers or {}, on_calls or {}
    return {
        method.name: calls_handler(method, of_turns[method.name], own.get(method.name))
        if method.name in of_turns
        else method_handler(method, _behaviour(servicer, method), own.get(method.name))
        for method in service.methods
    }


def add_service(
    server: grpc.aio.Server,
    service: ServiceDescriptor,
    servicer: object,
    readers: Mapping[str, Reader] | None = None,
) -> None:
    """Adds the `service_handlers` to a server that has not started. Raises TypeError."""
    server.add_registered_method_handlers(service.full_name, service_handlers(service, servicer, readers))


def python_name(rpc: str) -> str:
    """The name of the servicer's method for the RPC of this name."""
    return _WORD_BEGIN.sub("_", rpc).lower()


def _behaviour(servicer: object, method: MethodDescriptor) -> Callable[..., Any]:
    name = python_name(method.name)
    found: Any = getattr(servicer, name, None)
    if not inspect.iscoroutinefunction(found) and not inspect.isasyncgenfunction(found):
        raise TypeError(
            f"{type(servicer).__name__} has no coroutine or async generator `{name}` for {method.full_name}"
        )
    return found  # type: ignore[no-any-return]
