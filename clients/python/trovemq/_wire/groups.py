"""The calls of GroupService on one connection: the SDK's own values in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trovemq.models.group import (
    DelayedMessage,
    DirectConsumption,
    GroupDescription,
    GroupMember,
    GroupReset,
    GroupSettings,
    QueueLag,
    ResentDeadLetter,
)
from trovemq_proto.records import decode_received
from trovemq_proto.v1 import group_pb2

from .connection import Connection

ANSWER_MARGIN_MS = 5_000
"""How much longer than the client's own time to answer the call may take."""


class GroupCalls:
    """GroupService of the broker called `broker`; every failure is a TroveError."""

    def __init__(self, connection: Connection, broker: str) -> None:
        self._ask = connection.ask
        self._broker = broker

    async def create(self, group: str, settings: GroupSettings) -> GroupDescription:
        request = group_pb2.CreateGroupRequest(group=group, settings=settings_to_wire(settings))
        return _description(
            await self._ask("GroupService/CreateGroup", request, group_pb2.GroupDescription.FromString)
        )

    async def alter(self, group: str, settings: GroupSettings) -> GroupDescription:
        request = group_pb2.AlterGroupRequest(group=group, settings=settings_to_wire(settings))
        return _description(
            await self._ask("GroupService/AlterGroup", request, group_pb2.GroupDescription.FromString)
        )

    async def delete(self, group: str) -> tuple[str, tuple[str, ...]]:
        """Returns the broker's name, because several brokers are called, and the pending ones."""
        request = group_pb2.DeleteGroupRequest(group=group)
        reply = await self._ask("GroupService/DeleteGroup", request, group_pb2.DeleteGroupReply.FromString)
        return self._broker, tuple(reply.pending)

    async def list_all(self) -> list[GroupDescription]:
        request = group_pb2.ListGroupsRequest()
        reply = await self._ask("GroupService/ListGroups", request, group_pb2.ListGroupsReply.FromString)
        return [_description(group) for group in reply.groups]

    async def describe(self, group: str) -> GroupDescription:
        request = group_pb2.DescribeGroupRequest(group=group)
        return _description(
            await self._ask("GroupService/DescribeGroup", request, group_pb2.GroupDescription.FromString)
        )

    async def members(self, group: str) -> list[GroupMember]:
        request = group_pb2.ListMembersRequest(group=group)
        reply = await self._ask("GroupService/ListMembers", request, group_pb2.ListMembersReply.FromString)
        return [self._member(member) for member in reply.members]

    def _member(self, member: group_pb2.GroupMember) -> GroupMember:
        return GroupMember(
            client_id=member.client_id,
            client_type=member.client_type,
            language=member.language,
            version=member.version,
            address=member.address,
            last_heartbeat=member.last_heartbeat,
            in_flight=member.in_flight,
            broker=self._broker,
            subscriptions=dict(member.subscriptions),
        )

    async def lag(self, group: str, topic: str) -> list[QueueLag]:
        request = group_pb2.GetLagRequest(group=group, topic=topic)
        reply = await self._ask("GroupService/GetLag", request, group_pb2.GetLagReply.FromString)
        return [
            QueueLag(
                topic=queue.topic,
                queue_id=queue.queue_id,
                min_offset=queue.min_offset,
                max_offset=queue.max_offset,
                committed=None if queue.committed < 0 else queue.committed,
                next_offset=queue.next_offset,
                in_flight=queue.in_flight,
                lag=queue.lag,
                lag_ms=queue.lag_ms,
                estimated=queue.estimated,
                broker=self._broker,
            )
            for queue in reply.queues
        ]

    async def reset(
        self,
        group: str,
        topic: str,
        queue_id: int | None,
        target: dict[str, Any],
        preview: bool,
        only_new: bool,
    ) -> list[GroupReset]:
        request = group_pb2.ResetGroupRequest(
            group=group, topic=topic, queue_id=queue_id, preview=preview, only_new=only_new, **target
        )
        reply = await self._ask("GroupService/ResetGroup", request, group_pb2.ResetGroupReply.FromString)
        return [
            GroupReset(
                broker=self._broker,
                queue_id=entry.queue_id,
                offset_before=None if entry.offset_before < 0 else entry.offset_before,
                offset=entry.offset,
                in_flight=entry.in_flight,
            )
            for entry in reply.entries
        ]

    async def resend(self, group: str, offsets: Sequence[int]) -> list[ResentDeadLetter]:
        return await self._letters("ResendDeadLetters", group, offsets)

    async def resent(self, group: str, offsets: Sequence[int]) -> list[ResentDeadLetter]:
        return await self._letters("FindResentDeadLetters", group, offsets)

    async def _letters(self, method: str, group: str, offsets: Sequence[int]) -> list[ResentDeadLetter]:
        request = group_pb2.ResendDeadLettersRequest(group=group, offsets=offsets)
        decode = group_pb2.ResendDeadLettersReply.FromString
        reply = await self._ask("GroupService/" + method, request, decode)
        return [
            ResentDeadLetter(
                broker=self._broker,
                offset=entry.offset,
                topic=entry.topic,
                offset_msg_id=entry.offset_msg_id,
                error=entry.error,
                error_message=entry.error_message,
                again=entry.again,
            )
            for entry in reply.entries
        ]

    async def consume_directly(
        self, client_id: str, group: str, message: str, topic: str, timeout_ms: int
    ) -> DirectConsumption:
        request = group_pb2.ConsumeDirectlyRequest(
            client_id=client_id, group=group, topic=topic, message=message, timeout_ms=timeout_ms
        )
        decode = group_pb2.ConsumeDirectlyReply.FromString
        timeout = timeout_ms + ANSWER_MARGIN_MS
        reply = await self._ask("GroupService/ConsumeDirectly", request, decode, timeout)
        return DirectConsumption(reply.result, reply.message, self._broker)

    async def stack_trace(self, client_id: str, group: str, timeout_ms: int) -> str:
        request = group_pb2.PrintStackTraceRequest(client_id=client_id, group=group, timeout_ms=timeout_ms)
        decode = group_pb2.PrintStackTraceReply.FromString
        timeout = timeout_ms + ANSWER_MARGIN_MS
        return (await self._ask("GroupService/PrintThreadStackTrace", request, decode, timeout)).stack_trace

    async def find_delayed(self, topic: str, key: str) -> tuple[list[DelayedMessage], bool]:
        """The delayed messages with the key, by delivery time, and whether these are all."""
        request = group_pb2.FindDelayedRequest(topic=topic, key=key)
        reply = await self._ask("GroupService/FindDelayed", request, group_pb2.FindDelayedReply.FromString)
        found = [
            DelayedMessage(
                message=decode_received(entry.record),
                topic=topic,
                delivery_timestamp=entry.delivery_timestamp,
                recall_handle=entry.recall_handle or None,
                broker=self._broker,
            )
            for entry in reply.entries
        ]
        return found, reply.complete


