"""Space that an open store reserves for a full disk: a segment file, and the reserve of its file system.

Invariant: while a part of the reserve is missing, new messages are refused: the disk's space is then for the
broker's own records.
"""

from __future__ import annotations

from contextlib import suppress

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.files import StorageError
from trovemq_store.files.guarded import RESERVE_COUNT, GuardedFileSystem
from trovemq_store.log.segments import Segments, SpareWork


class ReserveRefill:
    """Fills the reserve again. `run` may block, and may run in another thread."""

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


class DiskReserve:
    """The reserve of one store. enabled: the setting spare_segment_enable; without it there is no reserve,
    and an existing one is removed."""

    def __init__(self, files: GuardedFileSystem, segments: Segments, *, enabled: bool) -> None:
        self._files = files
        self._segments = segments
        self._enabled = enabled
        self.failure: StorageError | None = None
        """Why the reserve is not whole."""
        if not enabled:
            with suppress(StorageError):  # the next start tries again
                segments.drop_kept()
                files.drop_reserve()

    @property
    def refuses(self) -> bool:
        """Whether the reserve is not whole, so that new messages are refused."""
        return self.failure is not None or self._files.short

    def is_full(self) -> bool:
        """Whether new messages are refused because the disk is full, except those that fit into the last
        segment."""
        segments = self._segments
        with suppress(StorageError):
            if segments.refused and self._files.free_bytes() >= segments.file_size:
                segments.refused = False
        return self.refuses or segments.refused

    def check(self) -> None:
        """TroveError DISK_FULL while the reserve is not whole."""
        if self.refuses:
            kept = self._segments.file_size + RESERVE_COUNT * self._files.chunk_size
            raise TroveError(
                errors.DISK_FULL,
                f"the disk has no space for new messages beside the {kept:,} bytes that are kept for the "
                "broker's own records (spare_segment_enable)",
            )

    def work(self) -> ReserveRefill | None:
        """The work to be done; None if nothing is missing or no reserve is kept."""
        if not self._enabled:
            self._files.short = False  # each call tries again
            return None
        if self._segments.kept_ready and self._files.is_whole():
            return None
        return ReserveRefill(self._files, None if self._segments.kept_ready else self._segments.kept_work())

    def finish(self, work: ReserveRefill) -> None:
        """Call on the engine's thread after run(): new messages are refused until it succeeds."""
        if work.kept is not None:
            self._segments.finish_kept(work.kept)
        self.failure = work.failure
