"""The descriptors of services and of their methods, and the message types of a method."""

from __future__ import annotations

from typing import TypeAlias

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

Service: TypeAlias = ServiceDescriptor
Method: TypeAlias = MethodDescriptor


def request_type(method: Method) -> type[Message]:
    """The type of the method's requests."""
    return GetMessageClass(method.input_type)


def reply_type(method: Method) -> type[Message]:
    """The type of the method's replies."""
    return GetMessageClass(method.output_type)
