"""Calls of other nodes of the group: their status, their promise, a later list of members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from trovemq_broker.cluster.config_calls import Endpoint, reported
from trovemq_broker.cluster.nameserver_session import ReadCredentials, open_session
from trovemq_broker.replication.frames import Identity, Node
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange, NodeStatus
from trovemq_broker.server.wire import replica_frames, replica_messages
from trovemq_broker.server.wire.replica_frames import PromiseAsked
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings, open_channel
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import TlsOptions, read_tls
from trovemq_store.replica.membership import Member

_SERVICE: Final = "/trovemq.v1.ReplicaService/"
STATUS_S: Final = 2.0
PROMISE_S: Final = 12.0
"""Longer than a leader's drain: it steps down before it answers."""
STORE_S: Final = 5.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """`channels`: how connections to the ports of clients behave, `streams`: to the nodes' listeners.
    `credentials`: for nodes that ask for a log-in."""

    channels: ChannelSettings
    streams: ChannelSettings
    credentials: ReadCredentials | None

    @classmethod
    def of(
        cls, channels: ChannelSettings, streams_tls: TlsOptions | None, credentials: ReadCredentials | None
    ) -> NodeCalls:
        """Reads the files; blocks. SettingsError for files that cannot be used."""
        try:
            tls = None if streams_tls is None else read_tls(streams_tls)
        except TroveError as error:
            raise SettingsError(error.message) from None
        return cls(replace(channels, tls=None), replace(channels, tls=tls), credentials)

    def listener(self, member: Member) -> Endpoint:
        """The listener of a node's streams. A certificate there must have the node's name. SettingsError."""
        tls = self.streams.tls
        named = None if tls is None else replace(tls, server_name=member.node)
        return Endpoint(member.node, parse_address(member.replication), replace(self.streams, tls=named))

    async def status(self, node: Node, address: Address) -> NodeStatus:
        """TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, and those of the other node."""
        request = replica_messages.status_request().SerializeToString()
        endpoint = Endpoint(node, address, self.channels)
        return replica_messages.read_status(
            await self._ask(endpoint, _SERVICE + "GetReplica", request, STATUS_S)
        )

    async def promise(self, member: Member, asked: PromiseAsked) -> Promised:
        """TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, EPOCH_STALE, GROUP_MISMATCH."""
        request = replica_frames.promise_request(asked)
        answer = await self._ask(self.listener(member), replica_frames.PROMISE, request, PROMISE_S)
        return replica_frames.promised_of(answer)

    async def store_members(self, member: Member, change: MembersChange) -> Identity:
        """The log of the node that has stored the list. TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT,
        GROUP_MISMATCH, EPOCH_STALE, REPLICA_STATE_ILLEGAL."""
        request = replica_messages.store_members_request(change).SerializeToString()
        endpoint = Endpoint(member.node, parse_address(member.address), self.channels)
        answer = await self._ask(endpoint, _SERVICE + "StoreMembers", request, STORE_S)
        return replica_messages.read_stored(member.node, answer)

    async def _ask(self, endpoint: Endpoint, path: str, request: bytes, timeout_s: float) -> bytes:
        async with open_channel(str(endpoint.address), endpoint.channels) as channel:
            with reported(endpoint):
                try:
                    async with asyncio.timeout(timeout_s):
                        session = await open_session(channel, self.credentials, timeout_s)
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
