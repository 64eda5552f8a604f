"""Changes of the topics since `config/topics.json` was written: `trovemq/topics.journal`, appended to.

To write all topics for each change costs more the more there are. So changes of a large table are appended to
the journal, several in one write and one sync; topics.json is written now and then, and at a clean stop.

An entry, little-endian; the next one begins at the next multiple of 8:

| offset | width | field      | notes                                                       |
|--------|-------|------------|-------------------------------------------------------------|
| 0      | u64   | generation | rises by 1 each time that topics.json is written            |
| 8      | u32   | number     | of the entry in its generation, from 0                      |
| 12     | u32   | size       | of the body                                                 |
| 16     | u32   | crc        | CRC-32 of bytes 0 to 15 and the body                        |
| 20     | bytes | body       | a JSON object, one of                                       |

    {"base": CRC-32}                               always number 0: of the topics.json before the changes
    {"topic": name, "value": object or null, "dataVersion": object}      created or altered; null: deleted
    {"written": CRC-32}                            topics.json with this CRC has all entries before

Invariants
- An entry is on disk before its change counts.
- A generation is written from the beginning of the file, over the one before, when topics.json with all of
  that is on disk. Entries of older generations may remain after it; they are known by their generation.
- After a clean stop there is no journal: changes that another broker makes to topics.json then count.
- Before topics.json is replaced, the journal names its CRC, or is removed if topics.json has all of it: else
  a start would apply old changes to a later file.
- A refused change leaves no entry: its header is zeroed, if the disk allows it.
- A last entry `written` whose topics.json was not written is replaced by the next such entry: saves that fail
  again and again take no space.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import Final
from zlib import crc32

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError
from trovemq_store.files.failures import reported
from trovemq_store.files.files import Buffer, File, FileSystem, StorageError
from trovemq_store.files.paths import parent_directory
from trovemq_store.topics.lax_json import JsonObject, object_member

PATH: Final = "trovemq/topics.journal"
FILE_SIZE: Final = 256 << 10
_HEADER: Final = Struct("<QIII")
_CRC_FROM: Final = 16
_ALIGNMENT: Final = 8
_SPACE_KEPT: Final = 256
"""Space for the first entry of a generation, and for `written`."""


class TopicJournal:
    """The journal of one store. Call load() first, and restart() before the first append() of a
    generation."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._generation = 0
        self._number = 0
        self._position = 0
        self.base: int | None = None
        """CRC of the topics.json to which the present entries belong; None if there is no entry."""
        self._before_written: tuple[int, int] | None = None
        """Number and position of the last entry, if that is `written`."""

    def load(self) -> list[JsonObject]:
        """The changes of the last generation, oldest first.

        TroveError STORE_FAILED if an entry in the middle is damaged.
        """
        return self.read(self._files.read_bytes(PATH) if self._files.exists(PATH) else b"")

    def read(self, data: bytes) -> list[JsonObject]:
        """load() of these bytes of a journal; b"" is one that does not exist."""
        self._generation = self._number = self._position = 0
        self.base = self._before_written = None
        bodies = []
        while (entry := self._entry(data)) is not None:
            generation, size, body = entry
            self._before_written = (self._number, self._position) if "written" in body else None
            self._generation, self._number = generation, self._number + 1
            self._position += _aligned(_HEADER.size + size)
            bodies.append(body)
        self._check_end(data)
        return self._changes(bodies)

    def _entry(self, data: bytes) -> tuple[int, int, JsonObject] | None:
        at = self._position
        if at + _HEADER.size > len(data):
            return None
        generation, number, size, crc = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + _HEADER.size + size]
        follows = number == self._number and (number == 0 or generation == self._generation)
        if not generation or not follows or crc != crc32(body, crc32(data[at : at + _CRC_FROM])):
            return None
        document: JsonObject = json.loads(body)
        return generation, size, document

    def _check_end(self, data: bytes) -> None:
        """Raises an error if a later entry of the same generation follows the end: then the entry at the end
        is damaged."""
        if not self._number:
            return
        marker = self._generation.to_bytes(8, "little")
        at = data.find(marker, self._position)
        while at >= 0:
            _, number, size, crc = _HEADER.unpack_from(data.ljust(at + _HEADER.size, b"\0"), at)
            body = data[at + _HEADER.size : at + _HEADER.size + size]
            if number > self._number and crc == crc32(body, crc32(data[at : at + _CRC_FROM])):
                what = f"{PATH} is damaged at {self._position}: later changes of topics follow it"
                raise DamagedError(errors.STORE_FAILED, f"{what}; put it back from a backup of the store")
            at = data.find(marker, at + _ALIGNMENT)

    def _changes(self, bodies: Sequence[JsonObject]) -> list[JsonObject]:
        if not bodies:
            return []
        base = bodies[0].get("base")
        self.base = base if isinstance(base, int) else None
        return list(bodies[1:])

    @property
    def entry_count(self) -> int:
        """How many entries the present generation has."""
        return self._number

    # --- writing ------------------------------------------------------------------------------------
    def has_space(self, changes: Sequence[bytes]) -> bool:
        """Whether append() may be called with these changes."""
        size = sum(_aligned(_HEADER.size + len(body)) for body in changes)
        return self._position + size + _SPACE_KEPT <= FILE_SIZE

    def restart(self, base: int) -> None:
        """Call when topics.json has all changes, and this CRC: the next entry begins a generation."""
        self.base = base
        self._generation += 1
        self._number = self._position = 0
        self._before_written = None

    def append(self, changes: Sequence[bytes]) -> None:
        """Appends with one write and one sync; durable when it returns. TroveError DISK_FULL, STORE_FAILED
        (the sync failed), UNKNOWN_ERROR; then nothing has changed."""
        assert self.base is not None, "restart() sets the base"
        first = [] if self._number else [json.dumps({"base": self.base}).encode()]
        data, number = bytearray(), self._number
        for body in (*first, *changes):
            head = _HEADER.pack(self._generation, number, len(body), 0)[:_CRC_FROM]
            data += head + crc32(body, crc32(head)).to_bytes(4, "little") + body
            data += bytes(_aligned(len(data)) - len(data))
            number += 1
        assert len(data) % _ALIGNMENT == 0, "entries begin at multiples of 8"
        assert self._position + len(data) <= FILE_SIZE, "the caller has called has_space()"
        try:
            self._write(data)
        except StorageError as error:
            raise reported(error, f"{PATH} was not written", errors.UNKNOWN_ERROR, file=PATH) from error
        self._position += len(data)
        self._number = number
        self._before_written = None

    def note_written(self, crc: int) -> None:
        """Call before a topics.json with that CRC, which has all entries, replaces the old one. TroveError
        DISK_FULL, STORE_FAILED (the sync failed), UNKNOWN_ERROR; then nothing has changed."""
        if self._number:
            if self._before_written is not None:  # else failed attempts would use up the space
                self._number, self._position = self._before_written
            before = self._number, self._position
            self.append([json.dumps({"written": crc}).encode()])
            self._before_written = before
            return
        try:
            self.remove()  # else its CRC would be that of an older file
        except StorageError as error:
            raise reported(error, f"{PATH} was not removed", errors.UNKNOWN_ERROR, file=PATH) from error

    def remove(self) -> None:
        """Removes the journal; call when topics.json has everything. StorageError."""
        assert not self._number, "else changes would be lost"
        assert self._position == 0, "the next entry begins a generation"
        if self._files.exists(PATH):
            self._files.remove(PATH)
            self._files.sync_directory(parent_directory(PATH))

    def _write(self, data: Buffer) -> None:
        file = self._opened()
        try:
            file.write(self._position, data)
            file.sync()
        except StorageError:
            with suppress(StorageError):
                file.write(self._position, bytes(_HEADER.size))
            raise
        finally:
            file.close()

    def _opened(self) -> File:
        if self._files.exists(PATH):
            return self._files.open(PATH)
        file = self._files.create(PATH, FILE_SIZE, preallocate=True)
        self._files.sync_directory(parent_directory(PATH))
        return file


