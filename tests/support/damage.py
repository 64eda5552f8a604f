"""Tiny stores with a file of every kind, and copies of them that are cheap to damage.

`tiny_store()` is one store by the real engine, as a clean stop or a kill leaves it: at most 64 KiB of files.
The right answers: tests/support/answers.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, cast

import numpy as np

from tests.support.engine import NOW_MS, SMALL, append, record
from tests.support.retention import STEPS, WORKERS, Broker
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.check.findings import Finding, Findings
from trovemq_store.check.live_store import IndexMappings, LiveScrub
from trovemq_store.check.repair import Repaired, repair_files
from trovemq_store.check.store_view import StoreView
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem, _Content
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.log.segments import file_name
from trovemq_store.settings import StoreSettings

TINY: Final = replace(
    SMALL,
    commit_log_file_size=4_096,
    consume_queue_file_size=160,
    index_slot_count=16,
    index_item_count=32,
    body_size_max=2_048,
    flush_mode="sync",
    append_property_crc=True,
)
ZERO_STEP: Final = 4_096
ZERO_RUN_MIN: Final = 64
SCRUB_RUN_BYTES: Final = 1 << 16
SCRUB_STEPS_MAX: Final = 10_000
WHEEL: Final = "timerwheel"
"""RocketMQ's wheel: 38 MB of zeros that we write at a clean stop and never read."""

FileContents = Mapping[str, bytes]


class Files(MemoryFileSystem):
    """A store's files in memory, with the further methods that the tools need."""

    @classmethod
    def of(cls, contents: FileContents) -> Files:
        """All of it on disk."""
        files = cls()
        files._files = {path: _Content(0, data) for path, data in contents.items()}
        for path, content in files._files.items():
            content.synced = contents[path]
        files._synced_names = dict(files._files)
        return files

    def paths(self) -> list[str]:
        return sorted(self._files)

    def walk(self, directory: str) -> Iterator[str]:
        """Paths of all files below."""
        return iter(sorted(path for path in self._files if path.startswith(f"{directory}/")))

    def is_locked(self, path: str) -> bool:
        return path in self._locked


def killed(files: MemoryFileSystem) -> dict[str, bytes]:
    """The files for another process after this one was killed."""
    return contents_of(files.after_process_kill())


def contents_of(files: MemoryFileSystem) -> dict[str, bytes]:
    """Every file but RocketMQ's wheel; of the timer log its first bytes."""
    contents = {path: files.read_bytes(path) for path in sorted(files._files) if path != WHEEL}
    return {
        path: data[:ZERO_STEP] if path.startswith("timerlog/") else data for path, data in contents.items()
    }


# --- the store --------------------------------------------------------------------------------------------
def tiny_store(*, clean: bool, append_property_crc: bool = True) -> dict[str, bytes]:
    """The files of a store after a clean stop, or of a killed one whose last records no mark covers."""
    settings = replace(TINY, append_property_crc=append_property_crc)
    broker = Broker(MemoryFileSystem(), settings=settings)
    broker.store.topics.create("gone", queue_count=1)
    _send(broker, "gone", QueueId(0), range(3))
    broker.store.delete_topic("gone", broker.now_ms)
    _send(broker, "orders", QueueId(0), range(10))
    _send(broker, "lines", QueueId(0), range(3))
    broker.schedule("later", NOW_MS + 3_600_000)
    broker.prepare("half")
    broker.prepare("whole")
    broker.commit("whole")
    broker.ack(broker.receive(WORKERS, count=3))
    broker.receive(WORKERS, count=2)
    broker.receive(STEPS, "lines", count=1)
    broker.store.offsets.commit("pullers", "orders", QueueId(0), QueueOffset(4), durable=True)
    broker.store.offsets.commit("pullers", "lines", QueueId(0), QueueOffset(2), durable=True)
    broker.save_snapshot()
    broker.store.flush_projections(index=True)
    _send(broker, "orders", QueueId(0), range(10, 14))
    if clean:
        broker.model.export_to_rocketmq(broker.now_ms)
        broker.store.close(broker.now_ms)
        return contents_of(cast("MemoryFileSystem", broker.files))
    return contents_of(cast("MemoryFileSystem", broker.files).after_process_kill())


