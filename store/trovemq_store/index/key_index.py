"""The key index: every index file of a store, as one projection of the log.

Files `index/<yyyyMMddHHmmssSSS>` are used in the order of their names; each begins when the one before is
full, so that the keys of one message may lie in two files, or where store times step back: its items count
seconds from its first time. Source: RocketMQ 5.4.0, IndexService,
made exact about which records are indexed.

Invariants
- Every key of every record below `position` has an item, and the first `_resume` keys of the record at
  `position` have one too (a file could not be created, or a foreign index ends there); nothing has two.
- A file is only begun when there is an entry to put into it.
- Tag entries are complete from `tags_from` on; an index that another broker wrote may lack them below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_proto.records.key_entries import key_entries
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.index.chain_walk import ChainWalk
from trovemq_store.index.dirty_files import DirtyFiles
from trovemq_store.index.index_file import (
    FileWantedError,
    IndexFile,
    IndexFileWork,
    file_size,
    make_index_file,
    place_index_file,
    read_header,
)
from trovemq_store.index.key_index_note import read_note, write_note
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.time_runs import STEP_MIN_MS
from trovemq_store.settings import StoreSettings

DIRECTORY: Final = "index"
CREATE_ATTEMPTS: Final = 3
ROLLED_FILES_MAX: Final = 16
"""The most files that are not full. In a log whose store times step back more often, the last one takes all
later entries; their seconds are then 0."""
_TEMPORARY_PATH: Final = "trovemq/index-file.new"
_WALK_STEPS: Final = 1024
"""Items of a chain that are read at a time."""


class KeyIndex:
    """The projection; `load` before anything else.

    file_name returns the name of a new file (17 digits of the time); one that is not above the last file's is
    replaced by that one plus 1.
    """

    name = "key_index"

    def __init__(self, files: FileSystem, settings: StoreSettings, file_name: Callable[[], str]) -> None:
        self._files = files
        self._slot_count = settings.index_slot_count
        self._item_count = settings.index_item_count
        self._file_name = file_name
        self._dirty = DirtyFiles(files)
        self._index_files: list[IndexFile] = []
        self._full: deque[tuple[str, int]] = deque()
        self._position = self._synced_position = LOG_ORIGIN
        self._resume = 0
        self._loaded = False
        self.tags_from = LOG_ORIGIN
        self.create_failures = 0
        self.create_failure: StorageError | None = None
        """The last one."""
        self.files_by_work = False
        """New files come from file_work() only, because their creation waits for the disk."""
        self._wanted = False  # an entry waits for a file of file_work()
        self._made = False  # the temporary file is complete, and on disk

    @property
    def position(self) -> PhysicalOffset:
        return self._position

    @property
    def synced_position(self) -> PhysicalOffset:
        return self._synced_position

    @property
    def file_names(self) -> list[str]:
        return [file.name for file in self._index_files]

    # --- opening ------------------------------------------------------------------------------------
    def load(
        self,
        trusted_position: PhysicalOffset | None,
        *,
        store_timestamp_at: Callable[[PhysicalOffset], EpochMs | None] = lambda _: None,
        log_begin: PhysicalOffset = LOG_ORIGIN,
    ) -> None:
        """Opens the files on disk. If a file is missing that had keys of records at or after log_begin, the
        whole index is rebuilt: its files are removed, and position is 0.

        trusted_position: None after a clean stop. Then the files count as they are, and position is that of
        our note; if another broker wrote since, it is the start of the last indexed record, whose existing
        items are not put again. Otherwise everything below trusted_position was synced and nothing else is
        trusted: items of records at or after it are cut, slots and header rebuilt, and position becomes it.
        store_timestamp_at: the store time of a record of the log, for the headers of files that are cut.
        A header that counts fewer items than are known to exist is damaged, and not trusted.
        Raises TroveError STORE_SETTINGS_MISMATCH, STORE_NEWER, StorageError.
        """
        self._files.remove(_TEMPORARY_PATH)
        for path in self._listed_files():
            self._index_files.append(self._open(path))
        for file in self._index_files[:-1]:
            file.expect_full()
        known = read_note(self._files)
        if known is not None and trusted_position is None:
            self._expect_count(known)
        foreign = known is None or self._place() != (known["file"], known["count"])
        self._resume = 0
        if self._lacks_files(known, log_begin):
            self._cut(LOG_ORIGIN, store_timestamp_at)
            self._position = LOG_ORIGIN
        elif trusted_position is not None:
            self._dirty.mark_directory(DIRECTORY)
            self._cut(trusted_position, store_timestamp_at)
            self._position = trusted_position
        elif known is None or foreign:
            self._continue_after_last_item()
        else:
            self._position, self._resume = known["position"], known["resume"]
        self._synced_position = self._position
        if not self._index_files:
            self.tags_from = LOG_ORIGIN
        elif known is None or (foreign and trusted_position is None):
            self.tags_from = self._position
        else:
            self.tags_from = min(known["tagsFrom"], self._position)
        self._write_note()
        self._loaded = True

    def _listed_files(self) -> list[str]:
        names = [name for name in self._files.list(DIRECTORY) if name.isascii() and name.isdigit()]
        names.sort(key=int)
        while names and self._files.file_size(f"{DIRECTORY}/{names[-1]}") == 0:
            self._files.remove(f"{DIRECTORY}/{names.pop()}")
        return [f"{DIRECTORY}/{name}" for name in names]

    def _open(self, path: str) -> IndexFile:
        size, expected = self._files.file_size(path), file_size(self._slot_count, self._item_count)
        if size != expected:
            raise TroveError(
                errors.STORE_SETTINGS_MISMATCH,
                f"{path} has {size} bytes instead of {expected} (maxHashSlotNum {self._slot_count}, "
                f"maxIndexNum {self._item_count})",
                path=path,
            )
        return IndexFile(self._files, path, self._slot_count, self._item_count)

    def _continue_after_last_item(self) -> None:
        self._position = LOG_ORIGIN
        used = [file for file in self._index_files if file.count > 1]
        if used:
            self._position = used[-1].end_physical
            for file in reversed(used):
                if file.end_physical == self._position:
                    self._resume += file.count_of_last_record()

    def _lacks_files(self, note: dict[str, Any] | None, log_begin: PhysicalOffset) -> bool:
        """Whether a file of the note is missing, although the log still has its records."""
        noted = {} if note is None else note.get("files", {})
        return any(end >= log_begin for name, end in noted.items() if name not in self.file_names)

    @property
    def last_item_count(self) -> int | None:
        """The next free item number of the last file; None if there is no file."""
        return self._index_files[-1].count if self._index_files else None

    def _place(self) -> tuple[str, int]:
        """The last file and its next free item: where the index continues."""
        last = self._index_files[-1:]
        return (last[0].name, last[0].count) if last else ("", 0)

    def _expect_count(self, note: dict[str, Any]) -> None:
        """Uses the note's count for the last file, if nothing was put into that since our clean stop."""
        for file in self._index_files[-1:]:
            noted_end = note.get("files", {}).get(file.name)
            if (file.name, file.end_physical) == (note["file"], noted_end):
                file.expect_count(note["count"])

    def _write_note(self) -> None:
        file, count = self._place()
        note = {
            "tagsFrom": self.tags_from,
            "position": self._position,
            "resume": self._resume,
            "file": file,
            "count": count,
            "files": {file.name: file.end_physical for file in self._index_files if file.count > 1},
        }
        fault_point("index.before_note")
        write_note(self._files, note)

    # --- reading ------------------------------------------------------------------------------------
    def last_update(self) -> tuple[int, PhysicalOffset]:
        """(store timestamp, physical offset) of the record that was indexed last; (0, 0) for none."""
        for file in reversed(self._index_files):
            if file.count > 1:
                return file.end_timestamp, file.end_physical
        return 0, LOG_ORIGIN

    def walk(
        self,
        key_hash: int,
        begin_physical: PhysicalOffset,
        end_physical: PhysicalOffset,
        place: tuple[str, int] | None = None,
    ) -> ChainWalk:
        """The items of that hash whose records lie in [begin_physical, end_physical), newest first.

        place: a ChainWalk's own, to continue there; one that no longer fits is skipped.
        """
        files = [
            file
            for file in reversed(self._index_files)
            if file.count > 1 and file.begin_physical < end_physical and file.end_physical >= begin_physical
        ]
        return ChainWalk(files, key_hash, begin_physical, end_physical, place)

    def newest_file_begin(
        self, begin_physical: PhysicalOffset, end_physical: PhysicalOffset
    ) -> PhysicalOffset:
        """Where the newest file that reaches below end_physical begins, and begin_physical at least."""
        for file in reversed(self._index_files):
            if file.count > 1 and file.begin_physical < end_physical:
                return max(begin_physical, file.begin_physical)
        return begin_physical

    def candidates(
        self, key_hash: int, begin_physical: PhysicalOffset, end_physical: PhysicalOffset
    ) -> Iterator[PhysicalOffset]:
        """Physical offsets of [begin_physical, end_physical) that may have a key of that hash, newest first.

        A record with two such keys has its offset twice. Nothing may be applied during the iteration.
        """
        walk = self.walk(key_hash, begin_physical, end_physical)
        while not walk.done:
            yield from walk.take(_WALK_STEPS)

    # --- the projection -----------------------------------------------------------------------------
    def apply(self, batch: DispatchBatch) -> None:
        """Indexes the keys of the records at or after `position`. After a StorageError some records may be
        indexed already; position says which."""
        if batch.end <= self._position:
            return
        if len(batch.records):
            self._put_all(batch)
        self._resume = 0
        self._position = batch.end

    def _put_all(self, batch: DispatchBatch) -> None:
        hashes, physical, timestamps = key_entries(
            batch.records, batch.physical_offset, self._position, self._resume, batch.alive
        )
        done = 0
        try:
            while done < len(hashes):
                fault_point("index.before_put")
                file = self._writable_file(int(timestamps[done]))
                end = done + _count_in_order(timestamps[done:], file.end_timestamp)
                done += file.put(hashes[done:end], physical[done:end], timestamps[done:end])
                self._dirty.mark(file.path)
                if file.full:
                    self._full.append((file.path, file.end_timestamp))
                fault_point("index.after_put")
        except StorageError:
            self._stop_inside(physical[:done])
            raise

    def take_full_files(self) -> list[tuple[str, int]]:
        """(path, end timestamp) of the files that have become full since the last call."""
        return [self._full.popleft() for _ in range(len(self._full))]

    def sync_full_files(self) -> int:
        """Syncs the files that have become full; may run in another thread. StorageError.

        Returns the highest end timestamp of them, for the checkpoint's indexMsgTimestamp; 0 for none.
        """
        full = self.take_full_files()
        self._dirty.sync([path for path, _ in full])
        return max((timestamp for _, timestamp in full), default=0)

    def flush(self) -> None:
        position = self._position
        fault_point("index.before_sync")
        self._dirty.sync()
        fault_point("index.after_sync")
        assert self._position >= position, "nothing is cut during a flush"
        assert position >= self._synced_position, "a synced position never goes back"
        self._synced_position = position

    def truncate_to(self, physical_offset: PhysicalOffset) -> None:
        if physical_offset < self._position or (physical_offset == self._position and self._resume):
            self._cut(physical_offset, lambda _: None)
            self._position = physical_offset
            self._resume = 0
        self._synced_position = min(self._synced_position, physical_offset)
        self.tags_from = min(self.tags_from, physical_offset)
        assert self._synced_position <= self._position, "the synced part was applied"
        assert self.tags_from <= self._position, "tags are complete up to the position"

    def trim_before(self, physical_offset: PhysicalOffset) -> None:
        for file in self.take_before(physical_offset):
            self._remove(file)

    def take_before(self, physical_offset: PhysicalOffset) -> list[IndexFile]:
        """Takes the oldest files out of the index, up to the first that names a record at or after
        physical_offset, but never the last one. Returns them; they stay on disk, and open."""
        count = 0
        for file in self._index_files[:-1]:
            if file.end_physical >= physical_offset:
                break
            count += 1
        # A new list: another thread may be iterating over the old one.
        taken, self._index_files = self._index_files[:count], self._index_files[count:]
        assert self._index_files or not taken, "the last one stays"
        assert not taken or taken[-1].end_physical < physical_offset, "they name only records before it"
        return taken

    def close(self) -> None:
        if self._loaded:
            try:
                self._write_note()
            except StorageError:
                pass  # the next start then treats the index as another broker's, and only reads more
        self.close_files()

    def close_files(self) -> None:
        """Closes the open files; the disk stays as it is."""
        for file in self._index_files:
            file.close()
        self._index_files.clear()
        self._loaded = False

    def _stop_inside(self, put: NDArray[np.int64]) -> None:
        """Notes that only these entries of a batch could be put: position becomes the record of the last
        one."""
        if not len(put):
            return
        last = PhysicalOffset(int(put[-1]))
        assert last >= self._position, "position never goes back"
        before = self._resume if last == self._position else 0
        self._resume = before + int(np.count_nonzero(put == last))
        self._position = last
        assert self._resume > 0, "one key of that record has an item at least"

    # --- files --------------------------------------------------------------------------------------
    def _writable_file(self, timestamp: int) -> IndexFile:
        """The last file for an entry of that store time, or a new one if it is full, or if store times step
        back. Raises StorageError after three attempts."""
        last = self._index_files[-1] if self._index_files else None
        if (
            last is not None
            and not last.full
            and (timestamp >= last.end_timestamp - STEP_MIN_MS or last.count == 1 or not self._may_roll())
        ):
            return last
        attempt = 1
        while True:
            if self.files_by_work and not self._made:
                self._wanted = True
                raise FileWantedError(DIRECTORY)
            try:
                return self._create()
            except StorageError as error:
                self.create_failures += 1
                self.create_failure = error
                if attempt == CREATE_ATTEMPTS:
                    raise
                attempt += 1

    def _may_roll(self) -> bool:
        return sum(not file.full for file in self._index_files) < ROLLED_FILES_MAX

    def file_work(self) -> IndexFileWork | None:
        """Work that creates the file for the next entry; None if it needs none."""
        if self._made or not self._wanted:
            return None
        size = file_size(self._slot_count, self._item_count)
        return IndexFileWork(self._files, _TEMPORARY_PATH, size, CREATE_ATTEMPTS)

    def finish_file(self, work: IndexFileWork) -> None:
        """Call this after run(), also if it failed."""
        self._made = self._made or work.ready
        self.create_failures += work.failures
        self.create_failure = work.failure or self.create_failure

    def _create(self) -> IndexFile:
        path = f"{DIRECTORY}/{self._next_name()}"
        made, self._made, self._wanted = self._made, False, False
        if not made:
            make_index_file(self._files, _TEMPORARY_PATH, file_size(self._slot_count, self._item_count))
        file = place_index_file(self._files, path, _TEMPORARY_PATH, self._slot_count, self._item_count)
        try:
            if self._index_files and self._index_files[-1].full:
                file.continue_from(self._index_files[-1])
                fault_point("index.after_continuing")
        except StorageError:
            self._remove(file)
            raise
        last = self._index_files[-1:]
        assert file.count == 1, "a new file has no items"
        assert not last or int(last[0].name) < int(file.name), "files are used in the order of their names"
        self._dirty.mark_created(path)
        self._index_files.append(file)
        return file

    def _next_name(self) -> str:
        name = self._file_name()
        if self._index_files and int(name) <= int(self._index_files[-1].name):
            return f"{int(self._index_files[-1].name) + 1:017d}"
        return name

    def _cut(
        self, physical_offset: PhysicalOffset, store_timestamp_at: Callable[[PhysicalOffset], EpochMs | None]
    ) -> None:
        """Removes all items but those of records below physical_offset. A file that is full below it is not
        changed."""
        files = self._index_files
        while files and not files[-1].ends_below(physical_offset):
            count = files[-1].valid_count(physical_offset)
            if count > 1:
                last = files[-1].item(count - 1)[1]
                files[-1].truncate_to(physical_offset, store_timestamp_at(last))
                self._dirty.mark(files[-1].path)
                break
            self._remove(files.pop())
        else:
            for file in files[-1:]:
                file.expect_full()

    def _remove(self, file: IndexFile) -> None:
        path = file.path
        file.close()
        self._files.remove(path)
        self._dirty.mark_directory(DIRECTORY)


