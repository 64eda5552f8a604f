"""Passes calls of RocketMQ's protocol on to the broker that they concern.

The caller's own metadata goes with the call, so the other broker decides whether its user may make it. A
signature of RocketMQ's clients can be used again by a reader: a call that came by TLS is passed
on by TLS only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import grpc

from trovemq_broker.cluster.cluster_reply import RoutedBroker
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings, open_channel
from trovemq_proto.errors import TroveError

FORWARD_S: Final = 3.0
"""As long as the official clients wait for a reply."""
FORWARDS_MAX: Final = 64

_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_NO_TLS: Final = "a call that came by TLS is passed on by TLS only (tls_listen there, nameserver_tls here)"


class Forwarder:
    """`channels`: the settings of connections to nameservers; without TLS, calls are passed on plain."""

    def __init__(self, routes: ClusterRoutes, channels: ChannelSettings) -> None:
        self._routes = routes
        self._channels = channels
        self._running = 0

    async def forward(
        self,
        broker: str,
        method: str,
        request: bytes,
        metadata: Sequence[tuple[str, str]],
        *,
        by_tls: bool,
    ) -> bytes:
        """The other broker's reply. TroveError BROKER_NOT_FOUND, BROKER_UNREACHABLE, LIMIT_EXCEEDED."""
        found = next((one for one in self._routes.brokers if one.name == broker), None)
        if found is None:
            raise TroveError(errors.BROKER_NOT_FOUND, f"broker {broker} is not in the routes", broker=broker)
        if self._running >= FORWARDS_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{FORWARDS_MAX} calls are being passed on already")
        address, channels = self._way(found, by_tls=by_tls)
        self._running += 1
        try:
            async with open_channel(address, channels) as channel:
                call = channel.unary_unary(_SERVICE + method)
                reply: bytes = await call(request, metadata=tuple(metadata), timeout=FORWARD_S)
                return reply
        except grpc.aio.AioRpcError as error:  # trovemq_rpc's errors are of this class, too
            reason = error.details() or error.code().name
            raise TroveError(
                errors.BROKER_UNREACHABLE, f"broker {broker} at {address}: {reason}", broker=broker
            ) from None
        finally:
            self._running -= 1

    def _way(self, broker: RoutedBroker, *, by_tls: bool) -> tuple[str, ChannelSettings]:
        tls = self._channels.tls
        if tls is not None and broker.tls_address is not None:
            # its certificate has its own name
            return str(broker.tls_address), replace(self._channels, tls=replace(tls, server_name=None))
        if by_tls:
            text = f"broker {broker.name}: {_NO_TLS}"
            raise TroveError(errors.BROKER_UNREACHABLE, text, broker=broker.name)
        return str(broker.address), replace(self._channels, tls=None)
