"""The implementation of gRPC: grpcio's C core, or `trovemq_rpc`. Where the two differ for a daemon is here
alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

import trovemq_rpc
from trovemq_daemon.tls import TlsIdentity
from trovemq_proto.channels import GrpcTransport

__all__ = ["GrpcTransport", "is_end", "new_server", "server_credentials"]


def new_server(transport: GrpcTransport, options: Sequence[tuple[str, Any]], calls_max: int) -> Any:
    """A server with grpc.aio's interface. `calls_max`: calls and streams open at once."""
    if transport == "trovemq":
        return trovemq_rpc.server(options=options, maximum_concurrent_rpcs=calls_max)
    return grpc.aio.server(options=options, maximum_concurrent_rpcs=calls_max)


def server_credentials(transport: GrpcTransport, identity: TlsIdentity) -> Any:
    """For `add_secure_port` of that transport's server."""
    make = trovemq_rpc.ssl_server_credentials if transport == "trovemq" else grpc.ssl_server_credentials
    pairs = [(identity.key, identity.certificate)]
    return make(pairs, identity.client_ca, identity.client_ca is not None)


def is_end(request: object) -> bool:
    """Whether `context.read()` found the end of the client's requests."""
    return request is grpc.aio.EOF or request is trovemq_rpc.EOF
