"""Topics, groups, offsets and users as records of the log (topics/table_records.py), and their files.

A change is a record; it counts when the log is on disk up to its end. The files under `config/` follow some
seconds later, and at a clean stop: they are for RocketMQ and for people, and make the start short.

At a start a table is its file and the records after it. Where the file is missing, or was read from its
second copy, the table is made from the log alone. A file that another program wrote is imported: its changes
become records (table_differences.py), before the store is used.

Invariants
- The log's records from TableNote.begin on give the whole table: an entry's record is appended again before
  its segment is removed (reappend_before), and at the start if another program removed it.
- A file is written when the log is on disk up to all changes that the content has: a power cut takes none of
  them back.
- No change is made between an import's records and the file that is written after it. Else a second start
  would import the same file again, over later records.
- A store whose log has another owner (a commit limit) appends nothing here: its records win over its files.
- An offset of a topic counts if its record, or the content of the file that has it, is not below the topic's
  deletion; so does one of a group. While a topic or a group is being deleted, no file of offsets is captured,
  and no record of its offsets is appended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import encode_record, pack_host
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import BLANK_SIZE, MAGIC_BLANK_BYTES
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.queue_units import UNITS_STEP, readable_units
from trovemq_store.engine.replica_appending import StoreReplica
from trovemq_store.files.fault_points import fault_point
from trovemq_store.index.dispatcher import UNLIMITED
from trovemq_store.topics.config_table import Appended
from trovemq_store.topics.deletions import TopicDeletions
from trovemq_store.topics.json_file import ADVICE
from trovemq_store.topics.lax_json import JsonObject
from trovemq_store.topics.logged_table import LoggedTable
from trovemq_store.topics.offsets import ConsumerOffsets, OffsetLimit, entry_key
from trovemq_store.topics.table_differences import (
    apply_record,
    changes_of_file,
    later_version,
    unknown_entries,
)
from trovemq_store.topics.table_notes import (
    NO_DELETIONS,
    OF_EMPTY,
    NotedContent,
    TableNote,
    TableNotes,
)
from trovemq_store.topics.table_records import (
    GROUP_KIND,
    META_QUEUE_ID,
    META_TOPIC,
    OFFSETS_KIND,
    SEVERAL,
    Entry,
    TableRecord,
    decode_table_record,
    deleted_group,
    encode_table_record,
    in_parts,
)
from trovemq_store.topics.topics import TopicTable

Table = LoggedTable
REAPPENDED_AT_ONCE: Final = 256
"""Entries that are appended again in one iteration of the event loop."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A table as records of the log give it. names: of all records, deletions included."""

    values: JsonObject
    version: JsonObject
    places: dict[str, PhysicalOffset]
    names: set[str]
    end: PhysicalOffset


@dataclass(slots=True)
class _Write:
    """One file that is written."""

    kind: str
    table: Table
    render: Callable[[], bytes]
    begin: PhysicalOffset
    end: PhysicalOffset
    written: Callable[[], None]


class TableFilesWork:
    """The contents of files, captured: run() writes them, may block, and may run in another thread."""

    def __init__(self, notes: TableNotes, writes: Sequence[_Write], deletions: TopicDeletions) -> None:
        self._notes = notes
        self.writes: Final = writes
        self._save_deletions = deletions.begin_save()
        self._no_deletions = not deletions.any
        self.deletions_version: Final = deletions.version
        begins = (PhysicalOffset(one.begin + 1) for one in writes if one.begin != OF_EMPTY)
        self.end = max([*(one.end for one in writes), *begins])
        """The log must be on disk up to here before run()."""

    def run(self) -> None:
        """Durable when it returns. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR; StorageError. The
        files that were not written keep their former content."""
        notes = self._notes
        if self._save_deletions is not None:
            self._save_deletions()
        contents = [(one, one.render()) for one in self.writes]
        written = []
        for one, content in contents:
            next_ = NotedContent(crc32(content), one.end)
            note = notes.get(one.kind) or TableNote(OF_EMPTY, (NotedContent(None, LOG_ORIGIN),))
            notes.set(one.kind, note.with_next(next_, one.begin))
            written.append((one, next_))
            if one.kind == TopicTable.NOUN and self._no_deletions:
                notes.set(NO_DELETIONS, TableNote(OF_EMPTY, (NotedContent(None, one.end),)))
        fault_point("tables.before_note")
        notes.save()
        fault_point("tables.before_files")
        for one, content in contents:
            one.table.file.write(content)
        fault_point("tables.after_files")
        for one, next_ in written:
            notes.set(one.kind, TableNote(one.begin, (next_,)))
        notes.save()
        fault_point("tables.after_note")


