"""One small JSON file of the store with its second copy `X.bak`, replaced as a whole.

Invariants
- `X` is always whole on disk: each copy is replaced atomically, and never both at once.
- If `X` is damaged, `X.bak` is read. If both are damaged the store does not open: it must not start without
  its topics or offsets.

RocketMQ keeps the content before the last change in `X.bak` (ConfigManager) and reads ours the same way.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from zlib import crc32

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError
from trovemq_store.files.failures import reported
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, StorageError, UnreadableError
from trovemq_store.files.paths import parent_directory
from trovemq_store.files.sealed_json import check_seal, seal
from trovemq_store.topics import lax_json
from trovemq_store.topics.lax_json import JsonObject

ADVICE: Final = (
    "restore it from a backup of the store, or move it and its .bak away: the broker then starts without "
    "its content, and keeps every message"
)


class JsonFile:
    """`path` and `path`.bak. With `mirror` the second copy has the same content, otherwise the previous one.
    With `sealed` each has its CRC (trovemq_store/files/sealed_json.py): for TroveMQ's files, not
    RocketMQ's."""

    def __init__(self, files: FileSystem, path: str, *, mirror: bool = False, sealed: bool = False) -> None:
        self.path = path
        self._files = files
        self._mirror = mirror
        self._sealed = sealed
        self._content: bytes | None = None
        self.fault = ""
        """Why load() took the second copy: the error of the first one. Empty if it did not."""
        self.is_second_copy = False
        """Whether load() took the second copy, also if there is no first one."""

    @property
    def content(self) -> bytes:
        """The content as it was loaded or saved last; empty if there is none."""
        return self._content or b""

    @property
    def crc(self) -> int | None:
        """CRC-32 of the content; None if there is none."""
        return None if self._content is None else crc32(self._content)

    @property
    def backup_path(self) -> str:
        return f"{self.path}.bak"

    def load(self) -> JsonObject | None:
        """The document; None if neither copy exists. TroveError STORE_FAILED if no copy can be read."""
        faults: list[str] = []
        for path in (self.path, self.backup_path):
            try:
                if (content := self._read(path)) is None:
                    continue
                if self._sealed:
                    check_seal(content)
                document = lax_json.parse(content)
            except (ValueError, UnreadableError) as error:
                faults.append(f"{path}: {error}")
                continue
            self._content = content
            self.is_second_copy = path == self.backup_path
            self.fault = "; ".join(faults)
            return document
        if faults:
            what = f"{self.path} cannot be read ({'; '.join(faults)}): {ADVICE}"
            raise DamagedError(errors.STORE_FAILED, what, file=self.path)
        return None

    def save(self, document: JsonObject) -> None:
        """Durable when it returns. TroveError DISK_FULL, STORE_FAILED (its sync failed) or UNKNOWN_ERROR; the
        old content then stays."""
        content = lax_json.render(document)
        self.save_content(seal(content) if self._sealed else content)

    def save_content(self, content: bytes, *, mirror: bool = False) -> None:
        """save() for a rendered document; may run in another thread, one call at a time. `mirror`:
        both copies get the content, this time."""
        if content == self._content:
            return
        mirror = mirror or self._mirror
        try:
            if (backup := content if mirror else self._content) is not None:
                fault_point("json.before_backup")
                self._files.write_atomic(self.backup_path, backup)
            fault_point("json.before_content")
            self._files.write_atomic(self.path, content)  # the copy that counts is written last
            fault_point("json.after_content")
        except StorageError as error:
            self._restore_copies(mirror=mirror)
            what = f"{self.path} was not saved"
            raise reported(error, what, errors.UNKNOWN_ERROR, file=self.path) from error
        self._content = content

    def _restore_copies(self, *, mirror: bool) -> None:
        """Restores the copies that a failed save may have replaced: a refused change must not count at the
        next start."""
        with suppress(StorageError):
            for path in (self.path, self.backup_path) if mirror else (self.path,):
                if self._content is not None:
                    self._files.write_atomic(path, self._content)
                elif self._files.exists(path):
                    self._files.remove(path)
                    self._files.sync_directory(parent_directory(path))

    def _read(self, path: str) -> bytes | None:
        """The content. An empty file counts as missing: RocketMQ leaves one if it dies while it creates the
        file."""
        if not self._files.exists(path):
            return None
        return self._files.read_bytes(path) or None
