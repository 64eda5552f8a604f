"""The RPCs of etcd that a replica group needs, on our own transport.

Calls go to one of several endpoints, and to the next one after a failure. A call that may be repeated is sent
to each of them, once. Without an answer the error is COORDINATION_UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from trovemq_daemon.errors import SettingsError
from trovemq_proto import errors
from trovemq_proto.channels import Channel, ChannelSettings, open_channel
from trovemq_proto.errors import TroveError
from trovemq_proto.etcd.v3 import etcd_pb2 as pb
from trovemq_proto.unanswered import why_unanswered

TRY_S: Final = 1.0
"""Of one call at one endpoint, with the connection. A leader's lease outlives a few of them."""
MESSAGE_SIZE_MAX: Final = 262_144
TOKEN_SIZE_MAX: Final = 8_192

Metadata: TypeAlias = tuple[tuple[str, str], ...]
ReadPassword: TypeAlias = Callable[[], Awaitable[str]]
"""SettingsError."""


class Rpc(NamedTuple):
    """`repeats`: whether it may be sent to another endpoint where its outcome is unknown."""

    name: str
    path: str
    reply: type[Message]
    repeats: bool = True


RANGE: Final = Rpc("range", "/etcdserverpb.KV/Range", pb.RangeResponse)
TXN: Final = Rpc("txn", "/etcdserverpb.KV/Txn", pb.TxnResponse, repeats=False)
WATCH: Final = Rpc("watch", "/etcdserverpb.Watch/Watch", pb.WatchResponse)
GRANT: Final = Rpc("grant", "/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse)
REVOKE: Final = Rpc("revoke", "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse)
KEEP_ALIVE: Final = Rpc("keep_alive", "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse)
AUTHENTICATE: Final = Rpc("authenticate", "/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse)
MEMBERS: Final = Rpc("members", "/etcdserverpb.Cluster/MemberList", pb.MemberListResponse)
STATUS: Final = Rpc("status", "/etcdserverpb.Maintenance/Status", pb.StatusResponse)
_WITH_LEADER: Final = (("hasleader", "true"),)
"""Ends a stream at a member of etcd that has lost the others."""


class Observer(Protocol):
    """Of the figures."""

    def called(self, name: str, seconds: float, *, answered: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAccess:
    """`endpoints`: HOST:PORT. `channels`: how connections behave. `user`: empty for none; `password`: of
    it, read again for each log-in."""

    endpoints: Sequence[str]
    channels: ChannelSettings
    user: str = ""
    password: ReadPassword | None = None


class EtcdClient:
    """Of the event loop that calls it. `close()` at the end."""

    def __init__(self, access: EtcdAccess, observer: Observer | None = None) -> None:
        self._access = access
        self._settings = replace(access.channels, message_size_max=MESSAGE_SIZE_MAX)
        self._observer = observer
        self._at = 0
        self._channels: dict[int, Channel] = {}
        self._token = ""

    @property
    def endpoint(self) -> str:
        """That the next call goes to."""
        return self._access.endpoints[self._at]

    async def call(self, rpc: Rpc, request: Message) -> Any:
        """The reply. TroveError COORDINATION_UNAVAILABLE, with the field `status` where etcd has answered by
        an error; COORDINATION_ILLEGAL."""
        return await self._repeated(rpc, lambda channel: self._unary(channel, rpc, request))

    async def first_reply(self, rpc: Rpc, request: Message) -> Any:
        """The first reply of a stream, which ends then. TroveError COORDINATION_UNAVAILABLE,
        COORDINATION_ILLEGAL."""

        async def ask(channel: Channel) -> Any:
            stream = channel.stream_stream(rpc.path)(metadata=self._metadata() + _WITH_LEADER, timeout=TRY_S)
            try:
                await stream.write(request.SerializeToString())
                return self._parsed(rpc, await stream.read())
            finally:
                stream.cancel()

        return await self._repeated(rpc, ask)

    async def replies(self, rpc: Rpc, request: Message) -> AsyncGenerator[Any, None]:
        """The replies of a stream, at one endpoint. TroveError COORDINATION_UNAVAILABLE, at the stream's end,
        too; COORDINATION_ILLEGAL."""
        at = self._at
        async with self._reported(rpc, at):
            await self._log_in(self._channel(at))
            stream = self._channel(at).stream_stream(rpc.path)(metadata=self._metadata() + _WITH_LEADER)
            try:
                await stream.write(request.SerializeToString())
                while True:
                    yield self._parsed(rpc, await stream.read())
            finally:
                stream.cancel()

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    # --- helpers ----------------------------------------------------------------------------------------
    async def _repeated(self, rpc: Rpc, ask: Callable[[Channel], Any]) -> Any:
        """At one endpoint after the other, from the present one on."""
        tries = len(self._access.endpoints) if rpc.repeats else 1
        for remaining in reversed(range(tries)):
            try:
                return await self._observed(rpc, ask)
            except TroveError as error:
                if not remaining or error.spec is not errors.COORDINATION_UNAVAILABLE:
                    raise
        raise AssertionError("there is an endpoint")

    async def _observed(self, rpc: Rpc, ask: Callable[[Channel], Any]) -> Any:
        began, answered, at = monotonic(), False, self._at
        try:
            async with self._reported(rpc, at):
                reply = await self._logged_in(self._channel(at), ask)
            answered = True
            return reply
        finally:
            if self._observer is not None:
                self._observer.called(rpc.name, monotonic() - began, answered=answered)

    async def _logged_in(self, channel: Channel, ask: Callable[[Channel], Any]) -> Any:
        """With a new log-in where the present one has ended: nothing was done then."""
        async with asyncio.timeout(TRY_S):
            await self._log_in(channel)
            try:
                return await ask(channel)
            except grpc.aio.AioRpcError as error:
                if not self._token or not _has_ended(error):
                    raise
            self._token = ""
            await self._log_in(channel)
            return await ask(channel)

    async def _log_in(self, channel: Channel) -> None:
        password = self._access.password
        if self._token or not self._access.user or password is None:
            return
        request = pb.AuthenticateRequest(name=self._access.user, password=await password())
        reply = await self._unary(channel, AUTHENTICATE, request)
        if not 1 <= len(reply.token) <= TOKEN_SIZE_MAX or not reply.token.isprintable():
            raise TroveError(errors.COORDINATION_ILLEGAL, "the log-in at etcd gave no token")
        self._token = reply.token

    async def _unary(self, channel: Channel, rpc: Rpc, request: Message) -> Any:
        data = await channel.unary_unary(rpc.path)(
            request.SerializeToString(), metadata=self._metadata(), timeout=TRY_S
        )
        return self._parsed(rpc, data)

    def _metadata(self) -> Metadata:
        return (("token", self._token),) if self._token else ()

    def _parsed(self, rpc: Rpc, data: Any) -> Any:
        if not isinstance(data, bytes):
            raise TroveError(errors.COORDINATION_UNAVAILABLE, f"{rpc.path} of etcd has ended")
        try:
            return rpc.reply.FromString(data)
        except DecodeError:
            text = f"the answer to {rpc.path} is not {rpc.reply.DESCRIPTOR.name}: is it etcd?"
            raise TroveError(errors.COORDINATION_ILLEGAL, text) from None

    def _channel(self, at: int) -> Channel:
        if at not in self._channels:
            self._channels[at] = open_channel(self._access.endpoints[at], self._settings)
        return self._channels[at]

    @asynccontextmanager
    async def _reported(self, rpc: Rpc, at: int) -> AsyncIterator[None]:
        """Errors of the call become TroveErrors, and the next call goes to the next endpoint."""
        try:
            yield
        except TroveError as error:
            if error.spec is errors.COORDINATION_UNAVAILABLE:
                self._leave(at)
            raise
        except grpc.aio.AioRpcError as error:
            status = error.code().name
            self._give_up(rpc, at, why_unanswered(status, error.details()), status)
        except TimeoutError:
            self._give_up(rpc, at, f"no answer in {TRY_S:.0f} s")
        except SettingsError as error:
            self._give_up(rpc, at, str(error))

    def _give_up(self, rpc: Rpc, at: int, reason: str, status: str = "") -> NoReturn:
        self._leave(at)
        text = f"{rpc.path} of etcd at {self._access.endpoints[at]}: {reason}"
        raise TroveError(errors.COORDINATION_UNAVAILABLE, text, status=status) from None

    def _leave(self, at: int) -> None:
        """Of several calls that fail there at once, one changes the endpoint."""
        if self._at == at:
            self._at = (at + 1) % len(self._access.endpoints)


def _has_ended(error: grpc.aio.AioRpcError) -> bool:
    """Whether etcd wants a new log-in: the token is too old, or users were changed since."""
    return error.code().name == "UNAUTHENTICATED" or "revision of auth store is old" in (
        error.details() or ""
    )
