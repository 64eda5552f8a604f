"""One key index file: a hash table from key hashes to physical offsets, chained through its items.

All integers are big-endian. S slots (maxHashSlotNum) and I items (maxIndexNum) are settings, not in the file,
whose size is 40 + 4 S + 20 I.

| offset     | width | field           | notes                                                               |
|------------|-------|-----------------|---------------------------------------------------------------------|
| 0          | i64   | beginTimestamp  | store time of the first item's record, epoch ms                     |
| 8          | i64   | endTimestamp    | store time of the item put last (not the maximum)                   |
| 16         | i64   | beginPhyoffset  | physical offset of the first item's record                          |
| 24         | i64   | endPhyoffset    | of the item put last                                                |
| 32         | i32   | hashSlotCount   | items without a predecessor: slots in use (not the capacity)        |
| 36         | i32   | indexCount      | the next free item number; 0 reads as 1                             |
| 40 + 4 s   | i32   | slot s          | the newest item of the slot's chain, 0: none                        |
| 40 + 4 S + 20 k: item k, 1 <= k < I (item 0 is never used)                                                 |
| + 0        | i32   | hash            | of `topic#key`, 0..2**31-1; its slot is hash % S                    |
| + 4        | i64   | phy             |                                                                     |
| + 12       | i32   | seconds         | store time since beginTimestamp, in whole seconds, not below 0      |
| + 16       | i32   | previous        | the next older item of the slot's chain, 0: none                    |

Quirk of RocketMQ, kept: a file begun because the one before was full starts with that one's end values in
its header, and the seconds of item 1 count from there; then beginTimestamp becomes item 1's own. So the
seconds of item 1 mean nothing. Source: RocketMQ 5.4.0, IndexFile, IndexHeader.

Invariants
- Items are append-only and in log order: phy never falls with the item number.
- previous < its own item number, so a chain ends.
- A put writes items, then slots, then the header; items that the header does not count do not exist.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, StorageError, UnreadableError, WritableMap

HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ITEM_DTYPE: Final = np.dtype([("hash", ">i4"), ("phy", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ITEM_SIZE: Final = ITEM_DTYPE.itemsize
assert ITEM_SIZE == 20

_HEADER: Final = Struct(">qqqqii")
_ITEM: Final = Struct(">iqii")
_SECONDS_MAX: Final = (1 << 31) - 1
_SCANNED_ITEMS: Final = 1 << 16
"""Items that are examined at a time."""
_PAGE_SIZE: Final = 4096
_PAGES_AT_ONCE: Final = 24
"""Reading this many pages in a row takes about the time of one alone. No benchmark has a case for it."""
_NO_ITEM: Final = (0, 0, 0, 0)

_Header = tuple[int, int, PhysicalOffset, PhysicalOffset, int, int]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


def file_size(slot_count: int, item_count: int) -> int:
    return HEADER_SIZE + SLOT_SIZE * slot_count + ITEM_SIZE * item_count


def seconds_since(begins: int | Int64s, timestamps: Int64s) -> Int64s:
    """The `seconds` of items: whole seconds since `begins` (0 or below: unknown), not below 0."""
    return np.where(np.asarray(begins) <= 0, 0, np.clip((timestamps - begins) // 1000, 0, _SECONDS_MAX))


def read_header(files: FileSystem, path: str) -> tuple[int, int, PhysicalOffset, PhysicalOffset]:
    """(begin, end timestamp, begin, end physical offset) of a file; zeros if it is too short."""
    file = files.open(path)
    try:
        file.check_readable(0, min(file.size, HEADER_SIZE))
        head = bytes(file.view()[:HEADER_SIZE]) if file.size >= HEADER_SIZE else bytes(HEADER_SIZE)
    finally:
        file.close()
    header: _Header = _HEADER.unpack(head)
    return header[:4]


class IndexFile:
    """An open index file. Times in epoch ms; `count` is the number of the next free item."""

    begin_timestamp: EpochMs
    end_timestamp: EpochMs
    begin_physical: PhysicalOffset
    end_physical: PhysicalOffset
    hash_slot_count: int
    count: int

    def __init__(self, files: FileSystem, path: str, slot_count: int, item_count: int) -> None:
        """Opens an existing file of the right size. Raises StorageError."""
        self.path: Final = path
        self._slot_count = slot_count
        self._item_count = item_count
        self._map: WritableMap = files.open_writable_map(path, file_size(slot_count, item_count))
        view = self._map.view()
        self._view = view
        self._slots = np.frombuffer(view, ">i4", slot_count, HEADER_SIZE)
        self._items_at = HEADER_SIZE + SLOT_SIZE * slot_count
        self._items = np.frombuffer(view, ITEM_DTYPE, item_count, self._items_at)
        try:
            self._map.check_readable(0, HEADER_SIZE)
            header: _Header = _HEADER.unpack_from(view, 0)
            self._set_header(header)
            # A put that failed half-way leaves items, and slots that point to them, after the counted ones.
            self._slots_doubtful = not self.full and self.item(self.count) != _NO_ITEM
        except StorageError:
            self._map.close()
            raise

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def full(self) -> bool:
        return self.count >= self._item_count

    # --- writing ------------------------------------------------------------------------------------
    def continue_from(self, full_file: IndexFile) -> None:
        """Makes this empty file the one after a full file (see the quirk above). Raises StorageError."""
        assert full_file.full, "a file is begun when the one before is full"
        assert self.count == 1, "only an empty file can be begun"
        self.begin_timestamp = self.end_timestamp = max(EpochMs(0), full_file.end_timestamp)
        self.begin_physical = self.end_physical = max(LOG_ORIGIN, full_file.end_physical)
        self._write_header()

    def put(self, hashes: Int32s, physical: Int64s, timestamps: Int64s) -> int:
        """Adds as many of these entries as fit, in order: hashes >= 0, physical ascending, times in epoch ms.

        Returns how many. Raises StorageError; then the file has none of them and they may be put again.
        """
        if self._slots_doubtful:
            self._rebuild(self.count)
        taken = min(len(hashes), self._item_count - self.count)
        assert taken > 0, "nothing is put into a full file"
        assert len(hashes) == len(physical) == len(timestamps), "an entry has all three"
        hashes, physical, timestamps = hashes[:taken], physical[:taken], timestamps[:taken]
        header = (
            self.begin_timestamp if self.count > 1 else int(timestamps[0]),
            int(timestamps[-1]),
            self.begin_physical if self.count > 1 else PhysicalOffset(int(physical[0])),
            PhysicalOffset(int(physical[-1])),
        )
        self._slots_doubtful = True
        chains_begun = self._put_items(hashes, physical, timestamps)
        assert 0 <= chains_begun <= taken, "an item begins one chain at most"
        fault_point("index.before_header")
        whole_header = (*header, self.hash_slot_count + chains_begun, self.count + taken)
        self._write(0, _HEADER.pack(*whole_header))
        self._set_header(whole_header)
        self._slots_doubtful = False
        return taken

    def _put_items(self, hashes: Int32s, physical: Int64s, timestamps: Int64s) -> int:
        """Writes items and slots. Returns how many items have no predecessor."""
        slots, previous, newest = self._chained(hashes)
        items = np.empty(len(hashes), ITEM_DTYPE)
        items["hash"] = hashes
        items["phy"] = physical
        items["seconds"] = self._seconds(timestamps)
        items["previous"] = previous
        self._write(self._items_at + ITEM_SIZE * self.count, items.tobytes())
        fault_point("index.after_items")
        self._map.scatter(HEADER_SIZE + SLOT_SIZE * slots[newest], (self.count + newest).astype(">i4"))
        return int(np.count_nonzero(previous == 0))

    def _write(self, at: int, data: bytes) -> None:
        # A write of a part of a page reads it first, and an unreadable page would end the process.
        self._map.check_readable(at, at + len(data))
        self._map.write(at, data)

    def _check_slots(self, slots: Int64s) -> None:
        """StorageError if the disk does not return the pages that these slots (ascending) lie on."""
        pages = (HEADER_SIZE + SLOT_SIZE * slots) // _PAGE_SIZE
        new = np.ones(len(pages), np.bool_)
        np.not_equal(pages[1:], pages[:-1], out=new[1:])
        pages = pages[new]
        first, last = int(pages[0]), int(pages[-1]) + 1
        few = len(pages) * _PAGES_AT_ONCE < last - first
        for begin, end in [(page, page + 1) for page in pages.tolist()] if few else [(first, last)]:
            self._map.check_readable(begin * _PAGE_SIZE, min(end * _PAGE_SIZE, self._items_at))

    def _chained(self, hashes: Int32s) -> tuple[Int64s, Int64s, Int64s]:
        """For entries put at `count` and on: their slots, their previous items, and the indexes of those
        that are the newest of their slot afterwards."""
        slots = hashes.astype(np.int64) % self._slot_count
        # One sort of (slot, index) pairs: stable, and faster than a stable argsort.
        pairs = np.sort(slots * (1 << 32) + np.arange(len(slots)))
        order = pairs & 0xFFFFFFFF
        ordered_slots = pairs >> 32
        self._check_slots(ordered_slots)
        begins = np.empty(len(slots), np.bool_)
        begins[0] = True
        np.not_equal(ordered_slots[1:], ordered_slots[:-1], out=begins[1:])
        ordered_previous = np.empty(len(slots), np.int64)
        ordered_previous[1:] = self.count + order[:-1]
        heads = self._slots[ordered_slots[begins]].astype(np.int64)
        heads[(heads < 0) | (heads >= self.count)] = 0
        ordered_previous[begins] = heads
        previous = np.empty(len(slots), np.int64)
        previous[order] = ordered_previous
        ends = np.ones(len(slots), np.bool_)
        ends[:-1] = begins[1:]
        return slots, previous, order[ends]

    def _seconds(self, timestamps: Int64s) -> Int64s:
        """Whole seconds since beginTimestamp: those of item 1 by the header as it is, the rest by item 1."""
        begins = np.full(len(timestamps), self.begin_timestamp if self.count > 1 else int(timestamps[0]))
        begins[0] = self.begin_timestamp
        return seconds_since(begins, timestamps)

    def _write_header(self) -> None:
        self._write(0, _HEADER.pack(*self._header()))

    def _header(self) -> _Header:
        return (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical,
            self.end_physical,
            self.hash_slot_count,
            self.count,
        )

    def _set_header(self, header: _Header) -> None:
        self.begin_timestamp = EpochMs(header[0])
        self.end_timestamp = EpochMs(header[1])
        self.begin_physical = header[2]
        self.end_physical = header[3]
        self.hash_slot_count = header[4]
        self.count = min(max(1, header[5]), self._item_count)

    # --- reading ------------------------------------------------------------------------------------
    def newest_item(self, key_hash: int) -> int:
        """The item at which the chain of that hash begins; 0 if there is none."""
        slot = key_hash % self._slot_count
        self._map.check_readable(HEADER_SIZE + SLOT_SIZE * slot, HEADER_SIZE + SLOT_SIZE * (slot + 1))
        number = int(self._slots[slot])
        while self.count <= number < self._item_count:
            previous = self.item(number)[3]  # left by a put that failed half-way
            number = previous if previous < number else 0
        return number if 0 < number < self.count else 0

    def item(self, number: int) -> tuple[int, PhysicalOffset, int, int]:
        """(hash, physical offset, seconds, previous item) of item 1 <= number < count."""
        at = self._items_at + ITEM_SIZE * number
        self._map.check_readable(at, at + ITEM_SIZE)
        fields: tuple[int, PhysicalOffset, int, int] = _ITEM.unpack_from(self._view, at)
        return fields

    def in_chain_of(self, number: int, key_hash: int) -> bool:
        """Whether the item is in the chain that newest_item(key_hash) begins."""
        return (
            0 < number < self.count and self.item(number)[0] % self._slot_count == key_hash % self._slot_count
        )

    def count_of_last_record(self) -> int:
        """How many items, from the last back, belong to the record put last."""
        number = self.count - 1
        while number > 0 and self.item(number)[1] == self.end_physical:
            number -= 1
        return self.count - 1 - number

    # --- cutting ------------------------------------------------------------------------------------
    def ends_below(self, physical_offset: PhysicalOffset) -> bool:
        """Whether the file's last item exists, and its record lies below: then the file was full before."""
        key_hash, physical, _, _ = self.item(self._item_count - 1)
        return physical < physical_offset and (physical > 0 or key_hash > 0)

    def expect_count(self, count: int) -> None:
        """Sets the next free item number, which the caller knows better than the header (it may be damaged).
        Has no effect if the last item below it is missing."""
        if count == self.count or not 1 < count <= self._item_count:
            return
        with suppress(UnreadableError):
            if self.item(count - 1)[:2] != _NO_ITEM[:2]:
                self._slots_doubtful = count < self._item_count and self.item(count) != _NO_ITEM
                self.count = count

    def expect_full(self) -> None:
        """Sets the count to that of a full file: a later one was begun, or its last item is good."""
        self.expect_count(self._item_count)

    def truncate_to(self, physical_offset: PhysicalOffset, end_timestamp: EpochMs | None) -> None:
        """Cuts the items of records at or after physical_offset; slots and header are rebuilt from the rest.

        Only the items below physical_offset are trusted, and the header's fields of the first record, which
        were written with the first item. end_timestamp: store time of the record that is then the last one;
        None: it is estimated from the seconds of its item. Raises StorageError.
        """
        count = self.valid_count(physical_offset)
        if count > 1:
            _, last_physical, seconds, _ = self.item(count - 1)
            if end_timestamp is None and not (count == self.count and last_physical == self.end_physical):
                end_timestamp = self.begin_timestamp + 1000 * (seconds if count > 2 else 0)
            self.end_timestamp = self.end_timestamp if end_timestamp is None else end_timestamp
            self.begin_physical, self.end_physical = self.item(1)[1], last_physical
        else:
            self.begin_timestamp = self.end_timestamp = EpochMs(0)
            self.begin_physical = self.end_physical = LOG_ORIGIN
        self._rebuild(count)

    def valid_count(self, physical_offset: PhysicalOffset) -> int:
        """One past the last of the valid items at the beginning, those of records below physical_offset."""
        lowest = 0
        for start in range(1, self.count, _SCANNED_ITEMS):
            end = min(start + _SCANNED_ITEMS, self.count)
            self._map.check_readable(self._items_at + ITEM_SIZE * start, self._items_at + ITEM_SIZE * end)
            items = self._items[start:end]
            physical = items["phy"].astype(np.int64)
            before = np.r_[lowest, physical[:-1]]
            valid = (physical >= before) & (physical < physical_offset) & (items["hash"] >= 0)
            if not valid.all():
                return self._without_zeros(start + int(valid.argmin()))
            lowest = int(physical[-1])
        return self._without_zeros(self.count)

    def _without_zeros(self, count: int) -> int:
        """An item of hash 0 at physical offset 0 is all zero, as unwritten ones are; at most one is real."""
        while count > 2 and self.item(count - 1) == self.item(count - 2) == _NO_ITEM:
            count -= 1
        return count

    def _rebuild(self, count: int) -> None:
        """Rebuilds slots and header from items [1, count) and zeroes the later ones. Raises StorageError."""
        assert 1 <= count <= self._item_count, "item 0 is never used"
        slots = np.zeros(self._slot_count, np.int32)
        for start in range(1, count, _SCANNED_ITEMS):
            hashes = self._items["hash"][start : min(start + _SCANNED_ITEMS, count)].astype(np.int64)
            slots[hashes % self._slot_count] = np.arange(start, start + len(hashes), dtype=np.int32)
        self._zero_items(count, max(count, self.count))
        fault_point("index.before_slots_again")
        self._write(HEADER_SIZE, slots.astype(">i4").tobytes())
        fault_point("index.after_slots_again")
        self.count = count
        self.hash_slot_count = int(np.count_nonzero(slots))
        assert self.hash_slot_count < count, "an item begins one chain at most"
        self._write_header()
        self._slots_doubtful = False

    def _zero_items(self, first: int, counted: int) -> None:
        """Zeroes items from `first` on that may be written: up to `counted`, and from there to the first
        zeros."""
        for start in range(first, self._item_count, _SCANNED_ITEMS):
            end = min(start + _SCANNED_ITEMS, self._item_count)
            self._map.check_readable(self._items_at + ITEM_SIZE * start, self._items_at + ITEM_SIZE * end)
            tail = self._view[self._items_at + ITEM_SIZE * start : self._items_at + ITEM_SIZE * end]
            if np.frombuffer(tail, np.uint8).any():
                self._map.write(self._items_at + ITEM_SIZE * start, bytes(len(tail)))
            elif end >= counted:
                return

    def sync(self) -> None:
        """Raises StorageError. May run in any thread."""
        self._map.sync()

    def close(self) -> None:
        del self._view, self._slots, self._items
        self._map.close()


