"""Messages that are stored now and readable later: delayed messages, half messages, and their ends.

The handlers of both protocols call it, with messages that have passed the checks of their protocol.
"""

from __future__ import annotations

from collections.abc import Callable

from trovemq_broker.produce.outgoing import OutgoingMessage
from trovemq_broker.produce.unique_appends import append_once
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.timers.scheduling import Scheduled, Scheduling
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.engine.message_store import AppendResult
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.failures import storage_errors
from trovemq_store.topics.message_kinds import accepted_kinds


class DeferredMessages:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._scheduling = Scheduling(core.timers, core.appender.deduplication, core.broker)

    # --- sending ------------------------------------------------------------------------------------
    def schedule(
        self,
        topic: str,
        queue_id: QueueId,
        message: OutgoingMessage,
        deliver_ms: EpochMs,
        *,
        born_host: bytes,
        now_ms: EpochMs,
    ) -> Scheduled:
        """Stores a message to be delivered at deliver_ms (epoch ms). A negative queue_id lets the broker
        choose. TroveError DELIVERY_TIME_ILLEGAL, LIMIT_EXCEEDED, and the errors of an append."""
        record = self._record(topic, queue_id, message, born_host, now_ms)
        scheduled = self._scheduling.schedule(record, deliver_ms, now_ms)
        self._count(topic, scheduled.result)
        return scheduled

    def prepare(
        self,
        topic: str,
        queue_id: QueueId,
        message: OutgoingMessage,
        client_id: str,
        immunity_ms: int,
        *,
        born_host: bytes,
        now_ms: EpochMs,
    ) -> AppendResult:
        """Stores a half message of that client; it can be asked from now on. `immunity_ms`: delay of its
        first check; 0: the time in the settings. TroveError TRANSACTION_ILLEGAL (no UNIQ_KEY),
        LIMIT_EXCEEDED, and the errors of an append."""
        core = self._core
        record = self._record(topic, queue_id, message, born_host, now_ms)
        result = append_once(
            core.appender.deduplication,
            record,
            now_ms,
            lambda: core.transactions.prepare(record, now_ms, client_id=client_id, immunity_ms=immunity_ms),
        )
        self._count(topic, result)
        core.registry.sent_half(client_id, topic)
        return result

    def _record(
        self, topic: str, queue_id: QueueId, message: OutgoingMessage, born_host: bytes, now_ms: EpochMs
    ) -> NewRecord:
        return NewRecord(
            topic,
            self._core.accumulator.queue_of(topic, queue_id) if queue_id < 0 else queue_id,
            message.body,
            message.stored_properties(""),
            message.born_timestamp or now_ms,
            born_host,
            message.flag,
        )

    def _count(self, topic: str, result: AppendResult) -> None:
        self._core.traffic.appended(topic, result.record_count, result.bytes_written)

    # --- ends ---------------------------------------------------------------------------------------
    async def end_transaction(self, topic: str, transaction_id: str, *, commit: bool) -> None:
        """Commits or rolls back a transaction; durable afterwards. Raises TroveError TRANSACTION_ILLEGAL
        (blank, unknown, or ended before), and as Transactions.end."""
        if not transaction_id.strip():
            raise TroveError(errors.TRANSACTION_ILLEGAL, "the transaction id is blank")
        transactions = self._core.transactions

        def end(now_ms: EpochMs) -> AppendResult | None:
            with storage_errors("the append failed", errors.UNKNOWN_ERROR):
                return transactions.end(transaction_id, topic, commit=commit, now_ms=now_ms)

        await self._written(topic, end)

    async def recall(self, topic: str, recall_handle: str, *, any_type: bool = False) -> str:
        """Cancels a delayed message of the topic; durable afterwards. To repeat the call changes nothing.
        `any_type`: topics of every type may have delayed messages.

        Returns:
            The message's unique key.

        Raises:
            TroveError: TOPIC_NOT_FOUND, MESSAGE_TYPE_CONFLICT, and as Scheduling.
        """
        config = self._core.store.topics.require(topic)
        if not any_type and "DELAY" not in accepted_kinds(config):
            raise TroveError(
                errors.MESSAGE_TYPE_CONFLICT,
                f"topic {topic} is of type {config.message_type}: it has no delayed messages",
            )
        handle = self._scheduling.read_handle(topic, recall_handle)
        await self._written(topic, lambda now_ms: self._scheduling.recall(handle, now_ms), repeated=True)
        return handle.message_id

    async def _written(
        self, topic: str, write: Callable[[EpochMs], AppendResult | None], *, repeated: bool = False
    ) -> None:
        """Returns when the records are as durable as an acknowledged message of the topic. `repeated`: where
        nothing is written, an earlier call wrote them, which may wait still."""
        core = self._core
        if core.group_commit.full:
            await core.group_commit.wait_for_capacity()
        core.appender.check_running()
        result = write(core.clock_ms())
        if result is not None or repeated:
            end = core.store.end_offset if result is None else result.end
            await core.appender.acknowledged(topic, end)