def _send(broker: Broker, topic: str, queue_id: QueueId, numbers: range) -> None:
    """One batch a message; bodies of 0 to 150 bytes, two of three with keys."""
    settings = broker.store.settings
    for number in numbers:
        broker.now_ms += 7
        encoded = record(
            bytes((number * 31 + at) % 251 + 1 for at in range(number * 13 % 150)),
            topic=topic,
            queue_id=queue_id,
            keys=f"{topic}-{number % 5} all" if number % 3 else "",
            tag=f"t{number % 2}",
            unique_key=f"U-{topic}-{number}",
            properties={"colour": "blue" if number % 2 else "green"},
            append_property_crc=settings.append_property_crc,
        )
        append(broker.store, encoded, topic=topic, queue_id=queue_id, now_ms=broker.now_ms)
        broker.sync()


def places_of(contents: FileContents) -> list[tuple[str, int]]:
    """Every byte that holds data, and every 4,096th of ranges of zeros, as (path, offset)."""
    places = []
    for path, data in sorted(contents.items()):
        array = np.frombuffer(data, np.uint8)
        used = np.flatnonzero(array)
        holds = np.zeros(len(array), np.bool_)
        holds[used] = True
        for begin, end in zip(np.r_[-1, used].tolist(), np.r_[used, len(array)].tolist(), strict=True):
            if end - begin <= ZERO_RUN_MIN:
                holds[begin + 1 : end] = True
        zeros = np.flatnonzero(~holds)
        holds[zeros[::ZERO_STEP]] = True
        places += [(path, int(at)) for at in np.flatnonzero(holds)]
    return places


def flipped(contents: FileContents, path: str, offset: int, bit: int) -> dict[str, bytes]:
    data = bytearray(contents[path])
    data[offset] ^= 1 << bit
    return {**contents, path: bytes(data)}


# --- reports --------------------------------------------------------------------------------------------
def scrub(store: MessageStore) -> list[Finding]:
    """The findings of the online scrub of the open store."""
    found: list[Finding] = []
    mappings = IndexMappings(store)
    mappings.open()
    index = mappings.now(store.visible_offset)
    assert index is not None
    steps = LiveScrub(store, index, Findings(found.append), SCRUB_RUN_BYTES).steps
    assert sum(1 for _, _ in zip(range(SCRUB_STEPS_MAX), steps, strict=False)) < SCRUB_STEPS_MAX
    return [finding for finding in found if not finding.note]


def reported_in_log(store: MessageStore, physical_offset: int, findings: list[Finding]) -> bool:
    """Whether the damaged byte is named: by recovery, or by file and offset by the scrub."""
    if any(damage.physical_offset <= physical_offset < damage.end for damage in store.recovery.damages):
        return True
    size = store.settings.commit_log_file_size
    path, within = f"commitlog/{file_name(physical_offset // size * size)}", physical_offset % size
    return any(f.file == path and f.offset <= within < f.offset + _span(f) for f in findings)


def _span(finding: Finding) -> int:
    """`n bytes are ...`: how far a finding of the log reaches."""
    first = finding.what.split(" ", 1)[0]
    return int(first) if first.isdigit() else 1


def repaired(contents: FileContents, settings: StoreSettings) -> tuple[dict[str, bytes], Repaired]:
    """The files after `trovemq store repair`."""
    files = Files.of(contents)
    view = StoreView(cast("ReadOnlyFileSystem", files), settings)
    done = repair_files(view, files)
    return contents_of(files), done


def try_open(contents: FileContents | Files, settings: StoreSettings) -> MessageStore | Exception:
    """The open store, or the documented error for which it is not opened."""
    try:
        files = contents if isinstance(contents, Files) else Files.of(contents)
        return MessageStore.open(files, settings, NOW_MS + 10_000)
    except (TroveError, StorageError) as error:
        return error
