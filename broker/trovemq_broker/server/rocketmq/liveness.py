"""Heartbeat and NotifyClientTermination: a client is alive, or leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_broker.server.core.clients import ClientRegistry
from trovemq_broker.server.wire.statuses import OK_STATUS, Context, ProtocolError, client_id_of
from trovemq_proto import errors
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

_SERVED: Final = (v2.CLIENT_TYPE_UNSPECIFIED, v2.PRODUCER, v2.PUSH_CONSUMER, v2.SIMPLE_CONSUMER)


class Liveness:
    """Handles both calls. The group in these requests is ignored: a client's settings name it, and some
    clients omit it here."""

    def __init__(self, registry: ClientRegistry, clock_ms: Callable[[], EpochMs]) -> None:
        self._registry = registry
        self._clock_ms = clock_ms

    async def heartbeat(
        self, request: service_pb2.HeartbeatRequest, context: Context
    ) -> service_pb2.HeartbeatResponse:
        """Notes a heartbeat. Raises CLIENT_UNKNOWN, also for a client type that is not served (0: Go's client
        while it recovers)."""
        if request.client_type not in _SERVED:
            raise ProtocolError(
                v2.UNRECOGNIZED_CLIENT_TYPE,
                f"client type {request.client_type} is not served",
                errors.CLIENT_UNKNOWN,
            )
        self._registry.heard(client_id_of(context), self._clock_ms())
        return service_pb2.HeartbeatResponse(status=OK_STATUS)

    async def notify_client_termination(
        self, _request: service_pb2.NotifyClientTerminationRequest, context: Context
    ) -> service_pb2.NotifyClientTerminationResponse:
        """Unregisters the client: its messages are released, its telemetry streams end. Raises
        CLIENT_UNKNOWN."""
        self._registry.terminate(client_id_of(context), self._clock_ms())
        return service_pb2.NotifyClientTerminationResponse(status=OK_STATUS)
