"""Calls that a broker passes on to another one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.unit.nameserver.test_cluster_routes import answer, entry, read
from trovemq.testing import free_port
from trovemq_broker.cluster.cluster_reply import ReplyReader
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.forwarding import FORWARDS_MAX, Forwarder
from trovemq_broker.cluster.registration import registration_channels
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import ClientTls

pytestmark = pytest.mark.asyncio

ADDRESS, TLS_ADDRESS = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"


def forwarder(*, tls: bool = False, tls_address: str = "") -> Forwarder:
    """To broker `a`, at addresses where nothing listens."""
    routes = ClusterRoutes(lambda: 0.0)
    a = entry("a", {}, address=ADDRESS, tls_address=tls_address)
    routes.report("ns1", read(ReplyReader("C", "own"), answer(a)))
    channels = replace(registration_channels(), connect_timeout_ms=200)
    return Forwarder(routes, replace(channels, tls=ClientTls(server_name="ns.example")) if tls else channels)


async def forward(to: Forwarder, broker: str = "a", *, by_tls: bool = False) -> bytes:
    return await to.forward(broker, "RecallMessage", b"", [("x-mq-client-id", "me")], by_tls=by_tls)


@pytest.mark.parametrize(
    ("here", "there", "by_tls", "way"),
    [
        (False, False, False, "plain"),
        (True, False, False, "plain"),
        (False, True, False, "plain"),
        (True, True, False, "tls"),
        (True, True, True, "tls"),
        (False, True, True, "none"),
        (True, False, True, "none"),
    ],
)
async def test_a_call_that_came_by_tls_is_not_passed_on_plain(
    here: bool, there: bool, by_tls: bool, way: str
) -> None:
    """`here`, `there`: whether there is TLS at this broker's connections, and at the other broker."""
    reasons = {"plain": f"at {ADDRESS}", "tls": f"at {TLS_ADDRESS}", "none": "passed on by TLS only"}
    with pytest.raises(TroveError, match=reasons[way]) as caught:
        await forward(forwarder(tls=here, tls_address=TLS_ADDRESS if there else ""), by_tls=by_tls)
    assert caught.value.symbol == "BROKER_UNREACHABLE"


async def test_a_broker_that_is_not_in_the_routes() -> None:
    with pytest.raises(TroveError, match="BROKER_NOT_FOUND"):
        await forward(forwarder(), "b")


async def test_the_calls_that_are_passed_on_at_a_time_have_a_limit() -> None:
    to = forwarder()
    outcomes = await asyncio.gather(*(forward(to) for _ in range(FORWARDS_MAX + 3)), return_exceptions=True)
    symbols = [outcome.symbol for outcome in outcomes if isinstance(outcome, TroveError)]
    assert symbols.count("LIMIT_EXCEEDED") == 3
    assert symbols.count("BROKER_UNREACHABLE") == FORWARDS_MAX
    with pytest.raises(TroveError, match="BROKER_UNREACHABLE"):
        await forward(to)
