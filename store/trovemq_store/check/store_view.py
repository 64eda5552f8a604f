"""A store as recovery would find it, without changing it.

The sizes of its files come from the given settings, otherwise from the files themselves. The log is
read by the same reader that recovery uses, from its first byte; records of deleted topics are
distinguished by the same table.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_proto.records import RECORD_SIZE_MIN, Message, RecordState, check_record, scan_run
from trovemq_store.check import layouts
from trovemq_store.check.layouts import QueueView
from trovemq_store.check.log_rules import written_bytes
from trovemq_store.engine.opening import ABORT_PATH, LOCK_PATH
from trovemq_store.files.files import File
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.index.consume_queue import BLANK_SIZE, ROOT_DIRECTORY
from trovemq_store.log import state
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.readable import can_read_record
from trovemq_store.log.reader import Damage, LogReader
from trovemq_store.log.whole_runs import WholeRuns
from trovemq_store.settings import CONSUME_QUEUE_UNIT_SIZE, StoreSettings
from trovemq_store.topics.deletions import TopicDeletions

COMMIT_LOG_DIRECTORY: Final = "commitlog"
SEGMENT_SIZE_UNIT: Final = 4096
SEARCHED_BYTES: Final = 1 << 20  # at once, after a check that they can be read
STORE_DIRECTORIES: Final = (COMMIT_LOG_DIRECTORY, ROOT_DIRECTORY, "config", "trovemq")
SIZES: Final = ("commit_log_file_size", "consume_queue_file_size", "index_slot_count", "index_item_count")
"""The sizes that a store cannot be read without, by their names in StoreSettings."""


@dataclass(slots=True)
class LogScan:
    """The result of reading the whole log; complete once runs() is exhausted."""

    end: PhysicalOffset = LOG_ORIGIN
    record_count: int = 0
    dead_count: int = 0
    last_store_timestamp: EpochMs = EpochMs(0)
    damages: list[Damage] = field(default_factory=list)
    unreadable: list[tuple[PhysicalOffset, str]] = field(default_factory=list)
    """Physical offsets of well-formed records whose body cannot be decompressed, and why."""


class StoreView:
    """One store directory, for reading. Use open()."""

    def __init__(self, files: ReadOnlyFileSystem, settings: StoreSettings) -> None:
        self.files = files
        self.settings = settings
        self.clean = not files.exists(ABORT_PATH)
        self.deletions = TopicDeletions.load(files)
        self.state = state.load(files)
        if self.state is not None:
            state.check_sizes(self.state, settings)
        self.log = CommitLog(files, settings.commit_log_file_size)
        self.log.segments.load()
        self.queues: list[QueueView] = list(layouts.read_queues(files))

    @classmethod
    def open(cls, root: Path, given: Mapping[str, int] | None = None) -> StoreView:
        """`given`: sizes by the names of StoreSettings; the others are inferred. TroveError
        STORE_SETTINGS_MISMATCH, STORE_NEWER, STORE_FAILED; FileNotFoundError if there is no store."""
        files = ReadOnlyFileSystem(root)
        if not any(files.is_directory(name) for name in STORE_DIRECTORIES):
            raise FileNotFoundError(f"there is no store in {root}")
        return cls(files, replace(infer_sizes(files, dict(given or {})), store_host="127.0.0.1:0"))

    @property
    def locked(self) -> bool:
        """Whether another process has the store open: files may change while they are read."""
        return self.files.is_locked(LOCK_PATH)

    @property
    def known_end(self) -> PhysicalOffset:
        """The log is known to reach to here: below it, bytes that are not a record are damage, not the
        end."""
        if self.state is not None:
            known = self.state.log_end
        else:
            ends = (self._unit_end(queue) for queue in self.queues)
            known = max(ends, default=LOG_ORIGIN) if self.clean else LOG_ORIGIN
        return min(known, self.log.segments.capacity_end)

    @staticmethod
    def _unit_end(queue: QueueView) -> PhysicalOffset:
        last = queue.units(queue.end - 1, queue.end)
        if not len(last) or int(last["size"][0]) == BLANK_SIZE:
            return LOG_ORIGIN
        return PhysicalOffset(int(last["physical_offset"][0]) + int(last["size"][0]))

    def runs(
        self, scan: LogScan, begin: PhysicalOffset = LOG_ORIGIN, *, check_crc: bool = True
    ) -> Iterator[DispatchBatch]:
        """The log's records from `begin` on (a record's start), with `alive` filled in; fills `scan`."""
        position = max(begin, self.log.min_offset)
        reader = WholeRuns(
            LogReader(
                self.log,
                position,
                self.known_end,
                check_crc=check_crc,
                step_ms=state.step_ms(self.state),
            ),
            sealed=state.runs_sealed(self.state),
        )
        for run in reader:
            run = replace(run, alive=self.deletions.alive_mask(run.records, run.physical_offset))  # noqa: PLW2901
            scan.record_count += len(run.records)
            scan.dead_count += 0 if run.alive is None else int(np.count_nonzero(~run.alive))
            scan.last_store_timestamp = max(
                scan.last_store_timestamp, EpochMs(int(run.records.store_timestamps.max()))
            )
            yield run
        scan.end = max(reader.position, self.log.min_offset)
        scan.damages.extend(reader.damages)

    def log_place(self, physical_offset: PhysicalOffset) -> tuple[str, int]:
        """(path, byte offset in the file) of a place in the log."""
        segment = self.log.segments.at(physical_offset)
        if segment is None:
            return COMMIT_LOG_DIRECTORY, physical_offset
        return segment.file.path, physical_offset - segment.start

    def message(self, run: DispatchBatch, index: int, scan: LogScan) -> Message | None:
        """A record of a run, decoded; None if its body cannot be decompressed, which is noted in `scan`."""
        try:
            return run.records.message(index)
        except TroveError as error:
            scan.unreadable.append((run.offset_of(index), str(error)))
            return None

    def bytes_after(self, end: PhysicalOffset) -> int:
        """Bytes at or after `end` that are not zero: recovery would cut them."""
        count = 0
        for segment in self.log.segments.covering(end, self.log.segments.capacity_end):
            count += written_bytes(segment.file, max(end - segment.start, 0))
        return count


def infer_sizes(files: ReadOnlyFileSystem, given: Mapping[str, int]) -> StoreSettings:
    """The settings for a store, with the given sizes, and for the others those of its files."""
    return StoreSettings(**known_sizes(files, given))  # type: ignore[arg-type]  # only integer members


def known_sizes(files: ReadOnlyFileSystem, given: Mapping[str, int]) -> dict[str, int]:
    """The given sizes, and for the others those of the store's files."""
    sizes = dict(given)
    if (saved := state.load(files)) is not None:
        sizes = {name: getattr(saved, name) for name in SIZES} | sizes
    if log_size := _segment_size(files):
        sizes.setdefault("commit_log_file_size", log_size)
    if queue_size := _queue_file_size(files):
        sizes.setdefault("consume_queue_file_size", queue_size)
    if not {"index_slot_count", "index_item_count"} <= sizes.keys():
        sizes.update(_index_sizes(files, sizes))
    for name, size in sizes.items():
        if size <= 0 or (name == "consume_queue_file_size" and size % CONSUME_QUEUE_UNIT_SIZE):
            raise TroveError(errors.STORE_SETTINGS_MISMATCH, f"{name} cannot be {size}")
    return sizes


