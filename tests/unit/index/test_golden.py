"""Consume queues and key index against the stores that Apache RocketMQ wrote: read, and built again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.golden import GOLDEN_NAMES, load_manifest, settings_of, unpack
from tests.support.projections import golden_log, tree
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.index.index_file import HEADER_SIZE
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.index.time_search import search_offset


def _names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "index").iterdir())


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_queues_are_what_rocketmq_reads(name: str, tmp_path: Path) -> None:
    manifest = load_manifest(name)
    queues = ConsumeQueues(RealFileSystem(unpack(name, tmp_path)), settings_of(manifest))
    queues.load(None)
    queues.trim_before(manifest["commitLogMinOffset"])
    for expected in manifest["queues"]:
        queue = queues.get(expected["topic"], expected["queueId"])
        if queue is None:
            assert expected["maxOffset"] == 0
            continue
        assert (queue.min_offset, queue.max_offset) == (expected["minOffset"], expected["maxOffset"])
        units = queue.units(queue.min_offset, 1 << 20)
        assert units["physical_offset"].tolist() == expected["cqPhysicalOffsets"]
        assert units["tags_code"].tolist() == expected["cqTagsCodes"]
    assert queues.position == manifest["commitLogMaxOffset"]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_search_by_time_answers_as_rocketmq(name: str, tmp_path: Path) -> None:
    manifest = load_manifest(name)
    times = {message["commitLogOffset"]: message["storeTimestamp"] for message in manifest["messages"]}
    queues = ConsumeQueues(RealFileSystem(unpack(name, tmp_path)), settings_of(manifest))
    queues.load(None)
    queues.trim_before(manifest["commitLogMinOffset"])
    for asked in manifest["searchOffsetQueries"]:
        queue = queues.get(asked["topic"], asked["queueId"])
        found = 0
        if queue is not None:
            found = search_offset(
                queue, asked["timestamp"], asked["boundary"] == "UPPER", times.get, LOG_ORIGIN
            )
        assert found == asked["offset"], asked


@pytest.mark.parametrize("batch_bytes", [1, 3_000, 1 << 20])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_consume_queues_built_again_are_byte_identical(name: str, batch_bytes: int, tmp_path: Path) -> None:
    manifest = load_manifest(name)
    root = unpack(name, tmp_path)
    files = MemoryFileSystem()
    queues = ConsumeQueues(files, settings_of(manifest))
    queues.load(LOG_ORIGIN)
    for batch in golden_log(root, manifest["commitLogMaxOffset"], batch_bytes):
        queues.apply(batch)
    assert tree(files, "consumequeue") == tree(RealFileSystem(root), "consumequeue")


@pytest.mark.parametrize("batch_bytes", [1, 3_000, 1 << 20])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_index_files_built_again_are_byte_identical(name: str, batch_bytes: int, tmp_path: Path) -> None:
    manifest = load_manifest(name)
    root = unpack(name, tmp_path)
    files = MemoryFileSystem()
    names = iter(_names(root))
    index = KeyIndex(files, settings_of(manifest), lambda: next(names))
    index.load(LOG_ORIGIN)
    for batch in golden_log(root, manifest["commitLogMaxOffset"], batch_bytes):
        index.apply(batch)
    built, golden = tree(files, "index"), tree(RealFileSystem(root), "index")
    assert list(built) == list(golden)
    for path, content in golden.items():
        assert built[path][:HEADER_SIZE] == content[:HEADER_SIZE], path
        assert built[path] == content, path


@pytest.mark.untraced
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_cut_index_is_the_index_of_the_shorter_log(name: str, tmp_path: Path) -> None:
    """Slots, items and header after a cut, and after replay, are those of an index that never had more."""
    manifest = load_manifest(name)
    root, settings = unpack(name, tmp_path), settings_of(manifest)
    golden = tree(RealFileSystem(root), "index")
    times = {message["commitLogOffset"]: message["storeTimestamp"] for message in manifest["messages"]}
    batches = list(golden_log(root, manifest["commitLogMaxOffset"], 1))
    for cut in batches[:: max(1, len(batches) // 12)]:
        names = iter(_names(root))
        shorter = KeyIndex(expected := MemoryFileSystem(), settings, partial(next, names))
        shorter.load(LOG_ORIGIN)
        for batch in batches:
            if batch.end <= cut.end:
                shorter.apply(batch)
        files = MemoryFileSystem()
        for path, content in golden.items():
            files.write_atomic(path, content)
        names = iter(_names(root)[len(shorter.file_names) :])
        index = KeyIndex(files, settings, partial(next, names))
        index.load(cut.end, store_timestamp_at=times.get)
        assert tree(files, "index") == tree(expected, "index")
        for batch in batches:
            index.apply(batch)
        assert tree(files, "index") == golden
