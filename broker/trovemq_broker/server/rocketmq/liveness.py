"""Heartbeat and NotifyClientTermination: a client is alive, or leaves."""

from __future__ import annotations

from collections.abc import Callable

from trovemq_broker.server.core.clients import ClientRegistry
from trovemq_broker.server.rocketmq.mirrors import Mirrors, client_key
from trovemq_broker.server.wire.conversion import converted, nothing
from trovemq_broker.server.wire.liveness import check_heartbeat, heartbeat_reply, termination_reply
from trovemq_broker.server.wire.statuses import Context, client_id_of
from trovemq_proto.positions import EpochMs


class Liveness:
    """Handles both calls. The group in these requests is ignored: a client's settings name it, and some
    clients omit it here."""

    def __init__(
        self, registry: ClientRegistry, clock_ms: Callable[[], EpochMs], mirrors: Mirrors | None = None
    ) -> None:
        self._registry = registry
        self._clock_ms = clock_ms
        self._mirrors = mirrors

    @converted(check_heartbeat, heartbeat_reply)
    async def heartbeat(self, _command: None, context: Context) -> None:
        """Notes a heartbeat. Raises CLIENT_UNKNOWN."""
        client_id = client_id_of(context)
        self._registry.heard(client_id, self._clock_ms())
        if self._mirrors is not None:
            self._mirrors.heard(client_key(client_id))

    @converted(nothing, termination_reply)
    async def notify_client_termination(self, _command: None, context: Context) -> None:
        """Unregisters the client: its messages are released, its telemetry streams end. Raises
        CLIENT_UNKNOWN."""
        self._registry.terminate(client_id_of(context), self._clock_ms())
