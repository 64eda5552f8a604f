"""Room that an open store keeps back for a full disk: a segment, and the reserve of its file system.

Invariant: while it is not whole, no new message is taken: what is left is for the broker's own records.
"""

from __future__ import annotations

from broker.log.segments import Segments, SpareWork
from broker.storage.files import StorageError
from broker.storage.guarded import GuardedFileSystem
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class RoomWork:
    """Makes whole what is kept back. `run` may block, and may run in another thread."""

    def __init__(self, files: GuardedFileSystem, kept: SpareWork | None) -> None:
        self._files = files
        self.kept = kept
        self.failure: StorageError | None = None

    def run(self) -> None:
        try:
            self._files.refill()
        except StorageError as error:
            self.failure = error
            return
        if self.kept is not None:
            self.kept.run()
            self.failure = self.kept.failure


class StoreRoom:
    """enabled: the setting spare_segment_enable; without it nothing is kept back."""

    def __init__(self, files: GuardedFileSystem, segments: Segments, *, enabled: bool) -> None:
        self._files = files
        self._segments = segments
        self._enabled = enabled
        self._wanted = False

    def check(self) -> None:
        """TroveError DISK_FULL while what is kept back is not whole."""
        if self._wanted or self._files.short:
            raise TroveError(
                errors.DISK_FULL,
                "the disk has no room for new messages beside what is kept for the broker's own records",
            )

    def work(self) -> RoomWork | None:
        """None where nothing is missing, or nothing is to be kept."""
        if not self._enabled:
            self._files.short = False  # each call tries anew
            return None
        if self._segments.kept_ready and self._files.is_whole():
            return None
        return RoomWork(self._files, None if self._segments.kept_ready else self._segments.kept_work())

    def finish(self, work: RoomWork) -> None:
        """Call on the engine's thread after run(): new messages are refused until it succeeds."""
        if work.kept is not None:
            self._segments.finish_kept(work.kept)
        self._wanted = work.failure is not None
