"""The rebuilt files against those that Apache RocketMQ wrote, and unusual places and sizes."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.pipeline.rebuilds import rebuild_plainly
from tests.support.golden import CLEAN_NAMES, load_manifest, settings_of, unpack
from tests.support.rebuilt import files_of, index_contents, rebuild_here, remote
from trovemq_proto.errors import TroveError
from trovemq_spark.log.sizes import FileSizes, complete
from trovemq_spark.storage import StoragePath
from trovemq_store.check import layouts
from trovemq_store.index.index_file import HEADER_SIZE


@pytest.mark.parametrize("name", CLEAN_NAMES)
def test_a_rebuild_of_a_closed_store_is_byte_identical(name: str, tmp_path: Path) -> None:
    store, out = unpack(name, tmp_path), tmp_path / "out"
    report = rebuild_here(store, out)
    assert report.findings == []
    assert files_of(out / "consumequeue") == files_of(store / "consumequeue")
    assert index_contents(out) == index_contents(store)
    messages = load_manifest(name)["messages"]
    records = report.facts["records"]
    assert isinstance(records, int)
    assert records >= len(messages)
    assert report.facts["lastStoreTimestamp"] == max(message["storeTimestamp"] for message in messages)
    assert sorted(path.name for path in out.iterdir()) == ["consumequeue", "index"]


def test_what_a_killed_broker_stored_is_a_prefix_of_what_is_rebuilt(tmp_path: Path) -> None:
    store, out = unpack("crashed", tmp_path), tmp_path / "out"
    manifest = load_manifest("crashed")
    rebuild_here(store, out)
    rebuilt = files_of(out / "consumequeue")
    for path, content in files_of(store / "consumequeue").items():
        assert rebuilt[path].startswith(content.rstrip(b"\0")), path
    settings = settings_of(manifest)
    stored_items = [_items(content, settings) for content in index_contents(store)]
    rebuilt_items = [_items(content, settings) for content in index_contents(out)]
    assert b"".join(rebuilt_items).startswith(b"".join(stored_items))
    assert stored_items, "the store has an index"


def _items(content: bytes, settings: Any) -> bytes:
    """The used items of an index file."""
    at = HEADER_SIZE + layouts.SLOT_SIZE * settings.index_slot_count
    count = int.from_bytes(content[HEADER_SIZE - 4 : HEADER_SIZE])
    return content[at + layouts.ITEM_SIZE : at + layouts.ITEM_SIZE * count]


def test_what_the_benchmark_compares_with_makes_the_same(tmp_path: Path) -> None:
    store = unpack("rollover", tmp_path)
    sizes = complete(FileSizes(), StoragePath(store))
    queues, index = rebuild_plainly(store, sizes)
    for (topic, queue_id), units in queues.items():
        files = sorted((store / "consumequeue" / topic / str(queue_id)).iterdir())
        assert b"".join(path.read_bytes() for path in files).rstrip(b"\0") == bytes(units).rstrip(b"\0")
    assert len(queues) == len(list((store / "consumequeue").glob("*/*")))
    for (header, slots, items), content in zip(index, index_contents(store), strict=True):
        whole = bytes(header) + b"".join(slot.to_bytes(4) for slot in slots) + bytes(items)
        assert content.rstrip(b"\0") == whole.rstrip(b"\0")


def test_index_files_are_named_by_their_first_records_in_rising_order(tmp_path: Path) -> None:
    store, out = unpack("rollover", tmp_path), tmp_path / "out"
    rebuild_here(store, out)
    names = sorted(path.name for path in (out / "index").iterdir())
    assert len(names) == len(set(names)) > 2
    assert all(len(name) == 17 and name.isdigit() for name in names)


def test_a_segment_directory_alone_is_rebuilt_with_given_sizes(tmp_path: Path) -> None:
    store, out = unpack("rollover", tmp_path), tmp_path / "out"
    settings = settings_of(load_manifest("rollover"))
    report = rebuild_here(
        store / "commitlog",
        out,
        consume_queue_file_size=settings.consume_queue_file_size,
        index_slot_count=settings.index_slot_count,
        index_item_count=settings.index_item_count,
    )
    assert report.findings == []
    assert files_of(out / "consumequeue") == files_of(store / "consumequeue")
    assert index_contents(out) == index_contents(store)


def test_parts_are_made_alone_and_the_other_stays_as_it_was(tmp_path: Path) -> None:
    store, out = unpack("collide", tmp_path), tmp_path / "out"
    rebuild_here(store, out, parts="index")
    assert [path.name for path in out.iterdir()] == ["index"]
    index = index_contents(out)
    (out / "index" / "noted").write_text("mine")
    rebuild_here(store, out, parts="consumequeue")
    assert (out / "index" / "noted").exists()
    assert index_contents(store) == index
    assert files_of(out / "consumequeue") == files_of(store / "consumequeue")


def test_an_index_without_tags_has_the_keys_only(tmp_path: Path) -> None:
    store = unpack("small", tmp_path)
    with_tags = rebuild_here(store, tmp_path / "a", parts="index").facts["indexItems"]
    without = rebuild_here(store, tmp_path / "b", parts="index", tags=False).facts["indexItems"]
    messages = load_manifest("small")["messages"]
    assert isinstance(with_tags, int)
    assert isinstance(without, int)
    assert with_tags - without == sum(bool(message["tags"]) for message in messages)


def test_a_second_rebuild_is_equal_and_removes_files_of_another_store(tmp_path: Path) -> None:
    small, collide, out = unpack("small", tmp_path), unpack("collide", tmp_path), tmp_path / "out"
    rebuild_here(small, out)
    first = files_of(out)
    rebuild_here(small, out)
    assert files_of(out) == first
    rebuild_here(collide, out)
    assert files_of(out / "consumequeue") == files_of(collide / "consumequeue")
    assert index_contents(out) == index_contents(collide)


def test_a_second_run_at_once_is_refused(tmp_path: Path) -> None:
    store, out = unpack("collide", tmp_path), tmp_path / "out"
    (out / ".rebuild").mkdir(parents=True)
    descriptor = os.open(out / ".rebuild" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(TroveError, match="JOB_RUNNING"):
        rebuild_here(store, out)
    assert not (out / "index").exists()
    os.close(descriptor)
    rebuild_here(store, out)
    assert not (out / ".rebuild").exists()


def test_a_killed_runs_leftovers_go_and_the_result_it_moved_comes_back(tmp_path: Path) -> None:
    store, out = unpack("collide", tmp_path), tmp_path / "out"
    rebuild_here(store, out)
    whole = files_of(out)
    work = out / ".rebuild"
    (work / "new" / "index").mkdir(parents=True)
    (work / "new" / "index" / ".part-1-2").write_bytes(b"half")
    (out / "index").rename(work / "old-index")
    rebuild_here(store, out, parts="consumequeue")
    assert files_of(out) == whole


def test_an_object_store_gets_the_same_files(tmp_path: Path) -> None:
    store, out = unpack("rollover", tmp_path), tmp_path / "out"
    rebuild_here(store, out)
    stale = "index/19990101000000000"
    with remote(tmp_path / "remote") as place:
        place.write(stale, b"of an earlier run")
        place.write("index/README", b"not ours")
        rebuild_here(store, place)
        entries = [entry.name for entry in place.entries("", recursive=True) if not entry.is_directory]
        expected = files_of(out)
        assert sorted(entries) == sorted([*expected, "index/README"])
        assert all(place.read(name) == content for name, content in expected.items())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"consume_queue_file_size": 30}, "consume_queue_file_size is a multiple of 20"),
        ({"index_item_count": 1}, "at least 2"),
        ({"index_slot_count": -5}, "index_slot_count is above 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(TroveError, match=message):
        complete(FileSizes(**sizes), StoragePath(unpack("collide", tmp_path)))


def test_the_store_itself_is_never_written_to(tmp_path: Path) -> None:
    store = unpack("collide", tmp_path)
    before = files_of(store)
    with pytest.raises(TroveError, match="OPTION_ILLEGAL"):
        rebuild_here(store, store)
    assert files_of(store) == before


def test_a_place_without_a_log_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TroveError, match="STORE_FAILED"):
        rebuild_here(tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_the_earlier_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, out = unpack("collide", tmp_path), tmp_path / "out"
    rebuild_here(store, out)
    before = files_of(out)
    calls = 0

    def failing(source: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise OSError(28, "No space left on device")
        return write(source, data, offset)

    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(TroveError, match="DISK_FULL"):
        rebuild_here(store, out)
    assert calls > 6
    assert files_of(out) == before


def test_segments_missing_in_the_middle_are_named(tmp_path: Path) -> None:
    store, out = unpack("rollover", tmp_path), tmp_path / "out"
    names = sorted(path.name for path in (store / "commitlog").iterdir())
    (store / "commitlog" / names[2]).unlink()
    shutil.rmtree(store / "trovemq", ignore_errors=True)
    report = rebuild_here(store, out)
    missing = [finding for finding in report.findings if finding.kind == "segmentMissing"]
    assert [(finding.file, finding.offset) for finding in missing] == [(f"commitlog/{names[2]}", 0)]
    assert any(finding.kind == "queueHole" for finding in report.findings)
    golden = files_of(store / "consumequeue")
    for path, content in files_of(out / "consumequeue").items():
        assert len(content) == len(golden[path])