def with_sizes_of_store(root: Path, settings: StoreSettings, written: Collection[str]) -> StoreSettings:
    """The settings; sizes that are not in `written` are those of the store in `root`, if it has them.

    TroveError STORE_SETTINGS_MISMATCH, STORE_NEWER; StorageError.
    """
    given = {name: getattr(settings, name) for name in SIZES if name in written}
    return replace(settings, **known_sizes(ReadOnlyFileSystem(root), given))  # type: ignore[arg-type]


def _segment_size(files: ReadOnlyFileSystem) -> int:
    """The size of the log's files; 0 if they differ, because one may have been cut short."""
    paths = [
        f"{COMMIT_LOG_DIRECTORY}/{name}" for name in files.list(COMMIT_LOG_DIRECTORY) if name.isdecimal()
    ]
    size = max((files.file_size(path) for path in paths), default=0)
    follow = (
        size > 0
        and size % SEGMENT_SIZE_UNIT == 0
        and all(int(path.rpartition("/")[2]) % size == 0 for path in paths)
    )
    return size if follow else 0


def _queue_file_size(files: ReadOnlyFileSystem) -> int:
    return next((files.file_size(path) for path in files.walk(ROOT_DIRECTORY)), 0)


def _index_sizes(files: ReadOnlyFileSystem, given: Mapping[str, int]) -> dict[str, int]:
    """Slot and item counts of the index files. A file has neither of them; its size is one equation for
    both."""
    paths = layouts.index_paths(files)
    if not paths:
        return {}
    rest = files.file_size(paths[0]) - layouts.HEADER_SIZE
    if "index_slot_count" in given:
        slots = given["index_slot_count"]
    elif "index_item_count" in given:
        slots = (rest - layouts.ITEM_SIZE * given["index_item_count"]) // layouts.SLOT_SIZE
    else:
        slots = _slots_by_first_item(files, paths[0], rest)
    items = (rest - layouts.SLOT_SIZE * slots) // layouts.ITEM_SIZE
    if layouts.index_file_size(slots, items) != rest + layouts.HEADER_SIZE:
        message = f"{paths[0]} has {rest + layouts.HEADER_SIZE} bytes, which does not fit {slots} slots"
        raise TroveError(errors.STORE_SETTINGS_MISMATCH, message)
    return {"index_slot_count": slots, "index_item_count": items}


