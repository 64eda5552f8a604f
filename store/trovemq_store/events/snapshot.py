"""A state that was built from the log, saved now and then so that a start need not read the whole log again.

| off | width | field                                     |
|-----|-------|-------------------------------------------|
| 0   | 8     | "TROVEST" and the format's number, 0x02   |
| 8   | u32   | CRC-32 of the rest                        |
| 12  |       | the state, in MessagePack                 |

Invariant: a snapshot is made from records that are on disk, so that it is never ahead of the log. A snapshot
that is missing, damaged or newer than the log is not used: the state is then rebuilt from the log alone.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec
from zlib_ng.zlib_ng import crc32

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.files import FileSystem

FORMAT: Final = 2
"""Format 2 adds packed leases; format 1 is read, too."""
_MARK: Final = b"TROVEST"
_HEAD_SIZE: Final = 12
assert len(_MARK) + 1 + 4 == _HEAD_SIZE, "the mark, the format's number and the CRC"

State = TypeVar("State", bound=msgspec.Struct)


def crc_of(head: bytes) -> int:
    """The CRC that the first bytes of a content state; 0 where they are none of a snapshot."""
    is_one = len(head) >= _HEAD_SIZE and head[:7] == _MARK
    return int.from_bytes(head[8:12], "little") if is_one else 0


def decoded(data: bytes, kind: type[State]) -> State | None:
    """The state of a whole content, or the fields of it that `kind` has; None if it cannot be used."""
    if len(data) < _HEAD_SIZE or data[:7] != _MARK or data[7] > FORMAT:
        return None
    if crc_of(data) != crc32(data[_HEAD_SIZE:]):
        return None
    try:
        return msgspec.msgpack.decode(data[_HEAD_SIZE:], type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class SnapshotFile(Generic[State]):
    """One snapshot of one kind of state, at `path` of the store (under `trovemq/`)."""

    def __init__(self, files: FileSystem, path: str, kind: type[State]) -> None:
        self._files = files
        self._kind = kind
        self.path: Final = path

    def load(self) -> State | None:
        """The saved state; None if none can be used. Raises TroveError STORE_NEWER if a newer version wrote
        it."""
        if not self._files.exists(self.path):
            return None
        data = self._files.read_bytes(self.path)
        if len(data) >= _HEAD_SIZE and data[:7] == _MARK and data[7] > FORMAT:
            raise TroveError(
                errors.STORE_NEWER, f"{self.path} has format {data[7]}, this version knows {FORMAT}"
            )
        return decoded(data, self._kind)

    def encode(self, state: State) -> bytes:
        """The file's content; cheap enough for the event loop, unlike save()."""
        body = msgspec.msgpack.encode(state)
        return _MARK + bytes([FORMAT]) + crc32(body).to_bytes(4, "little") + body

    def save(self, content: bytes) -> None:
        """Durable when it returns; may run in another thread. StorageError."""
        self._files.write_atomic(self.path, content)
