"""Whether this machine's clock agrees with a nameserver's.

Store times, the delivery of delayed messages and searches by time go by each broker's own clock. So a broker
whose clock is off says so: in its log, and as a warning of /readyz, which `trovemq doctor` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import grpc

from trovemq_broker.cluster.nameserver_session import ReadCredentials, log_in_for
from trovemq_daemon.logging import get_logger
from trovemq_proto.channels import Channel
from trovemq_proto.v1 import route_pb2

DIFFERENCE_MAX_MS: Final = 2_000
ANSWER_S_MAX: Final = 1.0
_GET_SERVER_INFO: Final = "/trovemq.v1.RouteService/GetServerInfo"


class ClockDifference:
    """The difference to one nameserver's clock. `wall_ms`: this machine's clock, epoch ms."""

    def __init__(self, nameserver: str, wall_ms: Callable[[], int]) -> None:
        self.warning = ""
        """For readiness; empty while the clocks agree."""
        self._nameserver = nameserver
        self._wall_ms = wall_ms

    async def compare(self, channel: Channel, credentials: ReadCredentials | None) -> None:
        """Asks the nameserver; one that does not say its time leaves everything as it is.

        Raises SettingsError, ScramError as log_in_for.
        """
        try:
            metadata, sign = await log_in_for(channel, _GET_SERVER_INFO, credentials, ANSWER_S_MAX)
            ask = channel.unary_unary(_GET_SERVER_INFO, response_deserializer=route_pb2.ServerInfo.FromString)
            asked_ms = self._wall_ms()
            request = sign(route_pb2.GetServerInfoRequest().SerializeToString())
            info = await ask(request, metadata=metadata, timeout=ANSWER_S_MAX)
        except grpc.aio.AioRpcError:
            return
        if info.now:
            self.answered(asked_ms, self._wall_ms(), info.now)

    def answered(self, asked_ms: int, answered_ms: int, now_ms: int) -> None:
        """Its clock was `now_ms` at a moment between the two of this one."""
        ahead_ms = (asked_ms + answered_ms) // 2 - now_ms
        unsure_ms = (answered_ms - asked_ms) // 2
        if abs(ahead_ms) - unsure_ms <= DIFFERENCE_MAX_MS:
            self.warning = ""
            return
        if not self.warning:
            get_logger().warning("clock.differs", nameserver=self._nameserver, ahead_ms=ahead_ms)
        word = "fast" if ahead_ms > 0 else "slow"
        self.warning = (
            f"this machine's clock is {abs(ahead_ms) / 1000:,.1f} s {word} against that of nameserver"
            f" {self._nameserver}: run a time service (chrony, ntpd) on both"
        )
