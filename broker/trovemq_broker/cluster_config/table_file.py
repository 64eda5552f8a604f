"""The file of the table: `config/trovemq-cluster.table`, and an equal second copy `.bak`.

A record is written for each change; when the space for changes is used up, the file is replaced by one with
all entries. So a change costs the same however large the table is, and a replacement is paid for by at least
as many bytes of changes.

A record, little-endian; the next one begins at the next multiple of 8, zeros follow the last one:

| offset | width | field  | notes                                                        |
|--------|-------|--------|--------------------------------------------------------------|
| 0      | u32   | magic  | 0x31434354 ("TCC1")                                          |
| 4      | u32   | size   | of the body                                                  |
| 8      | u64   | serial | rises with each record that was ever written                 |
| 16     | u32   | crc    | CRC-32 of bytes 0 to 15 and the body                         |
| 20     | bytes | body   | a JSON object, one of                                        |

    {"format": 1, "promised": generation, "head": head, "entries": [entry …],    always first: everything
     "sealingKey": "…"}            the id of the key that seals secrets of users; missing if there are none
    {"version": n, "digest": "hex", "horizon": n, "entries": [entry …]}    a change in the same generation
    {"head": head, "entries": [entry …]}                                   a change to another generation
    {"promised": generation}                                  no older generation is obeyed from now on
    {"removed": true}                                         this broker is no member any more

    head      {"cluster": "…", "owner": "broker-a", "generation": generation, "version": n,
               "digest": "hex", "horizon": n, "history": [position …]}
    (generation, position, entry: see entries.py)

Invariants
- A record is on disk in both copies before its change counts; after a start, in the one that is read: that
  with the higher serial.
- A member or a kind that this version does not know is refused (STORE_NEWER): it would be lost with the next
  replacement.
- A copy with a damaged record before a whole one is not used; without another one the broker does not start.
- After a write that failed the file is replaced as a whole before anything else counts. A change whose write
  was refused may be there after a crash, as one whose answer was lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Final
from zlib import crc32

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_store.files.failures import reported
from trovemq_store.files.files import FileSystem, StorageError, UnreadableError
from trovemq_store.topics.table_records import CLUSTER_PATH

PATH: Final = CLUSTER_PATH
BACKUP_PATH: Final = f"{PATH}.bak"
FORMAT: Final = 1
MAGIC: Final = 0x31434354
CHANGES_SIZE_MIN: Final = 256 << 10
"""Space for changes after all entries; where these are larger, as much as they take."""
FILE_SIZE_MAX: Final = 1 << 30
_HEADER: Final = Struct("<IIQI")
_CRC_FROM: Final = 16
_ALIGNMENT: Final = 8
_ADVICE: Final = (
    "move the file and its .bak away: a broker that follows gets the table from the owner; an owner takes it "
    "from the highest copy of the others: trovemq cluster config-owner NAME"
)

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Copy:
    path: str
    bodies: list[JsonObject]
    serial: int
    end: int
    size: int


class TableFile:
    """The file of one store. Call load() first; replace() before the first append()."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._serial = 0
        self._end = 0
        self._size = 0
        """Of each copy; 0: the next write replaces the file."""
        self.fault = ""
        """Why load() used the second copy alone, or the first; empty if both are whole."""

    def load(self) -> list[JsonObject]:
        """The bodies of the records, oldest first; empty if there is no file. TroveError STORE_FAILED,
        STORE_NEWER."""
        copies, faults = [], []
        for path in (PATH, BACKUP_PATH):
            try:
                if self._files.exists(path):
                    copies.append(_read(path, self._files.read_bytes(path)))
            except (ValueError, UnreadableError) as error:
                faults.append(f"{path}: {error}")
        self.fault = "; ".join(faults)
        if not copies:
            if faults:
                raise DamagedError(errors.STORE_FAILED, f"{self.fault}: {_ADVICE}", file=PATH)
            return []
        best = max(copies, key=lambda copy: copy.serial)
        equal = len(copies) == 2 and copies[0].end == copies[1].end and copies[0].serial == copies[1].serial
        self._serial, self._end, self._size = best.serial, best.end, best.size if equal else 0
        _check_format(best.bodies[0])
        if not equal:  # a process that was killed may have left its last record unsynced
            self._sync(best.path)
        return best.bodies

    def _sync(self, path: str) -> None:
        try:
            file = self._files.open(path)
            try:
                file.sync()
            finally:
                file.close()
        except StorageError as error:
            raise reported(error, f"{path} was not synced", errors.STORE_FAILED, file=path) from error

    def has_space(self, body: bytes) -> bool:
        """Whether append() may be called; else replace()."""
        return self._size > 0 and self._end + _aligned(_HEADER.size + len(body)) <= self._size

    def append(self, body: bytes) -> None:
        """Durable when it returns. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR; then the next write is
        replace()."""
        assert self.has_space(body), "else replace()"
        record = self._record(body)
        try:
            for path in (PATH, BACKUP_PATH):
                self._write(path, record)
        except StorageError as error:
            self._size = 0
            with suppress(StorageError):
                self._write(PATH, bytes(_HEADER.size))
            raise reported(error, f"{PATH} was not written", errors.UNKNOWN_ERROR, file=PATH) from error
        self._end += len(record)

    def replace(self, body: bytes) -> None:
        """Replaces both copies by a record of everything. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR,
        LIMIT_EXCEEDED."""
        record = self._record(body)
        data = record + bytes(_aligned(max(CHANGES_SIZE_MIN, len(record))))
        if len(data) > FILE_SIZE_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{PATH} would take more than {FILE_SIZE_MAX} bytes")
        self._size = 0
        try:
            for path in (BACKUP_PATH, PATH):
                self._files.write_atomic(path, data)
        except StorageError as error:
            raise reported(error, f"{PATH} was not written", errors.UNKNOWN_ERROR, file=PATH) from error
        self._end, self._size = len(record), len(data)

    def _record(self, body: bytes) -> bytes:
        self._serial += 1
        head = _HEADER.pack(MAGIC, len(body), self._serial, 0)[:_CRC_FROM]
        record = head + crc32(body, crc32(head)).to_bytes(4, "little") + body
        return record + bytes(_aligned(len(record)) - len(record))

    def _write(self, path: str, data: bytes) -> None:
        file = self._files.open(path)
        try:
            file.write(self._end, data)
            file.sync()
        finally:
            file.close()


