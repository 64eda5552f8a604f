"""An archive: Parquet files, and a manifest of those that are committed.

    ARCHIVE/_manifest/…                                 the committed files (archive/chain.py)
    ARCHIVE/_files/NAME                                 all files, also uncommitted ones
    ARCHIVE/topic=T/date=YYYY-MM-DD/NAME.parquet        links to the committed ones (archive/view.py)

A file is written once, under a unique name, and belongs to the archive from the commit that names it on.
Nothing is renamed or overwritten. Readers of the manifest see every row once, at every moment, also while a
job commits and after one was killed. The next job removes files that no commit names.

    Manifest.open(path).paths()        the committed files; archive/readers.py has them as tables
    with Manifest.writing(path, "job") as manifest:
        manifest.commit(added, removed)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive import chain, view
from trovemq_spark.archive.disk_full import reporting_disk_full
from trovemq_spark.archive.entry import FileEntry, Selection
from trovemq_spark.archive.lock import locked
from trovemq_spark.storage import StoragePath

FILES: Final = "_files"
EVERYTHING: Final = Selection()
_FILE_NAME: Final = re.compile(rf"{FILES}/[0-9a-f]{{32}}[0-9-]*")


def new_file_name(label: str = "") -> str:
    """A name, below the archive, that no other file has. label: digits and `-`, for readers of the name."""
    name = f"{FILES}/{uuid4().hex}{'-' if label else ''}{label}"
    assert _FILE_NAME.fullmatch(name), name
    return name


class Manifest:
    """The state of one archive, as it was when it was opened, and after each commit() through it."""

    def __init__(self, place: StoragePath, state: chain.State) -> None:
        self.place: Final = place
        self._state = state

    @classmethod
    def open(cls, path: str | os.PathLike[str] | StoragePath) -> Manifest:
        """Opens it for reading. Raises TroveError ARCHIVE_ILLEGAL if there is no archive, or it is damaged or
        newer."""
        place = path if isinstance(path, StoragePath) else StoragePath(path)
        state = chain.load(place)
        if state is None and place.exists(chain.DIRECTORY):
            state = _new_state(place)  # created, and nothing is committed yet
        if state is None:
            raise TroveError(
                errors.ARCHIVE_ILLEGAL,
                f"{place} is not an archive: it has no {chain.DIRECTORY}. Name a directory that `archive` "
                "wrote",
                path=place,
            )
        return cls(place, state)

    @classmethod
    @contextmanager
    def writing(
        cls, path: str | os.PathLike[str] | StoragePath, job: str, *, sweep: bool = True
    ) -> Iterator[Manifest]:
        """Opens it for commits and holds its lock; creates an archive in an empty place. First removes files
        that a killed run left (sweep=False: leaves them, because another run may be about to commit them).

        Raises TroveError JOB_RUNNING, which names the other writer, ARCHIVE_ILLEGAL, DISK_FULL; OSError.
        """
        place = path if isinstance(path, StoragePath) else StoragePath(path)
        if not place.exists(chain.DIRECTORY):
            _new_state(place)  # raises before anything is created, if this cannot be an archive
        with reporting_disk_full(place), locked(place, f"{chain.DIRECTORY}/lock", job):
            manifest = cls(place, chain.load(place) or _new_state(place))
            manifest._recover(sweep)
            try:
                yield manifest
            except BaseException:
                manifest._give_back(sweep)
                raise

    # --- looking --------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The number of the last commit; 0 before the first."""
        return self._state.number

    def files(self, selection: Selection = EVERYTHING) -> list[FileEntry]:
        """The committed files that may have rows of the selection, by topic, date and place in the log."""
        chosen = [entry for entry in self._state.files.values() if selection.includes(entry)]
        return sorted(chosen, key=lambda entry: (entry.topic or "", entry.date or "", entry.physical))

    def paths(self, selection: Selection = EVERYTHING) -> list[str]:
        """The same as full paths or URIs."""
        return [self.path(entry) for entry in self.files(selection)]

    def path(self, entry: FileEntry) -> str:
        root = self.place.text if self.place.local is None else str(self.place.local)
        return f"{root.rstrip('/')}/{entry.file}"

    def read_to(self, source: str) -> Mapping[str, dict[str, Any]]:
        """How far each segment of this source has been read: first offset (20 digits) -> facts of the
        commits."""
        return self._state.sources.get(source, {})

    @property
    def sources(self) -> list[str]:
        """The brokers whose logs are in it."""
        return list(self._state.sources)

    def holes(self, source: str) -> list[tuple[int, int]]:
        """[begin, end) of the parts of a source's log that were never read although later parts were: their
        segments were missing."""
        segments = sorted((int(name), facts["end"]) for name, facts in self.read_to(source).items())
        return [(end, begin) for (_, end), (begin, _) in pairwise(segments) if end < begin]

    def last_batch(self, query: str) -> int:
        """The last batch that this streaming query committed; -1: none."""
        return self._state.batches.get(query, -1)

    @property
    def queries(self) -> list[str]:
        """The streaming queries that committed batches."""
        return list(self._state.batches)

    @property
    def selection(self) -> dict[str, Any] | None:
        """The part of the log that the archive takes, as its first commit states it."""
        return self._state.selection

    @property
    def retired(self) -> list[str]:
        """Files that no longer count and are kept for readers that have them open."""
        return list(self._state.retired)

    # --- writing ---

    def commit(
        self,
        added: Sequence[FileEntry],
        removed: Sequence[str] = (),
        *,
        job: str = "",
        batch: tuple[str, int] | None = None,
        sources: chain.Sources | None = None,
        selection: Mapping[str, Any] | None = None,
        forgotten: Sequence[str] = (),
    ) -> bool:
        """Adds and removes files in one step, durably.

        added: complete files named by new_file_name(); removed: committed files whose rows are in `added`.
        They stay on disk as `retired` until a commit lists them as `forgotten`. batch: (query, batch number)
        of a streaming sink. If that query has committed this batch or a later one, nothing is committed, the
        added files are removed, and the result is False.

        Raises TroveError JOB_RUNNING if another run has committed meanwhile, DATA_LOST if an added file is
        missing or differs from its entry, DISK_FULL; then nothing was committed.
        """
        if batch is not None and batch[1] <= self.last_batch(batch[0]):
            for entry in added:
                if entry.file not in self._state.files:
                    self.place.remove(entry.file)
            return False
        gone = [self._state.files[name] for name in removed]
        self._check_added(added)
        with reporting_disk_full(self.place):
            if added:
                chain.sync_directory(self.place, FILES)
            commit = {
                "id": uuid4().hex,
                "job": job,
                "batch": None if batch is None else list(batch),
                "added": [entry.to_json() for entry in added],
                "removed": list(removed),
                "forgotten": list(forgotten),
                "sources": sources or {},
                "selection": None if selection is None else dict(selection),
            }
            chain.append(self.place, self._state, commit)
            view.link_changes(self.place, added, gone)
        return True

    def _check_added(self, added: Sequence[FileEntry]) -> None:
        if not added:
            return
        sizes = {entry.name: entry.size for entry in self.place.entries(FILES)}
        for entry in added:
            assert _FILE_NAME.fullmatch(entry.file), f"{entry.file}: not of new_file_name()"
            if sizes.get(entry.file) != entry.bytes:
                raise TroveError(
                    errors.DATA_LOST, f"{self.path(entry)} is not there as it was written; run the job again"
                )

    def remove_retired(self, job: str) -> int:
        """Removes the files that no longer count, and records that in the manifest. Returns the number of
        freed bytes. Readers that still use these files fail. Raises OSError."""
        names = self.retired
        if not names:
            return 0
        sizes = {entry.name: entry.size for entry in self.place.entries(FILES)}
        for name in names:
            self.place.remove(name)
        self.commit([], job=job, forgotten=names)
        return sum(sizes.get(name, 0) for name in names)

    def _recover(self, sweep: bool) -> None:
        """Makes the links agree with the manifest, and removes files that no commit names. On an object store
        these stay, because another run may be about to commit them."""
        if self.place.local is None:
            return
        view.link_all(self.place, self._state.files.values())
        for left in (self.place.local / chain.DIRECTORY).glob(".part-*"):
            left.unlink(missing_ok=True)
        if sweep:
            self._sweep(self._state)

    def _sweep(self, state: chain.State) -> None:
        kept = {_base(name) for name in (*state.files, *state.retired)}
        for entry in list(self.place.entries(FILES)):
            if _base(entry.name) not in kept:
                self.place.remove(f"{FILES}/{_base(entry.name)}")

    def _give_back(self, sweep: bool) -> None:
        """After a failure: removes files that were written and not committed."""
        if sweep and self.place.local is not None:
            with suppress(OSError, TroveError):
                self._sweep(chain.load(self.place) or chain.State())


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _new_state(place: StoragePath) -> chain.State:
    others = [entry.name for entry in place.entries() if not entry.name.startswith(("_", "."))]
    if [name for name in others if name != "lost+found"]:
        raise TroveError(
            errors.ARCHIVE_ILLEGAL,
            f"{place} is not empty and no archive (it holds {others[0]}); name an empty or a new directory",
            path=place,
        )
    return chain.State()
