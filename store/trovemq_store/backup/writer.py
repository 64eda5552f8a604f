"""Writes a backup: small files, then segments and queues, then the files that must be newest, then the
manifest.

This order makes the copy consistent (see capture.py). Topics and deletions are copied after the queues: a
topic that was deleted meanwhile, and whose queue files are gone, is deleted in the copy, too. The table of
topics and the journal of its changes are read together (topics/topic_journal.py), with the other tables of
the log and the notes of all (topics/table_notes.py). Users are copied before the
table of the cluster's configuration, in which a change of them is stored first: so the copy has no user that
its table never had, who would keep the rights there after a deletion.

Invariants
- Nothing outside of the target directory is written, and no link in it is followed.
- Only a whole backup, on disk, has a manifest.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.backup.capture import Capture, QueueFiles
from trovemq_store.backup.copying import Copied, copy_file, link_file, sync_directory, sync_tree, write_file
from trovemq_store.backup.manifest import MANIFEST_NAME, STORE_NAME, FileEntry, Manifest
from trovemq_store.engine.opening import ABORT_PATH, LOCK_PATH
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.log import checkpoint, state
from trovemq_store.topics import topic_journal
from trovemq_store.topics.offsets import OFFSETS_PATH
from trovemq_store.topics.security_entries import SECURITY_PATH
from trovemq_store.topics.subscription_groups import SUBSCRIPTION_GROUPS_PATH
from trovemq_store.topics.table_notes import NOTES_PATH
from trovemq_store.topics.table_records import CLUSTER_ENTRIES_PATH, CLUSTER_PATH
from trovemq_store.topics.topics_file import TOPICS_PATH

NOT_COPIED: Final = frozenset({"commitlog", "consumequeue", "index", LOCK_PATH, ABORT_PATH, checkpoint.PATH})
"""Names at the top of the store that are copied by other rules, or not at all."""
LAST: Final = (
    NOTES_PATH,
    f"{NOTES_PATH}.bak",
    f"{SUBSCRIPTION_GROUPS_PATH}.bak",
    SUBSCRIPTION_GROUPS_PATH,
    f"{TOPICS_PATH}.bak",
    TOPICS_PATH,
    topic_journal.PATH,
    f"{OFFSETS_PATH}.bak",
    OFFSETS_PATH,
    f"{CLUSTER_ENTRIES_PATH}.bak",
    CLUSTER_ENTRIES_PATH,
    f"{SECURITY_PATH}.bak",
    SECURITY_PATH,
)
"""The tables and their notes, at one time: else a restored file that is older or newer than its note would
undo records."""
LAST_OF_ALL: Final = (
    CLUSTER_PATH,
    f"{CLUSTER_PATH}.bak",
    "trovemq/deletions.json",
    "trovemq/deletions.json.bak",
)
"""The table of the configuration after the users: else they could be newer."""
TOPICS_TRIES_MAX: Final = 1_000
_NEW_MANIFEST: Final = f"{MANIFEST_NAME}.new"
_CHECKPOINT_TIMES: Final = 16
"""The bytes of the log's and the consume queues' times; not the index's, because the copy has no index."""
_OWN_STATE: Final = frozenset({state.PATH, "trovemq/key-index.json"})


def checked_target(directory: str, source: Path) -> Path:
    """The directory of a new backup of the store in `source`.

    TroveError REQUEST_ILLEGAL unless it is absolute, missing or empty, neither in the store nor around
    it, and reached without symbolic links; its parent must exist.
    """
    target = Path(directory)
    if not target.is_absolute() or os.path.normpath(directory) != directory.rstrip("/") or "\0" in directory:
        raise _illegal(f"{directory!r} is not a plain absolute path")
    try:
        if os.path.realpath(target) != str(target):
            raise _illegal(f"{target} leads over a symbolic link, to {os.path.realpath(target)}")
        store = Path(os.path.realpath(source))
        if target.is_relative_to(store) or store.is_relative_to(target):
            raise _illegal(f"{target} and the store, {store}, lie in each other")
        if not target.parent.is_dir():
            raise _illegal(f"{target.parent} is not a directory")
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise _illegal(f"{target} is there, and is not an empty directory")
    except OSError as error:
        raise _illegal(f"{target} cannot be used: {error.strerror}") from error
    return target


def _illegal(message: str) -> TroveError:
    return TroveError(errors.REQUEST_ILLEGAL, message, field="directory")


