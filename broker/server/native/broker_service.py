"""BrokerService: the broker as a process."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import grpc

from broker.admin.drain import Drain, DrainState
from trovemq_proto.v1 import broker_pb2, broker_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_STATES: Final = {
    DrainState.SERVING: broker_pb2.SERVING,
    DrainState.DRAINING: broker_pb2.DRAINING,
    DrainState.DRAINED: broker_pb2.DRAINED,
    DrainState.STOPPING: broker_pb2.STOPPING,
}


class BrokerService(broker_pb2_grpc.BrokerServiceServicer):
    """The methods are those of broker.proto; every refusal is a TroveError."""

    def __init__(self, broker: str, drain: Drain) -> None:
        self._broker = broker
        self._drain = drain

    async def Drain(  # noqa: N802
        self, request: broker_pb2.DrainRequest, _context: Context
    ) -> broker_pb2.DrainStatus:
        self._drain.begin(request.grace_ms, request.stop_wait_max_ms if request.stop else None)
        return self._status()

    async def Undrain(  # noqa: N802
        self, _request: broker_pb2.UndrainRequest, _context: Context
    ) -> broker_pb2.DrainStatus:
        self._drain.undo()
        return self._status()

    async def GetDrain(  # noqa: N802
        self, _request: broker_pb2.GetDrainRequest, _context: Context
    ) -> broker_pb2.DrainStatus:
        return self._status()

    def _status(self) -> broker_pb2.DrainStatus:
        return broker_pb2.DrainStatus(
            state=_STATES[self._drain.state],
            broker=self._broker,
            stop=self._drain.stops,
            open_transactions=self._drain.open_transactions,
        )
