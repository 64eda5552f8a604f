"""The B+trees of a store: opened, trusted or put aside, kept up with the log, cleared of what is gone.

They are projections: a store without them gets them, and where they cannot be trusted they are put aside
(`trovemq/trees-aside/`, one of them is kept) and made again from the log. They are not trusted where LMDB
refuses the file, where their format is another one, or where the log does not have the record that an index
says it took last: then they belong to another store, or to a log that was cut or changed.

Invariants
- An entry never counts by itself: who finds one looks at the record, which may be of a deleted topic, or
  gone.
- What is removed (records below the log's beginning, numbers of deleted topics) is removed in small steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from zlib_ng.zlib_ng import crc32

from broker.dispatch.dispatcher import LogRuns
from broker.storage.fault_points import fault_point
from broker.storage.files import FileSystem, StorageError
from broker.storage.trees import TreeChange, Trees
from broker.topics.deletions import TopicDeletions
from broker.trees.layout import (
    DIRECTORY,
    FORMAT_KEY,
    FORMAT_VERSION,
    LOCATION,
    META,
    NUMBER,
    RETIRED,
    TERM,
    TOPICS,
    Mark,
)
from broker.trees.search_entries import IndexedProperties, SearchEntries
from broker.trees.sweeping import Sweeper
from broker.trees.topic_numbers import TopicNumbers
from broker.trees.tree_index import TreeBuilder, TreeIndex, TreeStep, catch_up

ASIDE: Final = "trovemq/trees-aside"
SEARCH: Final = "search"
TREE_NAMES: Final = (META, TOPICS, RETIRED, LOCATION, TERM)
CATCH_UP_BYTES: Final = 16 << 20
_FILES: Final = ("data.mdb", "lock.mdb")


class LogView(Protocol):
    """What the trees ask of the log."""

    @property
    def min_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    def read(self, physical_offset: int, size: int) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class TreesReport:
    """What opening them found: why they were put aside, or an empty text; how far they were."""

    put_aside: str
    position: int


class StoreTrees:
    """Open trees; see open(). `indexes` in the order in which they are to be current."""

    def __init__(
        self, trees: Trees, indexes: Sequence[TreeIndex], numbers: TopicNumbers, log: LogView
    ) -> None:
        self.trees: Final = trees
        self.indexes: Final = indexes
        self.numbers: Final = numbers
        self.report = TreesReport("", min(index.position for index in indexes))
        self._log = log
        self._sweeper = Sweeper(trees, lambda: log.min_offset)
        self._busy = False

    @classmethod
    def open(
        cls,
        files: FileSystem,
        log: LogView,
        deletions: TopicDeletions,
        read_log: LogRuns,
        indexed_properties: IndexedProperties,
    ) -> StoreTrees:
        """StorageError where nothing can be opened nor made."""

        def build() -> StoreTrees:
            trees = files.open_trees(DIRECTORY, TREE_NAMES)
            try:
                _check_format(trees)
                with trees.read() as reader:
                    numbers = TopicNumbers(reader, deletions)
                builders: dict[str, list[TreeBuilder]] = {SEARCH: [SearchEntries(indexed_properties)]}
                indexes = [
                    TreeIndex(name, trees, of_it, numbers, deletions, read_log)
                    for name, of_it in builders.items()
                ]
                for index in indexes:
                    _check_mark(index.mark, log)
            except BaseException:
                trees.close()
                raise
            return cls(trees, indexes, numbers, log)

        try:
            opened = build()
        except StorageError as error:
            if error.disk_full or error.no_descriptor or error.sync_failed:
                raise
            why = str(error)
        except UntrustedError as error:
            why = str(error)
        else:
            files.sync_directory(DIRECTORY)
            return opened
        put_aside(files)
        opened = build()
        opened.report = TreesReport(why, 0)
        files.sync_directory(DIRECTORY)
        return opened

    @property
    def search(self) -> TreeIndex:
        return self.indexes[-1]

    @property
    def lag_bytes(self) -> int:
        """Of the log that is on disk: not yet in every tree."""
        return max(0, self._log.flushed_offset - min(index.position for index in self.indexes))

    def begin(self, limit: int, bytes_max: int) -> TreeStep | None:
        """The next step of the first index that lacks something below `limit`; None where none does."""
        assert not self._busy, "one step at a time"
        for index in self.indexes:
            if (step := index.begin(limit, bytes_max)) is not None:
                self._busy = True
                return step
        return None

    def finish(self, step: TreeStep) -> None:
        self._busy = False
        step.index.finish(step)

    def catch_up(self, limit: int) -> None:
        """Everything below `limit`, which is on disk; blocks. StorageError."""
        catch_up(self.indexes, limit, CATCH_UP_BYTES)

    def sweep(self, entries_max: int) -> bool:
        """Removes entries of records and topics that are gone, looking at about so many; may run in another
        thread, between steps. True: there is more to look at. StorageError."""
        return self._sweeper.step(entries_max)

    def close(self) -> None:
        self.trees.close()


class UntrustedError(Exception):
    """Trees that are not this log's, or of another format."""


def put_aside(files: FileSystem) -> None:
    """Moves the trees' files to trovemq/trees-aside, over what is there."""
    for name in _FILES:
        files.remove(f"{ASIDE}/{name}")
        if files.exists(f"{DIRECTORY}/{name}"):
            fault_point("trees.before_put_aside")
            files.rename(f"{DIRECTORY}/{name}", f"{ASIDE}/{name}")


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
        return  # the record is gone, as it may
    record = log.read(mark.physical_offset, mark.size)
    if len(record) != mark.size or crc32(record) != mark.crc:
        raise UntrustedError(
            f"the log has another record at {mark.physical_offset} than the trees have taken"
        )
