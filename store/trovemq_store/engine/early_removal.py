"""Messages that were removed before their time, to free the disk: `trovemq/early-removal.json`, a file of our
own.

    {"formatVersion": 1, "newest": ms, "until": ms, "crc32": "…"}

newest   the newest store time among the records that went early
until    when retention would have removed the last of them: from then on nothing is missing
(the CRC: store/trovemq_store/files/sealed_json.py)

A reply that reaches back to `newest` may lack some of these records, and says so. Backups contain the file.

Invariants
- The file is on disk, in two equal copies, before readers lose the first of the records.
- Neither number is ever lowered while the file exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.files.files import FileSystem
from trovemq_store.files.paths import parent_directory
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import JsonObject

PATH: Final = "trovemq/early-removal.json"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Removed:
    """The times of the table above, epoch ms; both are 0 if nothing is missing."""

    newest_ms: EpochMs = EpochMs(0)
    until_ms: EpochMs = EpochMs(0)

    def __bool__(self) -> bool:
        return self.until_ms > 0

    def __str__(self) -> str:
        newest = datetime.fromtimestamp(self.newest_ms / 1000, UTC).isoformat(" ", "milliseconds")
        return (
            f"messages stored up to {newest[:-6]}Z were removed before their time, to free the disk: "
            "some of them may be missing here"
        )


NOTHING: Final = Removed()


class EarlyRemoval:
    """`removed` may be read in any thread; one thread at a time changes it."""

    def __init__(self, files: FileSystem, removed: Removed) -> None:
        self._files = files
        self.removed = removed

    @classmethod
    def load(cls, files: FileSystem) -> EarlyRemoval:
        """TroveError STORE_NEWER for a format that we do not know, STORE_FAILED if it is damaged."""
        document = _file(files).load()
        if document is None:
            return cls(files, NOTHING)
        version = document.get("formatVersion")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise TroveError(
                errors.STORE_NEWER, f"{PATH} has format {version}; this version knows {FORMAT_VERSION}"
            )
        newest_ms, until_ms = document.get("newest"), document.get("until")
        if version != FORMAT_VERSION or not (isinstance(newest_ms, int) and isinstance(until_ms, int)):
            raise DamagedError(errors.STORE_FAILED, f"{PATH} is damaged", file=PATH)
        return cls(files, Removed(EpochMs(newest_ms), EpochMs(until_ms)))

    def note(self, newest_ms: EpochMs, until_ms: EpochMs) -> None:
        """Notes that messages with store times up to newest_ms (epoch ms) were removed, which retention would
        keep until until_ms. Durable when it returns; may block. TroveError DISK_FULL, STORE_FAILED,
        UNKNOWN_ERROR; then nothing has changed."""
        known = self.removed
        removed = Removed(max(known.newest_ms, newest_ms), max(known.until_ms, until_ms))
        if removed == known:
            return
        document: JsonObject = {
            "formatVersion": FORMAT_VERSION,
            "newest": removed.newest_ms,
            "until": removed.until_ms,
        }
        _file(self._files).save(document)
        self.removed = removed

    def forget_at(self, now_ms: EpochMs) -> None:
        """Removes the file if retention would have removed all of the messages by now. May block.
        StorageError."""
        if not self.removed or now_ms < self.removed.until_ms:
            return
        file = _file(self._files)
        for path in (file.path, file.backup_path):
            self._files.remove(path)
        self._files.sync_directory(parent_directory(PATH))
        self.removed = NOTHING


def _file(files: FileSystem) -> JsonFile:
    return JsonFile(files, PATH, mirror=True, sealed=True)