def damage_of_copies(files: FileSystem) -> tuple[dict[str, str], bool]:
    """The damage of each copy by its path, and whether another one is whole. Changes nothing."""
    damaged, whole = {}, False
    for path in (PATH, BACKUP_PATH):
        try:
            if files.exists(path):
                _read(path, files.read_bytes(path))
                whole = True
        except (ValueError, UnreadableError) as error:
            damaged[path] = str(error)
    return damaged, whole


def _read(path: str, data: bytes) -> _Copy:
    """ValueError if a record before the last one, or the first one, is damaged."""
    bodies, serial, end = [], 0, 0
    while (record := _record_at(data, end, serial)) is not None:
        serial, body = record
        end += _aligned(_HEADER.size + len(body))
        bodies.append(json.loads(body))
    if not bodies:
        raise ValueError("its first record is damaged")
    for at in _magics(data, end):
        if _record_at(data, at, serial) is not None:
            raise ValueError(f"it is damaged at {end}: later changes follow")
    return _Copy(path, bodies, serial, end, len(data))


def _record_at(data: bytes, at: int, after: int) -> tuple[int, bytes] | None:
    """Serial and body of the record there, if it is whole and its serial is higher than `after`."""
    if at + _HEADER.size > len(data):
        return None
    magic, size, serial, crc = _HEADER.unpack_from(data, at)
    body = data[at + _HEADER.size : at + _HEADER.size + size]
    if magic != MAGIC or serial <= after or crc != crc32(body, crc32(data[at : at + _CRC_FROM])):
        return None
    return serial, body


def _magics(data: bytes, begin: int) -> Iterator[int]:
    marker = MAGIC.to_bytes(4, "little")
    at = data.find(marker, begin)
    while at >= 0:
        yield at
        at = data.find(marker, at + 1)


def _check_format(first: JsonObject) -> None:
    format_ = first.get("format")
    if not isinstance(format_, int) or format_ < 1:
        raise DamagedError(errors.STORE_FAILED, f"{PATH} does not begin with all entries: {_ADVICE}")
    if format_ > FORMAT:
        raise TroveError(errors.STORE_NEWER, f"{PATH} was written by a newer TroveMQ", file=PATH)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
