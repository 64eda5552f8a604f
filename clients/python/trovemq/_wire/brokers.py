"""The calls of BrokerService on one connection: the SDK's own values out."""

from __future__ import annotations

from trovemq.broker_model import DrainStatus
from trovemq_proto.v1 import broker_pb2

from .connection import Connection

_SERVICE = "BrokerService/"


class BrokerCalls:
    """BrokerService of one broker; every failure is a TroveError."""

    def __init__(self, connection: Connection) -> None:
        self._ask = connection.ask

    async def drain(self, grace_ms: int, stop_wait_max_ms: int | None) -> DrainStatus:
        request = broker_pb2.DrainRequest(
            grace_ms=grace_ms, stop=stop_wait_max_ms is not None, stop_wait_max_ms=stop_wait_max_ms or 0
        )
        return _drain(await self._ask(_SERVICE + "Drain", request, broker_pb2.DrainStatus.FromString))

    async def undrain(self) -> DrainStatus:
        request = broker_pb2.UndrainRequest()
        return _drain(await self._ask(_SERVICE + "Undrain", request, broker_pb2.DrainStatus.FromString))

    async def drain_status(self) -> DrainStatus:
        request = broker_pb2.GetDrainRequest()
        return _drain(await self._ask(_SERVICE + "GetDrain", request, broker_pb2.DrainStatus.FromString))


def _drain(status: broker_pb2.DrainStatus) -> DrainStatus:
    state = broker_pb2.DrainState.Name(status.state).lower()
    return DrainStatus(status.broker, state, status.stop, status.open_transactions)
