"""Logs for tests of the archive, generated from a seed, and the rows that an archive of them must have."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from trovemq_proto.records import Message, blank_record, encode_record
from trovemq_spark import storage
from trovemq_spark.archive.readers import arrow_dataset
from trovemq_spark.log.scan import ScanBounds, scan_segment
from trovemq_spark.log.segments import LogDirectory
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage

SEGMENT_SIZE: Final = 1 << 14
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_DAY_MS: Final = 86_400_000
_BEGIN_MS: Final = 20_000 * _DAY_MS
TOPICS: Final = ("orders", "%RETRY%group", "a|b", "x" * 150)

Row = tuple[Any, ...]


class GrowingLog:
    """A log that grows record by record, in segments of SEGMENT_SIZE; a day has some 60 records."""

    def __init__(self, store: Path, seed: int, topics: tuple[str, ...] = TOPICS) -> None:
        self.store = store
        self.end = 0
        self._source = random.Random(seed)
        self._topics = topics
        self._offsets: dict[tuple[str, int], int] = {}
        self._count = 0
        self.directory = store / "commitlog"
        self.directory.mkdir(parents=True)

    def grow(self, count: int) -> None:
        for _ in range(count):
            self._append()

    def _append(self) -> None:
        source = self._source
        topic, queue = source.choice(self._topics), source.randrange(3)
        offset = self._offsets.get((topic, queue), 0)
        record = encode_record(
            topic,
            source.randbytes(source.choice((0, 10, 200, 600))),
            queue_id=queue,
            queue_offset=offset,
            physical_offset=self.end,
            properties={"KEYS": f"k{self._count} even{self._count % 2}", "UNIQ_KEY": f"U{self._count:030d}"},
            born_timestamp=_BEGIN_MS,
            store_timestamp=_BEGIN_MS + self._count * _DAY_MS // 60,
        )
        space = SEGMENT_SIZE - self.end % SEGMENT_SIZE
        if len(record) + 8 > space:
            self._put(blank_record(space))
            self.end += space
            return self._append()
        self._offsets[topic, queue] = offset + 1
        self._put(record)
        self.end += len(record)
        self._count += 1
        return None

    def _put(self, data: bytes) -> None:
        start = self.end - self.end % SEGMENT_SIZE
        path = self.directory / f"{start:020d}"
        if not path.exists():
            path.write_bytes(bytes(SEGMENT_SIZE))
        with path.open("r+b") as file:
            file.seek(self.end - start)
            file.write(data)


def messages_of(store: Path) -> Iterator[Message]:
    """The messages of the log, decoded one by one; damage is left out."""
    log = LogDirectory.open(str(store))
    for file in log.segments:
        bounds = ScanBounds(file.start, file.end, log.known_end, is_last=file is log.segments[-1])
        for part in scan_segment(log.open_segment(file), bounds):
            if isinstance(part, DispatchBatch):
                yield from part.records.messages()
            else:
                assert isinstance(part, Damage)


def row_of(message: Message) -> Row:
    properties = {name: value for name, value in message.properties.items() if name != "__CRC32#"}
    return (
        message.physical_offset,
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.store_size,
        properties.get("KEYS"),
        properties.get("UNIQ_KEY"),
        message.offset_msg_id,
        message.body,
        tuple(sorted(properties.items())),
        _EPOCH + timedelta(milliseconds=message.store_timestamp),
        message.born_host,
    )


COLUMNS: Final = (
    "physicalOffset", "topic", "queueId", "queueOffset", "size", "keys", "messageId", "offsetMsgId", "body",
    "properties", "storeTimestamp", "bornHost",
)  # fmt: skip


def rows_of(table: pa.Table) -> list[Row]:
    """The table's rows in log order."""
    dicts = table.select(list(COLUMNS)).to_pylist()
    return sorted(
        tuple(tuple(sorted(row[name])) if name == "properties" else row[name] for name in COLUMNS)
        for row in dicts
    )


def log_rows(store: Path) -> list[Row]:
    return sorted(map(row_of, messages_of(store)))


def archive_rows(archive: Path | str) -> list[Row]:
    """As a reader of the manifest sees them."""
    return rows_of(arrow_dataset(archive).to_table())


def glob_rows(archive: Path) -> list[Row]:
    """As a reader sees them that knows nothing of a manifest: every file that a glob finds."""
    paths = sorted(archive.glob("topic=*/**/*.parquet"))
    return [row for table in _tables(paths) for row in rows_of(table)]


def _tables(paths: Iterable[Path]) -> Iterator[pa.Table]:
    for path in paths:
        yield pq.ParquetFile(path).read()


def make_object_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a place that has puts and no renames; of this process only."""
    root.mkdir()
    files = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())

    class FileSystems:
        """Like pyarrow.fs for this one URI."""

        FileSelector, FileType = fs.FileSelector, fs.FileType

        class FileSystem:
            @staticmethod
            def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
                return files, uri.partition("://")[2]

    monkeypatch.setattr(storage, "fs", FileSystems)
    return "object://archive"


EVENTS: Final = frozenset(
    {"open", "os.link", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate"}
)
"""The events of the file system from `sys.addaudithook`, each before it happens."""


class Watcher:
    """Calls `check` before every event on the file system below a directory, while it is on."""

    def __init__(self, directory: Path, check: Callable[[int], None]) -> None:
        self.count = 0
        self._directory = str(directory)
        self._check = check
        self._on = False
        sys.addaudithook(self)  # for ever: it is only switched off

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._on and event in EVENTS and str(arguments[0]).startswith(self._directory):
            self._on = False  # the check's own calls are not events
            try:
                self._check(self.count)
            finally:
                self._on = True
            self.count += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._on = True
        try:
            yield
        finally:
            self._on = False
