"""The archive's manifest equals a plain model, whole or not at all, by one writer at a time."""

from __future__ import annotations

import multiprocessing
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.archive_logs import make_object_store
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive import chain
from trovemq_spark.archive.entry import FileEntry, Selection
from trovemq_spark.archive.lock import locked
from trovemq_spark.archive.manifest import FILES, Manifest, new_file_name
from trovemq_spark.archive.view import link_name
from trovemq_spark.archive.xxhash64 import xxhash64
from trovemq_spark.storage import StoragePath

EVERYTHING = Selection(damage=True)


def entry_of(number: int, topic: str | None = "T") -> FileEntry:
    return FileEntry(
        file=new_file_name(f"{number}"),
        rows=1,
        bytes=len(str(number)),
        topic=topic,
        date=f"2026-01-{number % 28 + 1:02d}" if topic else None,
        queues={number % 3: (number, number + 9)},
        physical=(number * 100, number * 100 + 50),
        stored=(number * 1000, number * 1000 + 999),
        source="b",
        segments=(0, 0),
    )


def write_file(place: StoragePath, number: int, topic: str | None = "T") -> FileEntry:
    entry = entry_of(number, topic)
    place.write(entry.file, str(number).encode())
    return entry


def raises(spec: errors.ErrorSpec) -> Any:
    return pytest.raises(TroveError, match=spec.symbol)


def linked(archive: Path) -> list[str]:
    return sorted(str(path.relative_to(archive)) for path in archive.glob("**/*.parquet"))


# --- the model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_manifest_agrees_with_the_model(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random commits by several runs; a reader opens the model's files, links and batches."""
    monkeypatch.setattr(chain, "SNAPSHOT_EVERY", 3)
    source = random.Random(seed)
    place = StoragePath(str(tmp_path / "a"))
    model: dict[str, FileEntry] = {}
    retired: list[str] = []
    batches: dict[str, int] = {}
    number = 0
    for _ in range(6):
        with Manifest.writing(place, "test") as manifest:
            for _ in range(source.randrange(5)):
                added = [write_file(place, source.randrange(1000)) for _ in range(source.randrange(3))]
                removed = source.sample(sorted(model), min(len(model), source.randrange(3)))
                batch = (source.choice("pq"), source.randrange(6)) if source.random() < 0.5 else None
                committed = manifest.commit(added, removed, job="test", batch=batch)
                assert committed == (batch is None or batch[1] > batches.get(batch[0], -1))
                if committed:
                    model = {name: entry for name, entry in model.items() if name not in removed}
                    model |= {entry.file: entry for entry in added}
                    retired += removed
                    batches |= {} if batch is None else {batch[0]: batch[1]}
                    number += 1
            if source.random() < 0.3 and retired:
                manifest.remove_retired("test")
                retired, number = [], number + 1
        read = Manifest.open(place)
        if not number:
            continue
        assert (read.number, read.retired) == (number, retired)
        assert {entry.file: entry for entry in read.files(EVERYTHING)} == model
        assert {query: read.last_batch(query) for query in batches} == batches
        assert linked(tmp_path / "a") == sorted(map(link_name, model.values()))
        there = {entry.name for entry in place.entries(FILES)}
        assert there == set(model) | set(retired)
    assert len(list((tmp_path / "a" / "_manifest").iterdir())) <= 2 * 3 + 2 + 1


def test_pruning_never_leaves_out_a_row(tmp_path: Path) -> None:
    entries = [entry_of(number, topic) for number in range(20) for topic in ("T", "U")]
    for entry in entries:
        assert entry.date is not None
        queue, (first, last) = next(iter(entry.queues.items()))
        asked = Selection(
            topics=frozenset([entry.topic or ""]),
            queue=queue,
            date_from=entry.date,
            date_to=entry.date,
            stored_from_ms=entry.stored[1],
            stored_to_ms=entry.stored[0],
            queue_offset_from=last,
            queue_offset_to=first,
            physical_offset=entry.physical[0],
        )
        assert [other for other in entries if asked.includes(other)] == [entry]
        for change in (
            {"topics": frozenset("X")},
            {"queue": queue + 1},
            {"date_from": "2026-02-01"},
            {"date_to": "2025-12-31"},
            {"stored_from_ms": entry.stored[1] + 1},
            {"stored_to_ms": entry.stored[0] - 1},
            {"queue_offset_from": last + 1},
            {"queue_offset_to": first - 1},
            {"physical_offset": entry.physical[1]},
        ):
            assert not replace(asked, **change).includes(entry), change
    assert not Selection().includes(entry_of(1, None))


# --- damage --------------------------------------------------------------------------------------------


def make_archive(place: StoragePath, commits: int = 5) -> Manifest:
    with Manifest.writing(place, "test") as manifest:
        for number in range(commits):
            manifest.commit([write_file(place, number)])
    return manifest


