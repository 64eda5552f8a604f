"""GroupService: consumer groups, their members, lag and dead letters; commands to their consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.admin.group_changes import GroupChanges
from trovemq_broker.fetch.offsets import OffsetKeeper
from trovemq_broker.filters.filter import Filter, parse_filter
from trovemq_broker.groups.dead_letters import ORIGIN_TOPIC_PROPERTIES, DeadLetters, Resent
from trovemq_broker.groups.lag.filtered import GroupLags
from trovemq_broker.query.get_message import message_steps
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.pages import WORK_MAX
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.server.core.clients import ClientRegistry
from trovemq_broker.server.core.commands import TIMEOUT_MS, ClientCommands
from trovemq_broker.server.core.group_order import fifo_topics
from trovemq_broker.server.native.group_convert import (
    group_of,
    lag_to_wire,
    member_to_wire,
    reset_entry_to_wire,
    reset_target,
    settings_to_wire,
)
from trovemq_broker.server.wire.client_commands import StoredMessage
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.timers.recall_handle import encode_recall_handle
from trovemq_broker.track.delayed import delayed_messages
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import Message, decode_stored
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import group_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.names import check_group_name, is_system_group, is_system_topic
from trovemq_store.topics.subscription_groups import SubscriptionGroup

SERVICE: Final = group_pb2.DESCRIPTOR.services_by_name["GroupService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

RESEND_MAX: Final = 1_000  # of one call
GROUPS_STEP: Final = 64
LOOK_UP_WORK_MAX: Final = 4 * WORK_MAX  # of the look-up of one dead letter's copies


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupServiceParts:
    """The parts of the service. `durable` waits until the log is on disk up to a physical offset; `turns` are
    those of all long work."""

    store: MessageStore
    model: ConsumerState
    changes: GroupChanges
    offsets: OffsetKeeper
    registry: ClientRegistry
    commands: ClientCommands
    durable: Callable[[PhysicalOffset], Awaitable[None]]
    turns: Turns
    clock_ms: Callable[[], EpochMs]


class GroupService:
    """The methods are those of group.proto; every refusal is a TroveError."""

    def __init__(self, parts: GroupServiceParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._groups = parts.model.groups
        self._registry = parts.registry
        self._lags = GroupLags(
            parts.store, parts.model.delivery.progress, self._filters_of, parts.model.timers.pending_of
        )
        self._dead_letters = DeadLetters(parts.store, parts.model.writer, self._messages_of)

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, SERVICE, self)

    # --- groups -------------------------------------------------------------------------------------
    async def create_group(
        self, request: group_pb2.CreateGroupRequest, _context: Context
    ) -> group_pb2.GroupDescription:
        settings = request.settings if request.HasField("settings") else None
        await self._parts.changes.create(group_of(request.group, settings))
        return self._describe(request.group, self._parts.changes.topics_of(request.group))

    async def alter_group(
        self, request: group_pb2.AlterGroupRequest, _context: Context
    ) -> group_pb2.GroupDescription:
        wanted = group_of(request.group, request.settings if request.HasField("settings") else None)
        await self._parts.changes.alter(
            wanted.name,
            orderly=wanted.orderly,
            retry_max=wanted.retry_max,
            retry_policy=wanted.retry_policy,
        )
        return self._describe(request.group, self._parts.changes.topics_of(request.group))

    async def delete_group(
        self, request: group_pb2.DeleteGroupRequest, _context: Context
    ) -> group_pb2.DeleteGroupReply:
        await self._parts.changes.delete(request.group)
        self._registry.forget_group(request.group)
        return group_pb2.DeleteGroupReply()

    async def list_groups(
        self, _request: group_pb2.ListGroupsRequest, _context: Context
    ) -> group_pb2.ListGroupsReply:
        """All groups of the table, and all others that have offsets or members."""
        return await self._parts.turns.run(self._list_steps())

    def _list_steps(self) -> Steps[group_pb2.ListGroupsReply]:
        topics = yield from self._parts.changes.topics_by_group()
        asked: dict[str, list[str]] = {}
        for group, topic in self._registry.subscriptions():
            asked.setdefault(group, []).append(topic)
        names = {*self._groups.names(), *topics, *self._registry.groups()}
        reply = group_pb2.ListGroupsReply()
        for number, name in enumerate(sorted(names), 1):
            if number % GROUPS_STEP == 0:
                yield
            if not is_system_group(name):
                reply.groups.append(self._description(name, (*topics.get(name, ()), *asked.get(name, ()))))
        return reply

    async def describe_group(
        self, request: group_pb2.DescribeGroupRequest, _context: Context
    ) -> group_pb2.GroupDescription:
        return self._describe(request.group, self._topics_of(request.group))

    async def list_members(
        self, request: group_pb2.ListMembersRequest, _context: Context
    ) -> group_pb2.ListMembersReply:
        self._topics_of(request.group)
        held_by = self._parts.model.delivery.held_by
        members = self._registry.members(request.group)
        return group_pb2.ListMembersReply(
            members=[member_to_wire(client, held_by(client.client_id)) for client in members]
        )

    def _topics_of(self, group: str) -> list[str]:
        """Raises TroveError GROUP_NOT_FOUND if nothing is known of the group."""
        topics = self._parts.changes.topics_of(group)
        if not topics and group not in self._groups and not self._registry.members(group):
            shown = group[:200]
            raise TroveError(errors.GROUP_NOT_FOUND, f"group {shown!r} is not known here", group=shown)
        return topics

    def _describe(self, name: str, topics: Sequence[str]) -> group_pb2.GroupDescription:
        asked = (topic for _, topic in self._registry.subscriptions(group=name))
        return self._description(name, [*topics, *asked])

    def _description(self, name: str, topics: Iterable[str]) -> group_pb2.GroupDescription:
        """`topics`: those that the group reads, and those to which its members subscribe."""
        group = self._groups.get(name)
        topics = sorted(set(topics))
        orderly = group is not None and group.orderly
        return group_pb2.GroupDescription(
            group=name,
            settings=settings_to_wire(group or SubscriptionGroup(name)),
            member_count=len(self._registry.members(name)),
            topics=topics,
            broker=self._store.settings.broker,
            created=group is not None,
            unordered_topics=() if orderly else fifo_topics(self._store.topics, topics),
        )

    # --- lag ----------------------------------------------------------------------------------------
    async def get_lag(self, request: group_pb2.GetLagRequest, _context: Context) -> group_pb2.GetLagReply:
        topics = self._topics_of(request.group)
        if request.topic:
            queue_ids(self._store, request.topic)
            topics = [request.topic]
        else:
            wanted = {topic for _, topic in self._registry.subscriptions(group=request.group)}
            topics = sorted(topic for topic in wanted.union(topics) if self._is_there(topic))
        lags = await self._parts.turns.run(self._lags.steps(request.group, topics, self._parts.clock_ms()))
        return group_pb2.GetLagReply(queues=[lag_to_wire(lag) for lag in lags])

    def _is_there(self, topic: str) -> bool:
        return topic in self._store.topics or bool(self._store.consume_queues.queues(topic))

    def _filters_of(self, group: str, topic: str) -> list[Filter]:
        """The filters of the group's last subscription."""
        subscription = self._registry.subscription(group, topic)
        if subscription is None:
            return []
        try:
            return [parse_filter(subscription.kind, subscription.expression)]
        except TroveError:
            return []  # it cannot be parsed: its consumers get an error, and all messages still wait

    async def reset_group(
        self, request: group_pb2.ResetGroupRequest, _context: Context
    ) -> group_pb2.ResetGroupReply:
        queue_id = QueueId(request.queue_id) if request.HasField("queue_id") else None
        target, offsets = reset_target(request), self._parts.offsets
        check_group_name(request.group)
        group, topic, only_new = request.group, request.topic, request.only_new
        if not only_new:
            self._topics_of(group)
        if request.preview:
            entries = offsets.preview(group, topic, queue_id, target, only_new=only_new)
        else:
            entries = await offsets.reset(group, topic, queue_id, target, only_new=only_new)
        return group_pb2.ResetGroupReply(entries=[reset_entry_to_wire(entry) for entry in entries])

    # --- dead letters -------------------------------------------------------------------------------
    async def resend_dead_letters(
        self, request: group_pb2.ResendDeadLettersRequest, _context: Context
    ) -> group_pb2.ResendDeadLettersReply:
        clock_ms = self._parts.clock_ms
        results = await self._each_letter(
            request, lambda offset: self._dead_letters.resend(request.group, QueueOffset(offset), clock_ms())
        )
        failure = await self._on_disk(results.values())
        return group_pb2.ResendDeadLettersReply(
            entries=[_resent(offset, result, failure) for offset, result in results.items() if result]
        )

    async def find_resent_dead_letters(
        self, request: group_pb2.ResendDeadLettersRequest, _context: Context
    ) -> group_pb2.ResendDeadLettersReply:
        results = await self._each_letter(
            request, lambda offset: self._dead_letters.resent(request.group, QueueOffset(offset))
        )
        return group_pb2.ResendDeadLettersReply(
            entries=[_resent(offset, result, None) for offset, result in results.items() if result]
        )

    async def _each_letter(
        self, request: group_pb2.ResendDeadLettersRequest, look: Callable[[int], Resent | None]
    ) -> dict[int, Resent | TroveError | None]:
        """The result of `look`, or its error, by offset. Raises TroveError REQUEST_ILLEGAL, and as
        check_group()."""
        offsets = list(dict.fromkeys(request.offsets))
        if not 1 <= len(offsets) <= RESEND_MAX:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{len(offsets)} offsets; give 1 to {RESEND_MAX}")
        self._dead_letters.check_group(request.group)
        results: dict[int, Resent | TroveError | None] = {}
        for offset in offsets:
            try:
                results[offset] = look(offset)
            except TroveError as error:
                results[offset] = error
            await asyncio.sleep(0)  # lets other requests run: each letter's copies are looked up
        return results

    async def _on_disk(self, results: Iterable[Resent | TroveError | None]) -> TroveError | None:
        """Waits for the sync of the appended messages; returns the error if it failed."""
        ends = [result.end for result in results if isinstance(result, Resent)]
        try:
            if ends:
                await self._parts.durable(max(ends))
        except TroveError as error:
            return error
        return None

    def _messages_of(self, topic: str, unique_key: str) -> Iterator[Message]:
        """The visible messages with that key, newest first; none without an index."""
        query = KeyQuery(topic, unique_key, KeyType.UNIQUE)
        try:
            for page in query_pages(self._store, query, work_max=LOOK_UP_WORK_MAX):
                yield from map(decode_stored, page.records)
        except TroveError:
            return

    # --- commands to consumers ----------------------------------------------------------------------
    async def consume_directly(
        self, request: group_pb2.ConsumeDirectlyRequest, _context: Context
    ) -> group_pb2.ConsumeDirectlyReply:
        check_group_name(request.group)
        message = await self._stored_message(request.message, request.topic)
        answer = await self._parts.commands.verify_message(
            request.client_id, request.group, message, request.timeout_ms or TIMEOUT_MS
        )
        return group_pb2.ConsumeDirectlyReply(result=_code_name(answer.code), message=answer.text)

    async def _stored_message(self, identifier: str, topic: str) -> StoredMessage:
        """The message; of several with one unique key the newest in a user's topic. A copy in a retry or
        dead-letter topic is sent with the topic that the consumer knows."""
        found = await self._parts.turns.run(message_steps(self._store, identifier, topic))
        messages = [decode_stored(record) for record in found.records]
        chosen = next((i for i, one in enumerate(messages) if not is_system_topic(one.topic)), 0)
        message = messages[chosen]
        return StoredMessage(
            found.records[chosen], _known_topic(message), message.queue_id, found.queue_offsets[chosen]
        )

    async def print_thread_stack_trace(
        self, request: group_pb2.PrintStackTraceRequest, _context: Context
    ) -> group_pb2.PrintStackTraceReply:
        check_group_name(request.group)
        answer = await self._parts.commands.print_stack_trace(
            request.client_id, request.group, request.timeout_ms or TIMEOUT_MS
        )
        return group_pb2.PrintStackTraceReply(stack_trace=answer.text)

    # --- delayed messages ---------------------------------------------------------------------------
    async def find_delayed(
        self, request: group_pb2.FindDelayedRequest, _context: Context
    ) -> group_pb2.FindDelayedReply:
        timers = self._parts.model.timers
        steps = delayed_messages(self._store, timers, request.topic, request.key)
        found = await self._parts.turns.run(steps)
        return group_pb2.FindDelayedReply(
            entries=[
                group_pb2.FindDelayedReply.Entry(
                    record=bytes(one.record),
                    delivery_timestamp=one.deliver_ms,
                    recall_handle=self._recall_handle(request.topic, one.deliver_ms, one.unique_key),
                )
                for one in found.messages
            ],
            complete=found.complete,
        )

    def _recall_handle(self, topic: str, deliver_ms: EpochMs, unique_key: str) -> str:
        if not unique_key or " " in unique_key:
            return ""
        return encode_recall_handle(topic, self._store.settings.broker, deliver_ms, unique_key)


def _resent(
    offset: int, result: Resent | TroveError, failure: TroveError | None
) -> group_pb2.ResendDeadLettersReply.Entry:
    """The entry of one result. `failure`: that of the sync, for all appended messages."""
    entry = group_pb2.ResendDeadLettersReply.Entry(offset=offset)
    error = result if isinstance(result, TroveError) else failure
    if isinstance(result, Resent):
        entry.topic, entry.offset_msg_id = result.topic, result.offset_msg_id
        entry.again = result.again
    if error is not None:
        entry.error, entry.error_message = error.symbol, error.message
    return entry


def _known_topic(message: Message) -> str:
    if is_system_topic(message.topic):
        for name in (*ORIGIN_TOPIC_PROPERTIES, "REAL_TOPIC"):
            if topic := message.properties.get(name):
                return topic
    return message.topic


def _code_name(code: v2.Code) -> str:
    """RocketMQ's name of a status; the number if the name is unknown."""
    return v2.Code.Name(code) if code in v2.Code.values() else str(code)
