"""The coordinator of one replica group, by etcd: all of its keys begin with one prefix."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from trovemq_broker.coordination import etcd_client, etcd_replies
from trovemq_broker.coordination.coordinator import (
    Change,
    Compare,
    Delete,
    Lease,
    LeaseId,
    Put,
    Revision,
    Snapshot,
    Swapped,
)
from trovemq_broker.coordination.etcd_client import EtcdClient
from trovemq_broker.coordination.etcd_replies import KEYS_MAX, Seen
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.etcd.v3 import etcd_pb2 as pb


def group_prefix(root: str, cluster: str, group: str) -> str:
    """Of the keys of a group. Names may have any characters, also a slash."""
    return "/".join((root.rstrip("/"), quote(cluster, safe=""), quote(group, safe=""), ""))


class EtcdCoordinator:
    """It is a Coordinator. `prefix`: of the group's keys."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        assert prefix.endswith("/"), "no other group's prefix starts with it"
        self._client = client
        self.prefix: Final = prefix
        self._first = prefix.encode()
        self._end = etcd_replies.range_end(self._first)
        self._seen = Seen()

    async def read(self) -> Snapshot:
        before = self._seen.revision
        reply = await self._client.call(etcd_client.RANGE, self._range())
        revision = self._seen.check(reply.header, before)
        return etcd_replies.snapshot_of(reply, revision, self.prefix)

    async def swap(self, compares: Sequence[Compare], changes: Sequence[Change]) -> Swapped:
        etcd_replies.check_unique(one.key for one in changes)
        whole = pb.RequestOp(request_range=self._range())
        request = pb.TxnRequest(
            compare=[self._compare(one) for one in compares],
            success=[*(self._operation(one) for one in changes), whole],
            failure=[whole],
        )
        before = self._seen.revision
        try:
            reply = await self._client.call(etcd_client.TXN, request)
        except TroveError as error:
            if not _is_absent(error):
                raise
            return Swapped(False, await self.read())  # a lease is gone: nothing was done
        revision = self._seen.check(reply.header, before)
        return etcd_replies.swapped_of(reply, revision, self.prefix, len(changes))

    async def grant(self, ttl_s: int) -> Lease:
        return etcd_replies.lease_of(
            await self._client.call(etcd_client.GRANT, pb.LeaseGrantRequest(TTL=ttl_s))
        )

    async def keep_alive(self, lease: LeaseId) -> int:
        request = pb.LeaseKeepAliveRequest(ID=lease)
        return etcd_replies.ttl_of(await self._client.first_reply(etcd_client.KEEP_ALIVE, request), lease)

    async def revoke(self, lease: LeaseId) -> None:
        try:
            await self._client.call(etcd_client.REVOKE, pb.LeaseRevokeRequest(ID=lease))
        except TroveError as error:
            if not _is_absent(error):
                raise

    async def watch(self, after: Revision) -> AsyncGenerator[Revision, None]:
        create = pb.WatchCreateRequest(key=self._first, range_end=self._end, start_revision=after + 1)
        request = pb.WatchRequest(create_request=create)
        async with aclosing(self._client.replies(etcd_client.WATCH, request)) as replies:
            async for reply in replies:
                if reply.canceled:
                    text = f"etcd ends the watch: {reply.cancel_reason[:200] or 'its revision was compacted'}"
                    raise TroveError(errors.COORDINATION_UNAVAILABLE, text)
                if not reply.created:
                    yield reply.header.revision

    # --- helpers ----------------------------------------------------------------------------------------
    def _range(self) -> pb.RangeRequest:
        return pb.RangeRequest(key=self._first, range_end=self._end, limit=KEYS_MAX + 1)

    def _key(self, key: str) -> bytes:
        return (self.prefix + key).encode()

    def _compare(self, one: Compare) -> pb.Compare:
        return pb.Compare(
            result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=self._key(one.key), mod_revision=one.changed
        )

    def _operation(self, change: Change) -> pb.RequestOp:
        key = self._key(change.key)
        match change:
            case Put(value=value, lease=lease):
                return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))
            case Delete():
                return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def _is_absent(error: TroveError) -> bool:
    """Whether etcd has answered that it has no such lease."""
    return error.fields.get("status") == "NOT_FOUND"
