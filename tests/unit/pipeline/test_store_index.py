"""The search in a store whose times step back: its key index has files that end before they are full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.search_oracle import COLLIDING_KEYS, expected, living_messages, make_store
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.search import SearchArguments, run
from trovemq_spark.search.in_store import StorePart

pytestmark = pytest.mark.slow

SEGMENT_SIZE = 12_288


def index_files(store: Path) -> list[Path]:
    return sorted((store / "index").iterdir())


def header_end(file: Path) -> int:
    """The physical offset of the file's last record."""
    return int.from_bytes(file.read_bytes()[24:32])


def item_counts(store: Path) -> list[int]:
    return [int.from_bytes(path.read_bytes()[36:40]) for path in index_files(store)]


def check_answers(store: Path) -> None:
    messages = living_messages(store)
    for key in (*COLLIDING_KEYS, "k17", "k230", "nowhere"):
        arguments = SearchArguments(store=str(store), key=key, limit=10_000)
        rows = run(None, arguments, NoProgress()).facts["rows"]
        assert isinstance(rows, list)
        assert [row["offsetMsgId"] for row in rows] == expected(messages, arguments)


def part_of(store: Path) -> StorePart:
    question = SearchArguments(store=str(store), key="k17", topic="orders").question()
    return StorePart.open(str(store), question)


def test_a_store_whose_times_stepped_back_was_read_whole_for_a_key(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 7, steps=(60, 200))
    counts = item_counts(store)
    assert sum(count < max(counts) for count in counts[:-1]) == 2, "two files ended before they were full"
    assert sum(piece.byte_count for piece in part_of(store).pieces()) < SEGMENT_SIZE
    check_answers(store)


@pytest.mark.parametrize("harm", ["another broker", "no note", "items less", "items more", "crashed"])
def test_from_a_file_that_perhaps_lacks_items_on_the_log_is_read(harm: str, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 7, steps=(200,))
    files, counts = index_files(store), item_counts(store)
    (rolled,) = [number for number, count in enumerate(counts[:-1]) if count < max(counts)]
    assert rolled > 0
    note = store / "trovemq" / "key-index.json"
    if harm == "another broker":
        document = json.loads(note.read_text())
        del document["crc32"]
        note.write_text(json.dumps(document | {"count": document["count"] - 1}))
    elif harm == "no note":
        note.unlink()
    elif harm == "crashed":
        (store / "abort").touch()
    else:
        data = bytearray(files[rolled].read_bytes())
        data[36:40] = (counts[rolled] + (-1 if harm == "items less" else 1)).to_bytes(4)
        files[rolled].write_bytes(data)
    found = part_of(store).found
    end = 0 if found is None else found.end
    assert end <= header_end(files[rolled - 1])
    assert harm == "crashed" or end == header_end(files[rolled - 1])
    check_answers(store)


def test_a_damaged_note_hides_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 7, steps=(200,))
    note = store / "trovemq" / "key-index.json"
    note.write_text(note.read_text().replace('"count": ', '"count": 1'))
    assert part_of(store).found is None
    check_answers(store)


def test_a_file_cut_by_a_crash_hides_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 7)
    first, second = index_files(store)[:2]
    (store / "abort").touch()
    found = part_of(store).found
    assert found is not None
    assert found.end >= header_end(second), "both are on disk, as the checkpoint says"
    data = bytearray(first.read_bytes())
    data[36:40] = (item_counts(store)[0] - 1).to_bytes(4)
    data[40 : 40 + 64 * 4] = bytes(64 * 4)  # no slot names an item
    first.write_bytes(data)
    assert part_of(store).found is None
    check_answers(store)
