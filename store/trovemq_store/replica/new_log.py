"""Begins a node's log again, empty, at a later offset: its leader no longer has the records that would
continue the old one. Once begun, it ends at the next start, whatever happens.

 1. `trovemq/new-log.json` gets the offset and the log's epochs, synced;
 2. at the next start, before the store is opened: the log, its projections and all state that was computed
    from it are removed, and the log's first segment is made at the offset, synced;
 3. `trovemq/replica.json` gets the epochs; the promise stays;
 4. `trovemq/new-log.json` is removed.

Each step may be repeated, so a start after a crash does all of them again. The broker's own names
(`trovemq/broker.json`) stay. Topics, groups, offsets and users stay only if no log has their records: else
the leader's records give them, and the files may have entries whose deletions were in the skipped records.

`trovemq/new-log.json`: one JSON object.

    format   1
    begin    physical offset at which the log begins: a multiple of the size of a segment
    epochs   [[epoch, physical offset of its first byte], …], all below `begin`
    crc32    of the file: store/trovemq_store/files/sealed_json.py

Invariants
- Nothing is appended to the old log once the file may be on disk.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.files import FileSystem
from trovemq_store.files.sealed_json import check_seal, seal
from trovemq_store.log.segments import DIRECTORY, file_name
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.replica_file import ReplicaFile
from trovemq_store.topics import topic_journal
from trovemq_store.topics.offsets import OFFSETS_PATH
from trovemq_store.topics.security_entries import SECURITY_PATH
from trovemq_store.topics.subscription_groups import SUBSCRIPTION_GROUPS_PATH
from trovemq_store.topics.table_notes import NOTES_PATH
from trovemq_store.topics.table_records import CLUSTER_ENTRIES_PATH, CLUSTER_PATH
from trovemq_store.topics.topics_file import TOPICS_PATH

PATH: Final = "trovemq/new-log.json"
FORMAT: Final = 1
_FILES: Final = (
    "trovemq/state.json",
    "trovemq/consumers.snapshot",
    "trovemq/key-index.json",
    "trovemq/early-removal.json",
    "checkpoint",
    "timerwheel",
    "config/timercheck",
    "config/delayOffset.json",
    "config/consumerOrderInfo.json",
)
_TABLES: Final = (
    TOPICS_PATH,
    f"{TOPICS_PATH}.bak",
    topic_journal.PATH,
    SUBSCRIPTION_GROUPS_PATH,
    f"{SUBSCRIPTION_GROUPS_PATH}.bak",
    OFFSETS_PATH,
    f"{OFFSETS_PATH}.bak",
    SECURITY_PATH,
    f"{SECURITY_PATH}.bak",
    CLUSTER_ENTRIES_PATH,
    f"{CLUSTER_ENTRIES_PATH}.bak",
    CLUSTER_PATH,
    f"{CLUSTER_PATH}.bak",
)
_NOTES: Final = (f"{NOTES_PATH}.bak", NOTES_PATH)
"""Removed last: while one is there, a start after a crash removes the files of the tables."""
_DIRECTORIES: Final = (DIRECTORY, "consumequeue", "index", "timerlog", "trovemq/trees", "trovemq/trees-aside")


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """The document of the file, by the table above."""

    format: int = FORMAT
    begin: int
    epochs: list[tuple[int, int]] = []


def begin_new_log(files: FileSystem, begin: PhysicalOffset, epochs: Epochs) -> None:
    """Step 1. StorageError: the next start may do the rest."""
    assert begin >= LOG_ORIGIN, "it is a place of a log"
    assert epochs == epochs.truncated(begin), "an empty log has epochs of the records before it"
    entries = [(entry.epoch, int(entry.start)) for entry in epochs]
    files.write_atomic(PATH, seal(msgspec.json.encode(_Content(begin=begin, epochs=entries))))


def finish_new_log(files: FileSystem, file_size: int) -> bool:
    """Steps 2 to 4, before the store is opened. Whether the log has begun again.

    TroveError STORE_NEWER, STORE_FAILED; StorageError: the next start tries again.
    """
    if not files.exists(PATH):
        return False
    begin, epochs = _read(files, file_size)
    for path in _FILES:
        files.remove(path)
    if any(files.exists(path) for path in _NOTES):
        for path in (*_TABLES, *_NOTES):
            files.remove(path)
    for directory in _DIRECTORIES:
        _empty(files, directory)
    for directory in ("trovemq", "config", ""):
        if not directory or files.is_directory(directory):
            files.sync_directory(directory)
    _make_segment(files, begin, file_size)
    ReplicaFile.open(files).restart(epochs)
    files.remove(PATH)
    files.sync_directory("trovemq")
    return True


def _read(files: FileSystem, file_size: int) -> tuple[PhysicalOffset, Epochs]:
    data = files.read_bytes(PATH)
    try:
        check_seal(data)
        found = msgspec.json.decode(data, type=_Content)
        if found.format > FORMAT:
            text = f"{PATH} has format {found.format}, this version knows {FORMAT}"
            raise TroveError(errors.STORE_NEWER, text)
        if found.begin % file_size or found.begin < 0:
            raise ValueError(f"{found.begin} is not where a segment begins")
        epochs = Epochs.of(found.epochs)
    except (msgspec.MsgspecError, ValueError) as error:
        raise TroveError(errors.STORE_FAILED, f"{PATH} is damaged ({error})", path=PATH) from error
    return PhysicalOffset(found.begin), epochs


def _empty(files: FileSystem, directory: str) -> None:
    names = files.list(directory)
    for name in names:
        path = f"{directory}/{name}"
        if files.is_directory(path):
            _empty(files, path)
            files.remove_directory(path)
        else:
            files.remove(path)
    if names:
        files.sync_directory(directory)


def _make_segment(files: FileSystem, begin: PhysicalOffset, file_size: int) -> None:
    file = files.create(f"{DIRECTORY}/{file_name(begin)}", file_size, preallocate=True)
    try:
        file.sync()
    finally:
        file.close()
    files.sync_directory(DIRECTORY)