def settings_to_wire(settings: GroupSettings) -> group_pb2.GroupSettings:
    return group_pb2.GroupSettings(
        orderly=settings.orderly,
        retry_max=settings.retry_max,
        backoff_ms=settings.backoff_ms,
        exponential=settings.exponential,
        backoff_initial_ms=settings.backoff_initial_ms,
        backoff_max_ms=settings.backoff_max_ms,
        backoff_multiplier=settings.backoff_multiplier,
    )


def settings_from_wire(settings: group_pb2.GroupSettings) -> GroupSettings:
    """The settings as the SDK's own value."""
    return GroupSettings(
        orderly=settings.orderly,
        retry_max=settings.retry_max,
        backoff_ms=tuple(settings.backoff_ms),
        exponential=settings.exponential,
        backoff_initial_ms=settings.backoff_initial_ms,
        backoff_max_ms=settings.backoff_max_ms,
        backoff_multiplier=settings.backoff_multiplier,
    )


def _description(group: group_pb2.GroupDescription) -> GroupDescription:
    return GroupDescription(
        group=group.group,
        settings=settings_from_wire(group.settings),
        member_count=group.member_count,
        topics=tuple(group.topics),
        broker=group.broker,
        created=group.created,
        unordered_topics=tuple(group.unordered_topics),
        pending=tuple(group.pending),
    )
