"""Settings of calls that both daemons have."""

from __future__ import annotations

from trovemq_daemon.settings import setting
from trovemq_proto.channels import TRANSPORT_DEFAULT, GrpcTransport


def transport_setting() -> GrpcTransport:
    """`grpc_transport`."""
    return setting(
        TRANSPORT_DEFAULT,
        "The implementation of gRPC: `trovemq` (our own) or `grpcio`. Clients see no difference.",
    )


def slow_request_setting(*, restart: bool) -> int:
    """`slow_request_ms`. `restart`: whether a change needs a restart."""
    return setting(
        1_000,
        "Requests that take longer are logged (`request.slow`) and counted; 0 logs none.",
        unit="ms",
        minimum=0,
        maximum=3_600_000,
        restart=restart,
    )
