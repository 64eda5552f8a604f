"""Places (local paths and Arrow's file systems) and the segments that lie in them."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import pytest

from tests.support.golden import load_manifest, unpack
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.log.scan import RUN_BYTES_MAX, ScanBounds, scan_segment
from trovemq_spark.log.segments import Gap, LogDirectory
from trovemq_spark.storage import StoragePath
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage


def scanned(log: LogDirectory, run_bytes_max: int = RUN_BYTES_MAX) -> tuple[list[int], list[Damage]]:
    """(physical offsets of the records, damages) of the whole log."""
    offsets: list[int] = []
    damages: list[Damage] = []
    for file in log.segments:
        bounds = ScanBounds(file.start, file.end, log.known_end, is_last=file is log.segments[-1])
        for item in scan_segment(log.open_segment(file), bounds, run_bytes_max=run_bytes_max):
            if isinstance(item, DispatchBatch):
                offsets += item.records.physical_offsets.tolist()
            else:
                damages.append(item)
    return offsets, damages


@pytest.mark.parametrize("form", ["path", "commitlog", "uri"])
def test_a_store_a_directory_of_segments_and_a_uri_are_one_log(form: str, tmp_path: Path) -> None:
    root = unpack("rollover", tmp_path)
    text = {"path": str(root), "commitlog": str(root / "commitlog"), "uri": root.as_uri()}[form]
    offsets, damages = scanned(LogDirectory.open(text))
    assert offsets == [message["commitLogOffset"] for message in load_manifest("rollover")["messages"]]
    assert not damages


@pytest.mark.parametrize("run_bytes_max", [1, 300, 5000])
def test_the_size_of_the_runs_changes_nothing(run_bytes_max: int, tmp_path: Path) -> None:
    log = LogDirectory.open(str(unpack("crashed", tmp_path)))
    assert scanned(log, run_bytes_max=run_bytes_max) == scanned(log)


def test_a_part_that_ends_at_a_damaged_record_reported_it_as_its_own(tmp_path: Path) -> None:
    root = unpack("rollover", tmp_path)
    at = [message["commitLogOffset"] for message in load_manifest("rollover")["messages"]][:5]
    path = root / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[at[3] + 4] ^= 0xFF
    path.write_bytes(data)
    segment = LogDirectory.open(str(root)).open_segment(LogDirectory.open(str(root)).segments[0])
    (run,) = scan_segment(segment, ScanBounds(0, at[3]))
    assert isinstance(run, DispatchBatch)
    assert run.records.physical_offsets.tolist() == at[:3]


def test_files_made_ahead_of_need_are_no_segments(tmp_path: Path) -> None:
    root = unpack("crashed", tmp_path)
    log = LogDirectory.open(str(root))
    assert len(list((root / "commitlog").iterdir())) == len(log.segments) + 1
    offsets, damages = scanned(log)
    assert len(offsets) == len(load_manifest("crashed")["messages"])
    assert not damages


def test_a_missing_segment_in_the_middle_is_a_gap(tmp_path: Path) -> None:
    root = unpack("rollover", tmp_path)
    names = sorted(os.listdir(root / "commitlog"))
    (root / "commitlog" / names[2]).unlink()
    log = LogDirectory.open(str(root))
    assert log.gaps == [Gap(int(names[2]), int(names[3]))]
    assert [segment.name for segment in log.covering(int(names[1]), int(names[3]))] == [names[1]]


def test_a_segment_that_goes_while_the_log_is_read_is_named(tmp_path: Path) -> None:
    root = unpack("rollover", tmp_path)
    log = LogDirectory.open(str(root))
    held = log.open_segment(log.segments[0])
    (root / "commitlog" / log.segments[0].name).unlink()
    first = next(iter(scan_segment(held, ScanBounds(0, held.end))))
    assert isinstance(first, DispatchBatch), "an opened file stays readable"
    with pytest.raises(TroveError, match=log.segments[0].name) as caught:
        log.open_segment(log.segments[0])
    assert caught.value.spec is errors.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_byte_costs_its_record_only(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    root = unpack("rollover", tmp_path)
    messages = load_manifest("rollover")["messages"]
    hit = source.choice(messages[:-1])
    place = hit["commitLogOffset"] + source.randrange(hit["storeSize"])
    size = os.path.getsize(root / "commitlog" / "00000000000000000000")
    path = root / "commitlog" / f"{place // size * size:020d}"
    data = bytearray(path.read_bytes())
    data[place % size] ^= 1 << source.randrange(8)
    path.write_bytes(data)
    offsets, damages = scanned(LogDirectory.open(str(root)))
    all_offsets = [message["commitLogOffset"] for message in messages]
    # Records of this store have the CRC of their body only: a byte of another part may change unseen.
    assert offsets in (all_offsets, [at for at in all_offsets if at != hit["commitLogOffset"]])
    assert [damage.physical_offset for damage in damages] == sorted(set(all_offsets) - set(offsets))


def test_a_place_without_a_log_is_reported(tmp_path: Path) -> None:
    for text in (str(tmp_path), str(tmp_path / "nothing"), tmp_path.as_uri()):
        with pytest.raises(TroveError, match="no commit log") as caught:
            LogDirectory.open(text)
        assert caught.value.spec is errors.STORE_FAILED


def test_segments_of_two_stores_in_one_directory_are_reported(tmp_path: Path) -> None:
    for name, size in (("0" * 20, 1000), (f"{500:020d}", 1000)):
        (tmp_path / name).write_bytes(b"\x01" * size)
    with pytest.raises(TroveError, match="two stores"):
        LogDirectory.open(str(tmp_path))


@pytest.mark.parametrize("form", ["path", "uri", "arrow"])
def test_files_of_a_place(form: str, tmp_path: Path) -> None:
    texts = {"path": str(tmp_path), "uri": tmp_path.as_uri(), "arrow": f"mock://{tmp_path.name}"}
    place: StoragePath = StoragePath(texts[form])
    place.write("a/b.json", b"one")
    place.write("a/b.json", b"two")
    place.write("c", b"")
    assert place.read("a/b.json") == b"two"
    assert place.head("a/b.json", 2) == b"tw"
    assert place.read("c") == b""
    assert [entry.name for entry in place.entries()] == ["a", "c"]
    assert [entry.name for entry in place.entries(recursive=True) if not entry.is_directory] == [
        "a/b.json",
        "c",
    ]
    assert [(entry.name, entry.size) for entry in place.entries("a")] == [("a/b.json", 3)]
    place.remove("c")
    place.remove("c")
    assert not place.exists("c")
    assert place.exists("a/b.json")
    if form != "arrow":  # each mock is a separate file system
        assert pickle.loads(pickle.dumps(place)).read("a/b.json") == b"two"


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    place = StoragePath(str(tmp_path))
    place.write("f", b"old")
    with pytest.raises(TypeError):
        place.write("f", "text")  # type: ignore[arg-type]
    assert place.read("f") == b"old"
    assert os.listdir(tmp_path) == ["f"]
