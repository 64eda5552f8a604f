"""Appends a few plain records: the short way of nearly every message that is not sent in a large batch.

Plain records (records/plain_records.py) for a queue that takes any go straight from their check to the log.
Whatever needs more, or is to be refused, is left to Appender: nothing was done then. Both ways give the same
bytes, result and errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.hosts import pack_host
from trovemq_proto.records.layout import HOST_SIZE_IPV4
from trovemq_proto.records.plain_records import PlainForm
from trovemq_proto.records.uniform_records import UniformForms
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.files.files import Buffer
from trovemq_store.topics.message_kinds import TAKES_NORMAL
from trovemq_store.topics.names import check_topic_name
from trovemq_store.topics.topics import TopicConfig

PART_MAX: Final = 8  # records of one queue in a joined append; of more, columns cost less
QUEUES_KNOWN: Final = 16_384
"""Whose forms are kept: about 5 MB, and 30 MB where the records of each have another form."""


class _Queue(NamedTuple):
    """A queue, as long as its topic has this configuration. form: of the plain records that
    it takes; None if each must be looked at."""

    config: TopicConfig
    form: PlainForm | None


class PlainAppends:
    """possible: whether single appends need nothing else (a span for a trace)."""

    def __init__(self, store: MessageStore, batch_size_limit: int, *, possible: bool = True) -> None:
        self._store = store
        self._batch_size_limit = batch_size_limit
        self._possible = possible and len(pack_host(store.settings.store_host)) == HOST_SIZE_IPV4
        self._queues: dict[tuple[str, QueueId], _Queue] = {}
        self._uniform_forms = UniformForms()

    def append(
        self,
        topic: str,
        queue_id: QueueId,
        records: Buffer,
        born_host: bytes | None,
        now_ms: EpochMs,
        *,
        owned: bool,
    ) -> AppendResult | None:
        """As Appender.append(), whose checks of the broker's state came before; None: nothing was done.

        TroveError UNKNOWN_ERROR, DISK_FULL, STORE_FAILED.
        """
        form = self._form(topic, queue_id)
        if form is None or len(records) > self._batch_size_limit:
            return None
        data = memoryview(records)
        plain = form.read(data)
        if plain is None:
            return None
        if not owned:
            data = memoryview(bytearray(data))
        return self._store.append_plain(
            data, plain, topic=topic, queue_id=queue_id, now_ms=now_ms, born_host=born_host
        )

    def append_joined(
        self, parts: Sequence[QueuePart], records: bytearray, now_ms: EpochMs, *, checked: bool
    ) -> list[AppendResult] | None:
        """As Appender.append_joined(), whose checks of the broker's state came before; None: nothing was
        done. Of several queues records are rarely uniform: each is read by itself.

        TroveError as append().
        """
        data, end = memoryview(records), len(records)
        if end > self._batch_size_limit:
            return None
        rows: list[RecordFields] = []
        position = 0
        for topic, queue_id, count in parts:
            form = self._form(topic, QueueId(queue_id))
            if form is None or count > PART_MAX:
                return None
            for _ in range(count):
                row = form.read_own(data, position) if checked else form.read_one(data, position, end)
                if row is None:
                    return None
                rows.append(row)
                position += row.size
        return self._store.append_plain_parts(data, rows, parts, now_ms) if position == end else None

    def _form(self, topic: str, queue_id: QueueId) -> PlainForm | None:
        """The form of the queue's plain records; None if it takes none without a look at each."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.config is not self._store.topics.get(topic):
            queue = self._learn(topic, queue_id)
        return None if queue is None else queue.form

    def _learn(self, topic: str, queue_id: QueueId) -> _Queue | None:
        """None if the queue may not be written."""
        config = self._store.topics.get(topic)
        if config is None or not config.writable or not 0 <= queue_id < config.write_queue_count:
            return None
        check_topic_name(topic)
        takes_any = config.message_type in TAKES_NORMAL and not config.by_priority
        form = None
        if self._possible and takes_any and not config.options.deduplicate_ms:
            settings = self._store.settings
            crc = settings.append_property_crc
            form = PlainForm(
                topic,
                queue_id,
                settings.body_size_max,
                append_property_crc=crc,
                uniform_forms=self._uniform_forms,
            )
        if len(self._queues) >= QUEUES_KNOWN:
            self._queues.clear()
        queue = self._queues[topic, queue_id] = _Queue(config, form)
        return queue
