"""The commit log's files: fixed size, named by the physical offset of their first byte (20 digits).

Invariants
- Names are multiples of the file size and contiguous; every file has exactly the configured size.
- Every file was preallocated before it was opened, so an append never meets a full disk.
- A file is created under `trovemq/`, at its full size, synced, and then renamed into place: so no kill leaves
  a short one in `commitlog/`, with which neither we nor RocketMQ would start. A spare is created before it is
  needed, so that a new segment costs one rename on the append path.
- One more file is kept for a full disk, also while the broker is stopped. Only the broker's own records use
  it, and only if no other file can be created.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import File, FileSystem, StorageError

DIRECTORY = "commitlog"
OWN_DIRECTORY = "trovemq"
SPARE_PATH = f"{OWN_DIRECTORY}/spare-segment"
NEW_PATH = f"{OWN_DIRECTORY}/new-segment"
KEPT_PATH = f"{OWN_DIRECTORY}/kept-segment"
CREATE_TRIES = 3


def file_name(offset: int) -> str:
    """The name of the file that begins at `offset` (commit log and consume queues alike)."""
    return f"{offset:020d}"


@dataclass(slots=True)
class Segment:
    """One open file of the log; `start` is the physical offset of its first byte."""

    start: PhysicalOffset
    file: File
    last_stored_ms: EpochMs | None = None
    """STORETIMESTAMP of its last record; None until it is read, after the last write."""
    end: PhysicalOffset = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.offset_at(self.file.size)

    def offset_at(self, position: int) -> PhysicalOffset:
        """The physical offset of the byte at `position` in the file."""
        return PhysicalOffset(self.start + position)


class SpareWork:
    """Creates a segment's file before it is needed; `run` may block and is meant for another thread."""

    def __init__(self, files: FileSystem, size: int, path: str = SPARE_PATH) -> None:
        self._files = files
        self._size = size
        self._path = path
        self.ready = False
        self.failure: StorageError | None = None

    def run(self) -> None:
        """`ready` stays False if the file cannot be created: Segments.add() then tries it, and reports
        that."""
        try:
            fault_point("spare.before_make")
            _make(self._files, self._path, self._size)
            fault_point("spare.after_make")
        except StorageError as error:
            self.failure = error
            return
        self.ready = True


def _make(files: FileSystem, path: str, size: int) -> None:
    """Creates a preallocated file of zeros, and syncs it. StorageError: there is no such file then."""
    try:
        files.remove(path)
        fault_point("segments.before_make")
        file = files.create(path, size, preallocate=True)
        try:
            file.sync()
        finally:
            file.close()
        fault_point("segments.after_make")
    except StorageError:
        _remove_quietly(files, path)
        raise


def _remove_quietly(files: FileSystem, path: str) -> None:
    """A file that cannot be removed is removed at the next attempt, or the next start."""
    with suppress(StorageError):
        files.remove(path)


