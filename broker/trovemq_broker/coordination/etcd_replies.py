"""etcd's replies as values: each is checked, and bounded, before it is trusted.

TroveError COORDINATION_ILLEGAL for one that cannot be right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NoReturn

from trovemq_broker.coordination.coordinator import KeyValue, Lease, Revision, Snapshot, Swapped
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.etcd.v3 import etcd_pb2 as pb

KEYS_MAX: Final = 64
"""Of a group: its configuration, state, lock and switch, and one for each node."""
KEY_SIZE_MAX: Final = 256
VALUE_SIZE_MAX: Final = 65_536
TTL_MAX_S: Final = 86_400


def illegal(text: str) -> NoReturn:
    raise TroveError(errors.COORDINATION_ILLEGAL, text)


class Seen:
    """The newest revision of an etcd. One that goes back was restored from an older copy, or replaced."""

    def __init__(self) -> None:
        self._cluster = 0
        self.revision: Revision = 0

    def check(self, header: pb.ResponseHeader, before: Revision) -> Revision:
        """The reply's revision. `before`: known when the request was sent."""
        if header.revision < 1:
            illegal("a reply of etcd has no revision")
        if self._cluster not in (0, header.cluster_id):
            illegal(f"etcd is another one: its cluster's id was {self._cluster}, it is {header.cluster_id}")
        if header.revision < before:
            illegal(f"etcd went back from revision {before} to {header.revision}: was it restored?")
        self._cluster = header.cluster_id
        self.revision = max(self.revision, header.revision)
        revision: Revision = header.revision
        return revision


def snapshot_of(found: pb.RangeResponse, revision: Revision, prefix: str) -> Snapshot:
    """All keys with the prefix, which is cut off."""
    if found.more or len(found.kvs) > KEYS_MAX:
        illegal(f"more than {KEYS_MAX} keys begin with {prefix}: another program writes there")
    values = [_value(one, revision, prefix) for one in found.kvs]
    return Snapshot(revision, {one.key: one for one in values})


def _value(found: pb.KeyValue, revision: Revision, prefix: str) -> KeyValue:
    try:
        key = found.key.decode()
    except UnicodeDecodeError:
        illegal(f"a key that begins with {prefix} is not text")
    if not key.startswith(prefix) or len(key) > len(prefix) + KEY_SIZE_MAX:
        illegal(f"a key of etcd is too long, or does not begin with {prefix}")
    if len(found.value) > VALUE_SIZE_MAX:
        illegal(f"{key} has {len(found.value)} bytes, the limit is {VALUE_SIZE_MAX}")
    if not 1 <= found.create_revision <= found.mod_revision <= revision or found.lease < 0:
        illegal(f"the revisions of {key} do not fit")
    name = key.removeprefix(prefix)
    return KeyValue(name, found.value, found.create_revision, found.mod_revision, found.lease)


def swapped_of(reply: pb.TxnResponse, revision: Revision, prefix: str, changes: int) -> Swapped:
    """Of a transaction that ends with a range of the group's keys, whatever its comparisons gave."""
    expected = changes + 1 if reply.succeeded else 1
    if len(reply.responses) != expected or reply.responses[-1].WhichOneof("response") != "response_range":
        illegal("the answer to a transaction does not fit it")
    return Swapped(reply.succeeded, snapshot_of(reply.responses[-1].response_range, revision, prefix))


def lease_of(reply: pb.LeaseGrantResponse) -> Lease:
    if reply.error:
        raise TroveError(errors.COORDINATION_UNAVAILABLE, f"etcd grants no lease: {reply.error[:200]}")
    if reply.ID < 1 or not 1 <= reply.TTL <= TTL_MAX_S:
        illegal(f"etcd granted lease {reply.ID} for {reply.TTL} s")
    return Lease(reply.ID, reply.TTL)


def ttl_of(reply: pb.LeaseKeepAliveResponse, lease: int) -> int:
    """0: the lease is gone."""
    if lease != reply.ID or reply.TTL > TTL_MAX_S:
        illegal(f"etcd answers for lease {reply.ID} with {reply.TTL} s, asked for {lease}")
    return max(0, reply.TTL)


def range_end(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix, which ends with a byte below 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def check_unique(keys: Iterable[str]) -> None:
    """etcd refuses a transaction that changes a key twice."""
    listed = list(keys)
    assert len({*listed}) == len(listed), "each key is changed once"
