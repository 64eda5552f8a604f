"""One consume queue: where in the log each message of one (topic, queue id) lies.

Unit n of the queue (20 bytes, big-endian) is at byte 20 * n of its files, which continue each other:

| offset | width | field     | notes                                                                    |
|--------|-------|-----------|--------------------------------------------------------------------------|
| 0      | i64   | phy       | physical offset of the record                                            |
| 8      | i32   | size      | of the record; 0: not written; 0x7FFFFFFF: a blank                       |
| 12     | i64   | tags_code | Java hash of TAGS, sign-extended; deliver time in the schedule topic     |

Files `consumequeue/<topic>/<queueId>/<20 digits>` are named by the byte offset at which they begin, all of
one size, sparse, without gaps between them. A queue that begins above offset 0 has blanks from the start of
its first file up to its first unit; a message whose record is damaged may have a blank where its unit would
be.
Source: RocketMQ 5.4.0, ConsumeQueue, MappedFileQueue.

Invariants
- The index of a unit is the message's queue offset, whatever the record's own QUEUEOFFSET says.
- Units [first file, max_offset) are written; after max_offset the last file is zero.
- phy + size of a unit never passes the phy of the next one; blanks do not count.
- The last unit is not a blank, unless all are.
- min_offset <= max_offset; below min_offset there may be blanks and units whose records are gone.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, QUEUE_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import queue_units
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.index.dirty_files import DirtyFiles
from trovemq_store.index.open_files import OpenFiles
from trovemq_store.index.queue_trim import QueueTrim
from trovemq_store.index.short_queue import read_short_queue
from trovemq_store.index.valid_units import valid_prefix
from trovemq_store.settings import CONSUME_QUEUE_UNIT_SIZE

UNIT_SIZE: Final = CONSUME_QUEUE_UNIT_SIZE
UNIT_DTYPE: Final = queue_units.UNIT_DTYPE
assert UNIT_DTYPE.itemsize == UNIT_SIZE
BLANK_SIZE: Final = 0x7FFFFFFF
BLANK_UNIT: Final = np.array([(0, BLANK_SIZE, 0)], UNIT_DTYPE)
_BLANK: Final = BLANK_UNIT.tobytes()
ROOT_DIRECTORY: Final = "consumequeue"

_UNIT: Final = Struct(">qiq")
Unit = tuple[PhysicalOffset, int, int]  # physical offset, size, tags code
_NONE: Final = QueueOffset(-1)
_NOTHING_KNOWN: Final[tuple[QueueOffset, Unit]] = (_NONE, (LOG_ORIGIN, 0, 0))
_CHECKED_UNITS: Final = 1024
_SCANNED_UNITS: Final = 4096
"""Units that are read at a time: to find one, and to examine all."""
_OFFSET_MAX: Final = PhysicalOffset((1 << 63) - 1)


class ConsumeQueue:
    """Created and filled by ConsumeQueues. An offset counts units of the queue, a physical one bytes of the
    log."""

    def __init__(
        self,
        topic: str,
        queue_id: QueueId,
        files: FileSystem,
        open_files: OpenFiles,
        dirty: DirtyFiles,
        file_size: int,
    ) -> None:
        self.topic: Final = topic
        self.queue_id: Final = queue_id
        self._directory = f"{ROOT_DIRECTORY}/{topic}/{queue_id}"
        self._files = files
        self._open_files = open_files
        self._dirty = dirty
        self._file_size = file_size
        self._bases: list[int] = []
        self._end = QUEUE_ORIGIN
        self._first_unit = QUEUE_ORIGIN  # after the blanks; == _end while there is no unit
        self._min = QUEUE_ORIGIN
        self._first_physical = PhysicalOffset(-1)  # of the first unit, where it is known without reading
        self._known = _NOTHING_KNOWN  # a unit that is known without reading: set whole, for other threads
        self._measured: tuple[QueueTrim, ConsumeQueue] | None = None
        self._last_path = (-1, "")  # with the file's base: set whole, for other threads

    @property
    def min_offset(self) -> QueueOffset:
        """The first message that can still be read, by the log's minimum at the last trim()."""
        if self._measured is not None:
            self.follow_trim()
        return self._min

    def min_offset_unfollowed(self) -> QueueOffset:
        """min_offset, for another thread: the queue is not changed."""
        trim = self._measured
        if trim is not None and trim[0].hidden and trim[1].has_units:
            return max(self._min, trim[1]._min)
        return self._min

    @property
    def max_offset(self) -> QueueOffset:
        """One past the last message: the next one gets this offset."""
        return self._end

    @property
    def has_units(self) -> bool:
        return self._first_unit < self._end

    def continues_at(self, offset: QueueOffset) -> bool:
        """Whether the queue has units, and this is the offset of the next one."""
        return self._first_unit < self._end == offset

    @property
    def last_physical_end(self) -> PhysicalOffset:
        """phy + size of the last unit; -1 if there is none."""
        if not self.has_units:
            return PhysicalOffset(-1)
        physical_offset, size, _ = self.unit(QueueOffset(self._end - 1))
        return PhysicalOffset(physical_offset + size)

    @property
    def file_offsets(self) -> list[QueueOffset]:
        """The offset of the first unit of each file."""
        return [_offset_at(base) for base in self._bases]

    # --- reading ------------------------------------------------------------------------------------
    def unit(self, offset: QueueOffset) -> tuple[PhysicalOffset, int, int]:
        """(physical offset, size, tags code) of one written unit; a blank has the physical offset -1."""
        known_offset, known_unit = self._known
        if offset == known_offset:
            return known_unit
        base, position = self._place(offset)
        data = self._open_files.get(self._path(base)).read(position, position + UNIT_SIZE)
        fields: tuple[PhysicalOffset, int, int] = _UNIT.unpack(data)
        return (PhysicalOffset(-1), *fields[1:]) if fields[1] == BLANK_SIZE else fields

    def written_before(self, offset: QueueOffset) -> QueueOffset:
        """The last offset at or below `offset` that is not a blank; the first unit's if there is none."""
        while offset > self._first_unit and self.unit(offset)[1] == BLANK_SIZE:
            base, position = self._place(offset)
            end = position // UNIT_SIZE
            begin = max(0, end - _CHECKED_UNITS)
            written = np.flatnonzero(self._read_units(base, begin, end)["size"] != BLANK_SIZE)
            offset = QueueOffset(base // UNIT_SIZE + begin + (int(written[-1]) if len(written) else -1))
        return max(offset, self._first_unit)

    def units(self, offset: QueueOffset, count: int) -> NDArray[np.void]:
        """A copy of up to `count` units from `offset` on (UNIT_DTYPE), cut at max_offset, blanks as they are.

        Raises TroveError OFFSET_OUT_OF_RANGE for an offset below the first file or above max_offset.
        """
        first = self._bases[0] // UNIT_SIZE if self._bases else self._end
        if not first <= offset <= self._end:
            raise TroveError(
                errors.OFFSET_OUT_OF_RANGE,
                f"queue offset {offset} of {self.topic}-{self.queue_id} is not in [{self._min}, {self._end}]",
                min_offset=self._min,
                max_offset=self._end,
            )
        pieces = []
        end = min(offset + count, self._end)
        while offset < end:
            piece = self._units_of_file(offset, end)
            pieces.append(piece)
            offset = QueueOffset(offset + len(piece))
        return np.concatenate(pieces) if pieces else np.empty(0, UNIT_DTYPE)

    def unit_rows(self, offset: QueueOffset, count: int) -> list[Unit]:
        """The units from `offset` on, which must exist, as tuples; fewer than `count` if their file ends
        before. The last unit of the queue is known without reading a file. Raises StorageError."""
        assert count > 0, "a caller asks for units"
        assert self._first_unit <= offset <= self._end - count, "the units are written"
        known_offset, known_unit = self._known
        if offset == known_offset:
            return [known_unit]
        base, position = self._place(offset)
        end = min(position + count * UNIT_SIZE, self._file_size)
        return list(_UNIT.iter_unpack(self._open_files.get(self._path(base)).read(position, end)))

    def find(self, physical_offset: PhysicalOffset, expected: QueueOffset = _NONE) -> QueueOffset | None:
        """The offset of the message whose record begins there; `expected` is tried first."""
        if self._first_unit <= expected < self._end and self.unit(expected)[0] == physical_offset:
            return expected
        offset = self.lower_bound(physical_offset)
        if offset < self._end and self.unit(offset)[0] == physical_offset:
            return offset
        return None

    def lower_bound(self, physical_offset: PhysicalOffset) -> QueueOffset:
        """The first offset whose record begins at or after physical_offset; max_offset if none does."""
        written = range(self._first_unit, self._end)
        physical_before = self.physical_before
        count = bisect_left(written, physical_offset, key=lambda offset: physical_before(QueueOffset(offset)))
        return QueueOffset(self._first_unit + count)

    def physical_before(self, offset: QueueOffset) -> PhysicalOffset:
        """Where the record of a unit begins; of a blank: that of the last unit before it."""
        physical_offset = self.unit(offset)[0]
        return physical_offset if physical_offset >= 0 else self.unit(self.written_before(offset))[0]

    # --- writing ------------------------------------------------------------------------------------
    def append(self, offset: QueueOffset, units: NDArray[np.void]) -> None:
        """Writes a run of units at max_offset, or above it: then blanks fill the gap.

        Raises StorageError, and then the queue is as before: the same run may be appended again.
        """
        self.write(offset, units.tobytes())
        self.publish(offset, len(units))

    def write(self, offset: QueueOffset, units: bytes) -> None:
        """Writes the bytes of whole units at max_offset, or above it: then blanks fill the gap. They are
        invisible before publish(). Raises StorageError, and then the queue is as before."""
        size = len(units)
        assert size > 0, "a run has units"
        assert size % UNIT_SIZE == 0, "units are whole"
        if self._first_unit >= self._end:
            self._begin_at(offset)
        assert offset >= self._end, "units follow each other"
        if offset > self._end:
            self._write(self._end, _BLANK * (offset - self._end))
        self._write(offset, units)
        # A reader at the end asks for the last one next.
        last = QueueOffset(offset + size // UNIT_SIZE - 1)
        self._known = (last, _UNIT.unpack_from(units, size - UNIT_SIZE))

    def publish(self, offset: QueueOffset, count: int) -> None:
        """Makes the units visible that write() wrote at `offset`."""
        assert count > 0, "a run has units"
        assert offset >= self._end, "units follow each other"
        if self._min == self._end:
            self._min = offset  # no earlier message can be read: a gap before it has expired
        self._end = QueueOffset(offset + count)

    def truncate_to(self, physical_offset: PhysicalOffset) -> None:
        """Cuts the units of records at or after physical_offset, and all units after one that is not valid.

        Files are checked unit by unit, as after a crash: the bytes after the cut may be anything.
        """
        self._forget_known()
        count = 0
        while self._bases:
            count = self._without_blanks(self._valid_count(self._bases[-1], physical_offset))
            if count or len(self._bases) == 1:
                break
            self._remove_file(self._bases.pop())
        if self._bases:
            self._end = _offset_at(self._bases[-1], count)
            fault_point("queues.before_cut")
            self._zero_after_end()
            fault_point("queues.after_cut")
            self._unmap_last()
        self._find_first_unit()
        self._min = min(max(self._min, self._first_unit), self._end)
        assert self._bases or not self.has_units, "units lie in files"
        assert self._first_unit <= self._end, "the first unit lies before the end"

    def trim(self, physical_offset: PhysicalOffset) -> None:
        """The log begins at physical_offset: removes the files below it, but not the last, and raises
        min_offset."""
        for path in self.measure_trim(physical_offset):
            # One after the other, also on disk: a gap between them would lose the later ones.
            self._open_files.remove(path)
            self._files.sync_directory(self._directory)

    def measure_trim(self, physical_offset: PhysicalOffset) -> list[str]:
        """trim() without the removal: the paths of the files that are no longer part of the queue."""
        if self._first_physical >= physical_offset:
            return []
        self._forget_known()
        leaving = []
        while len(self._bases) > 1 and (
            self.physical_before(_offset_at(self._bases[1], -1)) < physical_offset
        ):
            leaving.append(self._path(self._bases.pop(0)))
            self._find_first_unit()
        if not self.has_units or self.unit(QueueOffset(self._end - 1))[0] < physical_offset:
            self._min = self._end
        else:
            self._min = self.lower_bound(physical_offset)
        assert self._bases or not leaving, "the last file stays"
        assert self._min <= self._end, "the minimum never passes the end"
        return leaving

    def reader(self, open_files: OpenFiles, trim: QueueTrim) -> ConsumeQueue:
        """A copy of the queue as it is now, for measure_trim() in another thread; it lacks later units. Once
        the trim is hidden, the queue takes over the measured trim."""
        copy = self._copied(open_files)
        self._measured = (trim, copy)
        return copy

    def end_below(self, physical_offset: PhysicalOffset, open_files: OpenFiles) -> QueueOffset:
        """One past the last message whose record begins below physical_offset. For another thread, which has
        `open_files` for itself: the queue's own belong to the thread that writes."""
        copy = self._copied(open_files)
        if copy.has_units and copy.physical_before(QueueOffset(copy._end - 1)) < physical_offset:
            return copy._end  # nearly always, and the last unit is known without reading
        return copy.lower_bound(physical_offset)

    def _copied(self, open_files: OpenFiles) -> ConsumeQueue:
        """The queue as it is now, with other open files. The end is read first: all its units are written."""
        copy = ConsumeQueue(
            self.topic, self.queue_id, self._files, open_files, DirtyFiles(self._files), self._file_size
        )
        copy._end, copy._first_unit, copy._min = self._end, self._first_unit, self._min
        copy._bases = list(self._bases)
        copy._first_physical = self._first_physical
        copy._known = self._known
        return copy

    def follow_trim(self) -> None:
        """Takes over the measured trim, once that is hidden. Until then the queue is unchanged."""
        if self._measured is None or not (self._measured[0].hidden or self._measured[0].abandoned):
            return
        (trim, measured), self._measured = self._measured, None
        if trim.abandoned or not measured.has_units:
            return
        self._first_physical = measured._first_physical
        assert measured._end <= self._end, "a queue only grows"
        leaving = [base for base in self._bases if base < measured._bases[0]]
        self._bases = self._bases[len(leaving) :]
        self._first_unit = measured._first_unit
        self._min = max(self._min, measured._min)
        assert self._min <= self._end, "the minimum never passes the end"
        taken = [self._open_files.take(self._path(base)) for base in leaving]
        trim.closes += [file.close for file in taken if file is not None]

    def delete(self) -> None:
        while self._bases:
            fault_point("queues.before_delete")
            self._remove_file(self._bases.pop())
        fault_point("queues.after_delete")
        self._files.remove_directory(self._directory)
        self._end = self._first_unit = self._min = QUEUE_ORIGIN
        self._forget_known()

    # --- opening ------------------------------------------------------------------------------------
    def load(
        self,
        trusted_position: PhysicalOffset | None,
        deleted_below: PhysicalOffset = LOG_ORIGIN,
        *,
        drop_after_gap: bool = False,
    ) -> None:
        """Finds the queue's files and its end.

        trusted_position: None after a clean stop: every unit counts. Otherwise units of records at or after
        it are cut. deleted_below: files that begin with units of records below it are removed.

        Raises TroveError STORE_SETTINGS_MISMATCH.
        """
        if self._load_short(trusted_position, deleted_below):
            return
        self._bases = self._listed_files(deleted_below, drop_after_gap=drop_after_gap)
        if trusted_position is not None:
            self.truncate_to(trusted_position)
        elif self._bases:
            self._find_end()
            self._find_first_unit()
        self._min = self._first_unit
        assert self._bases or not self.has_units, "units lie in files"
        assert self._min <= self._end, "the minimum never passes the end"

    def _load_short(self, trusted_position: PhysicalOffset | None, deleted_below: PhysicalOffset) -> bool:
        """Loads a queue whose units lie in one page. False if it is not one: then its files must be
        listed."""
        short = read_short_queue(
            self._files, self._directory, self._file_size, trusted_position, deleted_below
        )
        if short is None:
            return False
        self._bases, self._end = [0], QueueOffset(short.unit_count)
        self._first_unit = self._min = QUEUE_ORIGIN
        self._first_physical = short.first_physical
        self._known = (QueueOffset(short.unit_count - 1), short.last)
        return True

    def _forget_known(self) -> None:
        self._first_physical, self._known = PhysicalOffset(-1), _NOTHING_KNOWN

    @property
    def names_are_synced(self) -> bool:
        """After load(trusted_position) of a store that syncs names with units: whether the names of all files
        are on disk. They are if the last file has a unit, which lies below trusted_position."""
        return self.has_units and self._end * UNIT_SIZE > self._bases[-1]

    def _listed_files(self, deleted_below: PhysicalOffset, *, drop_after_gap: bool) -> list[int]:
        names = [
            n
            for n in self._files.list(self._directory)
            if not self._files.is_directory(f"{self._directory}/{n}")
        ]
        while names and self._files.file_size(f"{self._directory}/{names[-1]}") == 0:
            self._files.remove(f"{self._directory}/{names.pop()}")
        bases: list[int] = []
        for name in names:
            # A power cut may keep some names of files that were created since the last sync, without sizes.
            unsynced = drop_after_gap and self._files.file_size(f"{self._directory}/{name}") == 0
            base = 0 if unsynced else self._checked_base(name)
            after_gap = bool(bases) and base != bases[-1] + self._file_size
            if after_gap and not unsynced and not drop_after_gap:
                raise self._mismatch(name, f"does not follow {bases[-1]:020d}")
            if unsynced or after_gap:
                self._files.remove(f"{self._directory}/{name}")
            elif self._begins_below(base, deleted_below):
                self._remove_file(base)
            else:
                bases.append(base)
        return bases

    def _begins_below(self, base: int, deleted_below: PhysicalOffset) -> bool:
        """Whether the file belongs to a deleted topic of the same name: it was not removed yet, or is back
        after a power cut, perhaps beside files of the new topic."""
        if deleted_below == 0:
            return False
        units = self._read_units(base, 0, min(_CHECKED_UNITS, self._file_size // UNIT_SIZE))
        written = np.flatnonzero((units["size"] > 0) & (units["size"] != BLANK_SIZE))
        return len(written) > 0 and int(units["physical_offset"][written[0]]) < deleted_below

    def _checked_base(self, name: str) -> int:
        if not (len(name) == 20 and name.isascii() and name.isdigit()):
            raise self._mismatch(name, "is not a file of a consume queue")
        size = self._files.file_size(f"{self._directory}/{name}")
        if size != self._file_size:
            raise self._mismatch(
                name, f"has {size} bytes instead of {self._file_size} (mappedFileSizeConsumeQueue)"
            )
        if int(name) % self._file_size:
            raise self._mismatch(name, f"is not named by a multiple of {self._file_size}")
        return int(name)

    def _mismatch(self, name: str, what: str) -> TroveError:
        return TroveError(errors.STORE_SETTINGS_MISMATCH, f"{self._directory}/{name} {what}", path=name)

    def _find_end(self) -> None:
        """The end of a queue that was closed cleanly: the last unit that is written, by binary search."""
        base = self._bases[-1]
        units = self._units_before_hole(base)
        count = bisect_left(range(len(units)), 1, key=lambda n: int(units["size"][n] <= 0))
        tail = units[max(0, count - _CHECKED_UNITS) : count]
        if valid_prefix(tail, _OFFSET_MAX, 0)[0] < len(tail):
            count = self._valid_count(base, _OFFSET_MAX)
            self._end = _offset_at(base, count)
            self._zero_after_end()
        self._end = _offset_at(base, count)
        self._unmap_last()

    def _find_first_unit(self) -> None:
        """Finds the first unit after the blanks at the beginning. A queue of blanks only has no unit."""
        if not self._bases:
            self._first_unit = self._end = QUEUE_ORIGIN
            return
        first = _offset_at(self._bases[0])
        while first < self._end:
            units = self._units_of_file(first, min(first + _CHECKED_UNITS, self._end))
            written = units["size"] != BLANK_SIZE
            if written.any():
                first = QueueOffset(first + int(written.argmax()))
                break
            first = QueueOffset(first + len(units))
        self._first_unit = first

    def _valid_count(self, base: int, physical_offset: PhysicalOffset) -> int:
        """The number of valid units at the start of a file, of records below physical_offset."""
        units = self._units_before_hole(base)
        start, lowest = 0, 0
        while start < len(units):
            piece = units[start : start + _SCANNED_UNITS]
            count, lowest = valid_prefix(piece, physical_offset, lowest)
            start += count
            if count < len(piece):
                break
        return start

    def _without_blanks(self, count: int) -> int:
        """How many of the first `count` units of the last file come before the blanks at their end, which
        filled a gap before a unit that was cut. Blanks at the beginning of the queue stay: they say at
        which offset it continues."""
        sizes = self._file_units(self._bases[-1], 0, count)["size"]
        while count and sizes[count - 1] == BLANK_SIZE:
            written = np.flatnonzero(sizes[:count] != BLANK_SIZE)
            if not len(written):
                return count if len(self._bases) == 1 else 0
            count = int(written[-1]) + 1
        return count

    # --- files --------------------------------------------------------------------------------------
    def _path(self, base: int) -> str:
        known, path = self._last_path
        if base != known:
            path = f"{self._directory}/{base:020d}"
            self._last_path = (base, path)
        return path

    def _place(self, offset: QueueOffset) -> tuple[int, int]:
        position = offset * UNIT_SIZE
        within = position % self._file_size
        return position - within, within

    def _read_units(self, base: int, begin: int, end: int) -> NDArray[np.void]:
        """A copy of the units [begin, end) of a file."""
        data = self._open_files.get(self._path(base)).read(begin * UNIT_SIZE, end * UNIT_SIZE)
        return np.frombuffer(data, UNIT_DTYPE)

    def _file_units(self, base: int, begin: int, end: int) -> NDArray[np.void]:
        """All units of a file, not copied: for use before any other file is opened. Only those of [begin,
        end) may be read; StorageError if the disk does not return them."""
        file = self._open_files.get(self._path(base))
        file.check_readable(begin * UNIT_SIZE, end * UNIT_SIZE)
        return np.frombuffer(file.view(), UNIT_DTYPE)

    def _units_before_hole(self, base: int) -> NDArray[np.void]:
        """_file_units up to the first hole, where nothing was ever written: the kernel would fill it on
        reading."""
        begin, end = next(self._open_files.get(self._path(base)).written_ranges(0), (0, 0))
        count = end // UNIT_SIZE if begin == 0 else 0
        return self._file_units(base, 0, count)[:count]

    def _units_of_file(self, offset: QueueOffset, end: int) -> NDArray[np.void]:
        base, position = self._place(offset)
        first = position // UNIT_SIZE
        last = min(first + end - offset, self._file_size // UNIT_SIZE)
        return self._read_units(base, first, last)

    def _write(self, offset: QueueOffset, units: bytes) -> None:
        begin, file_size, bases = offset * UNIT_SIZE, self._file_size, self._bases
        while units:
            position = begin % file_size
            base = begin - position
            known, path = self._last_path
            if base != known:
                path = self._path(base)
            fault_point("queues.before_write")
            if not bases or base > bases[-1]:
                self._create_file(base, path)
            free = file_size - position
            self._open_files.get(path).write(position, units[:free])
            self._dirty.mark(path)
            fault_point("queues.after_write")
            begin += free
            units = units[free:]

    def _create_file(self, base: int, path: str) -> None:
        assert base % self._file_size == 0, "files are named by multiples of their size"
        assert not self._bases or base == self._bases[-1] + self._file_size, "files follow each other"
        self._open_files.create(path, self._file_size)
        self._bases.append(base)
        self._dirty.mark_created(path)
        fault_point("queues.after_create")

    def _begin_at(self, offset: QueueOffset) -> None:
        """Lets a queue without units begin at any offset, with blanks from its file's start up to there."""
        assert offset >= 0, "offsets count from 0"
        assert not self.has_units, "messages keep their offsets"
        base, position = self._place(offset)
        if self._bases != [base]:
            while self._bases:
                self._remove_file(self._bases.pop())
        if position:
            self._write(_offset_at(base), _BLANK * (position // UNIT_SIZE))
        self._end = self._first_unit = self._min = offset
        self._forget_known()

    def _zero_after_end(self) -> None:
        path = self._path(self._bases[-1])
        file = self._open_files.get(path)
        for begin, end in file.written_ranges(self._end * UNIT_SIZE - self._bases[-1]):
            if np.frombuffer(file.view()[begin:end], np.uint8).any():
                file.write(begin, bytes(end - begin))
                self._dirty.mark(path)

    def _unmap_last(self) -> None:
        """Open files are not mapped, but for the search for an end."""
        self._open_files.close_file(self._path(self._bases[-1]))

    def _remove_file(self, base: int) -> None:
        # A removal that is not on disk must not bring an old topic's queue back beside synced new ones.
        self._open_files.remove(self._path(base))
        self._dirty.mark_directory(self._directory)


def _offset_at(base: int, count: int = 0) -> QueueOffset:
    """The offset of unit `count` of the file that begins at byte `base` of the queue."""
    return QueueOffset(base // UNIT_SIZE + count)
