"""The B+trees of a store: opened or quarantined, kept up to date with the log, cleared of removed records.

They are projections: if they are missing they are built from the log, and if they cannot be trusted they are
quarantined (`trovemq/trees-aside/` keeps the last ones) and rebuilt. They are not trusted if LMDB refuses the
file, if their format is another one, or if the log does not have the record that an index names as its last:
then they belong to another store, or to a log that was cut or changed.

LMDB ends the process when it reads a damaged page. So `trovemq/trees/open` counts the starts in a row that
were not followed by a close. After such a start the structure of the file is checked before LMDB opens it: at
the next start if the file is small, otherwise at the third.

Invariants
- An entry alone proves nothing: a reader looks at the record, which may belong to a deleted topic or be
  removed.
- Entries of removed records (below the log's beginning, numbers of deleted topics) are removed in small
  steps.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from zlib_ng.zlib_ng import crc32

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.trees import TreeChange, Trees
from trovemq_store.index.dispatcher import LogRuns
from trovemq_store.index.trees.layout import (
    DIRECTORY,
    FORMAT_KEY,
    FORMAT_VERSION,
    LOCATION,
    META,
    NUMBER,
    ORDER,
    PRODUCER,
    RETIRED,
    SEQUENCE,
    TERM,
    TOPICS,
    UNIQUE_ID,
    Mark,
)
from trovemq_store.index.trees.order_tree import OrderEntries, OrderTree, PriorityTopics
from trovemq_store.index.trees.producer_entries import ProducerEntries, ProducerSweeper
from trovemq_store.index.trees.producers import Producers
from trovemq_store.index.trees.search_entries import IndexedProperties, SearchEntries
from trovemq_store.index.trees.sweeping import Sweeper
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.index.trees.tree_index import TreeIndex, TreeStep, catch_up
from trovemq_store.index.trees.unique_entries import UniqueIdEntries, UniqueIdSweeper
from trovemq_store.index.trees.unique_ids import UniqueIds
from trovemq_store.index.trees.unique_places import UniquePlaces
from trovemq_store.log.time_windows import SinceOf
from trovemq_store.topics.deletions import TopicDeletions

QUARANTINE: Final = "trovemq/trees-aside"
CURRENT: Final = "current"
"""The indexes that must be up to date before a send is checked."""
BY_PRIORITY: Final = "by-priority"
SEARCH: Final = "search"
TREE_NAMES: Final = (META, TOPICS, RETIRED, LOCATION, TERM, UNIQUE_ID, ORDER, PRODUCER, SEQUENCE)
CATCH_UP_BYTES: Final = 256 << 20
"""How much of the log one commit covers. Keys in no order touch most pages of a tree, however many they are,
so a few large commits write far less than many small ones. Beside the memory of a step (tree_index.py), LMDB
holds the pages that the commit changes, 512 MiB at most. bench/trees/engine.py measures a
rebuild with it, and has no case for other sizes."""
PRODUCERS_MAX: Final = 10_000
OPEN_MARK: Final = f"{DIRECTORY}/open"
QUICKLY_CHECKED_BYTES: Final = 32 << 20
_FILES: Final = ("data.mdb", "lock.mdb")


class LogView(Protocol):
    """The part of the log that the trees need."""

    @property
    def min_offset(self) -> PhysicalOffset: ...
    @property
    def flushed_offset(self) -> PhysicalOffset: ...
    def read(self, physical_offset: PhysicalOffset, size: int) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class TreesReport:
    """The result of opening: why the trees were quarantined, or an empty text."""

    quarantined: str = ""


class StoreTrees:
    """Open trees, made by open(). `indexes` in the order in which they are to be current."""

    def __init__(
        self,
        trees: Trees,
        indexes: Sequence[TreeIndex],
        numbers: TopicNumbers,
        log: LogView,
        unique_ids: UniqueIds,
        unique_entries: UniqueIdEntries,
        order: OrderTree,
        producers: Producers,
        producer_entries: ProducerEntries,
    ) -> None:
        self.order: Final = order
        self.producers: Final = producers
        self.producer_entries: Final = producer_entries
        self._producer_sweeper = ProducerSweeper(trees, producer_entries, unique_entries, numbers)
        self.unique_ids: Final = unique_ids
        self.unique_entries: Final = unique_entries
        self._unique_sweeper = UniqueIdSweeper(trees, unique_entries, numbers)
        self.trees: Final = trees
        self.indexes: Final = indexes
        self.numbers: Final = numbers
        self.report = TreesReport()
        self._log = log
        self._sweeper = Sweeper(trees, numbers, lambda: log.min_offset)
        self._busy = False
        self._forget_open_mark: Callable[[], None] = lambda: None
        self.hurry = False
        """A caller waits for `current` to be up to date."""

    @classmethod
    def open(
        cls,
        files: FileSystem,
        log: LogView,
        deletions: TopicDeletions,
        read_log: LogRuns,
        indexed_properties: IndexedProperties,
        places: UniquePlaces,
        priority_topics: PriorityTopics = frozenset,
        producers_max: int = PRODUCERS_MAX,
    ) -> StoreTrees:
        """producers_max: the trees keep the sequences of at most this many producers that number their
        messages. StorageError if the trees can be neither opened nor created."""

        untouched = _mark_open(files)

        def build() -> StoreTrees:
            trees = files.open_trees(DIRECTORY, TREE_NAMES)
            try:
                _check_format(trees)
                with trees.read() as reader:
                    numbers = TopicNumbers(reader, deletions)
                entries = UniqueIdEntries(trees, places.windows, places.begin_of, places.since_of)
                unique_ids = UniqueIds(trees, numbers, deletions, places.known_at)
                numbered = ProducerEntries(trees, entries, producers_max)
                producers = Producers(trees, numbers, deletions, places.known_at, places.id_at)

                def committed(position: PhysicalOffset) -> None:
                    entries.committed()
                    numbered.committed()
                    fault_point("trees.after_rows")
                    unique_ids.committed(position)
                    producers.committed(position)

                log_parts = (numbers, deletions, read_log)
                order = OrderEntries(trees, priority_topics)
                indexes = [
                    TreeIndex(CURRENT, trees, [entries, numbered], *log_parts, committed, entries.start),
                    TreeIndex(BY_PRIORITY, trees, [order], *log_parts, start=order.start),
                    TreeIndex(SEARCH, trees, [SearchEntries(indexed_properties)], *log_parts),
                ]
                for index in indexes:
                    _check_mark(index.mark, log)
            except BaseException:
                trees.close()
                raise
            order_tree = OrderTree(trees, indexes[1], deletions)
            return cls(trees, indexes, numbers, log, unique_ids, entries, order_tree, producers, numbered)

        try:
            if not untouched:
                _check_structure(files)
            opened = build()
        except StorageError as error:
            if error.errno != errno.EINVAL:
                raise  # an error of the disk, not of the file's content
            why = str(error)
        except UntrustedError as error:
            why = str(error)
        else:
            why = ""
        if why:
            fault_point("trees.before_aside")
            quarantine(files)
            fault_point("trees.after_aside")
            opened = build()
            opened.report = TreesReport(why)
        files.sync_directory(DIRECTORY)
        opened._forget_open_mark = lambda: files.remove(OPEN_MARK)
        return opened

    @property
    def current(self) -> TreeIndex:
        return self.indexes[0]

    @property
    def search(self) -> TreeIndex:
        return self.indexes[-1]

    @property
    def lag_bytes(self) -> int:
        """Bytes of the log that are on disk and not yet in the trees that searches use."""
        return max(0, self._log.flushed_offset - self.search.position)

    def begin(self, limit: PhysicalOffset, bytes_max: int) -> TreeStep | None:
        """The next step of the first index that lacks something below `limit`; None if none does."""
        assert not self._busy, "one step at a time"
        assert limit <= self._log.flushed_offset, "the trees are never ahead of the log on disk"
        for index in self.indexes:
            if (step := index.begin(limit, bytes_max)) is not None:
                self._busy = True
                return step
        return None

    def ids_known(self, physical_offset: PhysicalOffset) -> bool:
        """Whether all counting ids of every deduplicated topic are known below that offset."""
        return self.current.position >= physical_offset and self.unique_entries.complete(
            self.current.position
        )

    @property
    def urgent(self) -> bool:
        """Whether a step of `current` should not wait for a quiet moment."""
        return self.hurry or self.unique_ids.crowded

    def finish(self, step: TreeStep) -> None:
        self._busy = False
        step.index.finish(step)

    def catch_up(self, limit: PhysicalOffset) -> None:
        """Brings the indexes up to `limit`, below which everything is on disk; blocks. StorageError."""
        catch_up(self.indexes, limit, CATCH_UP_BYTES)

    def catch_up_current(self, limit: PhysicalOffset) -> None:
        """catch_up() of the indexes that must be up to date before a send is checked. On a full disk only as
        far as possible: sends are then refused until a step succeeds."""
        try:
            catch_up([self.current], limit, CATCH_UP_BYTES)
        except StorageError as error:
            if not error.disk_full:
                raise

    def sweep(self, entries_max: int) -> bool:
        """Removes entries of removed records and topics, about `entries_max`; may run in another thread,
        between steps. True: there is more to look at. StorageError."""
        return self._sweeper.step(entries_max)

    def sweep_ids(self, since_of: SinceOf, steady_ms: int, entries_max: int) -> bool:
        """sweep() of ids and producers that are older than their windows; steady_ms: a time that never steps
        back."""
        return self._unique_sweeper.step(since_of, steady_ms, entries_max) or self._producer_sweeper.step(
            since_of, steady_ms, entries_max
        )

    def close(self) -> None:
        self.trees.close()
        with suppress(StorageError):
            self._forget_open_mark()


class UntrustedError(Exception):
    """The trees are damaged, belong to another log or have another format."""


def _mark_open(files: FileSystem) -> bool:
    """Writes how often in a row the trees were opened and not closed. False if their structure should be
    checked before LMDB opens them: after two such starts, or one where the check takes at most a second."""
    opened = 0
    if files.exists(OPEN_MARK):
        text = files.read_bytes(OPEN_MARK)
        opened = int(text) if text.isdigit() and len(text) < 9 else 1
    files.write_atomic(OPEN_MARK, b"%d" % (opened + 1))
    if not opened or not files.exists(f"{DIRECTORY}/data.mdb"):
        return True
    return opened == 1 and files.file_size(f"{DIRECTORY}/data.mdb") > QUICKLY_CHECKED_BYTES


def _check_structure(files: FileSystem) -> None:
    if problems := files.check_trees(DIRECTORY):
        raise UntrustedError(f"the trees' file is damaged: {problems[0]}")


def quarantine(files: FileSystem) -> None:
    """Moves the trees' files to trovemq/trees-aside, over the files there."""
    for name in _FILES:
        files.remove(f"{QUARANTINE}/{name}")
        if files.exists(f"{DIRECTORY}/{name}"):
            files.rename(f"{DIRECTORY}/{name}", f"{QUARANTINE}/{name}")


def _check_format(trees: Trees) -> None:
    with trees.read() as reader:
        value = reader.get(META, FORMAT_KEY)
        empty = not reader.count(META)
    if empty:
        trees.commit([TreeChange(META, [(FORMAT_KEY, NUMBER.pack(FORMAT_VERSION))])])
    elif value != NUMBER.pack(FORMAT_VERSION):
        raise UntrustedError(f"the trees have format {value!r}, this version writes {FORMAT_VERSION}")


def _check_mark(mark: Mark, log: LogView) -> None:
    if mark.position > log.flushed_offset:
        raise UntrustedError(f"the trees reach to {mark.position}, the log to {log.flushed_offset}")
    if mark.physical_offset < log.min_offset:
        return  # retention has removed the record
    record = log.read(mark.physical_offset, mark.size)
    if len(record) != mark.size or crc32(record) != mark.crc:
        raise UntrustedError(
            f"the log has another record at {mark.physical_offset} than the trees have taken"
        )
