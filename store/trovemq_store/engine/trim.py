"""Removing the beginning of a store: segments of the log, then files of the consume queues, then index files.

    prepare()   in steps on the engine's thread: the input of measure()
    measure()   in any thread: how far each queue's minimum rises
    hide()      on the engine's thread: from now on no reader finds the records, all at once
    follow()    in steps on the engine's thread: each queue notes its lost units, unless it did before
    remove()    in any thread: the files are removed, oldest first

Invariants
- No file is removed before its records were hidden and every queue has followed. A crash in between leaves
  everything as it was, or a log that begins later than its queues and its index: the next start trims those.
- Segments are removed one after the other, each removal on disk before the next: no crash leaves a gap in the
  log. So are the files of each queue.
- A view of a removed file stays valid: its mapping is freed with the last view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.steps import Steps, finished
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.files.paths import parent_directory
from trovemq_store.index.consume_queue import ConsumeQueue
from trovemq_store.index.consume_queues import QUEUES_OF_STEP, ConsumeQueues
from trovemq_store.index.index_file import IndexFile
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.index.open_files import OpenFiles
from trovemq_store.index.queue_trim import QueueTrim
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.segments import DIRECTORY

_OPEN_FILES_MAX: Final = 4


class StoreTrim:
    """One removal; the steps in the order above. No topic may be deleted between measure() and remove()."""

    def __init__(
        self,
        files: FileSystem,
        log: CommitLog,
        consume_queues: ConsumeQueues,
        key_index: KeyIndex | None,
        physical_offset: PhysicalOffset,
    ) -> None:
        self._files = files
        self._log = log
        self._consume_queues = consume_queues
        self._key_index = key_index
        self.begin: Final = log.min_offset
        self.physical_offset: Final = physical_offset
        """The log begins here afterwards."""
        self._open_files = OpenFiles(files, _OPEN_FILES_MAX)
        self._of_queues = QueueTrim()
        self._readers: list[ConsumeQueue] = []
        self._queue_files: list[str] = []
        self._index_files: list[IndexFile] = []
        self._closes: list[Callable[[], None]] = []
        self._removals: list[Callable[[], None]] = []
        self._followed = False

    def prepare(self) -> Steps[None]:
        self._readers = yield from self._consume_queues.readers(self._open_files, self._of_queues)

    def measure(self) -> None:
        """StorageError; then nothing has changed."""
        try:
            for reader in self._readers:
                self._queue_files += reader.measure_trim(self.physical_offset)
            fault_point("trim.measured")
        finally:
            self._open_files.close()

    def hide(self) -> None:
        """Moves the minimum of the log and of each queue."""
        assert not self._of_queues.hidden, "once"
        assert self.physical_offset >= self._consume_queues.log_begin, "the log's minimum only rises"
        segments = self._log.segments.take_before(self.physical_offset)
        assert self._log.min_offset == self.physical_offset, "a segment that is not the last one begins there"
        self._of_queues.hidden = True
        for segment in segments:
            self._add(segment.file.path, segment.file.close, synced_in=DIRECTORY)
        self._consume_queues.log_begin = self.physical_offset
        if self._key_index is not None:
            self._index_files = self._key_index.take_before(self.physical_offset)

    def abandon(self) -> Steps[None]:
        """Instead of hide(): everything stays."""
        assert not self._of_queues.hidden, "hidden records stay hidden"
        assert not self._followed, "no queue has followed yet"
        self._of_queues.abandoned = True
        yield from self._consume_queues.follow_trim()

    def follow(self) -> Steps[None]:
        if self._followed:
            return
        yield from self._consume_queues.follow_trim()
        while self._readers:  # to free 80,000 of them takes 30 ms
            del self._readers[-QUEUES_OF_STEP:]
            yield
        while self._queue_files:
            for path in self._queue_files[:QUEUES_OF_STEP]:
                self._add(path, None, synced_in=parent_directory(path))
            del self._queue_files[:QUEUES_OF_STEP]
            yield
        self._closes += self._of_queues.closes
        for index_file in self._index_files:
            self._add(index_file.path, index_file.close, synced_in=None)
        self._followed = True

    def _add(self, path: str, close: Callable[[], None] | None, *, synced_in: str | None) -> None:
        def remove() -> None:
            self._files.remove(path)
            fault_point("trim.after_removal")
            if synced_in is not None:
                self._files.sync_directory(synced_in)

        self._removals.append(remove)
        if close is not None:
            self._closes.append(close)

    def remove(self) -> None:
        """StorageError: may be called again, to continue."""
        assert self._of_queues.hidden, "readers do not find the records any more"
        assert self._followed, "no queue reads the files any more"
        fault_point("trim.detached")
        while self._closes:
            self._closes.pop()()
        while self._removals:
            fault_point("trim.before_removal")
            self._removals[0]()
            del self._removals[0]


def trim_now(trim: StoreTrim) -> None:
    """All steps in this thread. StorageError."""
    hide_now(trim)
    trim.remove()


def hide_now(trim: StoreTrim) -> None:
    """All steps but remove(), in this thread. StorageError."""
    finished(trim.prepare())
    trim.measure()
    trim.hide()
    finished(trim.follow())