class BackupWriter:
    """begin(), then small_files(), then the capture, then the rest(capture): iterators of steps, each
    yields how many bytes it has read. Each method raises OSError; discard() then removes the partial copy."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target
        self._store = target / STORE_NAME
        self._made = self._begun = False
        self._entries: dict[str, FileEntry] = {}
        self._checkpoint = bytes(checkpoint.FILE_SIZE)
        self.linked_files = 0

    @property
    def file_count(self) -> int:
        """How many files are copied."""
        return len(self._entries)

    def begin(self) -> None:
        if not self._target.exists():
            self._target.mkdir()
            self._made = True
        self._store.mkdir()
        self._begun = True
        fault_point("backup.begun")

    def discard(self) -> None:
        """Leaves the target as it was."""
        if self._begun:
            for name in (MANIFEST_NAME, _NEW_MANIFEST):
                with suppress(OSError):
                    (self._target / name).unlink(missing_ok=True)
            shutil.rmtree(self._store, ignore_errors=True)
        if self._made:
            with suppress(OSError):
                self._target.rmdir()

    def small_files(self) -> Iterator[int]:
        """Copies configuration and own state: all files that are neither log nor projection."""
        with suppress(FileNotFoundError):
            times = (self._source / checkpoint.PATH).read_bytes()[:_CHECKPOINT_TIMES]
            self._checkpoint = times.ljust(checkpoint.FILE_SIZE, b"\0")
        for path in self._small_paths():
            if path not in (*LAST, *LAST_OF_ALL):
                yield from self._copy_if_there(path)

    def _small_paths(self) -> Iterator[str]:
        for directory, directories, names in os.walk(self._source):
            at_top = Path(directory) == self._source
            directories[:] = sorted(name for name in directories if not (at_top and name in NOT_COPIED))
            for name in sorted(names):
                path = (Path(directory) / name).relative_to(self._source).as_posix()
                if not (at_top and name in NOT_COPIED) and not _is_own(path):
                    yield path

    def _copy_if_there(self, path: str) -> Iterator[int]:
        """Copies a file; one that is replaced or removed meanwhile is copied as it was, or not at all."""
        copied = Copied()
        try:
            if (self._source / path).is_symlink():
                return
            yield from copy_file(self._source, self._store, path, copied)
        except FileNotFoundError:
            return
        self._entries[path] = copied.entry

    def rest(self, capture: Capture, created_ms: int, cluster: str, broker: str) -> Iterator[int]:
        """Copies everything else; after the last step the backup is whole and on disk."""
        fault_point("backup.after_capture")
        self._check_space(capture)
        for path in capture.linked:
            yield from self._segment(path, None)
        for path, size in capture.copied:
            yield from self._segment(path, size)
        fault_point("backup.after_segments")
        missing: set[tuple[str, int]] = set()
        for queue in capture.queues:
            yield from self._queue(queue, missing)
        fault_point("backup.after_queues")
        yield from self._topics()
        for path in LAST_OF_ALL:
            yield from self._copy_if_there(path)
        self._write(state.PATH, msgspec.json.encode(capture.state_of_copy(missing)))
        self._write(checkpoint.PATH, self._checkpoint)
        self._write(ABORT_PATH, b"0")
        yield from sync_tree(self._store)
        manifest = Manifest(
            created_ms=created_ms,
            cluster=cluster,
            broker=broker,
            log_begin=capture.log_begin,
            log_end=capture.log_end,
            files=sorted(self._entries.values(), key=lambda entry: entry.path),
        )
        fault_point("backup.before_manifest")
        write_file(self._target, _NEW_MANIFEST, manifest.encode())
        fault_point("backup.before_rename")
        (self._target / _NEW_MANIFEST).rename(self._target / MANIFEST_NAME)
        fault_point("backup.after_rename")
        sync_directory(self._target)
        sync_directory(self._target.parent)
        yield 0

    def _topics(self) -> Iterator[int]:
        """Copies topics.json and then its journal, and the notes of the tables and then their files, as they
        were at one time: if one was replaced meanwhile, all are read again."""
        for _ in range(TOPICS_TRIES_MAX):
            read = {path: self._bytes_of(path) for path in LAST}
            yield sum(len(data or b"") for data in read.values())
            file, journal = read[TOPICS_PATH], read[topic_journal.PATH]
            same_notes = self._bytes_of(NOTES_PATH) == read[NOTES_PATH]
            source = ReadOnlyFileSystem(self._source)
            if same_notes and topic_journal.belongs_to(journal or b"", crc32(file or b""), source):
                break
        else:
            raise OSError(errno.EBUSY, "the topics change too often to be copied")
        for path, data in read.items():
            if data is not None:
                self._write(path, data)

    def _bytes_of(self, path: str) -> bytes | None:
        """None if there is no such file."""
        try:
            with open(os.open(self._source / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # links are not followed
                return None
            raise

    def _check_space(self, capture: Capture) -> None:
        needed = sum(size for _, size in capture.copied)
        if self._source.stat().st_dev != self._target.stat().st_dev:
            needed = capture.bytes_total
        space = os.statvfs(self._target)
        if needed > space.f_bavail * space.f_frsize:
            raise TroveError(errors.DISK_FULL, f"{self._target} has no space for {needed} bytes")

    def _segment(self, path: str, size: int | None) -> Iterator[int]:
        copied = Copied()
        if size is None:
            yield from link_file(self._source, self._store, path, copied)
        else:
            yield from copy_file(self._source, self._store, path, copied, size)
        self.linked_files += copied.linked
        self._entries[path] = copied.entry

    def _queue(self, queue: QueueFiles, missing: set[tuple[str, int]]) -> Iterator[int]:
        made: list[str] = []
        try:
            for path, size in queue.files:
                copied = Copied()
                yield from copy_file(self._source, self._store, path, copied, size)
                self._entries[path] = copied.entry
                made.append(path)
        except FileNotFoundError:  # its topic was deleted
            missing.add((queue.topic, queue.queue_id))
            for path in made:
                (self._store / path).unlink()
                del self._entries[path]

    def _write(self, path: str, data: bytes) -> None:
        self._entries[path] = write_file(self._store, path, data)


def _is_own(path: str) -> bool:
    """Whether the file is for the use of an open store only: positions, spare files, temporary files."""
    name = path.rpartition("/")[2]
    spare = path.startswith("trovemq/") and ("segment" in name or name.startswith("reserve-"))
    spare = spare or name.endswith(".new")
    spare = spare or path.startswith("trovemq/trees")  # projections that are written meanwhile: rebuilt
    return path in _OWN_STATE or spare or name.endswith(".tmp")
