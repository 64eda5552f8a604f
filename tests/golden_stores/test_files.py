"""Golden stores as files: opening leaves them as they are, and our own writing gives the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.support.golden import CLEAN_NAMES, GOLDEN_NAMES, load_manifest, settings_of, unpack
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, QueueOffset
from trovemq_proto.records import RecordBatch, decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.opening import LOCK_PATH
from trovemq_store.files.real import RealFileSystem
from trovemq_store.settings import StoreSettings

pytestmark = pytest.mark.slow

NOW_MS = EpochMs(1_800_000_000_000)


def digests(root: Path, *directories: str) -> dict[str, str]:
    """path -> SHA-256 of the files below some directories."""
    paths = [path for name in directories for path in sorted((root / name).rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def contents(root: Path, directory: str) -> dict[str, bytes]:
    """path -> content of the files that are not all zero (files made ahead of need do not count)."""
    files = {str(p.relative_to(root)): p.read_bytes() for p in (root / directory).rglob("*") if p.is_file()}
    return {path: data for path, data in sorted(files.items()) if data.strip(b"\0")}


def open_store(root: Path, settings: StoreSettings) -> tuple[RealFileSystem, MessageStore]:
    files = RealFileSystem(root)
    return files, MessageStore.open(files, settings, NOW_MS)


def answers(store: MessageStore) -> dict[str, object]:
    """All that one can read from a store."""
    while store.catch_up(1 << 20):
        pass
    assert store.key_index is not None
    queues = store.consume_queues
    return {
        "end": store.end_offset,
        "records": [
            bytes(records.record(i))
            for _, records, _ in store.scan(LOG_ORIGIN, store.end_offset)
            for i in range(len(records))
        ],
        "units": {
            (topic, queue.queue_id): queue.units(QueueOffset(0), queue.max_offset).tobytes()
            for topic in queues.topics()
            for queue in queues.queues(topic)
        },
        "index": store.key_index.last_update(),
        "offsets": list(store.offsets.entries()),
        "topics": store.topics.names(include_system=True),
    }


@pytest.mark.parametrize("name", CLEAN_NAMES)
def test_a_clean_open_and_close_changes_no_message_byte(name: str, tmp_path: Path) -> None:
    root, settings = unpack(name, tmp_path), settings_of(load_manifest(name))
    before = digests(root, "commitlog", "consumequeue", "index")
    for _ in range(2):
        _, store = open_store(root, settings)
        store.close(NOW_MS)
        assert digests(root, "commitlog", "consumequeue", "index") == before


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_opening_twice_gives_the_same(name: str, tmp_path: Path) -> None:
    root, settings = unpack(name, tmp_path), settings_of(load_manifest(name))
    seen = []
    for _ in range(3):
        _, store = open_store(root, settings)
        seen.append(answers(store))
        store.close(NOW_MS)
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_opening_after_a_kill_gives_the_same(name: str, tmp_path: Path) -> None:
    root, settings = unpack(name, tmp_path), settings_of(load_manifest(name))
    seen = []
    for _ in range(3):
        files, store = open_store(root, settings)
        seen.append(answers(store))
        files.unlock(LOCK_PATH)  # as the kernel does for a process that was killed; nothing else is closed
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["end"] == load_manifest(name)["commitLogMaxOffset"]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
@pytest.mark.parametrize("gone", ["consumequeue", "index"])
def test_what_is_gone_is_rebuilt_from_the_log(name: str, gone: str, tmp_path: Path) -> None:
    root, settings = unpack(name, tmp_path), settings_of(load_manifest(name))
    expected = contents(root, gone)
    for path in expected:
        (root / path).unlink()
    _, store = open_store(root, settings)
    answers(store)
    store.close(NOW_MS)
    found = contents(root, gone)
    if gone == "consumequeue":
        assert found == expected
    else:
        assert list(found.values()) == list(expected.values()), (
            "index files are named by the time they were made"
        )


@pytest.mark.parametrize("appends_at_once", [1, 7])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_same_appends_give_the_same_bytes(name: str, appends_at_once: int, tmp_path: Path) -> None:
    """The golden messages, written in the same order, with the same times and hosts, by our engine."""
    golden = unpack(name, tmp_path)
    manifest = load_manifest(name)
    records = read_records(golden, manifest["messages"], settings_of(manifest))
    root = tmp_path / "ours"
    _, store = open_store(root, settings_of(manifest, flush_mode="async"))
    for number, record in enumerate(records, 1):
        append_again(store, record)
        if number % appends_at_once == 0:
            store.dispatch()
    store.dispatch()
    work = store.begin_flush()
    assert work is not None
    work.run()
    store.finish_flush(work)
    store.close(NOW_MS)
    assert contents(root, "commitlog") == contents(golden, "commitlog")
    assert contents(root, "consumequeue") == contents(golden, "consumequeue")
    ours, theirs = contents(root, "index"), contents(golden, "index")
    assert list(ours.values()) == list(theirs.values())


def read_records(root: Path, messages: list[dict[str, int]], settings: StoreSettings) -> list[bytes]:
    size = settings.commit_log_file_size
    records = []
    for message in messages:
        start, position = divmod(message["commitLogOffset"], size)
        data = (root / "commitlog" / f"{start * size:020d}").read_bytes()
        records.append(data[position : position + message["storeSize"]])
    return records


def append_again(store: MessageStore, record: bytes) -> None:
    """Appends a record whose places and times are forgotten; the engine must give it the same ones."""
    message = decode_message(record)
    data = bytearray(record)
    data[20:36] = bytes(16)  # QUEUEOFFSET, PHYSICALOFFSET
    batch = RecordBatch(data, np.zeros(1, np.int64), np.array([len(data)], np.int64))
    (result,) = store.append(batch, ((message.topic, message.queue_id, len(batch)),), message.store_timestamp)
    assert result.physical_offset == message.physical_offset
    assert result.first_queue_offset == message.queue_offset
    assert result.store_timestamp == message.store_timestamp
    assert result.offset_msg_ids() == [message.offset_msg_id]
