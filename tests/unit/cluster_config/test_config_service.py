"""ClusterConfigService: secrets of users, and calls of clients that were forwarded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from tests.support.rpc_context import RpcContext
from trovemq_broker.cluster.config_calls import read_part
from trovemq_broker.cluster_config.entries import Entry, Generation, Kind, Position
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart
from trovemq_broker.cluster_config.protobuf import hello_to, report_to
from trovemq_broker.cluster_config.table import Head
from trovemq_broker.server.native.cluster_config_service import ClusterConfigService
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import cluster_config_pb2 as pb
from trovemq_proto.varints import write_varint

pytestmark = pytest.mark.asyncio

AT = Position(Generation(1, "a" * 16), 1)
HEAD = Head("c" * 16, "a", AT.generation, 1, "d" * 16)
USER = Entry(Kind.USER, "ann", AT, AT, secrets=b"secret")
TOPIC = Entry(Kind.TOPIC, "orders", AT, AT)


class Far(RpcContext):
    address = "ipv4:10.0.0.9:5000"


class FarByTls(Far):
    by_tls = True


class FakeNode:
    """Sends the parts, then waits for one report."""

    def __init__(self, *entries: Entry) -> None:
        self.parts = [TablePart(None, HEAD, 0, True, (entry,)) for entry in entries]
        self.reports: list[Report] = []
        self.is_owner = True

    async def watch(self, _hello: Hello, reports: AsyncIterator[Report]) -> AsyncGenerator[TablePart, None]:
        for part in self.parts:
            yield part
        async for report in reports:
            self.reports.append(report)

    async def copy(self, _generation: Generation) -> AsyncGenerator[TablePart, None]:
        for part in self.parts:
            yield part

    def owner_position(self) -> Position:
        if not self.is_owner:
            raise TroveError(errors.CONFIG_OWNER_MOVED)
        return AT


async def not_called(_method: str, _request: bytes, _caller: str, _source: str) -> bytes:
    raise AssertionError


async def requests(*messages: pb.WatchConfigRequest) -> AsyncIterator[pb.WatchConfigRequest]:
    for message in messages:
        yield message


async def watched(node: Any, context: Any) -> list[pb.ConfigPart]:
    service = ClusterConfigService(node, not_called)
    stream = requests(hello_to(Hello("b", "s")), report_to(Report(AT)))
    return [pb.ConfigPart.FromString(part) async for part in service.watch_config(stream, context)]


@pytest.mark.parametrize("context", [RpcContext, FarByTls])
async def test_secrets_are_sent_by_tls_and_on_loopback(context: type[RpcContext]) -> None:
    node = FakeNode(TOPIC, USER)
    parts = await watched(node, context())
    assert parts[1].entries[0].secrets == b"secret"
    assert node.reports == [Report(AT)]


async def test_a_follower_without_tls_is_told_that_secrets_need_it() -> None:
    assert len(await watched(FakeNode(TOPIC), Far())) == 1
    with pytest.raises(TroveError, match="over TLS only") as found:
        await watched(FakeNode(TOPIC, USER), Far())
    assert found.value.spec is errors.REQUEST_ILLEGAL
    service = ClusterConfigService(FakeNode(USER), not_called)  # type: ignore[arg-type]
    with pytest.raises(TroveError, match="over TLS only"):
        await service.fetch_config(pb.FetchConfigRequest(), Far()).__anext__()


async def test_a_stream_without_a_hello_is_refused() -> None:
    service = ClusterConfigService(FakeNode(), not_called)  # type: ignore[arg-type]
    with pytest.raises(TroveError, match="hello"):
        await service.watch_config(requests(), RpcContext()).__anext__()


async def test_a_forwarded_call_keeps_its_caller_and_says_where_the_table_is() -> None:
    calls = []

    async def handle(method: str, request: bytes, caller: str, source: str) -> bytes:
        calls.append((method, request, caller, source))
        return b"reply"

    service = ClusterConfigService(FakeNode(), handle)  # type: ignore[arg-type]
    request = pb.ForwardChangeRequest(method="/s/m", request=b"q", caller="ann", source="10.0.0.1")
    reply = await service.forward_change(request, RpcContext())
    assert calls == [("/s/m", b"q", "ann", "10.0.0.1")]
    assert (reply.reply, reply.position.version) == (b"reply", 1)


async def test_a_broker_that_is_not_the_owner_runs_no_forwarded_call() -> None:
    node = FakeNode()
    node.is_owner = False
    service = ClusterConfigService(node, not_called)  # type: ignore[arg-type]
    with pytest.raises(TroveError) as found:
        await service.forward_change(pb.ForwardChangeRequest(), RpcContext())
    assert found.value.spec is errors.CONFIG_OWNER_MOVED


async def test_a_part_of_a_million_fields_was_parsed_before_it_was_refused() -> None:
    entry = pb.ConfigEntry(kind="topic", name="orders").SerializeToString() + b"\x32\x00" * 1_000_000
    data = pb.ConfigPart(number=1).SerializeToString()
    data += b"\x2a" + write_varint(len(entry)) + entry
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        read_part(data)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        read_part(b"\x0a\xff")
    assert read_part(pb.ConfigPart(number=7).SerializeToString()).number == 7
