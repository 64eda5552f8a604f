"""A broker with credentials meets another side that checks no log-ins: a wrong address, or a broker on which
authentication is not switched on yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from tests.unit.nameserver.test_call_forwarding import Call
from tests.unit.nameserver.test_cluster_routes import answer, entry, read
from trovemq_broker.cluster.call_forwarding import CallForwarder
from trovemq_broker.cluster.cluster_reply import ReplyReader
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Endpoints, connected
from trovemq_broker.cluster.registration import registration_channels
from trovemq_broker.server.access.security_service import SecurityService
from trovemq_daemon.addresses import Address
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

pytestmark = pytest.mark.asyncio

KEYS = Credentials("brokers", "secret-of-brokers")


@asynccontextmanager
async def other_side(*, is_broker: bool) -> AsyncIterator[tuple[Address, ClusterRoutes]]:
    """A broker without authentication, or a server that is none; and routes that name it `b`."""
    metrics = RpcMetrics(new_registry("1"), cluster="c", node_type="broker", node_id="b")
    server = GrpcServer(GrpcLimits(), metrics)
    address = server.bind(Address("127.0.0.1", 0))
    if is_broker:
        SecurityService("b", lambda: EpochMs(0), None).add_to(server.server)
    await server.start()
    routes = ClusterRoutes(lambda: 0.0)
    routes.report("ns1", read(ReplyReader("C", "own"), answer(entry("b", {}, address=str(address)))))
    try:
        yield address, routes
    finally:
        await server.stop(0)


@pytest.mark.parametrize("is_broker", [True, False])
@pytest.mark.parametrize("must_check", [True, False])
async def test_the_configuration_came_from_a_broker_that_proves_nothing(
    is_broker: bool, must_check: bool
) -> None:
    async with other_side(is_broker=is_broker) as (address, routes):
        endpoint = Endpoints(routes, registration_channels(), must_check=must_check).at("b", address)
        if not must_check:
            async with connected(endpoint, lambda: KEYS):
                return
        with pytest.raises(TroveError, match=f"broker b at {address}: it checks no log-ins") as caught:
            async with connected(endpoint, lambda: KEYS):
                pass
        assert caught.value.symbol == "AUTHENTICATION_FAILED"
        async with connected(endpoint, None):
            pass  # there is nothing to log in with


async def test_messages_went_to_a_broker_that_proves_nothing() -> None:
    """To one without authentication, of which the forwarding one believed that it was a member."""
    async with other_side(is_broker=True) as (_, routes):
        endpoints = Endpoints(routes, registration_channels(), must_check=True)
        to = CallForwarder(routes, endpoints, lambda: KEYS)
        with pytest.raises(TroveError, match="it checks no log-ins"):
            async with aclosing(to.forward("b", Call())) as replies:
                await anext(replies)
        with pytest.raises(TroveError, match="it checks no log-ins"):
            await to.open_telemetry("b", Call().client, by_tls=False)
        assert (to.open_calls, to.failed) == (0, {"AUTHENTICATION_FAILED": 1})
        await to.close()
