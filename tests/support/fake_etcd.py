"""The part of etcd that a replica group needs, in memory, with our own gRPC server: its answers are those of
the real one, by tests/integration/test_etcd.py, which asks both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import trovemq_rpc as rpc
from trovemq_proto.etcd.v3 import etcd_pb2 as pb

CLUSTER = 4711
TOKEN = "token-{}"


class FakeEtcd:
    """`add_to(server)`. Its keys end with their leases by `expire()` only. `user`: needs a log-in."""

    def __init__(self, user: tuple[str, str] | None = None) -> None:
        self.revision = 1
        self.cluster = CLUSTER
        self.keys: dict[bytes, pb.KeyValue] = {}
        self.leases: dict[int, int] = {}
        self.calls: list[str] = []
        self.before: Callable[[str, Any], Any] | None = None
        """Is awaited before a call is answered, with its name and context."""
        self._user = user
        self._tokens = 0
        self._changed = asyncio.Condition()
        self._history: list[tuple[int, bytes]] = []

    def add_to(self, server: Any) -> None:
        for service, methods in (
            ("KV", {"Range": (pb.RangeRequest, self._range), "Txn": (pb.TxnRequest, self._txn)}),
            (
                "Lease",
                {
                    "LeaseGrant": (pb.LeaseGrantRequest, self._grant),
                    "LeaseRevoke": (pb.LeaseRevokeRequest, self._revoke),
                },
            ),
            ("Cluster", {"MemberList": (pb.MemberListRequest, self._members)}),
            ("Maintenance", {"Status": (pb.StatusRequest, self._status)}),
            ("Auth", {"Authenticate": (pb.AuthenticateRequest, self._authenticate)}),
        ):
            handlers = {
                name: rpc.unary_unary_rpc_method_handler(self._unary(name, *method))
                for name, method in methods.items()
            }
            if service == "Lease":
                handlers["LeaseKeepAlive"] = rpc.stream_stream_rpc_method_handler(self._keep_alive)
            server.add_registered_method_handlers(f"etcdserverpb.{service}", handlers)
        watch = {"Watch": rpc.stream_stream_rpc_method_handler(self._watch)}
        server.add_registered_method_handlers("etcdserverpb.Watch", watch)

    def log_out(self) -> None:
        """All tokens are too old."""
        self._tokens += 1

    async def expire(self, lease: int) -> None:
        """Its time to live is over."""
        del self.leases[lease]
        for key in [key for key, one in self.keys.items() if one.lease == lease]:
            self.revision += 1
            self._delete(key)
        await self._notify()

    # --- calls ------------------------------------------------------------------------------------------
    def _unary(self, name: str, request_type: Any, answer: Any) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            await self._begin(name, context)
            reply = await answer(request_type.FromString(request), context)
            reply.header.CopyFrom(self._header())
            return bytes(reply.SerializeToString())

        return handle

    async def _begin(self, name: str, context: Any) -> None:
        self.calls.append(name)
        if self.before is not None:
            await self.before(name, context)
        if self._user is not None and name != "Authenticate":
            token = dict(context.invocation_metadata()).get("token")
            if token is None:
                await context.abort(rpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty")
            if token != TOKEN.format(self._tokens):
                await context.abort(rpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")

    def _header(self) -> pb.ResponseHeader:
        return pb.ResponseHeader(cluster_id=self.cluster, member_id=1, revision=self.revision, raft_term=2)

    async def _members(self, _request: pb.MemberListRequest, _context: Any) -> pb.MemberListResponse:
        return pb.MemberListResponse(members=[pb.Member(ID=1, name="one")])

    async def _status(self, _request: pb.StatusRequest, _context: Any) -> pb.StatusResponse:
        return pb.StatusResponse(version="3.5.0")

    async def _range(self, request: pb.RangeRequest, _context: Any) -> pb.RangeResponse:
        return self._found(request)

    def _found(self, request: pb.RangeRequest) -> pb.RangeResponse:
        end = request.range_end or request.key + b"\0"
        found = [self.keys[key] for key in sorted(self.keys) if request.key <= key < end]
        limit = request.limit or len(found)
        return pb.RangeResponse(kvs=found[:limit], more=len(found) > limit, count=len(found))

    async def _txn(self, request: pb.TxnRequest, context: Any) -> pb.TxnResponse:
        holds = all(self._holds(one) for one in request.compare)
        operations = request.success if holds else request.failure
        for one in operations:
            lease = one.request_put.lease
            if lease and lease not in self.leases:
                await context.abort(rpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        writes = any(one.WhichOneof("request") != "request_range" for one in operations)
        self.revision += writes
        reply = pb.TxnResponse(succeeded=holds, responses=[self._done(one) for one in operations])
        await self._notify()
        return reply

    def _holds(self, compare: pb.Compare) -> bool:
        known = self.keys.get(compare.key)
        return (0 if known is None else known.mod_revision) == compare.mod_revision

    def _done(self, operation: pb.RequestOp) -> pb.ResponseOp:
        match operation.WhichOneof("request"):
            case "request_range":
                return pb.ResponseOp(response_range=self._found(operation.request_range))
            case "request_put":
                put = operation.request_put
                known = self.keys.get(put.key)
                created = self.revision if known is None else known.create_revision
                self.keys[put.key] = pb.KeyValue(
                    key=put.key,
                    value=put.value,
                    lease=put.lease,
                    create_revision=created,
                    mod_revision=self.revision,
                )
                self._history.append((self.revision, put.key))
                return pb.ResponseOp(response_put=pb.PutResponse())
            case _:
                deleted = self._delete(operation.request_delete_range.key)
                return pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(deleted=deleted))

    def _delete(self, key: bytes) -> int:
        self._history.append((self.revision, key))
        return int(self.keys.pop(key, None) is not None)

    async def _grant(self, request: pb.LeaseGrantRequest, _context: Any) -> pb.LeaseGrantResponse:
        lease = 1_000 + len(self.calls)
        self.leases[lease] = max(2, request.TTL)
        return pb.LeaseGrantResponse(ID=lease, TTL=self.leases[lease])

    async def _revoke(self, request: pb.LeaseRevokeRequest, context: Any) -> pb.LeaseRevokeResponse:
        if request.ID not in self.leases:
            await context.abort(rpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        await self.expire(request.ID)
        return pb.LeaseRevokeResponse()

    async def _authenticate(self, request: pb.AuthenticateRequest, context: Any) -> pb.AuthenticateResponse:
        if (request.name, request.password) != self._user:
            text = "etcdserver: authentication failed, invalid user ID or password"
            await context.abort(rpc.StatusCode.INVALID_ARGUMENT, text)
        return pb.AuthenticateResponse(token=TOKEN.format(self._tokens))

    async def _keep_alive(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await self._begin("LeaseKeepAlive", context)
        async for data in requests:
            lease = pb.LeaseKeepAliveRequest.FromString(data).ID
            reply = pb.LeaseKeepAliveResponse(header=self._header(), ID=lease, TTL=self.leases.get(lease, 0))
            yield reply.SerializeToString()

    async def _watch(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await self._begin("Watch", context)
        create = pb.WatchRequest.FromString(await anext(aiter(requests))).create_request
        yield pb.WatchResponse(header=self._header(), created=True).SerializeToString()
        known = create.start_revision - 1
        while True:
            async with self._changed:
                await self._changed.wait_for(partial(self._news, create, known))
            known = self.revision
            yield pb.WatchResponse(header=self._header()).SerializeToString()

    def _news(self, create: pb.WatchCreateRequest, known: int) -> bool:
        return any(
            revision > known and create.key <= key < create.range_end for revision, key in self._history
        )

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
