"""GroupService: consumer groups, their members, lag and dead letters; commands to their consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import grpc

from trovemq_broker.admin.shared_groups import SharedGroups
from trovemq_broker.cluster_config.owner import ChangeResult
from trovemq_broker.filters.filter import Filter, parse_filter
from trovemq_broker.groups.dead_letters import DeadLetters, Resent, known_topic
from trovemq_broker.groups.lag.filtered import GroupLags
from trovemq_broker.query.get_message import message_steps
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.pages import WORK_MAX
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.clients import Client
from trovemq_broker.server.core.commands import TIMEOUT_MS
from trovemq_broker.server.core.group_order import fifo_topics
from trovemq_broker.server.native.shared_changes import SharedChanges, shared_change
from trovemq_broker.server.wire import group_messages as wire
from trovemq_broker.server.wire.client_commands import StoredMessage
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_broker.timers.recall_handle import encode_recall_handle
from trovemq_broker.track.delayed import delayed_messages
from trovemq_daemon.grpc_services import add_service
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueOffset
from trovemq_proto.records import Message, decode_stored
from trovemq_store.engine.queues import queue_ids
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.names import check_group_name, is_system_group, is_system_topic
from trovemq_store.topics.subscription_groups import SubscriptionGroup

GROUPS_STEP: Final = 64
LOOK_UP_WORK_MAX: Final = 4 * WORK_MAX  # of the look-up of one dead letter's copies


class GroupService:
    """The methods are those of group.proto; every refusal is a TroveError."""

    def __init__(self, core: BrokerCore, shared: SharedChanges | None = None) -> None:
        self._core = core
        self.shared = shared or SharedChanges()
        self._cluster = SharedGroups(self.shared.config, core.groups)
        self._store = core.store
        self._groups = core.model.groups
        self._registry = core.registry
        self._lags = GroupLags(
            core.store, core.model.delivery.progress, self._filters_of, core.model.timers.pending_of
        )
        self._dead_letters = DeadLetters(core.store, core.model.writer, self._messages_of)
        self.shared.add(wire.SERVICE, self)

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    # --- groups -------------------------------------------------------------------------------------
    @shared_change
    async def create_group(self, request: Request, _context: Context) -> Reply:
        wanted = wire.group_of(request)
        if self.shared.config.is_shared:
            return self._changed(await self._cluster.create(wanted, present_creator()))
        await self._core.group_changes.create(wanted)
        return wire.group_reply(self._describe(wanted.name, self._core.group_changes.topics_of(wanted.name)))

    @shared_change
    async def alter_group(self, request: Request, _context: Context) -> Reply:
        wanted = wire.group_of(request)
        if self.shared.config.is_shared:
            return self._changed(await self._cluster.alter(wanted))
        await self._core.group_changes.alter(
            wanted.name,
            orderly=wanted.orderly,
            retry_max=wanted.retry_max,
            retry_policy=wanted.retry_policy,
        )
        return wire.group_reply(self._describe(wanted.name, self._core.group_changes.topics_of(wanted.name)))

    @shared_change
    async def delete_group(self, request: Request, _context: Context) -> Reply:
        group = wire.named_group(request)
        if self._cluster.is_listed(group):
            return wire.deleted_reply((await self._cluster.delete(group)).pending)
        await self._core.group_changes.delete(group)
        return wire.deleted_reply()

    def forwarded_as(self, name: str, request: Request, _context: Context) -> str:
        """A group that its first use made here is deleted here, and is created for all by its alteration."""
        is_own = request.group in self._groups and not self._cluster.is_listed(request.group)
        return {"delete_group": "", "alter_group": "create_group"}.get(name, name) if is_own else name

    def _changed(self, result: ChangeResult) -> Reply:
        """The reply to a change of the cluster's configuration."""
        name = result.entry.name
        topics = self._core.group_changes.topics_of(name)
        described = replace(self._describe(name, topics), settings=self._cluster.settings(result.entry))
        return wire.group_reply(replace(described, created=True), result.pending)

    async def list_groups(self, _request: Request, _context: Context) -> Reply:
        """All groups of the table, and all others that have offsets or members."""
        return await self._core.turns.run(self._list_steps())

    def _list_steps(self) -> Steps[Reply]:
        topics = yield from self._core.group_changes.topics_by_group()
        asked: dict[str, list[str]] = {}
        for group, topic in self._registry.subscriptions():
            asked.setdefault(group, []).append(topic)
        names = {*self._groups.names(), *topics, *self._registry.groups()}
        groups = wire.GroupList()
        for number, name in enumerate(sorted(names), 1):
            if number % GROUPS_STEP == 0:
                yield
            if not is_system_group(name):
                groups.add(self._described(name, (*topics.get(name, ()), *asked.get(name, ()))))
        return groups.reply

    async def describe_group(self, request: Request, _context: Context) -> Reply:
        group = wire.named_group(request)
        return wire.group_reply(self._describe(group, self._topics_of(group)))

    async def list_members(self, request: Request, _context: Context) -> Reply:
        group = wire.named_group(request)
        self._topics_of(group)
        return wire.members_reply(self._member(client) for client in self._registry.members(group))

    def _member(self, client: Client) -> wire.GroupMember:
        description = client.description
        return wire.GroupMember(
            client_id=client.client_id,
            client_type=description.client_type,
            language=description.language,
            version=description.version,
            address=description.peer,
            last_heartbeat_ms=client.last_heartbeat_ms,
            subscriptions={topic: wanted.expression for topic, wanted in description.subscriptions.items()},
            in_flight=self._core.model.delivery.held_by(client.client_id),
        )

    def _topics_of(self, group: str) -> list[str]:
        """Raises TroveError GROUP_NOT_FOUND if nothing is known of the group."""
        topics = self._core.group_changes.topics_of(group)
        if not topics and group not in self._groups and not self._registry.members(group):
            shown = group[:200]
            raise TroveError(errors.GROUP_NOT_FOUND, f"group {shown!r} is not known here", group=shown)
        return topics

    def _describe(self, name: str, topics: Sequence[str]) -> wire.DescribedGroup:
        asked = (topic for _, topic in self._registry.subscriptions(group=name))
        return self._described(name, [*topics, *asked])

    def _described(self, name: str, topics: Iterable[str]) -> wire.DescribedGroup:
        """`topics`: those that the group reads, and those to which its members subscribe."""
        group = self._groups.get(name)
        topics = sorted(set(topics))
        orderly = group is not None and group.orderly
        return wire.DescribedGroup(
            settings=group or SubscriptionGroup(name),
            member_count=len(self._registry.members(name)),
            topics=topics,
            broker=self._store.settings.broker,
            created=group is not None,
            unordered_topics=() if orderly else fifo_topics(self._store.topics, topics),
        )

    # --- lag ----------------------------------------------------------------------------------------
    async def get_lag(self, request: Request, _context: Context) -> Reply:
        command = wire.lag_of(request)
        group = command.group
        topics = self._topics_of(group)
        if command.topic:
            queue_ids(self._store, command.topic)
            topics = [command.topic]
        else:
            wanted = {topic for _, topic in self._registry.subscriptions(group=group)}
            topics = sorted(topic for topic in wanted.union(topics) if self._is_there(topic))
        return wire.lag_reply(
            await self._core.turns.run(self._lags.steps(group, topics, self._core.clock_ms()))
        )

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

    async def reset_group(self, request: Request, _context: Context) -> Reply:
        command, offsets = wire.reset_of(request), self._core.offsets
        group, topic, only_new = command.group, command.topic, command.only_new
        check_group_name(group)
        if not only_new:
            self._topics_of(group)
        if command.preview:
            entries = offsets.preview(group, topic, command.queue_id, command.target, only_new=only_new)
        else:
            entries = await offsets.reset(group, topic, command.queue_id, command.target, only_new=only_new)
        return wire.reset_reply(entries)

    # --- dead letters -------------------------------------------------------------------------------
    async def resend_dead_letters(self, request: Request, _context: Context) -> Reply:
        letters, clock_ms = wire.dead_letters_of(request), self._core.clock_ms
        results = await self._each_letter(
            letters, lambda offset: self._dead_letters.resend(letters.group, QueueOffset(offset), clock_ms())
        )
        return wire.resent_reply(results, await self._on_disk(results.values()))

    async def find_resent_dead_letters(self, request: Request, _context: Context) -> Reply:
        letters = wire.dead_letters_of(request)
        return wire.resent_reply(
            await self._each_letter(
                letters, lambda offset: self._dead_letters.resent(letters.group, QueueOffset(offset))
            )
        )

    async def _each_letter(
        self, letters: wire.DeadLetterOffsets, look: Callable[[int], Resent | None]
    ) -> dict[int, Resent | TroveError | None]:
        """The result of `look`, or its error, by offset. Raises TroveError GROUP_ILLEGAL,
        TOPIC_NOT_FOUND."""
        self._dead_letters.check_group(letters.group)
        results: dict[int, Resent | TroveError | None] = {}
        for offset in letters.offsets:
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
                await self._core.group_commit.durable(max(ends))
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
    async def consume_directly(self, request: Request, _context: Context) -> Reply:
        command = wire.consume_of(request)
        check_group_name(command.group)
        message = await self._stored_message(command.message, command.topic)
        answer = await self._core.commands.verify_message(
            command.client_id, command.group, message, command.timeout_ms or TIMEOUT_MS
        )
        return wire.consumed_reply(answer)

    async def _stored_message(self, identifier: str, topic: str) -> StoredMessage:
        """The message; of several with one unique key the newest in a user's topic. A copy in a retry or
        dead-letter topic is sent with the topic that the consumer knows."""
        found = await self._core.turns.run(message_steps(self._store, identifier, topic))
        messages = [decode_stored(record) for record in found.records]
        chosen = next((i for i, one in enumerate(messages) if not is_system_topic(one.topic)), 0)
        message = messages[chosen]
        return StoredMessage(
            found.records[chosen], known_topic(message), message.queue_id, found.queue_offsets[chosen]
        )

    async def print_thread_stack_trace(self, request: Request, _context: Context) -> Reply:
        command = wire.stacks_of(request)
        check_group_name(command.group)
        answer = await self._core.commands.print_stack_trace(
            command.client_id, command.group, command.timeout_ms or TIMEOUT_MS
        )
        return wire.stacks_reply(answer)

    # --- delayed messages ---------------------------------------------------------------------------
    async def find_delayed(self, request: Request, _context: Context) -> Reply:
        command = wire.delayed_of(request)
        steps = delayed_messages(self._store, self._core.model.timers, command.topic, command.key)
        found = await self._core.turns.run(steps)
        messages = [
            wire.FoundDelayed(
                one.record,
                one.deliver_ms,
                self._recall_handle(command.topic, one.deliver_ms, one.unique_key),
            )
            for one in found.messages
        ]
        return wire.delayed_reply(messages, complete=found.complete)

    def _recall_handle(self, topic: str, deliver_ms: EpochMs, unique_key: str) -> str:
        if not unique_key or " " in unique_key:
            return ""
        return encode_recall_handle(topic, self._store.settings.broker, deliver_ms, unique_key)
