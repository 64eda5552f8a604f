"""The content of a backup directory, and the file that lists it.

    manifest.json   written last: a directory without it is not a backup
    store/          the files, by their paths in the store

manifest.json, one JSON object:

    format            1; a higher number is refused
    createdMs         epoch ms
    cluster, broker   the names of the store's cluster and broker
    logBegin, logEnd  physical offsets: the range of the copy's log
    files             path, size, dataSize, sha256: the first dataSize bytes have that SHA-256 (hex), the
                      other bytes up to `size` are zero

Left out: the key index, which is rebuilt from the log at the first start (its newest file is written in
scattered places, so that no cut through it would be consistent), and files that an open store keeps for its
own use (lock, spare files).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset

MANIFEST_NAME: Final = "manifest.json"
STORE_NAME: Final = "store"
FORMAT: Final = 1
MANIFEST_BYTES_MAX: Final = 1 << 28


class FileEntry(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One file of the copy; see the table above."""

    path: str
    size: int
    data_size: int
    sha256: str

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        plain = bool(parts) and "/".join(parts) == self.path and "\0" not in self.path
        if not plain or parts[0] == "/" or ".." in parts:
            raise ValueError(f"{self.path!r} is not a path inside a store")
        if not 0 <= self.data_size <= self.size:
            raise ValueError(f"{self.path} has {self.data_size} of {self.size} bytes")


class Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The document of manifest.json, by the table above."""

    format: int = FORMAT
    created_ms: int
    cluster: str
    broker: str
    log_begin: PhysicalOffset
    log_end: PhysicalOffset
    files: list[FileEntry]

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


class _Format(msgspec.Struct):
    format: int


def load_manifest(backup: Path) -> Manifest:
    """TroveError STORE_NEWER, STORE_FAILED if there is none or it is damaged."""
    path = backup / MANIFEST_NAME
    try:
        if path.is_symlink() or path.stat().st_size > MANIFEST_BYTES_MAX:
            raise TroveError(errors.STORE_FAILED, f"{path} is not a manifest")
        data = path.read_bytes()
        known = msgspec.json.decode(data, type=_Format).format
        if known > FORMAT:
            raise TroveError(errors.STORE_NEWER, f"{path} has format {known}, this version knows {FORMAT}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except FileNotFoundError:
        raise TroveError(errors.STORE_FAILED, f"{backup} is not a whole backup: it has no manifest") from None
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise TroveError(errors.STORE_FAILED, f"{path} is damaged: {error}") from error
    paths = [entry.path for entry in manifest.files]
    if len(set(paths)) != len(paths):
        raise TroveError(errors.STORE_FAILED, f"{path} names a file twice")
    return manifest