def test_a_flipped_bit_is_reported_and_never_another_answer(tmp_path: Path) -> None:
    place = StoragePath(str(tmp_path / "a"))
    make_archive(place, 2)
    path = tmp_path / "a" / "_manifest" / f"{2:020d}.json"
    data = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(data)), 60):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with raises(errors.ARCHIVE_ILLEGAL):
            Manifest.open(place)
    path.write_bytes(data[: len(data) // 2])
    with raises(errors.ARCHIVE_ILLEGAL):
        Manifest.open(place)


def test_a_missing_commit_is_reported(tmp_path: Path) -> None:
    place = StoragePath(str(tmp_path / "a"))
    make_archive(place)
    (tmp_path / "a" / "_manifest" / f"{3:020d}.json").unlink()
    with raises(errors.ARCHIVE_ILLEGAL):
        Manifest.open(place)


def test_a_damaged_snapshot_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "SNAPSHOT_EVERY", 4)
    place = StoragePath(str(tmp_path / "a"))
    for count in (5, 6):  # the first snapshot damaged, then the third
        files = make_archive(place, count).files()
        newest = max((tmp_path / "a" / "_manifest").glob("*.snapshot.json"))
        newest.write_bytes(newest.read_bytes()[:-30])
        assert Manifest.open(place).files() == files


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = StoragePath(str(tmp_path / "a"))
    with monkeypatch.context() as patched:
        patched.setattr(chain, "FORMAT_VERSION", 2)
        make_archive(place, 1)
    with pytest.raises(TroveError, match="has format 2; this version knows 1"):
        Manifest.open(place)


def test_a_path_without_an_archive_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TroveError, match="is not an archive"):
        Manifest.open(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(TroveError, match=r"is not empty and no archive \(it holds mine.txt\)"):
        Manifest.writing(tmp_path, "test").__enter__()
    assert (tmp_path / "mine.txt").exists()


def test_a_file_that_is_not_as_it_was_written_is_not_committed(tmp_path: Path) -> None:
    with Manifest.writing(tmp_path / "a", "test") as manifest:
        entry = write_file(manifest.place, 123)
        for wrong in (replace(entry, bytes=2), entry_of(5)):
            with raises(errors.DATA_LOST):
                manifest.commit([wrong])
        assert manifest.commit([entry])


# --- after a killed run ----------------------------------------------------------------------------------


def test_the_next_run_removes_files_that_no_commit_names(tmp_path: Path) -> None:
    place = StoragePath(str(tmp_path / "a"))
    kept = make_archive(place, 2).files()
    orphan = write_file(place, 7)
    stray = tmp_path / "a" / link_name(orphan)
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.hardlink_to(tmp_path / "a" / orphan.file)
    half = tmp_path / "a" / "_manifest" / ".part-1-x"
    half.write_bytes(b"{")
    (tmp_path / "a" / link_name(kept[0])).unlink()
    with Manifest.writing(place, "test"):
        pass
    assert linked(tmp_path / "a") == sorted(map(link_name, kept))
    assert {entry.name for entry in place.entries(FILES)} == {entry.file for entry in kept}
    assert not half.exists()


def test_a_batch_committed_twice_counts_once(tmp_path: Path) -> None:
    with Manifest.writing(tmp_path / "a", "stream") as manifest:
        first = write_file(manifest.place, 1)
        assert manifest.commit([first], batch=("q", 0))
        assert not manifest.commit([write_file(manifest.place, 2)], batch=("q", 0))
        assert not manifest.commit([first], batch=("q", 0)), "the very same entry"
    read = Manifest.open(tmp_path / "a")
    assert read.files() == [first]
    assert [entry.name for entry in read.place.entries(FILES)] == [first.file]


# --- one writer ------------------------------------------------------------------------------------------


def test_a_second_writer_is_reported_who_writes(tmp_path: Path) -> None:
    with (
        Manifest.writing(tmp_path / "a", "archive"),
        pytest.raises(TroveError, match=r"JOB_RUNNING.*job archive \(process \d+ on "),
    ):
        Manifest.writing(tmp_path / "a", "compact").__enter__()
    with Manifest.writing(tmp_path / "a", "compact"):
        pass


def hold_until_killed(path: Path, pipe: Any) -> None:
    with locked(StoragePath(str(path)), "lock", "test"):
        pipe.send(True)
        pipe.recv()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    mine, others = context.Pipe()
    process = context.Process(target=hold_until_killed, args=(tmp_path, others))
    process.start()
    assert mine.poll(60)
    with raises(errors.JOB_RUNNING):
        locked(StoragePath(str(tmp_path)), "lock", "test").__enter__()
    process.kill()
    process.join()
    with locked(StoragePath(str(tmp_path)), "lock", "test"):
        pass


@pytest.fixture
def object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return make_object_store(tmp_path / "bucket", monkeypatch)


def test_on_an_object_store_the_slower_of_two_runs_is_reported(object_store: str) -> None:
    place = StoragePath(object_store)
    with (
        raises(errors.JOB_RUNNING),
        Manifest.writing(place, "archive") as slow,
        Manifest.writing(place, "archive") as fast,
    ):
        mine = write_file(place, 1)
        assert fast.commit([mine])
        slow.commit([write_file(place, 2)])
    assert Manifest.open(place).files() == [mine]


def test_xxhash64_has_its_published_values() -> None:
    assert xxhash64(b"") == 0xEF46DB3751D8E999
    assert xxhash64(b"abc") == 0x44BC2CF5AD770999
    assert xxhash64(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1