class TableLog:
    """The tables of one open store. Used from the engine's thread, except TableFilesWork.run()."""

    def __init__(
        self,
        store: StoreReplica,
        offsets: ConsumerOffsets,
        clock_ms: Callable[[], EpochMs],
        flush: Callable[[], None],
    ) -> None:
        """`flush` syncs the log, and makes its records visible."""
        self._store = store
        self._offsets = offsets
        self._flush = flush
        self.clock_ms: Callable[[], EpochMs] = clock_ms
        """The time of new records."""
        self._notes = TableNotes.load(store.files)
        self._tables: dict[str, Table] = {}
        self._written: dict[str, PhysicalOffset] = {}
        self.on_append: Callable[[], object] = _nothing
        """Called after every append of a change: the log needs a sync and a dispatch."""
        self.follows = store.commit_limit != UNLIMITED
        """Whether the tables are made by another node's records; the leader of a group sets it to False
        before its first own change."""
        self._followed_end = LOG_ORIGIN
        """All tables have the records below."""

    def became_visible(self, grown: Sequence[tuple[str, QueueId]]) -> None:
        """Queues of a node that follows have grown: the tables get the new records. TroveError STORE_NEWER,
        STORE_FAILED."""
        if (META_TOPIC, META_QUEUE_ID) not in grown:
            return
        begin = min((table.log_end for table in self._tables.values()), default=self._store.log.end)
        # A table without changes has an old log_end: the records of the others are not read again for it.
        for place, record in self._records(max(begin, self._followed_end)):
            self._followed_end = PhysicalOffset(place + 1)
            table = self._tables.get(record.kind)
            if table is not None and place >= table.log_end:
                self._follow(table, record, place)
            if (group := deleted_group(record)) and place >= self._offsets.log_end:
                self._offsets.follow_deleted_group(group, PhysicalOffset(place + 1))

    def _follow(self, table: Table, record: TableRecord, place: PhysicalOffset) -> None:
        try:
            for name, value in record.entries:
                if not self._is_dead(table.NOUN, name, place):
                    table.follow(name, value, record.version, place, PhysicalOffset(place + 1))
        except ValueError as error:
            raise DamagedError(errors.STORE_FAILED, f"{META_TOPIC}: {error}: {ADVICE}") from error

    def _is_dead(
        self, kind: str, name: str, place: PhysicalOffset, end: PhysicalOffset | None = None
    ) -> bool:
        """Whether the entry, whose record lies at `place`, is of a topic that was deleted since, up to
        `end`."""
        deleted_below = self._deleted_below_of(kind, name)
        return place < deleted_below and (end is None or deleted_below < end)

    def _is_dead_in_file(self, kind: str, name: str, end: PhysicalOffset) -> bool:
        """Whether the entry of a content with that end is of a topic that was deleted since."""
        below = self._deleted_below_of(kind, name)
        return below > 0 and end <= below

    def _deleted_below_of(self, kind: str, name: str) -> PhysicalOffset:
        if kind != OFFSETS_KIND:
            return LOG_ORIGIN
        return self._store.deletions.deleted_below(entry_key(name)[0])

    # --- records ------------------------------------------------------------------------------------
    def append(
        self,
        kind: str,
        entries: Sequence[Entry],
        version: JsonObject,
        *,
        internal: bool,
        deleted_below: PhysicalOffset | None = None,
    ) -> Iterator[Appended]:
        """Appends a record for each entry; a value of None deletes it. Few entries lie in one run, which is
        in the log whole or not at all. internal: accepted also while the disk reserve refuses new messages.
        deleted_below: of a topic's deletion. TroveError, after the runs that were yielded."""
        store = self._store
        settings = store.settings
        size_max = min(settings.batch_size_max, settings.commit_log_file_size // 2)
        host = bytes(len(pack_host(settings.store_host)))
        now_ms = self.clock_ms()
        run = bytearray()
        counts: list[int] = []
        for count, body in self._bodies(kind, entries, version, deleted_below):
            record = encode_record(
                META_TOPIC,
                body,
                queue_id=META_QUEUE_ID,
                born_timestamp=now_ms,
                store_host=host,
                append_property_crc=settings.append_property_crc,
            )
            if counts and len(run) + len(record) > size_max:
                yield self._append_run(run, counts, now_ms, internal)
                run, counts = bytearray(), []
            run += record
            counts.append(count)
        if counts:
            yield self._append_run(run, counts, now_ms, internal)

    def _bodies(
        self,
        kind: str,
        entries: Sequence[Entry],
        version: JsonObject,
        deleted_below: PhysicalOffset | None,
    ) -> Iterator[tuple[int, bytes]]:
        """(number of entries, body) of each record."""
        if kind in SEVERAL:
            for part in in_parts(entries):
                yield len(part), encode_table_record(kind, "", dict(part), version)
            return
        for name, value in entries:
            below = deleted_below if value is None else self._deleted_below(kind, name)
            yield 1, encode_table_record(kind, name, value, version, below)

    def _deleted_below(self, kind: str, name: str) -> PhysicalOffset | None:
        """Of a topic that was deleted and recreated: the record of its deletion goes before those of its
        entry, which are appended again."""
        return (self._store.deletions.deleted_below(name) or None) if kind == TopicTable.NOUN else None

    def _append_run(self, run: bytearray, counts: Sequence[int], now_ms: EpochMs, internal: bool) -> Appended:
        """counts: of the entries of each record."""
        batch, count = RecordBatch.split(run, topic=META_TOPIC), len(counts)
        assert len(batch) == count, "each body is one record"
        fault_point("tables.before_append")
        (result,) = self._store.append(
            batch, ((META_TOPIC, META_QUEUE_ID, count),), now_ms, internal=internal
        )
        assert result.record_count == count, "no record of a table is a duplicate"
        fault_point("tables.after_append")
        self.on_append()
        return Appended(sum(counts), result.physical_offset, result.end)

    def _records(
        self, begin: PhysicalOffset, end: PhysicalOffset | None = None
    ) -> Iterator[tuple[PhysicalOffset, TableRecord]]:
        """(physical offset, record) of each visible record from `begin` on, up to `end`. TroveError
        STORE_NEWER."""
        queue = self._store.consume_queues.get(META_TOPIC, META_QUEUE_ID)
        if queue is None or not queue.has_units:
            return
        first = queue.lower_bound(begin)
        last = None if end is None else queue.lower_bound(end)
        for _, message in messages_from(self._store, META_TOPIC, META_QUEUE_ID, first, last):
            try:
                yield PhysicalOffset(message.physical_offset), decode_table_record(message.body)
            except ValueError:
                continue  # of no form that a broker writes

    def _recorded(self, kind: str, end: PhysicalOffset | None = None) -> _Recorded:
        """The table as the log alone gives it, up to `end`."""
        values: JsonObject = {}
        version: JsonObject = {}
        places: dict[str, PhysicalOffset] = {}
        names: set[str] = set()
        log_end: int = LOG_ORIGIN
        for place, record in self._records(self._store.min_offset, end):
            if record.kind == kind:
                names.update(name for name, _ in record.entries)
                version = record.version
            if apply_record(kind, record, place, values, places):
                log_end = place + 1
        for name in [name for name, place in places.items() if self._is_dead(kind, name, place, end)]:
            del values[name], places[name]
        return _Recorded(values, version, places, names, PhysicalOffset(log_end))

    def are_all_after(self, place: PhysicalOffset) -> bool:
        """Whether the log has nothing but records of tables from `place`, the end of a record, on."""
        end, queue = place, self._store.consume_queues.get(META_TOPIC, META_QUEUE_ID)
        if queue is None or not queue.has_units:
            return end == self._store.log.end
        at = max(queue.lower_bound(place), queue.min_offset)
        while at < queue.max_offset:
            units = readable_units(queue, QueueOffset(at), UNITS_STEP)
            for begin, size, _ in units.tolist():
                if begin != end and not self._is_blank(end, begin):
                    return False
                end = PhysicalOffset(begin + size)
            at = QueueOffset(at + len(units))
        return end == self._store.log.end

    def _is_blank(self, begin: PhysicalOffset, end: PhysicalOffset) -> bool:
        """Whether the log is unused between, up to the next segment."""
        size = self._store.settings.commit_log_file_size
        if end % size or not end - size < begin <= end - BLANK_SIZE:
            return False
        return bytes(self._store.read_or_empty(begin, BLANK_SIZE))[4:8] == MAGIC_BLANK_BYTES

    # --- start --------------------------------------------------------------------------------------
    def attach(self, table: Table) -> None:
        """Reads the records of the table, which was loaded from its file; imports the file if another program
        wrote it. From then on the table's changes are records. Blocks. TroveError STORE_NEWER, STORE_FAILED,
        DISK_FULL; StorageError."""
        kind, file = table.NOUN, table.file
        assert kind not in self._tables, "a table is attached once"
        assert table.pending_change is None, "no change is under way at a start"
        self._tables[kind] = table
        self._followed_end = LOG_ORIGIN
        note = self._notes.get(kind)
        of_file = dict(table.values)
        end = None if note is None or file.crc is None or not file.whole else note.end_of(file.crc)
        if end is not None and end > self._store.log.end:
            end = None  # of records that the log has lost
        fault_point("tables.before_import")
        changes: dict[str, object | None] = {}
        if note is None or end is None:
            changes = self._import(table, note)
        else:
            self._continue_from_file(table, note, end)
        present = table.values  # of offsets it is made here, whole
        for name in of_file.keys() | present.keys():
            if of_file.get(name) != present.get(name):
                file.put(name, present.get(name))  # type: ignore[arg-type]
        if self.follows:
            if end is not None or (not table.values and file.crc is None):
                self._written[kind] = table.log_end if end is None else end
            return
        again = {name: value for name, value in table.values.items() if self._is_removed(table, name)}
        if again and end is not None:
            self._append_again(table, again)
            return
        changes = {**again, **changes}
        if changes:
            self._append_now(table, changes, finished=True)
        if changes or (end is None and (note is not None or table.values or file.crc is not None)):
            self._flush()
            self.write_now()
        else:
            self._written[kind] = table.log_end if end is None else end

    def _append_again(self, table: Table, entries: Mapping[str, object | None]) -> None:
        """Appends entries whose records were removed, or are not valid any more. A full disk does not keep
        the store from opening, so that retention can free it: it tries again, and the file has the entries
        meanwhile."""
        try:
            self._append_now(table, entries, finished=True)
            self._flush()
            self.write_now()
        except TroveError as error:
            if error.spec not in (errors.DISK_FULL, errors.CREATE_MAPPED_FILE_FAILED):
                raise

    def _is_removed(self, table: Table, name: str) -> bool:
        return table.places.get(name, LOG_ORIGIN) < self._store.min_offset

    def _continue_from_file(self, table: Table, note: TableNote, end: PhysicalOffset) -> None:
        """The file is ours: the later records come on top."""
        kind, version = table.NOUN, table.version
        values = self._alive_of_file(table, end)
        places, begin = dict.fromkeys(values, note.begin), end
        for place, record in self._records(end):
            if apply_record(kind, record, place, values, places):
                version = record.version if record.kind == kind else version
                end = PhysicalOffset(place + 1)
        for name in [name for name, at in places.items() if at >= begin and self._is_dead(kind, name, at)]:
            del values[name], places[name]
        self._restore(table, values, version)
        table.connect(self, places, end)

    def _import(self, table: Table, note: TableNote | None) -> dict[str, object | None]:
        """The table from the log alone, and the changes of a file that another program wrote. Returns those,
        by name."""
        kind, file = table.NOUN, table.file
        # The second copy may be older than all that is noted.
        end = LOG_ORIGIN if note is None or file.is_second_copy else note.base_end
        theirs, ours = self._alive_of_file(table, end), self._recorded(kind)
        changes: dict[str, object | None] = {}
        version = ours.version or table.version
        complete = self._is_complete(note, ours)
        foreign = file.crc is not None and not self.follows
        if file.is_second_copy and complete:
            foreign = False  # it may lack the last changes, and the log has them
        if foreign and note is not None and not file.is_second_copy:
            changes = changes_of_file(ours.values, self._recorded(kind, note.base_end).values, theirs)
        elif foreign:
            changes = unknown_entries(ours.names, theirs)
        elif self.follows and not ours.names:
            ours = _Recorded(dict(theirs), table.version, {}, set(), LOG_ORIGIN)
        if changes:
            version = later_version(version, table.version)
        if changes and note is None and not ours.names:
            end = self._store.log.end  # an import that is interrupted begins again from here
            self._notes.set(kind, TableNote(OF_EMPTY, (NotedContent(None, end),)))
            self._notes.save()
        values = {**ours.values, **changes}
        kept = {name: value for name, value in values.items() if value is not None}
        self._restore(table, kept, version)
        table.connect(self, {name: at for name, at in ours.places.items() if name in kept}, ours.end)
        return changes

    def _is_complete(self, note: TableNote | None, recorded: _Recorded) -> bool:
        """Whether the log has the whole table."""
        if note is None:
            return bool(recorded.names)
        if all(one.crc is None for one in note.contents):
            return False  # an import was interrupted: the file has the rest
        return note.begin >= self._store.min_offset

    def has_whole(self, kind: str) -> bool:
        """Whether the log has the whole table of that kind, so that its file is not needed."""
        return self._is_complete(self._notes.get(kind), self._recorded(kind))

    def lacks_removed(self, kind: str) -> bool:
        """Whether the kind's file may lack changes whose records were removed from the log."""
        note = self._notes.get(kind)
        return note is not None and note.base_end < self._store.min_offset

    def _alive_of_file(self, table: Table, end: PhysicalOffset) -> JsonObject:
        """The entries of the file, whose content has that end, without those of topics and groups that were
        deleted since."""
        kind = table.NOUN
        groups = set(self.deleted_groups(end).values()) if kind == OFFSETS_KIND else ()
        return {
            name: value
            for name, value in table.values.items()
            if not self._is_dead_in_file(kind, name, end) and not (groups and entry_key(name)[1] in groups)
        }

    def deleted_groups(self, begin: PhysicalOffset) -> dict[PhysicalOffset, str]:
        """The groups whose deletions are in the log from `begin` on, by the place of the record, in order.
        TroveError STORE_NEWER."""
        found = ((place, deleted_group(record)) for place, record in self._records(begin))
        return {place: group for place, group in found if group}

    def _restore(self, table: Table, values: JsonObject, version: JsonObject) -> None:
        try:
            table.restore(values, version)
        except ValueError as error:
            raise DamagedError(errors.STORE_FAILED, f"{META_TOPIC}: {error}: {ADVICE}") from error

    def _append_now(self, table: Table, changes: Mapping[str, object | None], *, finished: bool) -> None:
        """finished: no other record of the table is in the log whose change the table does not have."""
        entries = list(changes.items())
        at = 0
        for appended in self.append(table.NOUN, entries, table.version, internal=True):  # type: ignore[arg-type]
            for name, value in entries[at : at + appended.count]:
                table.set_place(name, None if value is None else appended.begin)
            at += appended.count
            if finished:
                table.log_end = appended.end
        self._written.pop(table.NOUN, None)
        fault_point("tables.after_again")

    # --- files --------------------------------------------------------------------------------------
    def begin_write(
        self, *, offsets: bool = True, limit: PhysicalOffset = UNLIMITED
    ) -> TableFilesWork | None:
        """Captures the tables that changed since their files were written, with all that the log has below
        `limit`; None if none did."""
        writes = []
        log_end = self._store.visible_offset if self.follows else self._store.log.end
        for kind, table in self._tables.items():
            if kind == OFFSETS_KIND and (not offsets or any(self._leaving())):
                continue
            end = table.content_end(log_end)
            if table.lacks(self._written.get(kind)) and end <= limit:
                begin = min(table.places.values(), default=OF_EMPTY)
                written = table.begin_write()
                writes.append(_Write(kind, table, table.file.capture(table.version), begin, end, written))
        return TableFilesWork(self._notes, writes, self._store.deletions) if writes else None

    def _leaving(self) -> tuple[frozenset[str], frozenset[str]]:
        """Topics, and groups, whose deletion is in the log, perhaps, and whose offsets are still there."""

        def of(kind: str) -> frozenset[str]:
            table = self._tables.get(kind)
            change = None if table is None else table.pending_change
            parts = () if change is None else change.parts
            return frozenset(part.name for part in parts if part.value is None)

        return of(TopicTable.NOUN), of(GROUP_KIND)

    def finish_write(self, work: TableFilesWork) -> None:
        """Call on the engine's thread after run(), unless it failed."""
        self._store.deletions.finish_save(work.deletions_version)
        for one in work.writes:
            self._written[one.kind] = one.end
            one.written()

    def write_now(self) -> None:
        """Writes the files whose tables have changed; the log is on disk. Blocks. The errors of run()."""
        work = self.begin_write(limit=self._store.commit_limit)
        if work is not None:
            # above the limit, records may be cut, and a file must not be ahead of them
            assert work.writes, "a file is written"
            assert work.end <= self._store.log.flushed_offset, "a file is not ahead of the log"
            work.run()
            self.finish_write(work)

    # --- retention ----------------------------------------------------------------------------------
    def reappend_before(self, physical_offset: PhysicalOffset) -> int:
        """Appends up to REAPPENDED_AT_ONCE entries again whose record lies below that offset. Returns how
        many; 0: there are none. When they are on disk, and the files are written after that,
        the log may begin there. TroveError DISK_FULL, CREATE_MAPPED_FILE_FAILED, STORE_FAILED,
        UNKNOWN_ERROR; SERVICE_NOT_AVAILABLE while a topic or group of the entries is being deleted."""
        for table in self._tables.values():
            part = table.below(physical_offset, REAPPENDED_AT_ONCE)
            if part:
                if table is self._offsets and any(map(self._is_leaving, part)):
                    raise TroveError(errors.SERVICE_NOT_AVAILABLE, "a topic or a group is being deleted")
                pending = _appended_values(table)
                entries = {name: pending.get(name, table.value_of(name)) for name in part}
                self._append_now(table, entries, finished=not pending)
                return len(part)
        return 0

    # --- offsets ------------------------------------------------------------------------------------
    def lower_offsets(self, end_of: OffsetLimit) -> Counter[str]:
        """Lowers offsets that are above the end of their queue, also on disk: after a kill they would count
        messages as consumed that were stored since. Returns how many of each topic. Blocks. The errors of
        attach()."""
        lowered = self._offsets.cap_all(end_of)
        if lowered and not self.follows:
            above = {name: self._offsets.value_of(name) for name in self._offsets.unrecorded}
            self._append_again(self._offsets, above)
        return lowered

    def record_offsets(self) -> PhysicalOffset | None:
        """Appends the offsets that are to be recorded; they are durable when the log is on disk up to the
        result. None: there are none. The errors of MessageStore.append()."""
        offsets = self._offsets
        names = list(offsets.unrecorded)
        if any(self._leaving()):
            names = [name for name in names if not self._is_leaving(name)]
        if not names:
            return None
        self._append_now(offsets, {name: offsets.value_of(name) for name in names}, finished=True)
        return offsets.log_end

    def _is_leaving(self, name: str) -> bool:
        topic, group = entry_key(name)
        topics, groups = self._leaving()
        return topic in topics or group in groups

    def lack_below(self, physical_offset: PhysicalOffset) -> bool:
        """Whether a file may lack a change, perhaps a deletion, whose record lies below that offset."""
        for kind, table in self._tables.items():
            note = self._notes.get(kind)
            if (LOG_ORIGIN if note is None else note.base_end) < min(physical_offset, table.log_end):
                return True
        return False


def _appended_values(table: Table) -> dict[str, object | None]:
    """Of the change that is in the log and not finished: its record is the last one of its entries."""
    change = table.pending_change
    return {} if change is None else {part.name: part.value for part in change.parts[: len(change.places)]}


def _nothing() -> None:
    """Does nothing."""
