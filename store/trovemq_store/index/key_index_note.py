"""Our own note beside the key index, `trovemq/key-index.json`.

It says how far the index was complete, and from where on tags are certainly indexed.
"""

from __future__ import annotations

import json
from typing import Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.files import FileSystem
from trovemq_store.files.sealed_json import check_seal, seal

_NOTE_PATH: Final = "trovemq/key-index.json"
_NOTE_VERSION: Final = 1


def read_note(files: FileSystem) -> dict[str, Any] | None:
    """The note. One that cannot be read counts as missing: the index is then treated as that of another
    broker.

    Raises TroveError STORE_NEWER, StorageError.
    """
    if not files.exists(_NOTE_PATH):
        return None
    try:
        data = files.read_bytes(_NOTE_PATH)
        check_seal(data)
        note: dict[str, Any] = json.loads(data)
        version = int(note["formatVersion"])
        if version == _NOTE_VERSION:
            whole = all(isinstance(note[name], int) for name in ("tagsFrom", "position", "resume", "count"))
            ends = note.get("files", {}).values()
            whole = whole and all(isinstance(end, int) for end in ends)
            return note if whole and isinstance(note["file"], str) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    raise TroveError(errors.STORE_NEWER, f"{_NOTE_PATH} has format {version}")


def write_note(files: FileSystem, note: dict[str, Any]) -> None:
    """Raises StorageError."""
    files.write_atomic(_NOTE_PATH, seal(json.dumps({"formatVersion": _NOTE_VERSION, **note}).encode()))