class FileWantedError(StorageError):
    """There is no index file for the next entries, and none is created here: IndexFileWork creates it."""

    def __init__(self, directory: str) -> None:
        super().__init__("create", directory, errno.EAGAIN, "the next file is not created yet")


class IndexFileWork:
    """Creates the next index file under another name; `run` may block and is meant for another thread."""

    def __init__(self, files: FileSystem, temporary: str, size: int, attempts: int) -> None:
        self._files = files
        self._temporary = temporary
        self._size = size
        self._attempts = attempts
        self.ready = False
        self.failures = 0
        self.failure: StorageError | None = None

    def run(self) -> None:
        """Raises the last attempt's StorageError; `ready` is then False."""
        while True:
            try:
                make_index_file(self._files, self._temporary, self._size)
            except StorageError as error:
                self.failures += 1
                self.failure = error
                if self.failures == self._attempts:
                    raise
            else:
                self.ready = True
                return


def make_index_file(files: FileSystem, temporary: str, size: int) -> None:
    """Creates a preallocated file of zeros, on disk. StorageError; then no file stays."""
    try:
        files.remove(temporary)
        file = files.create(temporary, size, preallocate=True)
        try:
            file.sync()  # its size too is on disk before its name is
        finally:
            file.close()
    except StorageError:
        with suppress(StorageError):
            files.remove(temporary)
        raise


def place_index_file(
    files: FileSystem, path: str, temporary: str, slot_count: int, item_count: int
) -> IndexFile:
    """Opens the file that was made, under its own name: the directory never has a short one.

    Raises StorageError; then no file stays.
    """
    try:
        fault_point("index.before_rename")
        files.rename(temporary, path)
        fault_point("index.after_rename")
        return IndexFile(files, path, slot_count, item_count)
    except StorageError:
        for made in (temporary, path):
            with suppress(StorageError):
                files.remove(made)
        raise
