"""Clients' calls that are forwarded to other brokers: the limits and the errors before any reply."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from tests.unit.nameserver.test_cluster_routes import answer, entry, read
from trovemq.testing import free_port
from trovemq_broker.cluster.call_forwarding import (
    CALLS,
    CALLS_MAX,
    NATIVE,
    RECEIVES_MAX,
    STREAMS,
    CallForwarder,
)
from trovemq_broker.cluster.cluster_reply import ReplyReader
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Endpoints
from trovemq_broker.cluster.leader_route import LeaderRoute
from trovemq_broker.cluster.registration import registration_channels
from trovemq_broker.cluster.route_metrics import ForwardsCollector
from trovemq_broker.cluster.view import GroupLeader, GroupNode
from trovemq_broker.daemon.replica import waiting_servers
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import ClientTls

pytestmark = pytest.mark.asyncio

ADDRESS = f"127.0.0.1:{free_port()}"


class Client(NamedTuple):
    caller: str = "alice"
    peer: str = "ipv4:10.0.0.9:5000"
    metadata: Any = (("x-mq-client-id", "me"),)


class Call(NamedTuple):
    client: Client = Client()
    method: str = "SendMessage"
    request: bytes = b""
    remaining_s: float | None = 2.0
    by_tls: bool = False


def forwarder() -> CallForwarder:
    """To broker `a`, at an address where nothing listens."""
    routes = ClusterRoutes(lambda: 0.0)
    routes.report("ns1", read(ReplyReader("C", "own"), answer(entry("a", {}, address=ADDRESS))))
    channels = replace(registration_channels(), connect_timeout_ms=200)
    return CallForwarder(routes, Endpoints(routes, channels), None)


async def refusal(to: CallForwarder, broker: str = "a", call: Call | None = None) -> str:
    with pytest.raises(TroveError) as caught:
        async with aclosing(to.forward(broker, call or Call())) as replies:
            await replies.__anext__()
    return caught.value.symbol


@pytest.mark.parametrize(
    ("broker", "call", "symbol"),
    [
        ("a", Call(), "BROKER_UNREACHABLE"),
        ("a", Call(by_tls=True), "BROKER_UNREACHABLE"),
        ("gone", Call(), "BROKER_NOT_FOUND"),
    ],
)
async def test_a_broker_that_cannot_be_reached(broker: str, call: Call, symbol: str) -> None:
    to = forwarder()
    assert await refusal(to, broker, call) == symbol
    assert (to.open_calls, to.failed) == (0, {symbol: 1})
    with pytest.raises(TroveError, match=symbol):
        await to.open_telemetry(broker, call.client, by_tls=call.by_tls)
    assert to.open_calls == 0
    await to.close()


async def test_the_calls_that_are_open_at_a_broker_have_a_limit_and_a_metric() -> None:
    to = forwarder()
    key = "a", CALLS
    for _ in range(CALLS_MAX):
        to._begin(key)
    assert await refusal(to) == "LIMIT_EXCEEDED"
    figures = {sample.name: sample.value for one in ForwardsCollector(to).collect() for sample in one.samples}
    assert figures["trovemq_forwards_open"] == CALLS_MAX
    to._end(key)
    assert await refusal(to) == "BROKER_UNREACHABLE"
    await to.close()


@pytest.mark.parametrize("method", ["ReceiveMessage", "PullMessage"])
async def test_waiting_receives_leave_calls_for_acknowledgements(method: str) -> None:
    to = forwarder()
    for _ in range(RECEIVES_MAX):
        to._begin(("a", CALLS))
    assert await refusal(to, call=Call(method=method)) == "LIMIT_EXCEEDED"
    assert await refusal(to, call=Call(method="AckMessage")) == "BROKER_UNREACHABLE"
    assert to.open_calls == RECEIVES_MAX
    await to.close()


SEND = "/trovemq.v1.MessageService/Send"


@pytest.mark.parametrize("path", sorted(STREAMS))
async def test_open_streams_stopped_all_native_sends_and_acknowledgements(path: str) -> None:
    to = forwarder()
    for _ in range(RECEIVES_MAX):
        to._begin(("a", NATIVE))
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        await to.open_native("a", path, Client(), 2.0, by_tls=False)
    stream = await to.open_native("a", SEND, Client(), 2.0, by_tls=False)
    assert to.open_calls == RECEIVES_MAX + 1
    stream.cancel()
    await to.close()


async def test_each_native_call_that_may_stay_open_is_a_stream() -> None:
    found = {
        f"/{service.full_name}/{method.name}"
        for service in waiting_servers.NATIVE
        for method in service.methods
        if method.client_streaming
    }
    assert found == STREAMS


async def test_a_call_behind_others_log_ins_ends_before_its_deadline() -> None:
    to = forwarder()
    connection = await to._connection(("a", CALLS), by_tls=False)
    async with connection.lock, asyncio.timeout(60):
        assert await refusal(to, call=Call(remaining_s=0.2)) == "REQUEST_TIMEOUT"
    assert (to.open_calls, to.failed) == (0, {"REQUEST_TIMEOUT": 1})
    await to.close()


class Route:
    """The leader of a replica group at an address of another machine. `by_tls`: its address by TLS."""

    def __init__(self, by_tls: str) -> None:
        leader = GroupLeader("g", "b", 5, (GroupNode("b", "10.0.0.2:8081"),))
        self._route = LeaderRoute("a", lambda: leader, lambda: by_tls)

    @property
    def brokers(self) -> Any:
        return self._route.brokers


def to_leader(by_tls: str) -> CallForwarder:
    route = Route(by_tls)
    channels = replace(registration_channels(), connect_timeout_ms=200, tls=ClientTls())
    return CallForwarder(route, Endpoints(route, channels), None)


async def test_a_call_by_tls_goes_to_a_leader_by_tls() -> None:
    to = to_leader("10.0.0.2:8443")
    endpoint = (await to._connection(("a", CALLS), by_tls=True)).endpoint
    assert (str(endpoint.address), endpoint.is_private) == ("10.0.0.2:8443", True)
    await to.close()


async def test_a_call_by_tls_waits_until_the_leader_s_address_is_known() -> None:
    with pytest.raises(TroveError, match="BROKER_UNREACHABLE") as refused:
        await to_leader("")._connection(("a", CALLS), by_tls=True)
    assert refused.value.fields[errors.UNREAD] == "true"
