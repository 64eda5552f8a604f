"""Calls of other nodes of the group: their status, their promise, a later list of members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from trovemq_broker.cluster.config_calls import Endpoint, reported
from trovemq_broker.cluster.nameserver_session import ReadCredentials, open_session
from trovemq_broker.replica_streams.node_login import explained
from trovemq_broker.replica_streams.stream_settings import StreamSettings
from trovemq_broker.replication.frames import Identity, Node
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange, NodeStatus
from trovemq_broker.server.wire import replica_frames, replica_messages
from trovemq_broker.server.wire.replica_frames import (
    ConsumersAsked,
    ConsumersPart,
    LogRange,
    PromiseAsked,
    RangeAsked,
    StatusAsked,
)
from trovemq_daemon.addresses import parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings, open_channel
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import TlsOptions, read_tls
from trovemq_store.replica.membership import Member

STATUS_S: Final = 2.0
PROMISE_S: Final = 12.0
"""Longer than a leader's drain: it steps down before it answers."""
STORE_S: Final = 5.0
READ_LOG_S: Final = 5.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """By node `me` of a group, at the listeners of the others' streams. `channels`: how connections to them
    behave; `credentials`: for those that ask for a log-in."""

    group: str
    me: Node
    channels: ChannelSettings
    credentials: ReadCredentials | None

    @classmethod
    def of(
        cls,
        group: str,
        me: Node,
        channels: ChannelSettings,
        tls_files: TlsOptions | None,
        credentials: ReadCredentials | None,
    ) -> NodeCalls:
        """Reads the files; blocks. SettingsError for files that cannot be used."""
        try:
            tls = None if tls_files is None else read_tls(tls_files)
        except TroveError as error:
            raise SettingsError(error.message) from None
        return cls(group, me, replace(channels, tls=tls), credentials)

    def listener(self, member: Member) -> Endpoint:
        """The listener of a node's streams. A certificate there must have the node's name. SettingsError."""
        tls = self.channels.tls
        named = None if tls is None else replace(tls, server_name=member.node)
        return Endpoint(member.node, parse_address(member.replication), replace(self.channels, tls=named))

    async def status(self, member: Member, cluster: str) -> NodeStatus:
        """`cluster`: of this node, empty for a new one. TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT,
        SEALING_KEY_MISMATCH, NOT_A_MEMBER, SERVICE_NOT_AVAILABLE."""
        request = replica_frames.status_request(StatusAsked(cluster, self.group, self.me))
        answer = await self._ask(self.listener(member), replica_frames.GET_STATUS, request, STATUS_S)
        return replica_messages.read_status(answer)

    async def promise(self, member: Member, asked: PromiseAsked) -> Promised:
        """TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, EPOCH_STALE, GROUP_MISMATCH."""
        request = replica_frames.promise_request(asked)
        answer = await self._ask(self.listener(member), replica_frames.PROMISE, request, PROMISE_S)
        return replica_frames.promised_of(answer)

    async def read_log(self, member: Member, asked: RangeAsked) -> LogRange:
        """Committed records of the node. TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, GROUP_MISMATCH,
        EPOCH_STALE, NOT_A_MEMBER, LIMIT_EXCEEDED, REPLICA_OFFSET_MISMATCH, STORE_FAILED."""
        endpoint = self.listener(member)
        channels = replace(endpoint.channels, message_size_max=StreamSettings().message_size_max)
        endpoint = replace(endpoint, channels=channels)
        request = replica_frames.range_request(asked)
        return replica_frames.range_of(
            await self._ask(endpoint, replica_frames.READ_LOG, request, READ_LOG_S)
        )

    async def read_consumers(self, member: Member, asked: ConsumersAsked) -> ConsumersPart:
        """Of the leader. TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, GROUP_MISMATCH, NOT_LEADER,
        EPOCH_STALE, LIMIT_EXCEEDED."""
        endpoint = self.listener(member)
        channels = replace(endpoint.channels, message_size_max=StreamSettings().message_size_max)
        request = replica_frames.consumers_request(asked)
        path = replica_frames.READ_CONSUMERS
        answer = await self._ask(replace(endpoint, channels=channels), path, request, READ_LOG_S)
        return replica_frames.consumers_of(answer)

    async def store_members(self, member: Member, change: MembersChange) -> Identity:
        """The log of the node that has stored the list. TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT,
        GROUP_MISMATCH, EPOCH_STALE, REPLICA_STATE_ILLEGAL."""
        request = replica_frames.members_request(change)
        answer = await self._ask(self.listener(member), replica_frames.STORE_MEMBERS, request, STORE_S)
        return replica_frames.stored_of(member.node, answer)

    async def _ask(self, endpoint: Endpoint, path: str, request: bytes, timeout_s: float) -> bytes:
        try:
            return await self._answer(endpoint, path, request, timeout_s)
        except TroveError as error:
            raise explained(error, endpoint.broker) from None

    async def _answer(self, endpoint: Endpoint, path: str, request: bytes, timeout_s: float) -> bytes:
        async with open_channel(str(endpoint.address), endpoint.channels) as channel:
            with reported(endpoint):
                try:
                    async with asyncio.timeout(timeout_s):
                        session = await open_session(channel, self.credentials, timeout_s, must_check=True)
                        metadata, sign = session.call(path)
                        answer: bytes = await channel.unary_unary(path)(
                            sign(request), metadata=metadata, timeout=timeout_s
                        )
                        return answer
                except TimeoutError:
                    text = (
                        f"node {endpoint.broker} at {endpoint.address} has not answered in {timeout_s:.0f} s"
                    )
                    raise TroveError(errors.REQUEST_TIMEOUT, text, broker=endpoint.broker) from None


async def gathered(
    members: Iterable[Member], ask: Callable[[Member], Awaitable[Answer]]
) -> tuple[dict[Node, Answer], dict[Node, TroveError]]:
    """The answers of the nodes, asked at once, and the errors of the others."""
    asked = list(members)
    results = await asyncio.gather(*(ask(one) for one in asked), return_exceptions=True)
    answers: dict[Node, Answer] = {}
    failures: dict[Node, TroveError] = {}
    for member, result in zip(asked, results, strict=True):
        if isinstance(result, TroveError):
            failures[member.node] = result
        elif isinstance(result, SettingsError | OSError):
            failures[member.node] = TroveError(errors.BROKER_UNREACHABLE, f"node {member.node}: {result}")
        elif isinstance(result, BaseException):
            raise result
        else:
            answers[member.node] = result
    return answers, failures