class Segments:
    """The open segments, oldest first."""

    def __init__(self, files: FileSystem, file_size: int) -> None:
        self._files = files
        self.file_size = file_size
        self._segments: list[Segment] = []
        self._spare_ready = False
        self._spare_work: SpareWork | None = None
        self.kept_ready = False
        """Whether there is a file for a full disk."""
        self.create_failures = 0
        self.refused = False
        """Whether the last message that needed a segment found no space for one."""

    def load(self, known_end: PhysicalOffset | None = None) -> None:
        """Opens every file of the directory. TroveError STORE_SETTINGS_MISMATCH if one does not fit.

        known_end: after a crash, the offset up to which the log was certainly synced. A power cut may have
        lost any of the later names: files after a gap are removed.
        """
        self._files.remove(SPARE_PATH)
        self._files.remove(NEW_PATH)
        self._find_kept()
        names = [name for name in self._files.list(DIRECTORY) if not self._is_directory(name)]
        for name in names:
            if not (len(name) == 20 and name.isdigit()):  # checked before anything is removed
                what = f"{DIRECTORY}/{name} is not a segment of a commit log"
                raise TroveError(errors.STORE_SETTINGS_MISMATCH, what)
        if names and self._files.file_size(f"{DIRECTORY}/{names[-1]}") == 0:
            self._files.remove(f"{DIRECTORY}/{names.pop()}")  # never filled: RocketMQ removes it, too
        for index, name in enumerate(names):
            follows = not self._segments or name == file_name(self._segments[-1].end)
            if not follows and known_end is not None and self._segments[-1].end >= known_end:
                for later in reversed(names[index:]):
                    self._files.remove(f"{DIRECTORY}/{later}")
                break
            self._open(name)

    def _find_kept(self) -> None:
        """Looks for the kept file. One of another size, or whose creation was interrupted, is removed."""
        self.kept_ready = self._files.exists(KEPT_PATH) and self._files.file_size(KEPT_PATH) == self.file_size
        if not self.kept_ready:
            self._files.remove(KEPT_PATH)

    def _is_directory(self, name: str) -> bool:
        return self._files.is_directory(f"{DIRECTORY}/{name}")

    def _open(self, name: str) -> None:
        path = f"{DIRECTORY}/{name}"
        size = self._files.file_size(path)
        start = PhysicalOffset(int(name))
        if size != self.file_size or start % self.file_size:
            what = f"{path} has {size} bytes, mappedFileSizeCommitLog is {self.file_size}"
            if size < self.file_size and start % self.file_size == 0:
                what += (
                    ". If the setting is right, the file was cut short: restore it from a backup; or give "
                    f"it its size again (fallocate -l {self.file_size} FILE): its remaining records are "
                    "then served, and the others are reported as damage"
                )
            raise TroveError(errors.STORE_SETTINGS_MISMATCH, what, path=path, size=size)
        if self._segments and self._segments[-1].end != start:
            raise TroveError(
                errors.STORE_SETTINGS_MISMATCH,
                f"segments are missing between {file_name(self._segments[-1].start)} and {name}: "
                "put them back, or make the store again from a backup (trovemq store restore)",
            )
        self._append(Segment(start, self._opened(path)))

    def _opened(self, path: str) -> File:
        """The file, mapped: no read of it needs a descriptor or a map later, when none may be free."""
        file = self._files.open(path)
        try:
            file.view()
        except StorageError:
            file.close()
            raise
        return file

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def last(self) -> Segment:
        return self._segments[-1]

    @property
    def min_offset(self) -> PhysicalOffset:
        return self._segments[0].start if self._segments else LOG_ORIGIN

    @property
    def capacity_end(self) -> PhysicalOffset:
        """One past the last byte of the present files."""
        return self._segments[-1].end if self._segments else LOG_ORIGIN

    def at(self, offset: PhysicalOffset) -> Segment | None:
        """The segment that holds the byte at `offset`."""
        if not self._segments or offset < self._segments[0].start:
            return None
        index = (offset - self._segments[0].start) // self.file_size
        return self._segments[index] if index < len(self._segments) else None

    def covering(self, begin: PhysicalOffset, end: PhysicalOffset) -> list[Segment]:
        """The segments that hold any byte of [begin, end)."""
        return [segment for segment in self._segments if segment.start < end and segment.end > begin]

    # --- making files -------------------------------------------------------------------------------
    def spare_work(self) -> SpareWork | None:
        """The work of creating the next file; None while there is one, or one is being created."""
        if self._spare_ready or self._spare_work is not None:
            return None
        self._spare_work = SpareWork(self._files, self.file_size)
        return self._spare_work

    def finish_spare(self, work: SpareWork) -> None:
        assert work is self._spare_work, "one spare is created at a time"
        assert not self._spare_ready, "there was none when the work began"
        self._spare_work = None
        self._spare_ready = work.ready

    def kept_work(self) -> SpareWork:
        """The work of creating the file for a full disk."""
        assert self._segments, "the log is open"
        assert not self.kept_ready, "one file is kept"
        return SpareWork(self._files, self.file_size, KEPT_PATH)

    def finish_kept(self, work: SpareWork) -> None:
        self.kept_ready = work.ready

    def drop_kept(self) -> None:
        self._files.remove(KEPT_PATH)
        self.kept_ready = False

    def add(self, *, internal: bool = False) -> Segment:
        """Adds the next segment: the spare, or a file that is created now (three tries). For the broker's own
        records (`internal`) also the file that is kept for a full disk is used.

        Raises TroveError DISK_FULL or CREATE_MAPPED_FILE_FAILED; then nothing has changed.
        """
        start = self.capacity_end
        path = f"{DIRECTORY}/{file_name(start)}"
        failure: StorageError | None = None
        for _ in range(CREATE_TRIES):
            try:
                segment = Segment(start, self._take_spare(path) or self._create(path))
            except StorageError as error:
                failure = error
                if error.disk_full:
                    break
            else:
                self.refused = False
                return self._append(segment)
        self.create_failures += 1
        if internal and (kept := self._take_kept(path)) is not None:
            return self._append(Segment(start, kept))
        assert failure is not None, "each of the tries failed"
        assert self.capacity_end == start, "nothing has changed"
        spec = errors.DISK_FULL if failure.disk_full else errors.CREATE_MAPPED_FILE_FAILED
        self.refused = failure.disk_full
        advice = "" if self._segments else "; a new store may have smaller segments (commit_log_file_size)"
        reason = f"no new segment of {self.file_size} bytes: {failure}{advice}"
        raise TroveError(spec, reason) from failure

    def _append(self, segment: Segment) -> Segment:
        assert segment.file.size == self.file_size, "every file has exactly the configured size"
        assert segment.start % self.file_size == 0, "names are multiples of the file size"
        assert not self._segments or segment.start == self.capacity_end, "segments follow each other"
        self._segments.append(segment)
        return segment

    def _take_spare(self, path: str) -> File | None:
        if not self._spare_ready:
            return None
        self._spare_ready = False
        try:
            return self._put_in_place(SPARE_PATH, path)
        except StorageError:
            return None

    def _take_kept(self, path: str) -> File | None:
        if not self.kept_ready:
            return None
        self.kept_ready = False
        try:
            return self._put_in_place(KEPT_PATH, path)
        except StorageError:
            return None

    def _create(self, path: str) -> File:
        _make(self._files, NEW_PATH, self.file_size)
        return self._put_in_place(NEW_PATH, path)

    def _put_in_place(self, source: str, path: str) -> File:
        try:
            fault_point("segments.before_rename")
            self._files.rename(source, path)
            fault_point("segments.after_rename")
            return self._opened(path)
        except StorageError:
            _remove_quietly(self._files, source)
            _remove_quietly(self._files, path)
            raise

    def drop_from(self, offset: PhysicalOffset) -> None:
        """Removes every segment that begins after `offset` (they have nothing of the log). One that begins at
        `offset` stays: it may be the only one, whose name alone says where the log begins."""
        assert offset >= self.min_offset, "the log does not end before it begins"
        while self._segments and self._segments[-1].start > offset:
            segment = self._segments.pop()
            segment.file.close()
            fault_point("segments.before_drop")
            self._files.remove(segment.file.path)
        assert not self._segments or self._segments[-1].start <= offset, "the log's end stays in it"

    def take_before(self, offset: PhysicalOffset) -> list[Segment]:
        """Takes the segments that end at or below `offset` out of the log, but never the last one. Returns
        them; their files are not removed or closed."""
        count = sum(segment.end <= offset for segment in self._segments[:-1])
        taken, self._segments = self._segments[:count], self._segments[count:]
        assert self._segments or not taken, "the last one stays"
        assert all(segment.end <= offset for segment in taken), "segments follow each other"
        return taken

    def close(self) -> None:
        for segment in self._segments:
            segment.file.close()
        self._segments.clear()
        _remove_quietly(self._files, SPARE_PATH)
        self._spare_ready = False
