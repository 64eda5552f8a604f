"""Converts bodies to values and back: JSON, msgspec, pydantic and protobuf. Each library is imported when it
is used.

orders = trovemq.serializers.Msgspec(Order)
await client.send("orders", orders.encode(order))

@handlers.handle("orders", "billing", body=orders)
async def bill(order: Order, message: trovemq.ReceivedMessage) -> None: ...
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any, Generic, Literal, Protocol, TypeVar

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Any object with these two methods is a serializer."""

    def encode(self, value: T) -> bytes:
        """The body of a message."""

    def decode(self, body: bytes) -> T:
        """The value of a body. Any exception means that the body cannot be decoded."""


class UndecodableBody(ValueError):  # noqa: N818  the event, not a class of errors
    """A body that its serializer cannot decode. The message goes to the dead letters at once, unless
    `on_error` names this class; the cause is the serializer's own exception."""


class Json:
    """JSON by the standard library."""

    def encode(self, value: Any) -> bytes:
        """Compact UTF-8."""
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def decode(self, body: bytes) -> Any:
        """Dictionaries, lists, strings, numbers, booleans, None."""
        return json.loads(body)


class Msgspec(Generic[T]):
    """A type that msgspec knows (a Struct, a dataclass, …), checked, as JSON or MessagePack."""

    def __init__(self, value_type: type[T], form: Literal["json", "msgpack"] = "json") -> None:
        module = _library("msgspec." + form, "msgspec")
        self._encoder = module.Encoder()
        self._decoder = module.Decoder(value_type)

    def encode(self, value: T) -> bytes:
        """The value's bytes."""
        body: bytes = self._encoder.encode(value)
        return body

    def decode(self, body: bytes) -> T:
        """Raises msgspec.ValidationError, msgspec.DecodeError."""
        value: T = self._decoder.decode(body)
        return value


class Pydantic(Generic[T]):
    """A model of pydantic 2, or any type that its TypeAdapter takes, as JSON."""

    def __init__(self, value_type: type[T]) -> None:
        self._adapter = _library("pydantic", "pydantic").TypeAdapter(value_type)

    def encode(self, value: T) -> bytes:
        """The value's bytes."""
        body: bytes = self._adapter.dump_json(value)
        return body

    def decode(self, body: bytes) -> T:
        """Raises pydantic.ValidationError."""
        value: T = self._adapter.validate_json(body)
        return value


class _ProtobufMessage(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802  protobuf's name

    def ParseFromString(self, serialized: bytes) -> int: ...  # noqa: N802  as above


Generated = TypeVar("Generated", bound=_ProtobufMessage)


class Protobuf(Generic[Generated]):
    """A class that protoc has generated."""

    def __init__(self, message_type: type[Generated]) -> None:
        self._type = message_type

    def encode(self, value: Generated) -> bytes:
        """The message's bytes."""
        return value.SerializeToString()

    def decode(self, body: bytes) -> Generated:
        """Raises google.protobuf.message.DecodeError."""
        value = self._type()
        value.ParseFromString(body)
        return value


def _library(module: str, distribution: str) -> Any:
    try:
        return import_module(module)
    except ImportError as failure:
        raise ImportError(f"this serializer needs {distribution}: pip install {distribution}") from failure
