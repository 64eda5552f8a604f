"""Which records no longer count because their topic was deleted: `trovemq/deletions.json`, which
RocketMQ does not have.

    {"formatVersion": 1, "deletedBelow": {"T": physical offset, …}, "crc32": "…"}

(the CRC: store/trovemq_store/files/sealed_json.py)

A record of topic T that lies below the physical offset is dead: dispatch, recovery, rebuild and queries skip
it. So a topic that is created again starts at queue offset 0, without its old messages.

A broker's deletions are in its log, too, in the topic's record (table_records.py): a log that was copied
without this file has them. Of a node that shares its log the file follows the committed records.

Invariants
- A deletion is on disk before add() returns, in two equal copies: a lost one would bring messages back.
- One that follow() makes is on disk in the log. The file has it before trovemq/tables.json names its record.
- A topic's physical offset never goes down, except by truncate_to() when the log itself was cut shorter.
- It is kept when the log begins above it: an archive of the log may still have those records.
- A file of a newer format is refused, never guessed at.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import JsonFile

DELETIONS_PATH: Final = "trovemq/deletions.json"
FORMAT_VERSION: Final = 1
DELETION_COUNT_MAX: Final = 65_536


class TopicDeletions:
    """topic -> the physical offset below which its records are dead."""

    def __init__(self, file: JsonFile, deleted_below: dict[str, PhysicalOffset]) -> None:
        self._file = file
        self._deleted_below = deleted_below
        self._highest = max(deleted_below.values(), default=LOG_ORIGIN)
        self.version = 0
        """Changes with each change of the deletions."""
        self.is_missing = False
        """Whether there was no file."""
        self._unsaved = False

    @classmethod
    def load(cls, files: FileSystem) -> TopicDeletions:
        """TroveError STORE_NEWER for a format that we do not know, STORE_FAILED if it is damaged."""
        file = JsonFile(files, DELETIONS_PATH, mirror=True, sealed=True)
        document = file.load()
        if document is None:
            missing = cls(file, {})
            missing.is_missing = True
            return missing
        version = document.get("formatVersion")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise TroveError(
                errors.STORE_NEWER,
                f"{DELETIONS_PATH} has format {version}; this version knows {FORMAT_VERSION}",
                file=DELETIONS_PATH,
            )
        table = document.get("deletedBelow")
        if version != FORMAT_VERSION or not isinstance(table, dict):
            raise DamagedError(errors.STORE_FAILED, f"{DELETIONS_PATH} is damaged", file=DELETIONS_PATH)
        if not all(isinstance(offset, int) and offset >= 0 for offset in table.values()):
            raise DamagedError(errors.STORE_FAILED, f"{DELETIONS_PATH} has a bad offset", file=DELETIONS_PATH)
        return cls(file, table)

    @property
    def any(self) -> bool:
        return bool(self._deleted_below)

    def snapshot(self) -> TopicDeletions:
        """A copy, for another thread to read while topics are deleted."""
        return TopicDeletions(self._file, self._deleted_below)

    def deleted_below(self, topic: str) -> PhysicalOffset:
        """The topic's records below this physical offset are dead; 0 if none is."""
        return self._deleted_below.get(topic, LOG_ORIGIN)

    def entries(self) -> dict[str, PhysicalOffset]:
        return dict(self._deleted_below)

    def add(self, topic: str, physical_offset: PhysicalOffset) -> None:
        """Declares the topic's records below `physical_offset` dead; durable. A lower offset changes nothing.

        TroveError LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED; then nothing has changed.
        """
        self.save_added(topic, physical_offset)
        self.set(topic, physical_offset)
        assert self.deleted_below(topic) >= physical_offset, "a deletion never goes back"
        assert self._highest >= physical_offset, "alive_mask() looks at the topic's records"

    def save_added(self, topic: str, physical_offset: PhysicalOffset) -> None:
        """The first half of add(): saves the deletion, which has no effect before set(). May run in any
        thread."""
        self.check_count(topic)
        if physical_offset > self.deleted_below(topic):
            fault_point("deletions.before_save")
            self._save({**self._deleted_below, topic: physical_offset})
            fault_point("deletions.after_save")

    def check_count(self, topic: str) -> None:
        """TroveError LIMIT_EXCEEDED unless the topic's deletion may be added."""
        if topic not in self._deleted_below and len(self._deleted_below) >= DELETION_COUNT_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED,
                f"topics of {DELETION_COUNT_MAX} names were deleted, a store remembers no more; keep this"
                " topic, or make topics again by names that were deleted before",
            )

    def follow(self, topic: str, physical_offset: PhysicalOffset) -> None:
        """Makes a deletion whose record is in the log, durably. It has effect also if the file cannot be
        written: begin_save() then saves it."""
        if physical_offset <= self.deleted_below(topic):
            return
        self.set(topic, physical_offset)
        was_saved, self._unsaved = not self._unsaved, True
        if was_saved:
            with suppress(TroveError):
                self._save(self._deleted_below)
                self._unsaved = False

    def follow_unsaved(self, topic: str, physical_offset: PhysicalOffset) -> None:
        """follow() for several: truncate_to() comes after them, and saves them."""
        self._unsaved = self._unsaved or physical_offset > self.deleted_below(topic)
        self.set(topic, physical_offset)

    def begin_save(self) -> Callable[[], None] | None:
        """The function that saves the deletions which follow() could not, and may run in another thread;
        finish_save() comes after it. None if all are saved. Errors: those of save()."""
        return partial(self._save, self._deleted_below) if self._unsaved else None

    def finish_save(self, version: int) -> None:
        """The deletions are saved as they were at that version."""
        self._unsaved = self._unsaved and version != self.version

    def save(self) -> None:
        """Undoes save_added(). TroveError DISK_FULL, STORE_FAILED."""
        self._save(self._deleted_below)

    def set(self, topic: str, physical_offset: PhysicalOffset) -> None:
        """The second half of add(): the deletion has effect from now on."""
        if physical_offset > self.deleted_below(topic):
            self._set({**self._deleted_below, topic: physical_offset})

    def truncate_to(self, physical_offset: PhysicalOffset) -> None:
        """The log ends there after recovery, so that records which are written later are alive; durable, also
        the deletions of follow_unsaved()."""
        assert physical_offset >= LOG_ORIGIN, "an end below 0 would bring all deleted messages back"
        if self._highest > physical_offset:
            capped = {topic: min(below, physical_offset) for topic, below in self._deleted_below.items()}
            self._replace({topic: below for topic, below in capped.items() if below > 0})
            self._unsaved = False
        if self._unsaved:
            self._save(self._deleted_below)
            self._unsaved = False
        assert self._highest <= physical_offset, "records that are written next are alive"

    def alive_mask(self, batch: RecordBatch, physical_offset: PhysicalOffset) -> NDArray[np.bool_] | None:
        """alive[i] for the records of a run that lies at `physical_offset`; None if all are alive."""
        if not self._deleted_below or physical_offset >= self._highest:
            return None
        alive = np.ones(len(batch), dtype=np.bool_)
        for topic, indexes in batch.topic_groups():
            if below := self._deleted_below.get(topic):
                alive[indexes] = physical_offset + batch.positions[indexes] >= below
        return None if alive.all() else alive

    def _replace(self, deleted_below: dict[str, PhysicalOffset]) -> None:
        self._save(deleted_below)
        self._set(deleted_below)

    def _save(self, deleted_below: dict[str, PhysicalOffset]) -> None:
        self._file.save({"formatVersion": FORMAT_VERSION, "deletedBelow": dict(deleted_below)})

    def _set(self, deleted_below: dict[str, PhysicalOffset]) -> None:
        self.version += 1
        self._deleted_below = deleted_below
        self._highest = max(deleted_below.values(), default=LOG_ORIGIN)
