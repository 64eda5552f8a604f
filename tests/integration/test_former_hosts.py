"""Message ids that have a former leader's address, over a kill and after its removal, with a real etcd."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from tests.integration.elected_nodes import Node, elected_nodes, until
from tests.support.command_line import run_here
from tests.support.etcd_process import needs_etcd
from tests.support.remoting_client import remoting_client
from tests.support.stubs import QUERIES, stub_of
from trovemq_proto.records import decode_offset_msg_id
from trovemq_proto.records.hosts import format_host
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.v1 import query_pb2

pytestmark = [pytest.mark.slow, needs_etcd]

WAIT_S = 60


class Sent(NamedTuple):
    id: str
    host: str
    place: int


async def sent(address: str, body: bytes) -> Sent:
    async with remoting_client(address) as client:
        answer = await client.send("orders", body)
    assert answer.code == ResponseCode.SUCCESS, answer
    found = answer.fields["msgId"]
    host, place = decode_offset_msg_id(found)
    return Sent(found, format_host(host), int(place))


async def by_remoting(address: str, place: int) -> list[bytes]:
    async with remoting_client(address) as client:
        return (await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})).bodies


def by_native(address: str, identifier: str) -> Any:
    with grpc.insecure_channel(address) as channel:
        asked = query_pb2.GetMessageRequest(id=identifier)
        return stub_of(QUERIES, channel).GetMessage(asked, timeout=WAIT_S)


def test_any_node_finds_a_message_by_the_id_of_the_node_that_wrote_it(tmp_path: Path) -> None:
    with elected_nodes(tmp_path, ("remoting_enable=true",), by_links=False) as group:
        former = group.leader()
        code, _, err = run_here(former.address, "topic", "create", "orders", "--queues", "1")
        assert code == 0, err
        written = {b"first": asyncio.run(sent(former.address, b"first"))}
        former.kill()
        leader = group.next_leader(former, "kill")
        until("the next leader has no lost copy to wait for", lambda: len(leader.in_sync()) == 2)
        written[b"second"] = asyncio.run(sent(leader.address, b"second"))
        assert [one.host for one in written.values()] == [former.address, leader.address]

        def check(node: Node) -> None:
            for body, one in written.items():
                assert body in by_native(node.address, one.id).records
                assert asyncio.run(by_remoting(node.address, one.place)) == [body]

        others = [one for one in group.nodes.values() if one is not former]
        for node in others:
            check(node)
        code, _, err = run_here(leader.address, "cluster", "remove", former.name, "--yes")
        assert code == 0, err
        for node in others:
            check(node)
        for one in written.values():
            code, out, err = run_here(leader.address, "get", one.id)
            assert code == 0, (out, err)
