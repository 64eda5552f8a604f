"""All consume queues of a store, as one projection of the log.

Invariants
- A record of type none or commit has one unit; prepared and rolled-back ones have none.
- A record whose queue offset is below its queue's end is already there (replay after a crash).
- No message ever gets another offset: where the log lacks records of a queue because they are damaged, blanks
  replace them. Any other gap is an error, found before anything of its batch is written: the queue's files
  are not whole, and have to be rebuilt from the log (`allow_gaps`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from struct import Struct
from types import MappingProxyType
from typing import Final

import numpy as np

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, QUEUE_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.queue_units import UnitRun, run_end, units_of
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, ScarceError
from trovemq_store.index.consume_queue import (
    ROOT_DIRECTORY,
    UNIT_DTYPE,
    UNIT_SIZE,
    ConsumeQueue,
)
from trovemq_store.index.dirty_files import DirtyFiles
from trovemq_store.index.open_files import OpenFiles
from trovemq_store.index.queue_trim import QueueTrim
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.settings import StoreSettings

_UNIT = Struct(">qiq")  # UNIT_DTYPE
_Run = tuple[ConsumeQueue, QueueOffset, bytes]
"""A queue, the offset of the first unit, the bytes of all units."""

GAP_UNITS_MAX: Final = 1 << 20
"""A longer gap is not believed: then it is the record's own queue offset that is damaged."""
_NOTED_MAX: Final = 1024
QUEUES_OF_STEP: Final = 512


class QueueGapError(TroveError):
    """A queue lacks the units before a record: STORE_FAILED unless it is rebuilt."""

    def __init__(self, queue: ConsumeQueue, offset: QueueOffset, end: QueueOffset) -> None:
        super().__init__(
            errors.STORE_FAILED,
            f"the log has offset {offset} of {queue.topic}-{queue.queue_id} where {end} is next",
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_offset=end,
        )


@dataclass(frozen=True, slots=True)
class QueueGap:
    """`count` messages from `offset` on whose records are lost: blanks replace them."""

    topic: str
    queue_id: QueueId
    offset: QueueOffset
    count: int


