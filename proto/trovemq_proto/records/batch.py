"""A record batch: many records of one buffer, their columns, and values computed from them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError
from trovemq_proto.records import index_entries as entries
from trovemq_proto.records.columns import Int64s, RecordColumns
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.fields import ROWS_MAX, RecordFields
from trovemq_proto.records.index_entries import IndexEntries
from trovemq_proto.records.layout import BODY_SIZE_MAX_DEFAULT, SYS_FLAG_COMPRESSED
from trovemq_proto.records.message import Message, build_message, decode_message, decode_received, received
from trovemq_proto.records.record_crcs import damaged_records


class RecordBatch(RecordColumns):
    """Records of one buffer: their columns (RecordColumns), messages, bodies and index entries.

    data: the buffer; positions, sizes: int64[n], record i is data[positions[i]:positions[i] + sizes[i]];
    topic: given when it is known to be the topic of all of them.
    """

    def message(self, index: int) -> Message:
        """Record `index`, decoded. Raises TroveError RECORD_DAMAGED, COMPRESSION_UNSUPPORTED."""
        return decode_message(self.record(index))

    def messages(self) -> Iterator[Message]:
        """All records, decoded one by one. Raises TroveError RECORD_DAMAGED, COMPRESSION_UNSUPPORTED, at the
        record concerned."""
        if len(self) <= ROWS_MAX:
            return map(self.message, range(len(self)))
        return self._built(inflate=True)

    def received(self) -> Iterator[Message]:
        """The messages as a program gets them (message.received): a body that cannot be inflated does no
        harm. Raises TroveError RECORD_DAMAGED at a record without its CRC."""
        if len(self) <= ROWS_MAX:
            return (decode_received(self.record(index)) for index in range(len(self)))
        return map(received, self._built(inflate=False))

    def _built(self, *, inflate: bool) -> Iterator[Message]:
        starts, geometry = self.positions, self.geometry
        damaged = damaged_records(self)
        rows = zip(
            starts.tolist(),
            (starts + self.sizes).tolist(),
            damaged.tolist(),
            self.sys_flags.tolist(),
            (geometry.body_positions - starts).tolist(),
            geometry.body_sizes.tolist(),
            (geometry.topic_positions - starts).tolist(),
            geometry.topic_sizes.tolist(),
            (geometry.property_positions - starts).tolist(),
            geometry.property_sizes.tolist(),
            strict=True,
        )
        data = self.data
        for start, end, is_damaged, sys_flag, body, body_size, topic, topic_size, block, block_size in rows:
            if is_damaged:
                raise DamagedError(errors.RECORD_DAMAGED, f"the record at byte {start} is damaged")
            size = end - start
            fields = RecordFields(0, size, sys_flag, body, body_size, topic, topic_size, block, block_size)
            yield build_message(data[start:end].tobytes(), fields, inflate=inflate)

    def tags_codes(self) -> Int64s:
        """The consume queue's tagsCode of each record (index_entries.tags_codes)."""
        return entries.tags_codes(self)

    def index_entries(self, tags: bool = True) -> IndexEntries:
        """The key index's entries of these records (index_entries.index_entries)."""
        return entries.index_entries(self, tags)

    def bodies(self, body_size_max: int = BODY_SIZE_MAX_DEFAULT) -> list[memoryview]:
        """The bodies as the application gave them; views of the buffer unless a body is compressed.

        Raises TroveError RECORD_DAMAGED and COMPRESSION_UNSUPPORTED for compressed ones.
        """
        bodies = self.stored_bodies()
        for i in np.flatnonzero(self.sys_flags & SYS_FLAG_COMPRESSED).tolist():
            inflated = inflate_body(bytes(bodies[i]), int(self.sys_flags[i]), body_size_max)
            bodies[i] = memoryview(inflated)
        return bodies

    def property_values(self, name: str) -> list[str | None]:
        """The value of this property in each record; None if the record does not have it."""
        values: list[str | None] = [None] * len(self)
        for scan in self.property_scans:
            found = scan.find(name.encode("utf-8", "replace"))
            spans = zip(found.records.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
            for record, start, end in spans:
                values[record] = scan.joined[start:end].decode("utf-8", "replace")
        return values
