"""An archive: Parquet files, and a manifest that says which of them count.

    ARCHIVE/_manifest/…                                 the files that count (archive/chain.py)
    ARCHIVE/_files/NAME                                 the files, also those that do not count (yet)
    ARCHIVE/topic=T/date=YYYY-MM-DD/NAME.parquet        links to those that count (archive/view.py)

A file is written once, under a name of its own, and counts from the commit that names it: nothing is ever
renamed or written in place. Readers of the manifest see every row once, at every moment, also while a job
commits and after one was killed. The next job removes files that no commit names.

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
from trovemq_spark.archive.disk_full import disk_full_told
from trovemq_spark.archive.entry import FileEntry, Selection
from trovemq_spark.archive.lock import locked
from trovemq_spark.storage import Place

FILES: Final = "_files"
EVERYTHING: Final = Selection()
_FILE_NAME: Final = re.compile(rf"{FILES}/[0-9a-f]{{32}}[0-9-]*")


def new_file_name(label: str = "") -> str:
    """A name, below the archive, that no other file has. label: digits and `-`, for people."""
    name = f"{FILES}/{uuid4().hex}{'-' if label else ''}{label}"
    assert _FILE_NAME.fullmatch(name), name
    return name


class Manifest:
    """The state of one archive, as it was when it was opened, and after each commit() through it."""

    def __init__(self, place: Place, state: chain.State) -> None:
        self.place: Final = place
        self._state = state

    @classmethod
    def open(cls, path: str | os.PathLike[str] | Place) -> Manifest:
        """For reading. TroveError ARCHIVE_ILLEGAL where there is none, or it is damaged or newer."""
        place = path if isinstance(path, Place) else Place(path)
        state = chain.load(place)
        if state is None and place.exists(chain.DIRECTORY):
            state = _new_state(place)  # made, and nothing committed yet
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
        cls, path: str | os.PathLike[str] | Place, job: str, *, sweep: bool = True
    ) -> Iterator[Manifest]:
        """For commits: holds the archive's lock, made new where there is nothing. Files that a killed run
        left are removed first (sweep=False: not its files, as another run may be about to commit them).

        TroveError JOB_RUNNING names another that writes, ARCHIVE_ILLEGAL, DISK_FULL; OSError.
        """
        place = path if isinstance(path, Place) else Place(path)
        if not place.exists(chain.DIRECTORY):
            _new_state(place)  # nothing is left where no archive can be
        with disk_full_told(place), locked(place, f"{chain.DIRECTORY}/lock", job):
            manifest = cls(place, chain.load(place) or _new_state(place))
            manifest._recover(sweep)
            try:
                yield manifest
            except BaseException:
                manifest._give_back(sweep)
                raise

    # --- looking ---

    @property
    def number(self) -> int:
        """Of the last commit; 0 before the first."""
        return self._state.number

    def files(self, selection: Selection = EVERYTHING) -> list[FileEntry]:
        """The committed files that may have rows of the selection, by topic, date and place in the log."""
        chosen = [entry for entry in self._state.files.values() if selection.takes(entry)]
        return sorted(chosen, key=lambda entry: (entry.topic or "", entry.date or "", entry.physical))

    def paths(self, selection: Selection = EVERYTHING) -> list[str]:
        """The same as whole paths or URIs."""
        return [self.path(entry) for entry in self.files(selection)]

    def path(self, entry: FileEntry) -> str:
        root = self.place.text if self.place.local is None else str(self.place.local)
        return f"{root.rstrip('/')}/{entry.file}"

    def read_to(self, source: str) -> Mapping[str, dict[str, Any]]:
        """How far each segment of this source was read: first offset, 20 digits -> facts of the commits."""
        return self._state.sources.get(source, {})

    @property
    def sources(self) -> list[str]:
        """Whose logs are in it."""
        return list(self._state.sources)

    def holes(self, source: str) -> list[tuple[int, int]]:
        """[begin, end) of a source's log that was never read, after read parts: its segments were gone."""
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
        """Files that no longer count and are kept for those who read them now."""
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
        """Makes files count and others not, all at once and durably.

        added: whole files of new_file_name(); removed: files that count now, whose rows are in `added`; they
        stay on disk as `retired` until a commit says they are `forgotten`. batch: (query, batch number) of a
        streaming sink: where that query has committed this batch or a later one, nothing happens, the added
        files are removed, and the answer is False.

        TroveError JOB_RUNNING where another run has committed meanwhile, DATA_LOST where an added file is
        not there as it was described, DISK_FULL; then nothing counts that did not before.
        """
        if batch is not None and batch[1] <= self.last_batch(batch[0]):
            for entry in added:
                if entry.file not in self._state.files:
                    self.place.remove(entry.file)
            return False
        gone = [self._state.files[name] for name in removed]
        self._check_added(added)
        with disk_full_told(self.place):
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
        """Removes the files that no longer count, and says so in the manifest. The bytes that are free now.
        Who still reads them will fail. OSError."""
        names = self.retired
        if not names:
            return 0
        sizes = {entry.name: entry.size for entry in self.place.entries(FILES)}
        for name in names:
            self.place.remove(name)
        self.commit([], job=job, forgotten=names)
        return sum(sizes.get(name, 0) for name in names)

    def _recover(self, sweep: bool) -> None:
        """Links in line with the manifest; files that no commit names are gone. On an object store they stay,
        because another run may be about to commit them."""
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
        """After a failure: frees the space of files that were written and do not count."""
        if sweep and self.place.local is not None:
            with suppress(OSError, TroveError):
                self._sweep(chain.load(self.place) or chain.State())


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _new_state(place: Place) -> chain.State:
    others = [entry.name for entry in place.entries() if not entry.name.startswith(("_", "."))]
    if [name for name in others if name != "lost+found"]:
        raise TroveError(
            errors.ARCHIVE_ILLEGAL,
            f"{place} is not empty and no archive (it holds {others[0]}); name an empty or a new directory",
            path=place,
        )
    return chain.State()