class ConsumeQueues:
    """The projection; `load` before anything else, then `trim_before` with the log's minimum."""

    name = "consume_queue"

    def __init__(self, files: FileSystem, settings: StoreSettings) -> None:
        self._files = files
        self._file_size = settings.consume_queue_file_size
        self._open_files = OpenFiles(files, files.open_files_max())
        self._dirty = DirtyFiles(files)
        self._queues: dict[str, dict[QueueId, ConsumeQueue]] = {}
        self._grown: dict[tuple[str, QueueId], None] = {}
        self._gap_units_max = 0
        self._rebuilding = False
        self.gaps: list[QueueGap] = []
        self.misplaced: list[tuple[PhysicalOffset, PhysicalOffset]] = []
        """(physical offset, end) of records left out because their queue offset cannot be right."""
        self.log_begin = LOG_ORIGIN
        """Physical offset of the last trim."""
        self._position = self._synced_position = LOG_ORIGIN

    @property
    def position(self) -> PhysicalOffset:
        return self._position

    @property
    def synced_position(self) -> PhysicalOffset:
        return self._synced_position

    def load(
        self,
        trusted_position: PhysicalOffset | None,
        *,
        deleted_below: Mapping[str, PhysicalOffset] = MappingProxyType({}),
        ends_known: bool = False,
        names_synced: bool = False,
    ) -> None:
        """Opens the files on disk.

        trusted_position: None after a clean stop: every unit counts, and position is the end of the last
        record that has one. Otherwise everything below it was synced and nothing else is trusted: units of
        records at or after it are cut, and position becomes it.
        deleted_below: by topic; files that begin with units of records below it are removed.
        ends_known: the caller knows how far each queue must reach, and rebuilds them if one does not.
        names_synced: the names of files that have units below trusted_position were synced, too (our own
        stores always do that).
        Raises TroveError STORE_SETTINGS_MISMATCH, StorageError.
        """
        for topic, queue_id in self._listed_queues():
            below = deleted_below.get(topic, LOG_ORIGIN)
            queue = self._queue(topic, queue_id)
            # Units after a missing file are of no use: the queue ends there, and is replayed.
            queue.load(trusted_position, below, drop_after_gap=ends_known or trusted_position is not None)
            if below and not queue.file_offsets:
                self.delete_queue(topic, queue_id)
                continue
            if trusted_position is not None and not (names_synced and queue.names_are_synced):
                # A killed broker may have made files whose names are in the page cache only.
                self._dirty.mark_directory(f"{ROOT_DIRECTORY}/{topic}/{queue_id}")
        position = trusted_position
        if position is None:
            position = max((queue.last_physical_end for queue in self._all()), default=LOG_ORIGIN)
        self._position = self._synced_position = max(LOG_ORIGIN, position)

    def _listed_queues(self) -> Iterator[tuple[str, QueueId]]:
        for topic in self._files.list(ROOT_DIRECTORY):
            for name in self._files.list(f"{ROOT_DIRECTORY}/{topic}") if self._is_directory(topic) else ():
                is_number = name.isascii() and name.isdigit() and str(int(name)) == name
                if is_number and self._is_directory(f"{topic}/{name}"):
                    yield topic, QueueId(int(name))

    def _is_directory(self, name: str) -> bool:
        return self._files.is_directory(f"{ROOT_DIRECTORY}/{name}")

    # --- reading ------------------------------------------------------------------------------------
    def get(self, topic: str, queue_id: QueueId) -> ConsumeQueue | None:
        queues = self._queues.get(topic)
        return None if queues is None else queues.get(queue_id)

    def queues(self, topic: str) -> list[ConsumeQueue]:
        """The topic's queues that have ever had a message, by queue id."""
        return [queue for _, queue in sorted(self._queues.get(topic, {}).items())]

    def has_topic(self, topic: str) -> bool:
        return topic in self._queues

    def topics(self) -> list[str]:
        return sorted(self._queues)

    def next_offset(self, topic: str, queue_id: QueueId) -> QueueOffset:
        """The queue offset of the next message that is dispatched."""
        queue = self.get(topic, queue_id)
        return queue.max_offset if queue else QUEUE_ORIGIN

    @property
    def open_file_count(self) -> int:
        """Files of queues that stay open until others are used."""
        return len(self._open_files)

    @property
    def queue_count(self) -> int:
        """Queues that have ever had a message."""
        return sum(map(len, self._queues.values()))

    def take_grown(self) -> list[tuple[str, QueueId]]:
        """The (topic, queue id) pairs that got units since the last call."""
        grown = list(self._grown)
        self._grown.clear()
        return grown

    # --- the projection -----------------------------------------------------------------------------
    def apply(self, batch: DispatchBatch) -> None:
        """Adds the units of the records at or after `position`. Raises QueueGapError: nothing was written;
        StorageError: the same batch may be applied again."""
        if batch.end <= self._position:
            return
        runs = self._runs(batch)
        # A batch may be a transaction: none of its queues shows it before all of them have it.
        together = len(runs) == 1 or len({queue for queue, _, _ in runs}) == len(runs)
        for queue, offset, units in runs:
            if offset > queue.max_offset and queue.has_units:
                self._note_gap(queue, offset)
            queue.write(offset, units)
            if not together:
                queue.publish(offset, len(units) // UNIT_SIZE)
            fault_point("queues.after_run")
        fault_point("queues.before_showing")
        for queue, offset, units in runs:
            if together:
                queue.publish(offset, len(units) // UNIT_SIZE)
            self._grown[queue.topic, queue.queue_id] = None
        self._position = batch.end

    def _runs(self, batch: DispatchBatch) -> list[_Run]:
        """The units that each queue lacks. Raises QueueGapError."""
        found = units_of(batch.records, batch.physical_offset, self._position, batch.alive)
        runs: list[_Run] = []
        before = None
        for topic, queue_id, first, units in found:
            queue = self.get(topic, queue_id)
            if queue is None or queue is before or not queue.continues_at(first):
                return self._runs_with_gaps(found)
            runs.append((queue, first, units))
            before = queue
        return runs

    def allow_gaps(self, units_max: int, *, rebuilding: bool = False) -> None:
        """Allows gaps of up to units_max messages. `rebuilding`: the log is read from its beginning, and is
        all that there is: a record after a longer gap is left out instead of refused."""
        self._gap_units_max = min(units_max, GAP_UNITS_MAX)
        self._rebuilding = rebuilding

    def _note_gap(self, queue: ConsumeQueue, offset: QueueOffset) -> None:
        assert offset > queue.max_offset, "messages are missing before it"
        assert offset - queue.max_offset <= GAP_UNITS_MAX, "a longer gap is not believed"
        if len(self.gaps) < _NOTED_MAX:
            begin = queue.max_offset
            self.gaps.append(QueueGap(queue.topic, queue.queue_id, begin, offset - begin))

    def place_lost(
        self, topic: str, queue_id: QueueId, end: QueueOffset, physical_offset: PhysicalOffset, size: int
    ) -> None:
        """The queue had messages up to offset `end`, and the records of the last ones are lost: adds a unit
        that points to the damaged place (`size` bytes), so that their offsets are not assigned again."""
        assert size > 0, "a unit of size 0 is not written"
        queue = self._queue(topic, queue_id)
        if len(self.gaps) < _NOTED_MAX:
            begin = queue.max_offset if queue.has_units else QUEUE_ORIGIN
            self.gaps.append(QueueGap(topic, queue_id, begin, end - begin))
        assert end > queue.max_offset or not queue.has_units, "the queue lacks the last messages"
        queue.append(QueueOffset(end - 1), np.array([(physical_offset, size, 0)], UNIT_DTYPE))

    @property
    def unsynced_count(self) -> int:
        """Files and directories for flush(). Of MANY (dirty_files.py) it may take many seconds."""
        return len(self._dirty)

    def flush(self) -> None:
        position = self._position
        fault_point("queues.before_sync")
        self._dirty.sync()
        fault_point("queues.after_sync")
        assert self._position >= position, "nothing is cut during a flush"
        assert position >= self._synced_position, "a synced position never goes back"
        self._synced_position = position

    def truncate_to(self, physical_offset: PhysicalOffset) -> None:
        for queue in self._all():
            if queue.last_physical_end > physical_offset:
                queue.truncate_to(physical_offset)
        self._position = min(self._position, physical_offset)
        self._synced_position = min(self._synced_position, physical_offset)
        assert self._synced_position <= self._position, "the synced part was applied"
        assert self._position <= physical_offset, "no later record counts as applied"

    def forget_from(self, physical_offset: PhysicalOffset) -> None:
        """Removes the units of all records from there on, which are then rebuilt from the log."""
        self.truncate_to(physical_offset)
        self._position = self._synced_position = physical_offset

    def trim_before(self, physical_offset: PhysicalOffset) -> None:
        for queue in self._all():
            queue.trim(physical_offset)
        self.log_begin = physical_offset

    def readers(self, open_files: OpenFiles, trim: QueueTrim) -> Generator[None, None, list[ConsumeQueue]]:
        """A reader() of every queue, created in steps, for measure_trim() in another thread."""
        found = []
        for number, queue in enumerate(self._all()):
            found.append(queue.reader(open_files, trim))
            if number % QUEUES_OF_STEP == QUEUES_OF_STEP - 1:
                yield
        return found

    def follow_trim(self) -> Generator[None, None, None]:
        """Lets every queue take over its measured trim, or forget it if the trim was abandoned; in steps."""
        for number, queue in enumerate(self._all()):
            queue.follow_trim()
            if number % QUEUES_OF_STEP == QUEUES_OF_STEP - 1:
                yield

    def delete_topic(self, topic: str) -> None:
        """Removes the topic's queues and their files; a queue of that name recreated starts empty."""
        for queue_id in list(self._queues.get(topic, {})):
            self.delete_queue(topic, queue_id)
        self._queues.pop(topic, None)
        with suppress(ScarceError):  # an empty directory may stay
            if self._is_directory(topic) and not self._files.list(f"{ROOT_DIRECTORY}/{topic}"):
                self._files.remove_directory(f"{ROOT_DIRECTORY}/{topic}")

    def delete_queue(self, topic: str, queue_id: QueueId) -> None:
        """Removes one queue and its files."""
        self._queues[topic].pop(queue_id).delete()
        if not self._queues[topic]:
            del self._queues[topic]
        self._grown.pop((topic, queue_id), None)

    def close(self) -> None:
        self.close_files()

    def close_files(self) -> None:
        """Closes the open files; the disk stays as it is."""
        self._open_files.close()

    # --- the path of gaps ---------------------------------------------------------------------------
    def _runs_with_gaps(self, found: list[UnitRun]) -> list[_Run]:
        """_runs() where a queue is new, knows some of its units, or gets others than the next ones."""
        runs: list[_Run] = []
        for (topic, queue_id), own in groupby(found, key=_queue_of):
            runs += self._new_runs(self._queue(topic, queue_id), list(own))
        return runs

    def _new_runs(self, queue: ConsumeQueue, found: list[UnitRun]) -> list[_Run]:
        """The units that the queue lacks. A queue without units takes any first offset (a rebuild may begin
        below the old one)."""
        end = queue.max_offset if queue.has_units else QueueOffset(-1)
        runs: list[_Run] = []
        for index, run in enumerate(found):
            _, _, first, units = run
            offset = QueueOffset(max(first, 0, end))
            if run_end(run) <= offset:
                continue
            units = units[(offset - first) * UNIT_SIZE :]
            if offset != end and not self._may_leave_gap(queue, end, offset, found[index + 1 :]):
                self._note_misplaced(units)
                continue
            if offset == end and runs:
                _, first, before = runs.pop()
                runs.append((queue, first, before + units))
            else:
                runs.append((queue, offset, units))
            end = run_end(run)
        return runs

    def _may_leave_gap(
        self, queue: ConsumeQueue, end: QueueOffset, offset: QueueOffset, later: list[UnitRun]
    ) -> bool:
        """Whether the records from this offset on continue after a gap from `end` (-1: they are first)."""
        if any(run[2] < offset and run_end(run) > end for run in later):
            return False  # the records after them continue from `end`: their own offset is damaged
        if end < 0 or offset - end <= self._gap_units_max:
            return True
        if self._rebuilding:
            return False
        raise QueueGapError(queue, offset, end)

    def _note_misplaced(self, units: bytes) -> None:
        for begin, size, _ in _UNIT.iter_unpack(units[: _NOTED_MAX * UNIT_SIZE]):
            if len(self.misplaced) < _NOTED_MAX:
                self.misplaced.append((PhysicalOffset(begin), PhysicalOffset(begin + size)))

    def _queue(self, topic: str, queue_id: QueueId) -> ConsumeQueue:
        queues = self._queues.setdefault(topic, {})
        queue = queues.get(queue_id)
        if queue is None:
            queue = ConsumeQueue(topic, queue_id, self._files, self._open_files, self._dirty, self._file_size)
            queues[queue_id] = queue
        return queue

    def _all(self) -> list[ConsumeQueue]:
        """All queues; 2 ms for 80,000."""
        return list(chain.from_iterable(queues.values() for queues in self._queues.values()))


def _queue_of(run: UnitRun) -> tuple[str, QueueId]:
    return run[:2]
