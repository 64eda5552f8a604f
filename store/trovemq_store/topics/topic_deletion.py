"""Deletes a topic on disk: first its records are declared dead, then its entry in the table is removed."""

from __future__ import annotations

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.topics.deletions import TopicDeletions
from trovemq_store.topics.topics import TopicChange


class TopicDeletion:
    """A topic's deletion that is ready to be saved; `run()` may block, and may run in another thread."""

    def __init__(
        self, deletions: TopicDeletions, change: TopicChange, physical_offset: PhysicalOffset
    ) -> None:
        self._deletions = deletions
        self.change = change
        self.physical_offset = physical_offset

    def run(self) -> None:
        """TroveError LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED; then nothing has changed.

        The records come first: a crash in between leaves an empty topic, which can be deleted again.
        """
        try:
            self._deletions.save_added(self.change.name, self.physical_offset)
            fault_point("deletions.before_topic")
            self.change.run()
        except TroveError:
            self._deletions.save()
            raise
