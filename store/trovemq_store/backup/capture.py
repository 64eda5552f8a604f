"""The part of a live store that belongs to a backup: chosen on the engine's thread, copied later in another.

Invariants
- The small files were copied before the capture: none refers to anything at or after log_end.
- The files named here are not removed before the copy is done (MessageStore.removal_holds), except for the
  queues of a topic that is deleted meanwhile.
- A linked segment is never written again, by us or by a recovery.
- Of a queue, the units below `end` never change any more; units of records after log_end are cut by the
  recovery of the copy, as after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.index.consume_queue import ROOT_DIRECTORY, UNIT_SIZE
from trovemq_store.log import state
from trovemq_store.log.segments import DIRECTORY, file_name
from trovemq_store.log.state import StoreState

QUEUES_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """One queue: (path, bytes that are written) of each file, oldest first, and its end as a queue offset."""

    topic: str
    queue_id: QueueId
    end: int
    files: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Capture:
    """log_begin, log_end: physical offsets. linked, copied: paths of segments, those with bytes written."""

    log_begin: PhysicalOffset
    log_end: PhysicalOffset
    linked: list[str]
    copied: list[tuple[str, int]]
    state: StoreState
    queues: list[QueueFiles] = field(default_factory=list)

    @property
    def bytes_total(self) -> int:
        queues = sum(size for queue in self.queues for _, size in queue.files)
        return self.log_end - self.log_begin + queues

    @property
    def file_count(self) -> int:
        return len(self.linked) + len(self.copied) + sum(len(queue.files) for queue in self.queues)

    def state_of_copy(self, missing: set[tuple[str, int]]) -> StoreState:
        """The copy's own state.json: as after a crash, with nothing indexed. `missing`: queues that are
        gone."""
        ends: dict[str, dict[int, int]] = {}
        for queue in self.queues:
            if (queue.topic, queue.queue_id) not in missing:
                ends.setdefault(queue.topic, {})[queue.queue_id] = queue.end
        few = sum(map(len, ends.values())) <= state.QUEUE_ENDS_MAX
        return msgspec.structs.replace(self.state, queue_ends=ends if few else {})


def capture_log(store: MessageStore, *, link: bool) -> Capture:
    """Captures the log, in one step; queue_steps() adds the queues."""
    end = store.flushed_offset
    may_link = {segment.start for segment in store.closed_segments()} if link else set()
    linked, copied = [], []
    for segment in store.log.segments:
        path = f"{DIRECTORY}/{file_name(segment.start)}"
        if segment.start in may_link:
            linked.append(path)
        elif segment.start < end:
            copied.append((path, min(segment.end, end) - segment.start))
    has_index = store.key_index is not None
    saved = msgspec.structs.replace(
        StoreState.of(store.settings, log_end=end),
        consume_queue_position=min(store.visible_offset, end),
        key_index_last_offset=state.NOTHING_INDEXED if has_index else state.NO_INDEX,
        time_runs=store.time_runs_below(end),
    )
    return Capture(store.min_offset, end, linked, copied, saved)


def queue_steps(store: MessageStore, capture: Capture) -> Iterator[None]:
    """Adds the queues; no topic may be deleted between the steps."""
    file_size = store.settings.consume_queue_file_size
    units = file_size // UNIT_SIZE
    for topic in store.consume_queues.topics():
        for queue in store.consume_queues.queues(topic):
            files = tuple(
                (
                    f"{ROOT_DIRECTORY}/{topic}/{queue.queue_id}/{file_name(first * UNIT_SIZE)}",
                    max(0, min(queue.max_offset - first, units)) * UNIT_SIZE,
                )
                for first in queue.file_offsets
            )
            capture.queues.append(QueueFiles(topic, queue.queue_id, queue.max_offset, files))
            if len(capture.queues) % QUEUES_AT_ONCE == 0:
                yield
