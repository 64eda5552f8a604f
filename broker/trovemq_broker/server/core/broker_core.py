"""The core of an open broker: the parts that the services of both protocols share, wired together.

| event                                 | effect                                                            |
|---------------------------------------|-------------------------------------------------------------------|
| messages of queues become visible     | long polls, receives, delayed messages and transactions see them  |
| the offsets of a group are set        | its messages in flight in these queues are forgotten              |
| a topic is deleted                    | its deliveries, delayed messages and transactions are forgotten   |
| the model appends a record            | the group commit syncs it, and it is dispatched                   |
| a client is gone                      | its messages are delivered again                                  |
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trovemq_broker.admin.group_changes import GroupChanges
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.atomic.commits import AtomicCommits
from trovemq_broker.atomic.open_transactions import OpenTransactions
from trovemq_broker.fetch.long_poll import LongPolls
from trovemq_broker.fetch.offsets import OffsetKeeper
from trovemq_broker.fetch.pull import Puller, PullSettings
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.lag.priority_counts import PriorityCounts
from trovemq_broker.groups.members.new_messages import NewMessages
from trovemq_broker.groups.members.receive_waits import ReceiveWaits
from trovemq_broker.maintenance.consumer_tasks import TimerTask
from trovemq_broker.maintenance.table_files import TableFiles
from trovemq_broker.produce.accumulator import Accumulator
from trovemq_broker.produce.append import Appender, batch_size_limit
from trovemq_broker.produce.group_commit import GroupCommit, Grown
from trovemq_broker.produce.outgoing import OutgoingEncoder
from trovemq_broker.produce.replicated_commit import ReplicaAckSettings, ReplicatedCommit
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.server.core.clients import ClientRegistry
from trovemq_broker.server.core.commands import ClientCommands
from trovemq_broker.server.core.group_kinds import GroupKinds
from trovemq_broker.server.core.group_order import GroupOrder
from trovemq_broker.server.core.settings import CoreSettings
from trovemq_broker.server.monitoring.duplicate_log import log_duplicate, log_gap
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.timers.timers import Timers
from trovemq_broker.transactions.transactions import Transactions
from trovemq_daemon.addresses import Address
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import UniqueKeyGenerator
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups

if TYPE_CHECKING:
    from trovemq_broker.server.monitoring.tracing import BrokerTracing

NONCE_BYTES: Final = 16
SECONDS_2021: Final = 1_609_459_200  # 2021-01-01T00:00:00Z, the origin of the clock in unique keys


def random_nonce() -> str:
    """A nonce for a command to a client."""
    return secrets.token_hex(NONCE_BYTES)


def unique_keys() -> UniqueKeyGenerator:
    """Makes unique keys for messages that a client sent without one."""
    started = time.monotonic()
    return UniqueKeyGenerator(
        uuid.getnode().to_bytes(6),
        os.getpid(),
        int(time.time()) - SECONDS_2021,
        lambda: int(time.monotonic() - started),
    )


class BrokerCore:
    """For use on the event loop only. `stop_work`, then `settle`, before the store is closed."""

    def __init__(
        self,
        store: MessageStore,
        model: ConsumerState,
        settings: CoreSettings,
        advertised: Address,
        version: str,
        *,
        clock_ms: Callable[[], EpochMs],
        wall_ms: Callable[[], EpochMs],
        next_message_id: Callable[[], str] | None = None,
        next_nonce: Callable[[], str] = random_nonce,
        traffic: Traffic | None = None,
        replies: ReplyBudget | None = None,
        tracing: BrokerTracing | None = None,
        replicated: ReplicatedCommit | None = None,
        replica_acks: ReplicaAckSettings | None = None,
    ) -> None:
        """`wall_ms` gives the store times, `clock_ms` all others. `next_message_id`: makes the id of a
        message that was sent without one. `replicated`: the copies of the log in a replica group, with its
        settings."""
        self.store: Final = store
        self.model: Final = model
        self.settings: Final = settings
        self.broker: Final = store.settings.broker
        self.advertised: Final = advertised
        self.version: Final = version
        self.clock_ms: Final = clock_ms
        self.next_message_id: Final = next_message_id or unique_keys().next
        self.traffic: Final = traffic or Traffic()
        self.replies: Final = replies
        self.tracing: Final = tracing
        self.turns: Final = Turns()

        self.groups: Final[SubscriptionGroups] = model.groups
        self.delivery: Final[Delivery] = model.delivery
        self.timers: Final[Timers] = model.timers
        self.transactions: Final[Transactions] = model.transactions
        self.timer_task: Final = TimerTask(model, clock_ms, stopped=settings.timer_stop_dequeue)

        self._open_commit(replicated, replica_acks or ReplicaAckSettings())
        self._open_produce(wall_ms)
        self._open_consume(next_nonce)
        self._open_changes()

    def _open_commit(self, replicated: ReplicatedCommit | None, acks: ReplicaAckSettings) -> None:
        store, settings = self.store, self.settings
        kernel = KernelSync.open() if settings.flush_in_kernel_enable else None
        self.group_commit = GroupCommit(store, settings, self.on_messages_available, kernel)
        if replicated is not None:
            acks = replace(acks, uncommitted_bytes_max=settings.uncommitted_bytes_max)
            self.group_commit.add_copies(store, replicated, acks)
            store.check_append = replicated.check_append
            self.delivery.check_delivery = replicated.check_delivery

    def _open_produce(self, wall_ms: Callable[[], EpochMs]) -> None:
        store, settings = self.store, self.settings
        self.appended = asyncio.Event()
        """Is set at each append."""
        self.deduplication = Deduplication(store, log_duplicate(), log_gap())
        self.appender = Appender(
            store,
            self.group_commit,
            settings,
            wall_ms,
            self.on_messages_available,
            self.appended.set,
            self.deduplication,
            self.tracing,
        )
        self.model.on_append = self.appender.appended
        if store.tables is not None:
            store.tables.on_append, store.tables.clock_ms = self.appender.appended, wall_ms
        self.accumulator = Accumulator(
            self.appender,
            OutgoingEncoder(store.settings, self.appender.store_host_ipv6, self.next_message_id),
            batch_size_limit(store.settings),
            self.group_commit,
            self.traffic.appended,
        )
        commits = AtomicCommits(store, self.model, self.deduplication)
        self.atomic = OpenTransactions(commits, settings, self.appender.topic_for_write)

    def _open_consume(self, next_nonce: Callable[[], str]) -> None:
        store, settings = self.store, self.settings
        self.long_polls = LongPolls(settings.long_polls_max)
        new_messages = NewMessages(store, self.delivery.next_offset)
        self.waits = ReceiveWaits(settings.receive_polls_max, new_messages)
        self.puller = Puller(store, PullSettings(bytes_max=settings.pull_bytes_max))
        self.table_files = TableFiles(store, self.group_commit.committed)
        self.offsets = OffsetKeeper(
            store, self.group_commit.committed, self.search, self._offsets_moved, self.table_files.write
        )
        self.order = GroupOrder(
            store.topics,
            self.groups,
            auto_create=settings.auto_create_group,
            fifo_orderly=settings.fifo_group_orderly,
        )
        self.registry = ClientRegistry(settings.clients_max, settings.client_expiry_ms)
        self.registry.add_gone_listener(self.delivery.release_client)
        self.kinds = GroupKinds(self)
        self.commands = ClientCommands(self.registry, next_nonce)
        if self.tracing is not None:
            self.delivery.on_settled = self.tracing.settled

    def _open_changes(self) -> None:
        self.priorities = PriorityCounts(self.store)
        self.topic_changes = TopicChanges(
            self.store,
            self.clock_ms,
            self.offsets.save,
            self._topic_deleted,
            self._wake_topic,
            self.group_commit.committed,
        )
        self.group_changes = GroupChanges(
            self.groups,
            self.store,
            self.delivery,
            self.topic_changes,
            self.clock_ms,
            self.offsets.save,
            self.waits.wake_group,
            self.registry.forget_group,
            self.group_commit.committed,
        )

    # --- look-ups -------------------------------------------------------------------------------------
    def group_for_use(self, name: str, topics: Iterable[str]) -> SubscriptionGroup:
        """The group, which reads these topics. Its first use creates it if settings allow that; else raises
        TroveError GROUP_NOT_FOUND; GROUP_CLIENTS_DIFFER while it has remoting clients."""
        self.kinds.check_leases(name)
        return self.order.for_use(name, topics, self.clock_ms())

    def search(self, topic: str, queue_id: QueueId, timestamp: EpochMs) -> QueueOffset:
        """The first queue offset stored at or after that time."""
        return search_offset(self.store, topic, queue_id, timestamp)

    # --- events ---------------------------------------------------------------------------------------
    def on_messages_available(self, queues: Grown) -> None:
        """Wakes all calls that wait for messages of these queues."""
        if self.group_commit.acks_wait and len(self.long_polls):
            # Many polls may wait for one queue, and the senders that wait for this sync are to be answered
            # first. In async mode the acknowledgements were sent before.
            asyncio.get_running_loop().call_soon(self.long_polls.wake, queues)
        else:
            self.long_polls.wake(queues)
        self.model.on_messages_available(queues)
        self.timer_task.changed()
        self.waits.on_messages_available(queues)

    def _offsets_moved(
        self, group: str, topic: str, offsets: Mapping[QueueId, QueueOffset]
    ) -> Mapping[QueueId, int]:
        """A group's offsets were set. Returns the number of forgotten messages of each queue."""
        forgotten = self.delivery.reset(group, topic, offsets, self.clock_ms())
        self.waits.wake((group, topic))
        return forgotten

    def _topic_deleted(self, topic: str) -> None:
        self.deduplication.forget_topic(topic)
        self.priorities.forget(topic)
        now_ms = self.clock_ms()
        self.delivery.forget_topic(topic, now_ms)
        self.timers.forget_topic(topic, now_ms)
        self.transactions.forget_topic(topic)
        self.traffic.forget(topic)
        self._wake_topic(topic)

    def _wake_topic(self, topic: str) -> None:
        """Waiting calls of a topic that is gone, or may not be read any more, try again and find out."""
        self.long_polls.wake_topic(topic)
        self.waits.wake_topic(topic)

    # --- stopping -------------------------------------------------------------------------------------
    def stop_work(self) -> None:
        """Appends what has arrived, refuses further appends, begins the last sync and ends all waits."""
        self.accumulator.append_all()
        self.appender.refuse(TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping"))
        self.group_commit.stop()
        self.long_polls.close()
        self.waits.close()

    async def settle(self) -> None:
        """Returns when no thread writes any more. Is called when there are no more requests. From then on the
        store is another's, which may append."""
        await self.kinds.settle()
        await self.topic_changes.settle()
        await self.group_changes.settle()
        await self.offsets.settle()
        self.store.check_append = None