def synced_end(files: FileSystem, checkpoint_timestamp: int) -> PhysicalOffset:
    """How far the index of another broker is certainly on disk: RocketMQ syncs a file when it is full, and
    then notes its end time in the checkpoint's indexMsgTimestamp. Raises StorageError."""
    end, before = LOG_ORIGIN, 0
    for name in sorted(name for name in files.list(DIRECTORY) if name.isascii() and name.isdigit()):
        begin_timestamp, end_timestamp, _, end_physical = read_header(files, f"{DIRECTORY}/{name}")
        if end_timestamp > checkpoint_timestamp or min(begin_timestamp, end_timestamp) < before:
            break  # it is later, or store times step back: the note may be of before that
        end, before = max(end, end_physical), end_timestamp
    return end


def _count_in_order(timestamps: NDArray[np.int64], last: int) -> int:
    """How many of the entries come before store times step back; `last`: the time of the entry before them,
    which the first one may be earlier than."""
    if timestamps.min() >= max(last, timestamps.max()) - STEP_MIN_MS:
        return len(timestamps)
    highest_before = np.maximum.accumulate(timestamps)
    if timestamps[0] >= last - STEP_MIN_MS:
        highest_before = np.maximum(highest_before, last)
    steps = np.flatnonzero(timestamps < highest_before - STEP_MIN_MS)
    return int(steps[0]) if len(steps) else len(timestamps)
