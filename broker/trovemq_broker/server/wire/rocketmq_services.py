"""RocketMQ's v2 services: their names on the wire, and their descriptors."""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2

MESSAGING_SERVICE: Final = "apache.rocketmq.v2.MessagingService"
ADMIN_SERVICE: Final = "apache.rocketmq.v2.Admin"

MESSAGING: Final[ServiceDescriptor] = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
ADMIN: Final[ServiceDescriptor] = admin_pb2.DESCRIPTOR.services_by_name["Admin"]

METHODS: Final[dict[str, MethodDescriptor]] = {
    f"/{name}/{method.name}": method
    for name, service in ((MESSAGING_SERVICE, MESSAGING), (ADMIN_SERVICE, ADMIN))
    for method in service.methods
}
"""By path on the wire."""
