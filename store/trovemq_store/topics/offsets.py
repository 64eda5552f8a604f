"""The offsets of consumer groups: `config/consumerOffset.json` in RocketMQ's form.

    {"dataVersion": {…}, "offsetTable": {"topic@group": {"0": 123, "1": 0}}}

The value is the next queue offset to consume. Commits need not grow: a reset goes back.

A broker's offsets are records of its log (engine/table_log.py): those that a client set, as soon as they are
noted (`unrecorded`) and recorded; those that deliveries move follow from the events, and are recorded before
retention removes these. The file follows. Offsets that are not connected to a log, as in tools, are in the
file alone.

Invariants
- A stored offset never passes `limit(topic, queue_id)`, the queue's end as far as the log is synced; an
  offset that is held back stays dirty and is stored once the log allows it.
- Offsets that are set after needs_log(end) are written only when the log is on disk, and committed where it
  has copies, up to there (the caller waits for that): a message may count as consumed because of a copy of it
  that lies below.
- The file is written only when something changed; of a log's offsets only by the log.
- Groups, and queues over all groups, are bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.topics import lax_json
from trovemq_store.topics.json_file import ADVICE, JsonFile
from trovemq_store.topics.lax_json import JsonObject, object_member
from trovemq_store.topics.names import check_group_name
from trovemq_store.topics.table_notes import OF_EMPTY
from trovemq_store.topics.table_records import OFFSETS_KIND

OFFSETS_PATH: Final = "config/consumerOffset.json"
GROUP_COUNT_MAX: Final = 10_000
ENTRY_COUNT_MAX: Final = 1_000_000
OFFSET_MAX: Final = QueueOffset(2**63 - 1)

OffsetLimit = Callable[[str, QueueId], QueueOffset]


class PersistWork:
    """One captured state of the offsets; run() writes it, may block, and may run in another thread."""

    def __init__(self, file: JsonFile, content: bytes, change: int, *, whole: bool) -> None:
        self._file = file
        self._content = content
        self.change = change
        self.whole = whole

    def run(self) -> None:
        """Durable when it returns. TroveError DISK_FULL, STORE_FAILED. One run() at a time."""
        fault_point("offsets.before_save")
        self._file.save_content(self._content)
        fault_point("offsets.after_save")


class OffsetsFile:
    """The file of a log's offsets. `document` captures the present content."""

    def __init__(self, file: JsonFile, document: Callable[[], JsonObject]) -> None:
        self._file = file
        self._document = document

    @property
    def fault(self) -> str:
        return self._file.fault

    @property
    def crc(self) -> int | None:
        return self._file.crc

    @property
    def whole(self) -> bool:
        return not self._file.is_second_copy

    @property
    def is_second_copy(self) -> bool:
        return self._file.is_second_copy

    def put(self, name: str, value: JsonObject | None) -> None:
        """Does nothing: the content is made from the table."""

    def capture(self, version: JsonObject) -> Callable[[], bytes]:
        """Returns the function that renders the present content; it may run in another thread."""
        return partial(lax_json.render, self._document())

    def write(self, content: bytes) -> None:
        """Durable when it returns. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR."""
        fault_point("offsets.before_save")
        self._file.save_content(content)
        fault_point("offsets.after_save")


