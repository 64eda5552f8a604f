"""The manifest of an archive on disk: the committed files, commit by commit.

    _manifest/00000000000000000001.json            the changes of commit 1
    _manifest/00000000000000000032.snapshot.json   all committed files after commit 32
    _manifest/lock                                 held by the writer (archive/lock.py)

    {"kind": "trovemq archive", "formatVersion": 1, "number": 1, "id": "9c…", "job": "archive",
     "batch": ["query", 7] | null, "added": [file entries], "removed": [names], "forgotten": [names],
     "sources": {source: {segment: {"end": …, "closed": …, "last": [offset, size, CRC] | null}}},
     "selection": {…} | null, "crc32": "…"}

A snapshot has "files", "retired", "sources", "batches" and "selection". Both are sealed (sealed_json).

Invariants
- A commit appears whole or not at all, and its number is never used again: on a local path by a link, which
  fails if the name exists; on an object store by a put with a check before and after it (see create()).
- A number that is missing between a snapshot and the last commit is damage.
- Commits are kept back to the snapshot before the last, so that one damaged snapshot loses nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive.entry import FileEntry
from trovemq_spark.storage import StoragePath
from trovemq_store.files.sealed_json import check_seal, seal

DIRECTORY: Final = "_manifest"
KIND: Final = "trovemq archive"
FORMAT_VERSION: Final = 1
SNAPSHOT_EVERY: Final = 32
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_SNAPSHOT: Final = re.compile(r"(\d{20})\.snapshot\.json")
_READ_TRIALS: Final = 5

Sources = dict[str, dict[str, dict[str, Any]]]


@dataclass(slots=True)
class State:
    """The files that are committed after commit `number`."""

    number: int = 0
    files: dict[str, FileEntry] = field(default_factory=dict)
    retired: list[str] = field(default_factory=list)
    """Files that no longer count but still exist, for readers that have them open."""
    sources: Sources = field(default_factory=dict)
    """How far each segment of each source has been read."""
    batches: dict[str, int] = field(default_factory=dict)
    """The last batch of each streaming query."""
    selection: dict[str, Any] | None = None
    """The part of the log that is archived; the same in every run."""

    def apply(self, commit: dict[str, Any]) -> None:
        """Raises KeyError, TypeError, ValueError if it is not a commit, or not the next one."""
        if commit["number"] != self.number + 1:
            raise ValueError(f"it is number {commit['number']}, expected {self.number + 1}")
        for name in commit["removed"]:
            del self.files[name]
        self.retired += commit["removed"]
        gone = set(commit["forgotten"])
        self.retired = [name for name in self.retired if name not in gone]
        for document in commit["added"]:
            entry = FileEntry.from_json(document)
            self.files[entry.file] = entry
        for source, segments in commit["sources"].items():
            self.sources.setdefault(source, {}).update(segments)
        if commit["batch"] is not None:
            query, batch = commit["batch"]
            self.batches[query] = batch
        self.selection = commit["selection"] or self.selection
        self.number += 1

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "files": [entry.to_json() for entry in self.files.values()],
            "retired": self.retired,
            "sources": self.sources,
            "batches": self.batches,
            "selection": self.selection,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> State:
        entries = [FileEntry.from_json(entry) for entry in document["files"]]
        return cls(
            number=int(document["number"]),
            files={entry.file: entry for entry in entries},
            retired=list(document["retired"]),
            sources=dict(document["sources"]),
            batches=dict(document["batches"]),
            selection=document["selection"],
        )


def load(place: StoragePath, trials: int = _READ_TRIALS) -> State | None:
    """The present state; None if there is no manifest. Raises TroveError ARCHIVE_ILLEGAL if it is damaged."""
    try:
        return _load(place)
    except (FileNotFoundError, TroveError):
        if not trials:
            raise
        return load(place, trials - 1)  # a writer may have changed files meanwhile


def _load(place: StoragePath) -> State | None:
    names = [entry.name.rpartition("/")[2] for entry in place.entries(DIRECTORY)]
    commits = sorted(name for name in names if _COMMIT.fullmatch(name))
    snapshots = sorted((name for name in names if _SNAPSHOT.fullmatch(name)), reverse=True)
    if not commits and not snapshots:
        return None
    state = _newest_snapshot(place, snapshots, int(commits[0][:20]) if commits else None)
    for name in commits:
        if int(name[:20]) > state.number:
            _read_into(state, place, name)
    return state


def _newest_snapshot(place: StoragePath, names: list[str], first_commit: int | None) -> State:
    problem: TroveError | None = None
    for name in names:
        try:
            return State.from_json(_read(place, name))
        except TroveError as error:
            problem = problem or error
        except (KeyError, TypeError, ValueError) as error:
            problem = problem or _damaged(place, name, error)
    if problem is not None and first_commit != 1:
        raise problem
    return State()


def _read_into(state: State, place: StoragePath, name: str) -> None:
    commit = _read(place, name)
    try:
        state.apply(commit)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(place, name, error) from error


def _read(place: StoragePath, name: str) -> dict[str, Any]:
    data = place.read(f"{DIRECTORY}/{name}")
    try:
        check_seal(data)
        document = json.loads(data)
        if document["kind"] != KIND or "crc32" not in document:
            raise ValueError("it is not a sealed manifest of ours")
        version = document["formatVersion"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(place, name, error) from error
    if version != FORMAT_VERSION:
        raise TroveError(
            errors.ARCHIVE_ILLEGAL,
            f"{place}/{DIRECTORY}/{name} has format {version}; this version knows {FORMAT_VERSION}",
            file=name,
        )
    assert isinstance(document, dict)
    return document


def _damaged(place: StoragePath, name: str, error: Exception) -> TroveError:
    return TroveError(
        errors.ARCHIVE_ILLEGAL, f"{place}/{DIRECTORY}/{name} is damaged: {error}", file=f"{DIRECTORY}/{name}"
    )


def append(place: StoragePath, state: State, commit: dict[str, Any]) -> None:
    """Commits on disk and in `state`. Raises TroveError JOB_RUNNING if another run has made a commit of this
    number, or OSError; then nothing has changed."""
    number = state.number + 1
    document = {"kind": KIND, "formatVersion": FORMAT_VERSION, "number": number} | commit
    create(place, f"{DIRECTORY}/{number:020d}.json", _sealed(document))
    state.apply(document)
    if number % SNAPSHOT_EVERY == 0:
        with suppress(OSError):  # the commit is valid; the next snapshot serves the same purpose
            _take_snapshot(place, state)


def _take_snapshot(place: StoragePath, state: State) -> None:
    document = {"kind": KIND, "formatVersion": FORMAT_VERSION} | state.to_json()
    place.write(f"{DIRECTORY}/{state.number:020d}.snapshot.json", _sealed(document))
    names = [entry.name.rpartition("/")[2] for entry in place.entries(DIRECTORY)]
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    if len(snapshots) < 2 or not _is_good(place, snapshots[-2]):
        return
    kept_from = snapshots[-2][:20]
    for name in _before(names, kept_from):
        place.remove(f"{DIRECTORY}/{name}")


def _is_good(place: StoragePath, name: str) -> bool:
    try:
        _read(place, name)
    except TroveError:
        return False
    return True


def _before(names: list[str], number: str) -> Iterator[str]:
    for name in sorted(names):
        is_old_commit = _COMMIT.fullmatch(name) and name[:20] <= number
        if is_old_commit or (_SNAPSHOT.fullmatch(name) and name[:20] < number):
            yield name


def _sealed(document: dict[str, Any]) -> bytes:
    return seal(json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))


def create(place: StoragePath, name: str, data: bytes) -> None:
    """Creates a new file. Raises TroveError JOB_RUNNING if it exists; OSError.

    On an object store the name is checked before the put, and the content after it: of two runs that put at
    the same moment, the one whose content was replaced gets the error. A short interval remains between the
    other run's check and a late put: there, let one run at a time write into an archive.
    """
    path = place.local
    if path is None:
        if not place.exists(name):
            place.write(name, data)
            if place.read(name) == data:
                return
        raise _already_there(place, name)
    temporary = place.temporary(name)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path / name)
    except FileExistsError:
        raise _already_there(place, name) from None
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(place, DIRECTORY)


def sync_directory(place: StoragePath, name: str) -> None:
    """Makes the names in a local directory durable. Raises OSError."""
    if place.local is None:
        return
    descriptor = os.open(place.local / name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _already_there(place: StoragePath, name: str) -> TroveError:
    return TroveError(
        errors.JOB_RUNNING, f"another run wrote {name} of {place} meanwhile; run this one again", place=place
    )
