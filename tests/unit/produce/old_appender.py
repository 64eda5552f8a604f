"""Appends as they were before one route took all batches: checked and patched by the general way of then."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

from tests.support.oracles.patch import patch_batch
from tests.support.oracles.validate import validate_batch, validate_parts
from trovemq_broker.produce.append import Appender
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.priority_columns import check_priorities
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.files.files import Buffer
from trovemq_store.log.commit_log import AppendStatus
from trovemq_store.log.sectors import check_properties
from trovemq_store.topics.message_kinds import check_kinds


class OldAppender(Appender):
    """One without deduplication and tracer."""

    def append(
        self,
        topic: str,
        queue_id: QueueId,
        records: Buffer,
        born_host: bytes | None,
        *,
        owned: bool = False,
    ) -> AppendResult:
        self.check_accepting()
        config = self.topic_for_write(topic, queue_id)
        self._check_size(records)
        data = records if owned else bytearray(records)
        settings = self._store.settings
        batch = validate_batch(
            data,
            topic=topic,
            queue_id=queue_id,
            body_size_max=settings.body_size_max,
            store_host_ipv6=self._store_host_ipv6,
            append_property_crc=settings.append_property_crc,
        )
        check_kinds(config, batch)
        if config.by_priority:
            check_priorities(batch)
        if config.options.deduplicate_ms:
            part = topic, queue_id, len(batch)
            self.deduplication.append(batch, (part,), self._clock_ms(), born_host=born_host)
            raise AssertionError("there are no trees")
        (result,) = self._append_run(batch, [QueuePart(topic, queue_id, len(batch))], born_host)
        return result

    def append_joined(self, parts: Sequence[QueuePart], data: bytearray) -> list[AppendResult]:
        self.check_accepting()
        configs = [self.topic_for_write(topic, QueueId(queue_id)) for topic, queue_id, _ in parts]
        self._check_size(data)
        settings = self._store.settings
        batch = validate_parts(
            data,
            parts,
            body_size_max=settings.body_size_max,
            store_host_ipv6=self._store_host_ipv6,
            append_property_crc=settings.append_property_crc,
        )
        ends = accumulate(part.size for part in parts)
        for config, part, end in zip(configs, parts, ends, strict=True):
            own = slice(end - part.size, end)
            own_batch = RecordBatch(data, batch.positions[own], batch.sizes[own], part.topic)
            check_kinds(config, own_batch)
            if config.by_priority:
                check_priorities(own_batch)
        return self._append_run(batch, parts, None)

    def _append_run(
        self, batch: RecordBatch, parts: Sequence[QueuePart], born_host: bytes | None
    ) -> list[AppendResult]:
        store = self._store
        try:
            store._check_writable()
            physical_offset = store._place(batch.nbytes, internal=False)
        except TroveError as error:
            self._note(error)
            raise
        queues = [(part.topic, part.queue_id) for part in parts]
        firsts = [
            QueueOffset(
                store._next_offsets.get(queue, store.consume_queues.next_offset(queue[0], QueueId(queue[1])))
            )
            for queue in queues
        ]
        counted = [(first, part.size) for first, part in zip(firsts, parts, strict=True)]
        timestamp = store.time.next_ms(self._clock_ms())
        patched = patch_batch(
            batch.data,
            batch,
            first_queue_offset=QueueOffset(0),
            queue_offsets=list(chain.from_iterable(range(first, first + n) for first, n in counted)),
            physical_offset=physical_offset,
            store_timestamp=timestamp,
            store_host=store._store_host,
            born_host=born_host,
            append_property_crc=store.settings.append_property_crc,
        )
        check_properties(patched)
        ends = {queue: first + n for queue, (first, n) in zip(queues, counted, strict=True)}
        store._write(batch.data, patched, physical_offset, timestamp, ends)
        self.appended()
        starts, results, index = [*patched.positions.tolist(), batch.nbytes], [], 0
        for first, count in counted:
            begin, last = starts[index], index + count
            results.append(
                AppendResult(
                    AppendStatus.PUT_OK,
                    PhysicalOffset(physical_offset + begin),
                    starts[last] - begin,
                    timestamp,
                    first,
                    count,
                    store._store_host,
                    patched.positions[index:last] - begin,
                )
            )
            index = last
        return results
