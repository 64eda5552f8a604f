"""Audit records as messages of the log (trovemq_proto/audit.py has their form).

An act has one record before it begins and one at its end. If the first cannot be written, the act is refused.
Of other events of one kind, the first in a minute has a record, and a record at the end of the minute has the
number of the others. On a full disk these records use the disk reserve: only acts are written then, and
everything else is counted until there is space.

Invariants
- An act that was done has a record in the log before it.
- At most KINDS_MAX kinds are counted in a minute; the events of all further kinds are counted together.
- A crash loses only counts that were not written yet.
- A record that is younger than the trail's own retention time is appended again before retention removes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trovemq_proto.audit import ACT, AUDIT_QUEUE_ID, AUDIT_TOPIC, BEGUN, DENIED, ENDED, AuditRecord
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import Message
from trovemq_proto.records.layout import PROPERTY_KEYS, PROPERTY_TAGS
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.record_writer import NewRecord, RecordWriter

INTERVAL_MS: Final = 60_000
KINDS_MAX: Final = 1_000
CARRIED_TOGETHER: Final = 256

_Kind = tuple[str, ...]
_OTHERS: Final[_Kind] = ("others",)


@dataclass(slots=True)
class _Counted:
    """One kind of event in this minute: its first record, and the number of further events that no record
    counts yet."""

    record: AuditRecord
    unwritten: int


class AuditTrail:
    """The audit records of one store. Used by one thread. `prefix`: the prefix of the ids of all records that
    are written since this start."""

    def __init__(self, store: MessageStore, writer: RecordWriter, age_max_ms: int, prefix: str) -> None:
        self._store = store
        self._writer = writer
        self._age_max_ms = age_max_ms
        self._prefix = prefix
        self._number = 0
        self._counts: dict[_Kind, _Counted] = {}
        self._from_ms = 0
        self._carried_to = PhysicalOffset(0)
        self.written: Counter[str] = Counter()
        """Number of records written since the start, by kind."""
        self.failures = 0
        """How many records could not be written when they were due."""
        self.failure: TroveError | None = None
        """The last of these failures."""

    # --- acts -----------------------------------------------------------------------------------------
    def begin_act(
        self, user: str, source: str, method: str, resources: str, now_ms: EpochMs
    ) -> tuple[AuditRecord, PhysicalOffset]:
        """Writes the act's first record; returns it and the end of the log after it. After a TroveError the
        act must not be done."""
        made = AuditRecord(self._next_id(), now_ms, ACT, user, source, method, resources, phase=BEGUN)
        made = replace(made, act=made.id)
        return made, self._append(made)

    def end_act(self, begun: AuditRecord, outcome: str, now_ms: EpochMs) -> None:
        """Writes the act's last record. A failure is counted, not raised, because the act is already done."""
        self._try_append(replace(begun, id=self._next_id(), time=now_ms, phase=ENDED, outcome=outcome))

    # --- other events -----------------------------------------------------------------------------------
    def note(
        self, kind: str, user: str, source: str, method: str, resources: str, outcome: str, now_ms: EpochMs
    ) -> None:
        """Records a look-up or a log-in: the first of its kind in a minute, and the number of the others."""
        key = (kind, user, source, method, resources, outcome)
        self._count(key, AuditRecord("", now_ms, kind, user, source, method, resources, outcome), now_ms)

    def denied(
        self, user: str, source: str, method: str, resources: str, outcome: str, now_ms: EpochMs
    ) -> None:
        """Records a refused call: the first of each subject in a minute, and the number of the others."""
        record = AuditRecord("", now_ms, DENIED, user, source, method, resources, outcome)
        self._count((DENIED, user or source), record, now_ms)

    def _count(self, key: _Kind, record: AuditRecord, now_ms: EpochMs) -> None:
        self.flush(now_ms)
        if key not in self._counts and len(self._counts) >= KINDS_MAX:
            key, record = _OTHERS, replace(record, user="", source="", method="", resources="")
        counted = self._counts.get(key)
        if counted is None:
            counted = self._counts[key] = _Counted(record, 1)
            if self._has_space() and self._try_append(replace(record, id=self._next_id())):
                counted.unwritten = 0
            return
        counted.unwritten += 1

    def flush(self, now_ms: EpochMs) -> None:
        """Writes the counts if the minute is over."""
        if not 0 <= now_ms - self._from_ms < INTERVAL_MS:
            self.write_counts(now_ms)

    def write_counts(self, now_ms: EpochMs) -> None:
        """Writes all counts. A count that cannot be written is kept."""
        self._from_ms = now_ms
        counts, self._counts = self._counts, {}
        for key, counted in counts.items():
            if not counted.unwritten:
                continue
            record = replace(counted.record, id=self._next_id(), count=counted.unwritten)
            if not (self._has_space() and self._try_append(record)):
                self._counts[key] = counted

    # --- retention --------------------------------------------------------------------------------------
    def carry(self, end: PhysicalOffset, now_ms: EpochMs) -> Iterator[int]:
        """Appends the young records below `end` again, in steps; yields the number of each step. When the
        copies are on disk, the log below `end` may be removed. Raises the TroveError of an append."""
        begin = self._carried_to
        batch: list[NewRecord] = []
        for _, message in messages_from(self._store, AUDIT_TOPIC, AUDIT_QUEUE_ID, QueueOffset(0)):
            if message.physical_offset >= end:
                break
            if message.physical_offset >= begin and self._is_young(message, now_ms):
                batch.append(NewRecord.copy_of(message, AUDIT_TOPIC, AUDIT_QUEUE_ID))
            if len(batch) == CARRIED_TOGETHER:
                yield self._carry(batch, now_ms)
                batch = []
        if batch:
            yield self._carry(batch, now_ms)
        self._carried_to = max(begin, end)

    def _carry(self, batch: list[NewRecord], now_ms: EpochMs) -> int:
        self._writer.append(batch, now_ms)
        return len(batch)

    def _is_young(self, message: Message, now_ms: EpochMs) -> bool:
        return message.born_timestamp > now_ms - self._age_max_ms

    # --- the log ------------------------------------------------------------------------------------------
    def _has_space(self) -> bool:
        return not self._store.reserve.refuses

    def _next_id(self) -> str:
        self._number += 1
        return f"{self._prefix}-{self._number}"

    def _append(self, record: AuditRecord) -> PhysicalOffset:
        properties = {PROPERTY_TAGS: record.kind}
        if record.user:
            properties = {PROPERTY_KEYS: record.user, **properties}
        made = NewRecord(AUDIT_TOPIC, AUDIT_QUEUE_ID, record.encode(), properties, born_timestamp=record.time)
        (result,) = self._writer.append([made], record.time)
        self.written[record.kind] += 1
        return result.end

    def _try_append(self, record: AuditRecord) -> bool:
        try:
            self._append(record)
        except TroveError as error:
            self.failures += 1
            self.failure = error
            return False
        return True
