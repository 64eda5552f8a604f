"""Both ends of a service from its descriptor, as generated code would make them: a client's stub, and the
servicer of a fake that answers some of the RPCs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from trovemq_daemon.grpc_services import method_handler, python_name
from trovemq_proto.v1 import (
    admin_pb2,
    cluster_config_pb2,
    group_pb2,
    message_pb2,
    producer_pb2,
    query_pb2,
    route_pb2,
    store_pb2,
)

ADMIN: Final = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
CONFIG: Final = cluster_config_pb2.DESCRIPTOR.services_by_name["ClusterConfigService"]
GROUPS: Final = group_pb2.DESCRIPTOR.services_by_name["GroupService"]
MESSAGES: Final = message_pb2.DESCRIPTOR.services_by_name["MessageService"]
PRODUCERS: Final = producer_pb2.DESCRIPTOR.services_by_name["ProducerService"]
QUERIES: Final = query_pb2.DESCRIPTOR.services_by_name["QueryService"]
REGISTRATION: Final = route_pb2.DESCRIPTOR.services_by_name["RegistrationService"]
ROUTES: Final = route_pb2.DESCRIPTOR.services_by_name["RouteService"]
STORE: Final = store_pb2.DESCRIPTOR.services_by_name["StoreService"]


def stub_of(service: ServiceDescriptor, channel: Any) -> Any:
    """An object with the multicallable of each RPC under its name; for a channel of grpcio (grpc or grpc.aio)
    or of ours."""
    return SimpleNamespace(**{method.name: _multicallable(method, channel) for method in service.methods})


def _multicallable(method: MethodDescriptor, channel: Any) -> Any:
    kind = "_".join(
        "stream" if streaming else "unary" for streaming in (method.client_streaming, method.server_streaming)
    )
    return getattr(channel, kind)(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )


def add_fake(server: Any, service: ServiceDescriptor, fake: object) -> None:
    """Adds the RPCs that the fake has methods for; the server answers the others with UNIMPLEMENTED."""
    handlers = {
        method.name: method_handler(method, getattr(fake, python_name(method.name)))
        for method in service.methods
        if hasattr(fake, python_name(method.name))
    }
    server.add_registered_method_handlers(service.full_name, handlers)