def is_written(changes: Sequence[JsonObject], crc: int, base: int | None) -> bool:
    """Whether the topics.json with this CRC has all of these changes. (A change after `written` came when
    that file had been refused, perhaps too late to take it back.)"""
    return not changes or (crc != base and changes[-1].get("written") == crc)


def belongs_to(data: bytes, crc: int, files: FileSystem) -> bool:
    """Whether these bytes of a journal are of the topics.json with that CRC, which has none of their changes,
    or all up to `written`: then both together are all topics at one time."""
    journal = TopicJournal(files)
    if not data:
        return True
    try:
        changes = journal.read(data)
    except DamagedError:
        return False
    return not changes or crc == journal.base or any(change.get("written") == crc for change in changes)


def with_changes(document: JsonObject, changes: Sequence[JsonObject]) -> JsonObject:
    """The document of topics.json with the later changes of the journal.

    If the changes do not belong to that file, another broker wrote it after a crash of ours, or it is the
    older copy. All changes are applied then, too, because each has the whole entry of its topic.
    """
    table, version = dict(object_member(document, "topicConfigTable")), document.get("dataVersion")
    for change in changes:
        name = change.get("topic")
        if not isinstance(name, str):
            continue
        if change.get("value") is None:
            table.pop(name, None)
        else:
            table[name] = change["value"]
        version = change.get("dataVersion", version)
    return {**document, "dataVersion": version, "topicConfigTable": table}


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