class ConsumerOffsets:
    """The offsets by group, topic and queue. Used from one thread, except PersistWork.run()."""

    NOUN: Final = OFFSETS_KIND
    """The kind of its records; an entry is `topic@group`."""

    pending_change: Final = None
    """As of a ConfigTable: a change is made before its record is appended."""

    def __init__(
        self, file: JsonFile, document: JsonObject, *, group_count_max: int = GROUP_COUNT_MAX
    ) -> None:
        self._file = file
        # groupTopicMap is derived by RocketMQ itself; here it would become outdated
        self._others = {
            name: value for name, value in document.items() if name not in ("groupTopicMap", "offsetTable")
        }
        self._unknown: JsonObject = {}
        self._table: dict[tuple[str, str], dict[QueueId, QueueOffset]] = {}
        self._group_count_max = group_count_max
        self._topic_counts: dict[str, int] = {}
        self._entry_count = 0
        self._change = 0
        self._persisted_change = 0
        self.limit: OffsetLimit | None = None
        self.log_needed = LOG_ORIGIN
        """The log must be on disk up to here before the file is written."""
        self.file: Final = OffsetsFile(file, self._document)
        self.places: dict[str, PhysicalOffset] = {}
        """Where the last record of each entry that has one lies in the log, or an offset before it; in the
        order of the log."""
        self.log_end = LOG_ORIGIN
        """The table has all of its records that end at or below this offset."""
        self.unrecorded: dict[str, None] = {}
        """Entries that are to be recorded."""
        self._without_record: dict[str, None] = {}
        self._is_logged = False
        self._read(document.get("offsetTable") or {})

    @classmethod
    def load(cls, files: FileSystem, *, group_count_max: int = GROUP_COUNT_MAX) -> ConsumerOffsets:
        """TroveError STORE_FAILED if neither the file nor its .bak can be read."""
        file = JsonFile(files, OFFSETS_PATH)
        try:
            return cls(file, file.load() or {}, group_count_max=group_count_max)
        except ValueError as error:
            what = f"{OFFSETS_PATH}: {error}: {ADVICE}"
            raise DamagedError(errors.STORE_FAILED, what, file=OFFSETS_PATH) from error

    @property
    def fault(self) -> str:
        """Why the offsets were read from the second copy of their file; empty if the first one was read."""
        return self._file.fault

    @property
    def dirty(self) -> bool:
        return self._change != self._persisted_change

    def __len__(self) -> int:
        return self._entry_count

    def get(self, group: str, topic: str, queue_id: QueueId) -> QueueOffset | None:
        """The next queue offset to consume; None if the group has none for this queue."""
        return self._table.get((topic, group), {}).get(queue_id)

    def entries(self) -> Iterator[tuple[str, str, QueueId, QueueOffset]]:
        """(group, topic, queue id, offset), sorted."""
        for (topic, group), queues in sorted(self._table.items(), key=lambda item: (item[0][1], item[0][0])):
            for queue_id in sorted(queues):
                yield group, topic, queue_id, queues[queue_id]

    def of(self, group: str, topic: str) -> list[tuple[QueueId, QueueOffset]]:
        """(queue id, offset) of each queue for which the group has an offset, sorted."""
        return sorted(self._table.get((topic, group), {}).items())

    def groups(self, topic: str | None = None) -> list[str]:
        """The groups that have an offset (for the topic), sorted."""
        return sorted({group for owner, group in self._table if topic in (None, owner)})

    def pairs(self) -> list[tuple[str, str]]:
        """All (group, topic) pairs with an offset."""
        return [(group, topic) for topic, group in self._table]

    def commit(
        self, group: str, topic: str, queue_id: QueueId, offset: QueueOffset, *, durable: bool = False
    ) -> None:
        """Sets the offset, forwards or back; with `durable` it is on disk before the call returns.

        The caller has checked the topic, the queue and the range. TroveError GROUP_ILLEGAL,
        REQUEST_ILLEGAL, LIMIT_EXCEEDED; with `durable` DISK_FULL, STORE_FAILED too (then the change is
        not made).
        """
        check_group_name(group)
        if not 0 <= offset <= OFFSET_MAX or not 0 <= queue_id <= 0x7FFF_FFFF:
            raise TroveError(
                errors.REQUEST_ILLEGAL, f"queue {queue_id}, offset {offset}: out of range", field="offset"
            )
        before = self.get(group, topic, queue_id)
        if before != offset:
            self._set(group, topic, queue_id, offset)
        if durable:
            try:
                self.persist()
            except TroveError:
                self._restore(group, topic, queue_id, before)
                raise

    def has_record(self, group: str, topic: str) -> bool:
        """Whether a record has the group's offsets of the topic, as they were set last."""
        return entry_name(topic, group) in self.places

    def record_next(self, group: str, topic: str) -> None:
        """The group's offsets of the topic are to be recorded, if they are a log's."""
        if self._is_logged:
            self.unrecorded[entry_name(topic, group)] = None

    def reset(self, group: str, topic: str, offsets: Mapping[QueueId, QueueOffset]) -> None:
        """Sets several queues' offsets at once; durable. TroveError GROUP_ILLEGAL, REQUEST_ILLEGAL,
        LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED; then no offset has changed."""
        before = {queue_id: self.get(group, topic, queue_id) for queue_id in offsets}
        try:
            for queue_id, offset in offsets.items():
                self.commit(group, topic, queue_id, offset)
            self.persist()
        except TroveError:
            for queue_id, offset_before in before.items():
                self._restore(group, topic, queue_id, offset_before)
            raise

    def cap(self, topic: str, queue_id: QueueId, offset_max: QueueOffset) -> None:
        """Lowers the offsets of all groups that are above the end of the queue, after recovery."""
        for (owner, group), queues in self._table.items():
            if owner == topic and queues.get(queue_id, 0) > offset_max:
                self._set(group, topic, queue_id, offset_max)

    def cap_all(self, offset_max: OffsetLimit) -> Counter[str]:
        """Lowers every offset that is above the end of its queue, `offset_max(topic, queue_id)`. Returns how
        many offsets of each topic it lowered."""
        lowered: Counter[str] = Counter()
        for group, topic, queue_id, offset in list(self.entries()):
            if offset > (end := offset_max(topic, queue_id)):
                self._set(group, topic, queue_id, end)
                self.record_next(group, topic)
                lowered[topic] += 1
        return lowered

    def delete_topic(self, topic: str) -> None:
        """Forgets every group's offsets of the topic; durable with the next persist()."""
        for key in [key for key in self._table if key[0] == topic]:
            self._delete(key)

    def delete_group(self, group: str, end: PhysicalOffset = LOG_ORIGIN) -> None:
        """Forgets the group's offsets of every topic; durable with the next persist(), or because a record
        that ends there says it."""
        for key in [key for key in self._table if key[1] == group]:
            self._delete(key)
            self.log_end = max(self.log_end, end)

    def _delete(self, key: tuple[str, str]) -> None:
        self._entry_count -= len(self._table.pop(key))
        self._count_topic(key[1], -1)
        self._change += 1
        name = entry_name(*key)
        self._without_record.pop(name, None)
        self.unrecorded.pop(name, None)
        if self._is_logged and name in self.places:
            self.unrecorded[name] = None

    def needs_log(self, end: PhysicalOffset) -> None:
        """Offsets that are set from now on depend on the log below `end`."""
        self.log_needed = max(self.log_needed, end)

    def begin_persist(self) -> PersistWork | None:
        """The work that saves the present offsets; None if nothing changed since finish_persist()."""
        assert not self._is_logged, "a log's offsets have a file with a note"
        if not self.dirty:
            return None
        table: dict[str, object] = dict(self._unknown)
        whole = True
        for (topic, group), queues in self._table.items():
            stored = {
                str(queue_id): self._limited(topic, queue_id, offset) for queue_id, offset in queues.items()
            }
            whole = whole and all(stored[str(queue_id)] == offset for queue_id, offset in queues.items())
            table[f"{topic}@{group}"] = stored
        assert len(table) == len(self._unknown) + len(self._table), "no two entries have one name"
        content = lax_json.render({**self._others, "offsetTable": table})
        return PersistWork(self._file, content, self._change, whole=whole)

    def finish_persist(self, work: PersistWork) -> None:
        """Call on the owner's thread after run()."""
        assert work.change <= self._change, "it was captured from these offsets"
        if work.whole:
            self._persisted_change = max(self._persisted_change, work.change)
        assert self._persisted_change <= self._change, "no change is saved before it is made"

    def persist(self) -> None:
        """Brings the offsets to disk if they changed. TroveError DISK_FULL, STORE_FAILED."""
        work = self.begin_persist()
        if work is not None:
            work.run()
            self.finish_persist(work)

    # --- as a table of the log (engine/table_log.py) ------------------------------------------------
    @property
    def values(self) -> Mapping[str, object]:
        """The value of each entry, by name."""
        return {entry_name(*key): _value(queues) for key, queues in self._table.items()}

    @property
    def version(self) -> JsonObject:
        """RocketMQ's dataVersion, as it was read."""
        return object_member(self._others, "dataVersion")

    def value_of(self, name: str) -> JsonObject | None:
        """None if there is no such entry."""
        queues = self._table.get(entry_key(name))
        return None if queues is None else _value(queues)

    def restore(self, values: Mapping[str, object], _version: JsonObject) -> None:
        """Sets the whole table. ValueError if a value is illegal."""
        if values == self.values:
            return
        self._table, self._topic_counts, self._entry_count = {}, {}, 0
        self._change += 1
        self._read({**self._unknown, **values})

    def connect(self, _log: object, places: Mapping[str, PhysicalOffset], log_end: PhysicalOffset) -> None:
        """From now on changes are records of the log. places, log_end: see the members."""
        self.places = {name: place for name, place in places.items() if place != OF_EMPTY}
        self.log_end, self._is_logged = log_end, True
        names = [entry_name(*key) for key in self._table]
        self._without_record = dict.fromkeys(name for name in names if name not in self.places)

    def follow(
        self,
        name: str,
        value: JsonObject | None,
        _version: JsonObject,
        place: PhysicalOffset,
        end: PhysicalOffset,
    ) -> None:
        """Makes the change of another node's record, which lies at `place`; None: the entry is deleted.
        ValueError if the value is illegal."""
        key = entry_key(name)
        if key in self._table:
            self._delete(key)
        if value is not None:
            self._read({name: value})
        self._change += 1
        self.set_place(name, None if value is None else place)
        self.log_end = end

    def follow_deleted_group(self, group: str, end: PhysicalOffset) -> None:
        """Makes the deletion of another node's record, which ends there."""
        for key in [key for key in self._table if key[1] == group]:
            self.follow(entry_name(*key), None, {}, end, end)

    def set_place(self, name: str, place: PhysicalOffset | None) -> None:
        """The last record of the entry lies there; None: it is deleted."""
        self.places.pop(name, None)
        self._without_record.pop(name, None)
        self.unrecorded.pop(name, None)
        if place is not None:
            self.places[name] = place

    def below(self, physical_offset: PhysicalOffset, count_max: int) -> list[str]:
        """Entries whose last record lies below that offset, or that have none, because events have them."""
        found = list(islice(self._without_record, count_max))
        for name, place in self.places.items():
            if place >= physical_offset or len(found) == count_max:
                break
            found.append(name)
        return found

    def lacks(self, written: PhysicalOffset | None) -> bool:
        """Whether the file, which has the records up to `written`, lacks a change."""
        return written is None or self.dirty

    def content_end(self, log_end: PhysicalOffset) -> PhysicalOffset:
        """The end of the records whose changes the present content has."""
        return max(log_end, self.log_end)

    def begin_write(self) -> Callable[[], None]:
        """Call before the content is captured; the result when the file has it."""
        return partial(self._saved, self._change)

    def _saved(self, change: int) -> None:
        self._persisted_change = max(self._persisted_change, change)

    def _document(self) -> JsonObject:
        return {**self._others, "offsetTable": {**self._unknown, **self.values}}

    def _limited(self, topic: str, queue_id: QueueId, offset: QueueOffset) -> QueueOffset:
        return offset if self.limit is None else min(offset, self.limit(topic, queue_id))

    def _set(self, group: str, topic: str, queue_id: QueueId, offset: QueueOffset) -> None:
        assert 0 <= offset <= OFFSET_MAX, "the caller checked it"
        queues = self._table.get((topic, group))
        if queues is None or queue_id not in queues:
            self._check_limits(group)
        if queues is None:
            queues = self._table[topic, group] = {}
            self._count_topic(group, 1)
            if self._is_logged and (name := entry_name(topic, group)) not in self.places:
                self._without_record[name] = None
        if queue_id not in queues:
            self._entry_count += 1
        queues[queue_id] = offset
        self._change += 1
        assert self._entry_count > 0, "each entry is counted"

    def _restore(self, group: str, topic: str, queue_id: QueueId, before: QueueOffset | None) -> None:
        """Undoes a change that could not be saved."""
        queues = self._table.get((topic, group))
        if queues is None or queues.get(queue_id) == before:
            return
        self._change += 1
        assert self._change > self._persisted_change, "an undone change has to be saved"
        if before is not None:
            queues[queue_id] = before
            return
        del queues[queue_id]
        self._entry_count -= 1
        assert self._entry_count >= 0, "each entry is counted once"
        if not queues:
            del self._table[topic, group]
            self._count_topic(group, -1)

    def _count_topic(self, group: str, step: int) -> None:
        assert step in (1, -1), "one topic at a time"
        count = self._topic_counts.get(group, 0) + step
        assert count >= 0, "a topic leaves a group that had it"
        if count:
            self._topic_counts[group] = count
        else:
            del self._topic_counts[group]

    def _check_limits(self, group: str) -> None:
        if group not in self._topic_counts and len(self._topic_counts) >= self._group_count_max:
            what = f"this broker has offsets of {self._group_count_max} groups, and that is the most"
            to_do = "delete groups that no program uses (trovemq group delete)"
            raise TroveError(errors.LIMIT_EXCEEDED, f"{what}: {to_do}")
        if self._entry_count >= ENTRY_COUNT_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"this broker keeps {ENTRY_COUNT_MAX} offsets already")

    def _read(self, table: object) -> None:
        if not isinstance(table, dict):
            raise ValueError("offsetTable is not an object")
        for name, queues in table.items():
            topic, separator, group = name.partition("@")
            if not isinstance(queues, dict):
                raise ValueError(f"offsetTable: {name!r} is not an object")
            if not separator:
                self._unknown[name] = queues
                continue
            self._table[topic, group] = {
                QueueId(int(queue_id)): _offset(name, value) for queue_id, value in queues.items()
            }
            self._entry_count += len(queues)
            self._count_topic(group, 1)


def entry_name(topic: str, group: str) -> str:
    return f"{topic}@{group}"


def entry_key(name: str) -> tuple[str, str]:
    """(topic, group) of an entry."""
    topic, _, group = name.partition("@")
    return topic, group


def _value(queues: Mapping[QueueId, QueueOffset]) -> JsonObject:
    return {str(queue_id): offset for queue_id, offset in queues.items()}


def _offset(name: str, value: object) -> QueueOffset:
    if not isinstance(value, int):
        raise ValueError(f"offsetTable: {name!r} has the offset {value!r}")
    return QueueOffset(value)
