"""The single calls of ReplicationService by a raw client, with wrong bytes, names, epochs and places: the
answer names the error, nothing changes, and the follower continues."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.unit.replica_streams.nodes_here import CLUSTER, GROUP, GroupHere, NodeHere
from tests.unit.replica_streams.test_hostile_peers import CHANNELS, group_run
from trovemq_broker.cluster.nameserver_session import error_in
from trovemq_broker.replication.frames import Offset
from trovemq_broker.server.wire import replica_frames as wire
from trovemq_proto import errors
from trovemq_proto.channels import open_channel
from trovemq_proto.errors import ErrorSpec
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_proto.v1 import replication_pb2 as pb

READS = wire.ConsumersAsked(CLUSTER, GROUP, 1, "c", 0, 0)
RANGE = wire.RangeAsked(CLUSTER, GROUP, 1, LOG_ORIGIN, 1 << 20, "c")
PROMISE = wire.PromiseAsked(CLUSTER, GROUP, 128)
ILLEGAL = errors.REPLICA_FRAME_ILLEGAL
EPOCH_TOO_HIGH = 1 << 31


async def refusal(node: NodeHere, path: str, request: bytes) -> ErrorSpec:
    async with open_channel(str(node.address), CHANNELS) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path)(request, timeout=5)
    found = error_in(caught.value.trailing_metadata())
    assert found is not None, caught.value
    return found.spec


@pytest.mark.parametrize(
    ("path", "request_bytes", "spec"),
    [
        *((path, b"\xff" * 40, ILLEGAL) for path in (wire.READ_CONSUMERS, wire.READ_LOG, wire.PROMISE)),
        *((path, b"\xff" * 40, ILLEGAL) for path in (wire.GET_STATUS, wire.STORE_MEMBERS)),
        *((path, b"", ILLEGAL) for path in (wire.READ_CONSUMERS, wire.READ_LOG, wire.PROMISE)),
        (wire.GET_STATUS, b"", ILLEGAL),
        (wire.STORE_MEMBERS, b"", ILLEGAL),
        (wire.READ_CONSUMERS, wire.consumers_request(READS._replace(cluster="x")), errors.GROUP_MISMATCH),
        (wire.READ_CONSUMERS, wire.consumers_request(READS._replace(group="x")), errors.GROUP_MISMATCH),
        (wire.READ_CONSUMERS, wire.consumers_request(READS._replace(node="x")), errors.NOT_A_MEMBER),
        (wire.READ_CONSUMERS, wire.consumers_request(READS._replace(epoch=0)), errors.EPOCH_STALE),
        (wire.READ_CONSUMERS, wire.consumers_request(READS._replace(epoch=99)), errors.EPOCH_STALE),
        (wire.READ_CONSUMERS, wire.consumers_request(READS._replace(node="n" * 256)), ILLEGAL),
        (wire.READ_CONSUMERS, pb.ReadConsumersRequest(epoch=EPOCH_TOO_HIGH).SerializeToString(), ILLEGAL),
        (wire.READ_LOG, wire.range_request(RANGE._replace(group="x")), errors.GROUP_MISMATCH),
        (wire.READ_LOG, wire.range_request(RANGE._replace(node="x")), errors.NOT_A_MEMBER),
        (wire.READ_LOG, wire.range_request(RANGE._replace(epoch=0)), errors.EPOCH_STALE),
        (
            wire.READ_LOG,
            wire.range_request(RANGE._replace(offset=Offset(1 << 30))),
            errors.REPLICA_OFFSET_MISMATCH,
        ),
        (wire.READ_LOG, wire.range_request(RANGE._replace(offset=Offset(1))), errors.STORE_FAILED),
        (wire.PROMISE, wire.promise_request(PROMISE._replace(cluster="x")), errors.GROUP_MISMATCH),
        (wire.PROMISE, wire.promise_request(PROMISE._replace(epoch=0)), ILLEGAL),
        (wire.GET_STATUS, wire.status_request(wire.StatusAsked("x", "y", "z")), errors.NOT_A_MEMBER),
    ],
)
def test_a_wrong_call_is_refused_and_changes_nothing(
    path: str, request_bytes: bytes, spec: ErrorSpec
) -> None:
    async def use(group: GroupHere, leader: NodeHere) -> None:
        listed, promised, end = group.listed, leader.state.promised, leader.log.end
        assert await refusal(leader, path, request_bytes) is spec
        assert (group.listed, leader.state.promised, leader.log.end) == (listed, promised, end)
        assert leader.streams is not None, "it leads"

    group_run(use)


@pytest.mark.parametrize("path", [wire.READ_CONSUMERS, wire.READ_LOG])
def test_a_node_reads_twice_at_a_time_and_no_more(path: str) -> None:
    """Others are not kept waiting by one that asks without end."""

    async def use(_group: GroupHere, leader: NodeHere) -> None:
        reads = asyncio.Event()

        async def slow(*_asked: int) -> wire.ConsumersPart:
            await reads.wait()
            return wire.ConsumersPart()

        leader.read_consumers = leader.read_log = slow  # type: ignore[assignment]
        asked = wire.consumers_request(READS) if path == wire.READ_CONSUMERS else wire.range_request(RANGE)
        async with open_channel(str(leader.address), CHANNELS) as channel:
            ask = channel.unary_unary(path)
            begun = [asyncio.ensure_future(ask(asked, timeout=60)) for _ in range(2)]
            await asyncio.sleep(0.1)
            assert await refusal(leader, path, asked) is errors.LIMIT_EXCEEDED
            for one in begun:
                one.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
        reads.set()

    group_run(use)
