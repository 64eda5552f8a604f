"""The segments of a commit log in a directory: a store, a backup, or copied segments.

A segment is a file named by the physical offset of its first byte (20 digits). They all have one size, and
the last one may be open: its end is the last whole record. Some may be missing, at the beginning (retention)
or in the middle (removed by hand); those missing in the middle are reported, because their rows are lost.

Invariants
- `segments` is in log order, without overlaps; a segment's file is exactly segment_size bytes, but the copied
  part of an open one (a backup) may be shorter.
- Empty files at the end (made ahead of need) are not segments here.
- Nothing here writes into the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import BLANK_SIZE
from trovemq_spark.storage import StoragePath
from trovemq_store.files.files import StorageError
from trovemq_store.files.read_only import ReadOnlyFile, ReadOnlyFileSystem
from trovemq_store.log import state
from trovemq_store.log.segments import DIRECTORY, Segment
from trovemq_store.log.state import StoreState
from trovemq_store.log.time_runs import TimeRun, load_runs
from trovemq_store.topics.deletions import TopicDeletions

_NAME: Final = re.compile(r"[0-9]{20}")


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One file: [start, start + size) of the log. `name` is relative to the log's directory."""

    start: int
    size: int
    name: str

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Gap:
    """[begin, end) of the log whose files are missing although later ones exist."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class LogTimes:
    """Where store times step back (trovemq_store.log.time_runs); nothing is known of the log after `end`."""

    runs: tuple[TimeRun, ...] = ()
    end: int = 0


class LogDirectory:
    """The segments of one place at the moment of opening. Picklable."""

    def __init__(
        self,
        place: StoragePath,
        segments: tuple[SegmentFile, ...],
        *,
        known_end: int = 0,
        store: StoragePath | None = None,
    ) -> None:
        self.place: Final = place
        """The directory that holds the segments."""
        self.segments: Final = segments
        self.known_end: Final = known_end
        """Bytes below it that are not a record are damage, not the end (0: unknown)."""
        self._store: Final = store

    @classmethod
    def open(cls, text: str) -> LogDirectory:
        """`text`: a store (it has a directory commitlog) or the directory of segments itself, a path or URI.

        Raises TroveError STORE_FAILED if there is neither, or if a file's name is not that of a segment.
        """
        try:
            place = StoragePath(text)
        except ValueError as error:
            raise TroveError(
                errors.STORE_FAILED,
                f"{text} is not a path or URI to read: {error}. Known are file://, s3:// (not s3a://), "
                "gs:// and hdfs://",
                path=text,
            ) from None
        root = place if place.exists(DIRECTORY) else None
        place = place.child(DIRECTORY) if root is not None else place
        found = tuple(_segments(place))
        if not found:
            raise TroveError(
                errors.STORE_FAILED,
                f"there is no commit log in {text}: expected a store, or a directory of segments "
                "named by 20 digits",
                path=text,
            )
        _check_sizes(found, text)
        known_end = _known_end(root)
        return cls(place, _without_empty_end(place, found, known_end), known_end=known_end, store=root)

    @property
    def begin(self) -> int:
        return self.segments[0].start

    @property
    def capacity_end(self) -> int:
        """Where the last segment's file ends; the log itself ends there or before."""
        return self.segments[-1].end

    @property
    def gaps(self) -> list[Gap]:
        neighbours = pairwise(self.segments)
        return [Gap(left.end, right.start) for left, right in neighbours if left.end < right.start]

    def times(self) -> LogTimes:
        """The store's own notes of its store times; none if `text` was not a store of TroveMQ."""
        saved = _saved_state(self._store)
        if saved is None or saved.time_runs is None:
            return LogTimes()
        return LogTimes(tuple(load_runs(saved.time_runs)), saved.log_end)

    def covering(self, begin: int, end: int) -> list[SegmentFile]:
        """The segments that have bytes of [begin, end)."""
        return [segment for segment in self.segments if segment.start < end and segment.end > begin]

    def open_segment(self, file: SegmentFile) -> Segment:
        """The segment, mapped for reading (it stays readable after its removal). Raises TroveError
        OFFSET_OUT_OF_RANGE if it has been removed."""
        try:
            data = self.place.map(file.name)
        except FileNotFoundError:
            raise TroveError(
                errors.OFFSET_OUT_OF_RANGE,
                f"segment {file.name} was removed while the log was read: retention took it. "
                "Read a backup or an archive, or start at a later offset",
                segment=file.name,
            ) from None
        return Segment(PhysicalOffset(file.start), ReadOnlyFile(f"{DIRECTORY}/{file.name}", data))


def open_deletions(text: str) -> TopicDeletions | None:
    """Which records of a local store belong to deleted topics; None if the place is not a local store."""
    place = StoragePath(text)
    if place.local is None or not place.exists(DIRECTORY):
        return None
    return TopicDeletions.load(ReadOnlyFileSystem(place.local))


def _segments(place: StoragePath) -> Iterator[SegmentFile]:
    for entry in place.entries():
        if not entry.is_directory and _NAME.fullmatch(entry.name) and entry.size:
            yield SegmentFile(int(entry.name), entry.size, entry.name)


def _check_sizes(segments: tuple[SegmentFile, ...], text: str) -> None:
    for left, right in pairwise(segments):
        if left.end > right.start:
            raise TroveError(
                errors.STORE_FAILED,
                f"{left.name} ends at {left.end}, inside of {right.name}: {text} holds the segments of "
                "two stores, or a file has grown",
                path=text,
            )


def _without_empty_end(
    place: StoragePath, segments: tuple[SegmentFile, ...], known_end: int
) -> tuple[SegmentFile, ...]:
    """The segments without the last ones that begin with zeros; at least one stays."""
    count = len(segments)
    while count > 1 and segments[count - 1].start >= known_end:
        if any(place.head(segments[count - 1].name, BLANK_SIZE)):
            break
        count -= 1
    return segments[:count]


def _known_end(root: StoragePath | None) -> int:
    saved = _saved_state(root) if root is not None and root.local is not None else None
    return 0 if saved is None else saved.log_end


def _saved_state(root: StoragePath | None) -> StoreState | None:
    """trovemq/state.json; None if there is none that can be read."""
    if root is None:
        return None
    try:
        if root.local is not None:
            return state.load(ReadOnlyFileSystem(root.local))
        return state.decoded(root.read(state.PATH))
    except (OSError, StorageError, TroveError):
        return None
