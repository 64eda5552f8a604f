"""The calls of a service as bytes, to forward them to another broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from trovemq_broker.server.wire.methods import Service, reply_type, request_type
from trovemq_daemon.grpc_services import python_name
from trovemq_daemon.request_bounds import BoundedReader
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class CallAsBytes(NamedTuple):
    """One RPC. `name`: of the servicer's method; `path` as in `/trovemq.v1.AdminService/CreateTopic`."""

    name: str
    path: str
    read_request: Callable[[bytes], Any]
    read_reply: Callable[[bytes], Any]


def calls_of(service: Service) -> Iterator[CallAsBytes]:
    """The RPCs with one request and one reply."""
    for method in service.methods:
        if not (method.client_streaming or method.server_streaming):
            path = f"/{service.full_name}/{method.name}"
            read = BoundedReader(request_type(method))
            yield CallAsBytes(python_name(method.name), path, read, reply_type(method).FromString)


def read_forwarded(call: CallAsBytes, data: bytes) -> Any:
    """TroveError REQUEST_ILLEGAL, LIMIT_EXCEEDED."""
    try:
        return call.read_request(data)
    except DecodeError:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{call.path}: the request cannot be read") from None


def to_bytes(message: Message) -> bytes:
    return message.SerializeToString()
