"""Calls of other nodes of the group: their status, their promise, a later list of members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from trovemq_broker.cluster.config_calls import Endpoint, reported
from trovemq_broker.cluster.nameserver_session import ReadCredentials, open_session
from trovemq_broker.replication.frames import Node
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange, NodeStatus
from trovemq_broker.server.wire import replica_frames, replica_messages
from trovemq_broker.server.wire.replica_frames import PromiseAsked
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings, open_channel
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member

_SERVICE: Final = "/trovemq.v1.ReplicaService/"
_STREAMS: Final = "/trovemq.v1.ReplicationService/"
STATUS_S: Final = 2.0
PROMISE_S: Final = 12.0
"""Longer than a leader's drain: it steps down before it answers."""
STORE_S: Final = 5.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """`channels`: how connections behave, without TLS. `credentials`: for nodes that ask for a log-in."""

    channels: ChannelSettings
    credentials: ReadCredentials | None

    @classmethod
    def of(cls, channels: ChannelSettings, credentials: ReadCredentials | None) -> NodeCalls:
        return cls(replace(channels, tls=None), credentials)

    def endpoint(self, node: Node, address: Address) -> Endpoint:
        return Endpoint(node, address, self.channels)

    async def status(self, node: Node, address: Address) -> NodeStatus:
        """TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, and those of the other node."""
        request = replica_messages.status_request().SerializeToString()
        return replica_messages.read_status(
            await self._ask(node, address, _SERVICE + "GetReplica", request, STATUS_S)
        )

    async def promise(self, member: Member, asked: PromiseAsked) -> Promised:
        """TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, EPOCH_STALE, GROUP_MISMATCH."""
        request = replica_frames.promise_request(asked)
        address = parse_address(member.replication)
        return replica_frames.promised_of(
            await self._ask(member.node, address, _STREAMS + "Promise", request, PROMISE_S)
        )

    async def store_members(self, member: Member, change: MembersChange) -> None:
        """TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT, GROUP_MISMATCH, EPOCH_STALE."""
        request = replica_messages.store_members_request(change).SerializeToString()
        address = parse_address(member.address)
        await self._ask(member.node, address, _SERVICE + "StoreMembers", request, STORE_S)

    async def _ask(self, node: Node, address: Address, path: str, request: bytes, timeout_s: float) -> bytes:
        endpoint = self.endpoint(node, address)
        async with open_channel(str(address), self.channels) as channel:
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
                    text = f"node {node} at {address} has not answered in {timeout_s:.0f} s"
                    raise TroveError(errors.REQUEST_TIMEOUT, text, broker=node) from None


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
