"""A stopped store for the audit's tasks: the facts that are known before its log is read.

Everything here can be pickled; a task opens the files that it needs. The rules are those of
trovemq_store.check: a queue ends at its first unwritten unit, sizes come from the store's own state or from
its files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.errors import TroveError
from trovemq_spark.audit.found import FindingList
from trovemq_spark.audit.place_files import PlaceFiles, as_file_system, as_read_only
from trovemq_spark.log.segments import LogDirectory
from trovemq_spark.log.sizes import FileSizes
from trovemq_spark.storage import StoragePath
from trovemq_store.check.layouts import Records, written_count
from trovemq_store.check.store_view import infer_sizes
from trovemq_store.engine.opening import ABORT_PATH, LOCK_PATH
from trovemq_store.files.files import StorageError
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.index.consume_queue import BLANK_SIZE, ROOT_DIRECTORY, UNIT_DTYPE, UNIT_SIZE
from trovemq_store.log import state
from trovemq_store.log.segments import DIRECTORY as LOG_DIRECTORY
from trovemq_store.topics.deletions import DELETIONS_PATH, TopicDeletions
from trovemq_store.topics.json_file import JsonFile

QueueKey = tuple[str, int]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One queue's files: units [first, end) are written; `files` are the first units of the existing
    files."""

    first: int
    end: int
    files: tuple[int, ...]
    last_record_end: int = 0
    """Physical offset after the record of the last unit; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """One index file: items [1, item_count) of records in [lowest, highest]. begin: store time of item 1's
    record, epoch ms (that of the header if the record cannot be read)."""

    path: str
    item_count: int
    begin: int
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class AuditedStore:
    """The store of an audit. queues and index_files are empty until they are examined."""

    place: StoragePath
    log: LogDirectory
    sizes: FileSizes
    clean: bool
    """If true nothing may be missing. Otherwise recovery adds missing parts, and a missing part is only a
    note."""
    own_state: bool
    """Our broker wrote the store; RocketMQ's own stores do not record the known end of the log."""
    deletions: TopicDeletions
    known_end: int = 0
    queues: Mapping[QueueKey, QueueFacts] = field(default_factory=dict)
    index_files: tuple[IndexFacts, ...] = ()
    index_is_readable: bool = True

    @property
    def files(self) -> PlaceFiles:
        return PlaceFiles(self.place)

    @property
    def complete_below(self) -> int:
        """The index has every key of the records below this offset."""
        return max((file.highest for file in self.index_files if file.item_count > 1), default=-1)

    def log_place(self, physical_offset: int) -> tuple[str, int]:
        """(path, byte offset in the file) of a place in the log."""
        for segment in self.log.covering(physical_offset, physical_offset + 1):
            return f"{LOG_DIRECTORY}/{segment.name}", physical_offset - segment.start
        return LOG_DIRECTORY, physical_offset

    def reader(self, key: QueueKey) -> QueueReader:
        return QueueReader(self.files, key, self.queues[key], self.sizes.consume_queue_file_size)


def open_store(text: str, given: FileSizes, found: FindingList) -> AuditedStore:
    """Opens the store at a path or URI. Files that cannot be read become findings, and are not read further.

    Raises TroveError STORE_FAILED if there is no log.
    """
    log = LogDirectory.open(text)
    place = StoragePath(text)
    files = PlaceFiles(place)
    has_state = False
    try:
        has_state = state.load(as_file_system(files)) is not None
    except (TroveError, StorageError) as error:
        found.of("stateFile").add(state.PATH, 0, str(error))
    deletions = _deletions(files, found)
    sizes = _sizes(files, given, found)
    index_is_readable = bool(sizes.index_slot_count and sizes.index_item_count)
    clean = not files.exists(ABORT_PATH)
    return AuditedStore(
        place, log, sizes, clean, has_state, deletions, log.known_end, index_is_readable=index_is_readable
    )


def is_locked(store: AuditedStore) -> bool:
    """Whether a broker has the store open, if that can be determined."""
    local = store.place.local
    return local is not None and ReadOnlyFileSystem(local).is_locked(LOCK_PATH)


def _deletions(files: PlaceFiles, found: FindingList) -> TopicDeletions:
    try:
        return TopicDeletions.load(as_file_system(files))
    except (TroveError, StorageError) as error:
        found.of("deletionsFile").add(DELETIONS_PATH, 0, str(error))
        return TopicDeletions(JsonFile(as_file_system(files), DELETIONS_PATH), {})


def _sizes(files: PlaceFiles, given: FileSizes, found: FindingList) -> FileSizes:
    queue_file_size = given.consume_queue_file_size or _common_queue_file_size(files)
    sizes = replace(given, consume_queue_file_size=queue_file_size)
    try:
        settings = infer_sizes(as_read_only(files), sizes.given())
    except (TroveError, StorageError, ValueError) as error:
        found.of("indexFileSize").add("index", 0, f"the sizes of the index files are not known: {error}")
        return sizes
    return FileSizes(queue_file_size, settings.index_slot_count, settings.index_item_count)