def _slots_by_first_item(files: ReadOnlyFileSystem, path: str, rest: int) -> int:
    """Finds item 1 by its content: a key hash of the record that the header names first.

    For a file without items, or whose record is gone or cannot be read: RocketMQ's default of 1 slot to
    4 items. StorageError if the file cannot be read.
    """
    by_default = rest // (layouts.SLOT_SIZE + 4 * layouts.ITEM_SIZE)
    file = files.open(path)
    file.check_readable(0, layouts.HEADER_SIZE)
    header = np.frombuffer(file.view(), layouts.HEADER_DTYPE, count=1)[0]
    physical_offset = PhysicalOffset(int(header["begin_physical_offset"]))
    if int(header["item_count"]) <= 1:
        return by_default
    items_from = layouts.HEADER_SIZE + layouts.ITEM_SIZE  # where item 1 would be if there were no slots
    for key_hash in _key_hashes_at(files, physical_offset):
        position = _find(file, key_hash.to_bytes(4) + physical_offset.to_bytes(8), items_from)
        slots, odd = divmod(position - items_from, layouts.SLOT_SIZE)
        whole_items = (rest - layouts.SLOT_SIZE * slots) % layouts.ITEM_SIZE == 0
        if slots > 0 and not odd and whole_items:
            return slots
    return by_default


def _find(file: File, wanted: bytes, begin: int) -> int:
    """The position of `wanted` in a file, from `begin` on; -1 if it is absent."""
    content = file.view().obj  # searching the mapping itself copies nothing
    assert isinstance(content, mmap.mmap | bytes), "a ReadOnlyFile has one of them"
    assert begin >= 0, "a search begins in the file"
    for at in range(begin, file.size, SEARCHED_BYTES):
        end = min(at + SEARCHED_BYTES + len(wanted) - 1, file.size)
        file.check_readable(at, end)
        if (position := content.find(wanted, at, end)) >= 0:
            return position
    return -1


def _key_hashes_at(files: ReadOnlyFileSystem, physical_offset: PhysicalOffset) -> list[int]:
    """The key hashes of the record there; none where there is no such record."""
    for name in files.list(COMMIT_LOG_DIRECTORY):
        path = f"{COMMIT_LOG_DIRECTORY}/{name}"
        if not name.isdecimal() or not 0 <= physical_offset - int(name) < files.file_size(path):
            continue
        file, position = files.open(path), physical_offset - int(name)
        if not can_read_record(file, position, file.size):
            return []
        view, physical_offset_of_data = file.view(), int(name)
        state_there, _ = check_record(view, position, len(view), physical_offset=physical_offset)
        if state_there is RecordState.RECORD:
            batch, _, _ = scan_run(
                view,
                position,
                len(view),
                physical_offset_of_data=physical_offset_of_data,
                check_crc=True,
                bytes_max=RECORD_SIZE_MIN,
            )
            return [int(key_hash) for key_hash in batch.index_entries().hashes]
    return []
