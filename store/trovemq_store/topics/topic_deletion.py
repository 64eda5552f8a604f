"""Deletes a topic on disk: first its records are declared dead, then its entry in the table is removed.

Of a node that shares its log the committed record alone does both: a leader whose record is cut would hide
the messages of a topic that the others have.
"""

from __future__ import annotations

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.topics.deletions import TopicDeletions
from trovemq_store.topics.topics import TopicChange


class TopicDeletion:
    """A topic's deletion that is ready to be saved; `run()` may block, and may run in another thread, unless
    `change` is logged: then prepare() may, and change.run() follows on the engine's thread."""

    def __init__(
        self,
        deletions: TopicDeletions,
        change: TopicChange,
        physical_offset: PhysicalOffset,
        *,
        by_record: bool = False,
    ) -> None:
        self._deletions = deletions
        self.by_record = by_record
        self.change = change
        self.physical_offset = physical_offset

    def run(self) -> None:
        """TroveError LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED; then nothing has changed.

        The records come first: a crash in between leaves an empty topic, which can be deleted again.
        """
        self.prepare()
        try:
            self.change.run()
        except TroveError:
            self.undo()
            raise

    def prepare(self) -> None:
        """The first half of run(). The errors of run()."""
        try:
            if self.by_record:
                self._deletions.check_count(self.change.name)
                return
            self._deletions.save_added(self.change.name, self.physical_offset)
            fault_point("deletions.before_topic")
        except TroveError:
            self.undo()
            raise

    def undo(self) -> None:
        """Undoes prepare(). TroveError DISK_FULL, STORE_FAILED."""
        if not self.by_record:
            self._deletions.save()
