"""The parts of a read that a replica alone has: the lag that a request bears, and that of a reply."""

from __future__ import annotations

from trovemq_broker.replication.read_lag import ReaderLag
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_proto.v1 import common_pb2


def max_lag_of(request: Request) -> int:
    """In milliseconds; 0: any, also of a request that cannot say it."""
    return int(getattr(request, "max_lag_ms", 0))


def replica_lag(lag: ReaderLag) -> common_pb2.ReplicaLag:
    return common_pb2.ReplicaLag(bytes=lag.size, ms=lag.ms)


def add_lag(reply: Reply, lag: ReaderLag) -> None:
    """Replies without the field stay as they are."""
    if "replica" in reply.DESCRIPTOR.fields_by_name:
        reply.replica.CopyFrom(replica_lag(lag))