def _common_queue_file_size(files: PlaceFiles) -> int:
    """The size in the store's state, else that of most files: a single file may be cut short."""
    try:
        if (saved := state.load(as_file_system(files))) is not None:
            return saved.consume_queue_file_size
    except (TroveError, StorageError):
        pass  # reported where the state is read
    sizes = Counter(
        entry.size
        for entry in files.place.entries(ROOT_DIRECTORY, recursive=True)
        if not entry.is_directory and entry.size and entry.size % UNIT_SIZE == 0
    )
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else 0


# --- consume queues -----------------------------------------------------------------------------------------


def queue_keys(store: AuditedStore) -> list[QueueKey]:
    """Every queue that has a directory."""
    files = store.files
    return [
        (topic, int(name))
        for topic in files.list(ROOT_DIRECTORY)
        if files.is_directory(f"{ROOT_DIRECTORY}/{topic}")
        for name in files.list(f"{ROOT_DIRECTORY}/{topic}")
        if name.isdecimal()
    ]


def queue_facts(store: AuditedStore, key: QueueKey) -> tuple[QueueKey, QueueFacts, FindingList]:
    """The facts of a queue's files. Files of a wrong size, and files missing between others, are findings."""
    found = FindingList("queueFile")
    size, files = store.sizes.consume_queue_file_size, store.files
    directory = f"{ROOT_DIRECTORY}/{key[0]}/{key[1]}"
    entries = [
        entry for entry in store.place.entries(directory)
        if not entry.is_directory and entry.name.rpartition("/")[2].isdecimal() and entry.size
    ]  # fmt: skip
    firsts: list[int] = []
    end, last_record_end, ended = 0, 0, False
    for entry in entries:
        start = int(entry.name.rpartition("/")[2])
        if entry.size != size:
            found.add(entry.name, 0, f"has {entry.size} bytes, mappedFileSizeConsumeQueue is {size}")
        if firsts and start > firsts[-1] * UNIT_SIZE + size:
            gone = firsts[-1] * UNIT_SIZE + size
            found.add(f"{directory}/{gone:020d}", 0, f"the queue's files up to {entry.name} are missing")
        firsts.append(start // UNIT_SIZE)
        if ended:
            continue
        units = np.frombuffer(files.open(entry.name).view(), UNIT_DTYPE, count=entry.size // UNIT_SIZE)
        count = written_count(units)
        end, ended = start // UNIT_SIZE + count, count < len(units)
        if count and int(units[count - 1]["size"]) != BLANK_SIZE:
            last_record_end = int(units[count - 1]["physical_offset"]) + int(units[count - 1]["size"])
    first = firsts[0] if firsts else 0
    return key, QueueFacts(first, max(end, first), tuple(firsts), last_record_end), found


class QueueReader:
    """Reads one queue's units at any queue offsets; opens the files that contain them."""

    def __init__(self, files: PlaceFiles, key: QueueKey, facts: QueueFacts, file_size: int) -> None:
        self.facts: Final = facts
        self._files = files
        self._directory = f"{ROOT_DIRECTORY}/{key[0]}/{key[1]}"
        self._units_a_file = max(file_size // UNIT_SIZE, 1)
        self._opened: dict[int, Records] = {}

    def place(self, unit: int) -> tuple[str, int]:
        """(path, byte offset in the file)."""
        start = unit // self._units_a_file * self._units_a_file
        return f"{self._directory}/{start * UNIT_SIZE:020d}", (unit - start) * UNIT_SIZE

    def has_file(self, offsets: Int64s) -> NDArray[np.bool_]:
        """Whether each of these queue offsets has a file."""
        starts = offsets // self._units_a_file * self._units_a_file
        return np.isin(starts, np.array(self.facts.files, np.int64))

    def at(self, offsets: Int64s) -> Records:
        """The units of these queue offsets; zeros if there is no file."""
        units = np.zeros(len(offsets), UNIT_DTYPE)
        starts = offsets // self._units_a_file * self._units_a_file
        for start in np.unique(starts[self.has_file(offsets)]).tolist():
            file = self._file(start)
            inside = np.flatnonzero(starts == start)
            inside = inside[offsets[inside] - start < len(file)]
            units[inside] = file[offsets[inside] - start]
        return units

    def _file(self, start: int) -> Records:
        if start not in self._opened:
            view = self._files.open(f"{self._directory}/{start * UNIT_SIZE:020d}").view()
            self._opened[start] = np.frombuffer(view, UNIT_DTYPE, count=len(view) // UNIT_SIZE)
        return self._opened[start]
