"""Reads and writes RocketMQ's own files about delayed messages. All numbers are big-endian.

`config/timercheck`, 4,096 bytes (zeros after the fields):

| off | width | field                                                                          |
|-----|-------|--------------------------------------------------------------------------------|
| 0   | i64   | lastReadTimeMs: slots before it were delivered                                 |
| 8   | i64   | lastTimerLogFlushPos: end of the timer log                                     |
| 16  | i64   | lastTimerQueueOffset: the wheel topic's next offset to be put into the log     |
| 24  | i64   | masterTimerQueueOffset: the same of the master; the lower one counts           |
| 32  | i64   | dataVersion.stateVersion                                                       |
| 40  | i64   | dataVersion.timestamp                                                          |
| 48  | i64   | dataVersion.counter                                                            |

`timerlog/<20 digits>`, files of one size, units of 52 bytes; a unit goes into a file that has 68 free bytes:

| off | width | field                                                                          |
|-----|-------|--------------------------------------------------------------------------------|
| 0   | i32   | 52                                                                             |
| 4   | i64   | position of the previous unit of the slot, -1: none                            |
| 12  | i32   | magic: 1, + 2 rolled when its slot comes, + 4 delete marker                    |
| 16  | i64   | time at which it was put into the wheel, epoch ms, a whole second              |
| 24  | i32   | time of the slot - that time, ms                                               |
| 28  | i64   | physical offset of the waiting record                                          |
| 36  | i32   | its size                                                                       |
| 40  | i32   | Java hash of the real topic                                                    |
| 44  | i64   | 0                                                                              |

A full file ends with a blank: i32 bytes left, i64 0, i32 0xCBD43194.

`timerwheel`, 1,209,600 slots of 32 bytes (two weeks of seconds); slot of second s is s modulo their number:

| off | width | field                                                                          |
|-----|-------|--------------------------------------------------------------------------------|
| 0   | i64   | the second; the slot is empty for every other one                              |
| 8   | i64   | position of its first unit in the timer log                                    |
| 16  | i64   | position of its last unit                                                      |
| 24  | i32   | messages in the slot                                                           |
| 28  | i32   | 0                                                                              |

`config/delayOffset.json`: `{"dataVersion": {...}, "offsetTable": {"3": 25}}`: by delay level, the next offset
in queue level - 1 of SCHEDULE_TOPIC_XXXX.
Source: RocketMQ 5.4.0, TimerCheckpoint, TimerLog, TimerWheel, ScheduleMessageService.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QUEUE_ORIGIN, EpochMs, QueueOffset
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import JsonObject, integer_member, object_member

CHECK_PATH: Final = "config/timercheck"
LOG_DIRECTORY: Final = "timerlog"
WHEEL_PATH: Final = "timerwheel"
DELAY_OFFSET_PATH: Final = "config/delayOffset.json"

_LOG_FILE_NEW: Final = "timerlog.new"
"""Not in the log's directory, where RocketMQ reads every file name as a position."""
PRECISION_MS: Final = 1_000
WHEEL_SLOTS: Final = 1_209_600
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4

