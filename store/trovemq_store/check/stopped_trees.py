"""The B+trees of a stopped store, for reading: those on disk if they have the whole log, otherwise trees that
are built from the log in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zlib_ng.zlib_ng import crc32

from trovemq_proto.positions import LOG_ORIGIN
from trovemq_store.check.store_view import LogScan, StoreView
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory_trees import MemoryTrees, TreeContent
from trovemq_store.files.trees import TreeReader, Trees
from trovemq_store.index.trees.layout import (
    DIRECTORY,
    FORMAT_KEY,
    FORMAT_VERSION,
    MARK,
    META,
    NUMBER,
    Mark,
    mark_key,
)
from trovemq_store.index.trees.search_entries import SearchEntries
from trovemq_store.index.trees.store_trees import SEARCH, TREE_NAMES
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.index.trees.tree_index import changes_of


@contextmanager
def stopped_trees(
    view: StoreView, remark: Callable[[str], None]
) -> Iterator[tuple[TreeReader, TopicNumbers]]:
    """A reader of trees that have the whole log; `remark` is called if they are not those on disk."""
    trees: Trees
    opened, why = open_stopped(view)
    if opened is not None:
        why = lacking(view, opened)
    if opened is None or why:
        if opened is not None:
            opened.close()
        remark(f"made from the log in memory: {why}")
        trees = _from_log(view)
    else:
        trees = opened
    try:
        with trees.read() as reader:
            yield reader, TopicNumbers(reader, view.deletions)
    finally:
        trees.close()


def open_stopped(view: StoreView) -> tuple[Trees | None, str]:
    """The trees on disk; None and the reason if they are missing or cannot be read."""
    try:
        trees = view.files.open_trees(DIRECTORY, TREE_NAMES)
    except StorageError as error:
        return None, str(error)
    try:
        with trees.read() as reader:
            if reader.get(META, FORMAT_KEY) == NUMBER.pack(FORMAT_VERSION):
                return trees, ""
    except StorageError as error:
        trees.close()
        return None, str(error)
    trees.close()
    return None, "the trees have another format"


def search_mark(trees: Trees) -> Mark:
    """How far the search trees are. StorageError."""
    with trees.read() as reader:
        value = reader.get(META, mark_key(SEARCH))
    return Mark(*MARK.unpack(value)) if value else Mark(LOG_ORIGIN)


def lacking(view: StoreView, trees: Trees) -> str:
    """How the trees contradict the log, or how much of it they lack; empty if they are complete."""
    try:
        mark = search_mark(trees)
    except StorageError as error:
        return str(error)
    if contradiction := contradicting(view, mark):
        return contradiction
    scan = LogScan()
    missing = sum(len(run.records) for run in view.runs(scan, mark.position, check_crc=False))
    return f"the trees lack {missing} messages" if missing else ""


def contradicting(view: StoreView, mark: Mark) -> str:
    """Why trees with this mark do not belong to this log; empty if they may."""
    if mark.position > max(view.log.segments.capacity_end, view.log.min_offset):
        return f"the trees reach to {mark.position}, the log to {view.log.segments.capacity_end}"
    if mark.physical_offset < view.log.min_offset:
        return ""
    segment = view.log.segments.at(mark.physical_offset)
    if segment is not None:
        begin = mark.physical_offset - segment.start
        if crc32(segment.file.view()[begin : begin + mark.size]) == mark.crc:
            return ""
    return f"the log has another record at {mark.physical_offset} than the trees have taken"


def _from_log(view: StoreView) -> Trees:
    trees = MemoryTrees(TreeContent(), TREE_NAMES)
    with trees.read() as reader:
        numbers = TopicNumbers(reader, view.deletions)
    changes = changes_of(SearchEntries(lambda _topic: ()), view.runs(LogScan(), check_crc=False), numbers)
    trees.commit([*changes, *numbers.changes()])
    return trees
