"""Method handlers as grpcio makes them, for programs without grpcio and without generated code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class RpcMethodHandler(NamedTuple):
    """It has the fields of grpcio's."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], Any] | None
    response_serializer: Callable[[Any], bytes] | None
    unary_unary: Any = None
    unary_stream: Any = None
    stream_unary: Any = None
    stream_stream: Any = None


def unary_unary_rpc_method_handler(
    behavior: Any, request_deserializer: Any = None, response_serializer: Any = None
) -> RpcMethodHandler:
    return RpcMethodHandler(False, False, request_deserializer, response_serializer, unary_unary=behavior)


def unary_stream_rpc_method_handler(
    behavior: Any, request_deserializer: Any = None, response_serializer: Any = None
) -> RpcMethodHandler:
    return RpcMethodHandler(False, True, request_deserializer, response_serializer, unary_stream=behavior)


def stream_unary_rpc_method_handler(
    behavior: Any, request_deserializer: Any = None, response_serializer: Any = None
) -> RpcMethodHandler:
    return RpcMethodHandler(True, False, request_deserializer, response_serializer, stream_unary=behavior)


def stream_stream_rpc_method_handler(
    behavior: Any, request_deserializer: Any = None, response_serializer: Any = None
) -> RpcMethodHandler:
    return RpcMethodHandler(True, True, request_deserializer, response_serializer, stream_stream=behavior)


class GenericHandler:
    """The methods of one service, looked up by path."""

    def __init__(self, service: str, method_handlers: Mapping[str, Any]) -> None:
        self._handlers = {f"/{service}/{name}": handler for name, handler in method_handlers.items()}

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


def method_handlers_generic_handler(service: str, method_handlers: Mapping[str, Any]) -> GenericHandler:
    return GenericHandler(service, method_handlers)