UNIT_DTYPE: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("write_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
UNIT_SIZE: Final = 52
assert UNIT_DTYPE.itemsize == UNIT_SIZE
SLOT_DTYPE: Final = np.dtype(
    [("second", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")]
)
assert SLOT_DTYPE.itemsize == 32

_CHECK: Final = Struct(">7q")
_CHECK_SIZE: Final = 4_096
_BLANK: Final = Struct(">iqI")
_BLANK_MAGIC: Final = 0xCBD43194
_MAGIC_BITS: Final = 0xF
LOG_FILE_SIZE_MIN: Final = UNIT_SIZE + _BLANK.size

Units = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """The fields of timercheck."""

    last_read_ms: int = 0
    log_flush_position: int = 0
    queue_offset: QueueOffset = QUEUE_ORIGIN
    master_queue_offset: QueueOffset = QUEUE_ORIGIN
    state_version: int = 0
    timestamp: EpochMs = EpochMs(0)
    counter: int = 0


def load_check(files: FileSystem) -> TimerCheck | None:
    """The content of the file; None if it is missing or too short. Raises StorageError."""
    data = files.read_bytes(CHECK_PATH) if files.exists(CHECK_PATH) else b""
    return TimerCheck(*_CHECK.unpack_from(data)) if len(data) >= _CHECK.size else None


def save_check(files: FileSystem, check: TimerCheck) -> None:
    """Durable when it returns. StorageError."""
    fields = _CHECK.pack(
        check.last_read_ms,
        check.log_flush_position,
        check.queue_offset,
        check.master_queue_offset,
        check.state_version,
        check.timestamp,
        check.counter,
    )
    files.write_atomic(CHECK_PATH, fields.ljust(_CHECK_SIZE, b"\0"))


# --- the timer log ------------------------------------------------------------------------------------
def log_files(files: FileSystem) -> list[str]:
    """Paths of the timer log's files, in order."""
    names = [name for name in files.list(LOG_DIRECTORY) if len(name) == 20 and name.isdigit()]
    return [f"{LOG_DIRECTORY}/{name}" for name in sorted(names)]


def load_units(files: FileSystem) -> Units:
    """All units up to the first position without one, as RocketMQ's recovery reads them. Raises
    StorageError."""
    parts: list[Units] = []
    for path in log_files(files):
        units, complete = _units_of(files.read_bytes(path))
        parts.append(units)
        if not complete:
            break
    return np.concatenate(parts) if parts else np.empty(0, UNIT_DTYPE)


def _units_of(data: bytes) -> tuple[Units, bool]:
    """The units at the beginning of one file, and whether it is full."""
    units = np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_SIZE)
    good = (units["size"] == UNIT_SIZE) & ((units["magic"] | _MAGIC_BITS) == _MAGIC_BITS)
    count = len(units) if good.all() else int(np.argmin(good))
    rest = data[count * UNIT_SIZE :]
    blank = len(rest) >= _BLANK.size and _BLANK.unpack_from(rest)[2] == _BLANK_MAGIC
    return units[:count], blank or count == len(units)


def log_file_size(files: FileSystem, configured: int) -> int:
    """The size of the existing files if all have the same, else the configured one. RocketMQ accepts only its
    own mappedFileSizeTimerLog. Raises StorageError."""
    sizes = {files.file_size(path) for path in log_files(files)}
    size = min(sizes, default=0)
    return size if len(sizes) == 1 and size >= LOG_FILE_SIZE_MIN else configured


def unit_positions(count: int, file_size: int) -> NDArray[np.int64]:
    """The positions of the units of a log that begins at 0."""
    index = np.arange(count, dtype=np.int64)
    per_file = units_per_file(file_size)
    return index // per_file * file_size + index % per_file * UNIT_SIZE


def units_per_file(file_size: int) -> int:
    return (file_size - _BLANK.size) // UNIT_SIZE


def save_units(files: FileSystem, units: Units, file_size: int) -> None:
    """Writes a log that begins at 0, after clear_wheel_and_log(). Durable when it returns. StorageError."""
    units = units.astype(UNIT_DTYPE, copy=False)  # np.concatenate gives the machine's byte order
    per_file = units_per_file(file_size)
    for number, begin in enumerate(range(0, len(units), per_file)):
        part = units[begin : begin + per_file]
        path = f"{LOG_DIRECTORY}/{number * file_size:020d}"
        file = files.open(path) if files.exists(path) else files.create(path, file_size, preallocate=False)
        try:
            file.write(0, part.tobytes())
            if begin + per_file < len(units):
                end = len(part) * UNIT_SIZE
                file.write(end, _BLANK.pack(file_size - end, 0, _BLANK_MAGIC))
            file.sync()
        finally:
            file.close()
    if log_files(files):
        files.sync_directory(LOG_DIRECTORY)
        files.sync_directory("")


def clear_wheel_and_log(files: FileSystem, file_size: int) -> None:
    """Removes the wheel, its snapshots (`timerwheel.<position>`) and the log, whose first file stays as an
    empty one: its size is the one that RocketMQ has configured. Durable when it returns. StorageError.

    The wheel goes first, and the log from its end: RocketMQ rebuilds the wheel from a log, but a wheel
    without its log would point to later content of the same positions.
    """
    for name in files.list(""):
        if name == WHEEL_PATH or name.startswith(f"{WHEEL_PATH}."):
            files.remove(name)
    files.sync_directory("")
    paths = log_files(files)
    if not paths:
        return
    for path in reversed(paths[1:]):
        files.remove(path)
    files.sync_directory(LOG_DIRECTORY)
    files.remove(_LOG_FILE_NEW)  # left by a stop in between
    file = files.create(_LOG_FILE_NEW, file_size, preallocate=False)
    try:
        file.sync()
    finally:
        file.close()
    files.rename(_LOG_FILE_NEW, f"{LOG_DIRECTORY}/{0:020d}")
    if int(paths[0].rpartition("/")[2]):
        files.remove(paths[0])  # RocketMQ has removed the first files of the log
    files.sync_directory(LOG_DIRECTORY)
    files.sync_directory("")


# --- the wheel ----------------------------------------------------------------------------------------
def save_wheel(files: FileSystem, slots: NDArray[np.void]) -> None:
    """Writes a wheel with these live slots (SLOT_DTYPE, ascending seconds, within two weeks). No wheel exists
    before.

    Durable when it returns. StorageError.
    """
    file = files.create(WHEEL_PATH, WHEEL_SLOTS * SLOT_DTYPE.itemsize, preallocate=False)
    try:
        slots = slots.astype(SLOT_DTYPE, copy=False)
        indexes = slots["second"] % WHEEL_SLOTS
        bounds = [0, *(np.flatnonzero(np.diff(indexes) != 1) + 1).tolist(), len(slots)]
        for start, end in pairwise(bounds):
            if start < end:
                file.write(int(indexes[start]) * SLOT_DTYPE.itemsize, slots[start:end].tobytes())
        file.sync()
    finally:
        file.close()
    files.sync_directory("")


# --- the levels ---------------------------------------------------------------------------------------
class DelayOffsets:
    """config/delayOffset.json."""

    def __init__(self, files: FileSystem) -> None:
        """Raises TroveError STORE_FAILED if the file cannot be read."""
        self._file = JsonFile(files, DELAY_OFFSET_PATH)
        self._document = self._file.load()
        try:
            table = object_member(self._document or {}, "offsetTable")
            self.by_level = {int(level): integer_member(table, level, 0) for level in table}
        except ValueError as error:
            raise TroveError(errors.STORE_FAILED, f"{DELAY_OFFSET_PATH}: {error}") from error

    def save(self, by_level: dict[int, int], now_ms: EpochMs) -> None:
        """Durable when it returns; not written if nothing changed. Raises TroveError DISK_FULL,
        STORE_FAILED."""
        if by_level == self.by_level:
            return
        document: JsonObject = dict(self._document or {})
        version = object_member(document, "dataVersion")
        document["dataVersion"] = {
            "counter": integer_member(version, "counter", 0) + 1,
            "stateVersion": integer_member(version, "stateVersion", 0),
            "timestamp": now_ms,
        }
        document["offsetTable"] = {str(level): offset for level, offset in sorted(by_level.items())}
        self._file.save(document)
        self._document, self.by_level = document, dict(by_level)
