"""Commits atomic transactions: messages and acknowledgements in one run of the log, all of them or none.

A run has the messages in the order in which they were sent, one record of events if messages are
acknowledged, and the transaction's end record (trovemq_broker.atomic.ends).

Invariants
- A commit that raises has changed nothing, except that events that were pending may be in the log now.
- An id is committed once: a second commit of the same transaction gets the result of the first; a different
  transaction with that id gets an error, and is not stored.
- The acknowledgements are applied in memory and noted as being in the log in the same step, so that a
  snapshot has both or neither; consumer offsets that depend on them are not stored before the run is on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trovemq_broker.atomic.ends import (
    ENDS_QUEUE_ID,
    ENDS_TOPIC,
    Committed,
    TransactionEnds,
    committed_run,
    encode_end,
)
from trovemq_broker.groups.delivery.prepared import Acknowledgement
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.engine.transaction_run import QueueKey, TransactionRun, run_size_max
from trovemq_store.events.codec import EVENTS_MAX, EVENTS_TOPIC, encode_events
from trovemq_store.events.event_log import EVENTS_QUEUE_ID
from trovemq_store.files.fault_points import fault_point
from trovemq_store.index.trees.producer_sequences import has_numbers
from trovemq_store.index.trees.unique_keys import ids_of

ACKNOWLEDGEMENTS_MAX: Final = EVENTS_MAX
"""The most acknowledgements of one transaction."""


class AtomicCommits:
    """The atomic transactions of one store. Used from one thread; nothing blocks."""

    def __init__(
        self, store: MessageStore, model: ConsumerState, deduplication: Deduplication | None = None
    ) -> None:
        self._store = store
        self._model = model
        self._deduplication = deduplication or Deduplication(store)
        self.ends: Final = TransactionEnds(store)
        self.run_size_max: Final = run_size_max(store.settings.commit_log_file_size)

    def new_run(self, transaction_id: str) -> TransactionRun:
        """An empty run, to which messages are added. TroveError TRANSACTION_ILLEGAL."""
        return TransactionRun(transaction_id, self.run_size_max)

    def commit(
        self, run: TransactionRun, acknowledgements: Sequence[Acknowledgement], now_ms: EpochMs
    ) -> Committed:
        """Appends the run: all of it is in the log when this returns, and must be synced up to `end`.

        The caller has checked each message by the rules of its topic. TroveError TRANSACTION_SIZE_EXCEEDED,
        RECEIPT_HANDLE_ILLEGAL, TRANSACTION_DUPLICATE, TRANSACTION_ILLEGAL (another transaction has the id),
        and the errors of an append: nothing was stored.
        """
        if run.transaction_id in self.ends:
            committed = self.ends.committed(run.transaction_id)
            if len(run) or acknowledgements:
                _check_same(run, len(acknowledgements), committed)
            return committed
        if not len(run) and not acknowledgements:
            raise TroveError(
                errors.REQUEST_ILLEGAL, "the transaction has neither messages nor acknowledgements"
            )
        check_acknowledgement_count(len(acknowledgements))
        delivery, events = self._model.delivery, self._model.events
        prepared = delivery.prepare_acknowledgements(acknowledgements, now_ms)
        queues = run.queues
        self._store.reserve.check()
        if prepared:
            events.flush(now_ms)  # the acknowledgements depend on events that come before them
            body = encode_events(acknowledgement.event(now_ms) for acknowledgement in prepared)
            self._add_own(run, EVENTS_TOPIC, EVENTS_QUEUE_ID, body, now_ms)
        body = encode_end(run.message_count, len(acknowledgements), now_ms)
        self._add_own(run, ENDS_TOPIC, ENDS_QUEUE_ID, body, now_ms)
        ids_by_queue = self._check_duplicates(
            run, queues, now_ms
        )  # last, because the run cannot grow while its views exist
        fault_point("atomic.before_append")
        result = run.append_to(self._store, now_ms)
        fault_point("atomic.after_append")
        for queue, ids in ids_by_queue.items():
            places = result.physical_offset + run.part(queue).positions
            self._deduplication.remember(queue[0], ids, places.tolist(), result.end)
        if prepared:
            self._store.offsets.needs_log(result.end)
            at = result.first_queue_offsets[EVENTS_TOPIC, EVENTS_QUEUE_ID]
            events.appended_in_run(at, len(prepared))
            delivery.consume_prepared(prepared)
        committed = committed_run(run, result, len(acknowledgements))
        self.ends.add(committed, result.physical_offset)
        self._model.on_append()
        fault_point("atomic.after_commit")
        return committed

    def _check_duplicates(
        self, run: TransactionRun, queues: Sequence[QueueKey], now_ms: EpochMs
    ) -> dict[QueueKey, list[bytes]]:
        """The ids of the messages of topics with `deduplicate`, by queue. TroveError TRANSACTION_DUPLICATE if
        one is already stored, or occurs twice: a transaction is stored unchanged or not at all."""
        ids_by_queue: dict[QueueKey, list[bytes]] = {}
        seen: set[tuple[str, bytes]] = set()
        for queue in queues:
            topic = queue[0]
            if not self._store.topics.options(topic).deduplicate_ms:
                continue
            part = run.part(queue)
            if has_numbers(part):
                text = f"a message for topic {topic} has a producer's number: leave it out in a transaction"
                raise TroveError(errors.PRODUCER_SEQUENCE_ILLEGAL, text, topic=topic)
            ids = ids_by_queue[queue] = ids_of(part)
            known = self._deduplication.known(topic, ids, now_ms)
            for unique_id in filter(None, ids):
                if unique_id in known or (topic, unique_id) in seen:
                    self._deduplication.refused(topic, unique_id)
                    shown = unique_id[:80].decode("utf-8", "replace")
                    text = f"the id {shown!r} is in topic {topic} already, or twice in the transaction"
                    raise TroveError(errors.TRANSACTION_DUPLICATE, text, id=shown, topic=topic)
                seen.add((topic, unique_id))
        return ids_by_queue

    def _add_own(
        self, run: TransactionRun, topic: str, queue_id: QueueId, body: bytes, now_ms: EpochMs
    ) -> None:
        record = NewRecord(topic, queue_id, body, born_timestamp=now_ms)
        run.add_own(self._model.writer.encode(record), topic, queue_id)


def _check_same(run: TransactionRun, acknowledged_count: int, committed: Committed) -> None:
    """TroveError TRANSACTION_ILLEGAL if the run differs from the one committed under its id."""
    mine = {number: queue for queue in run.queues for number in run.indexes(queue)}
    places = [(message.topic, message.queue_id) for message in committed.messages]
    if [mine[number] for number in range(len(run))] != places or (
        acknowledged_count != committed.acknowledged_count
    ):
        text = (
            f"another transaction, of {len(places)} messages and {committed.acknowledged_count} "
            f"acknowledgements, was committed as {run.transaction_id}: start over with a new id"
        )
        raise TroveError(errors.TRANSACTION_ILLEGAL, text)


def check_acknowledgement_count(count: int) -> None:
    """TroveError TRANSACTION_SIZE_EXCEEDED."""
    if count > ACKNOWLEDGEMENTS_MAX:
        text = f"the transaction has {count} acknowledgements, the limit is {ACKNOWLEDGEMENTS_MAX}"
        raise TroveError(
            errors.TRANSACTION_SIZE_EXCEEDED, text, acknowledgement_count_max=ACKNOWLEDGEMENTS_MAX
        )
