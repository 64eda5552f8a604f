"""A search equals reading every message: archive, index and scan together, each message once."""

from __future__ import annotations

import shutil
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import GOLDEN_NAMES, unpack
from tests.support.search_oracle import (
    COLLIDING_KEYS,
    archive_half,
    expected,
    living_messages,
    make_store,
    questions,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message, encode_record
from trovemq_spark.job import NoProgress, Report
from trovemq_spark.jobs.archive import ArchiveArguments, run_here
from trovemq_spark.jobs.search import SearchArguments, run
from trovemq_spark.search.in_store import StorePart

pytestmark = pytest.mark.slow


def search(**wanted: Any) -> Report:
    return run(None, SearchArguments(**wanted), NoProgress())


def rows_of(report: Report) -> list[dict[str, Any]]:
    rows = report.facts["rows"]
    assert isinstance(rows, list)
    return rows


def found(report: Report) -> list[str]:
    return [row["offsetMsgId"] for row in rows_of(report)]


def check_all(messages: list[Message], places: dict[str, Any], seed: int, count: int) -> None:
    hits = 0
    for wanted in questions(messages, seed, count):
        arguments = SearchArguments(**places, **wanted)
        report = run(None, arguments, NoProgress())
        answer = expected(messages, arguments)
        assert found(report) == answer, wanted
        whole = len(expected(messages, SearchArguments(**places, **(wanted | {"limit": 100_000}))))
        assert report.facts["complete"] == (whole <= arguments.limit), wanted
        hits += bool(answer)
    assert hits > count // 4, "the questions name present messages"


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_stores_half_in_an_archive(name: str, tmp_path: Path) -> None:
    store, archive = unpack(name, tmp_path), tmp_path / "archive"
    messages = living_messages(store)
    archive_half(store, archive)
    check_all(messages, {"store": str(store), "archive": str(archive)}, seed=len(name), count=24)


@pytest.mark.parametrize("seed", range(2))
def test_made_stores_with_equal_hashes_json_and_compressed_bodies(seed: int, tmp_path: Path) -> None:
    store, archive = make_store(tmp_path / "store", seed), tmp_path / "archive"
    messages = living_messages(store)
    check_all(messages, {"store": str(store)}, seed, 24)
    archive_half(store, archive)
    check_all(messages, {"store": str(store), "archive": str(archive)}, seed + 100, 30)


def test_the_index_is_used_and_says_what_a_scan_says(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 7)
    messages = living_messages(store)
    for key in (*COLLIDING_KEYS, "k17", "é", "nowhere"):
        for topic in ("orders", "flights", ""):
            question = SearchArguments(store=str(store), key=key, topic=topic).question()
            part = StorePart.open(str(store), question)
            assert part.found is not None, "a store that was closed has an index"
            assert sum(piece.byte_count for piece in part.pieces()) < 12_288, "little is read beside it"
            report = search(store=str(store), key=key, topic=topic, limit=10_000)
            scanned = [m for m in messages if key in m.keys or key == m.unique_key]
            scanned = [m for m in scanned if not topic or m.topic == topic]
            assert sorted(found(report)) == sorted(m.offset_msg_id for m in scanned)


@pytest.mark.parametrize("harm", ["no file", "a file less", "torn chains", "crashed"])
def test_an_index_that_cannot_be_trusted_hides_nothing(harm: str, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 8)
    files = sorted((store / "index").iterdir())
    assert len(files) > 2
    if harm == "no file":
        shutil.rmtree(store / "index")
    elif harm == "a file less":
        files[1].unlink()
    elif harm == "crashed":
        (store / "abort").touch()
        files[-1].write_bytes(bytes(files[-1].stat().st_size))
    else:
        data = bytearray(files[1].read_bytes())
        data[40 : 40 + 64 * 4] = b"\x7f" * 64 * 4  # every slot names an item that is not there
        files[1].write_bytes(data)
    messages = living_messages(store)
    check_all(messages, {"store": str(store)}, 3, 16)


def test_a_damaged_record_is_reported_and_the_answer_is_not_complete(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 9)
    victim = living_messages(store)[100]
    (segment,) = [
        path
        for path in (store / "commitlog").iterdir()
        if path.name.isdigit() and 0 <= victim.physical_offset - int(path.name) < path.stat().st_size
    ]
    data = bytearray(segment.read_bytes())
    place = victim.physical_offset - int(segment.name) + victim.record.index(victim.stored_body)
    data[place] ^= 0xFF
    segment.write_bytes(data)
    everything = search(store=str(store), limit=10_000)
    assert not everything.facts["complete"]
    assert any(f"at {victim.physical_offset}:" in note for note in everything.notes)
    by_id = search(store=str(store), offset_msg_id=victim.offset_msg_id)
    assert not by_id.facts["complete"]
    assert not found(by_id)


def log_of(directory: Path, messages: Sequence[Mapping[str, Any]]) -> Path:
    """A log of one open segment; messages: arguments of encode_record beside its places."""
    data = b""
    for offset, message in enumerate(messages):
        data += encode_record("T", **message, physical_offset=len(data), queue_offset=offset)
    (directory / "commitlog").mkdir(parents=True)
    (directory / "commitlog" / ("0" * 20)).write_bytes(data + bytes(4096 + -len(data) % 4096))
    return directory


def archived(store: Path, archive: Path, **changes: Any) -> str:
    run_here(ArchiveArguments(str(store), str(archive), **changes), NoProgress())
    return str(archive)


def test_places_that_the_archive_could_not_read_are_reported(tmp_path: Path) -> None:
    store = log_of(tmp_path / "store", [{"body": b"body %d" % i} for i in range(9)])
    messages = living_messages(store)
    segment = store / "commitlog" / ("0" * 20)
    segment.write_bytes(segment.read_bytes().replace(b"body 2", b"b0dy 2").replace(b"body 6", b"b0dy 6"))
    places = [messages[2].physical_offset, messages[6].physical_offset]
    archive = archived(store, tmp_path / "archive")
    for wanted in ({}, {"topic": "T"}, {"key": "k"}, {"body_text": "body 2"}):
        report = search(archive=archive, **wanted)
        assert not report.facts["complete"], wanted
        assert [note.partition(":")[0] for note in report.notes[:2]] == [f"at {at}" for at in places]
    for number, message in enumerate(messages):
        report = search(archive=archive, offset_msg_id=message.offset_msg_id)
        assert bool(found(report)) == bool(report.facts["complete"]) == (number not in (2, 6))


def test_bodies_that_do_not_inflate_hide_no_message_and_no_doubt(tmp_path: Path) -> None:
    """Found by the message's other fields, its body is null; where the body is a condition, the answer is in
    doubt."""
    bad = [{"body": b"no zlib", "sys_flag": 1, "properties": {"KEYS": "bad"}}] * 3
    good = {"body": b"some text", "properties": {"KEYS": "good"}}
    store = log_of(tmp_path / "store", [*bad, good])
    places: list[dict[str, Any]] = [{"archive": archived(store, tmp_path / "archive")}, {"store": str(store)}]
    for place in places:
        rows = rows_of(search(**place, key="bad"))
        assert [(row["queueOffset"], row["body"]) for row in rows] == [(2, None), (1, None), (0, None)]
        assert search(**place, key="bad").facts["complete"]
        report = search(**place, body_text="text")
        assert [row["queueOffset"] for row in rows_of(report)] == [3]
        assert not report.facts["complete"]
        assert "3 places could not be read" in report.notes[-1]


def test_times_of_no_calendar_are_found_like_others(tmp_path: Path) -> None:
    times = [-(1 << 62), -1, 0, 1_700_000_000_000, 300_000_000_000_000, 1 << 62]
    store = log_of(tmp_path / "store", [{"body": b"", "store_timestamp": time} for time in times])
    places: list[dict[str, Any]] = [{"store": str(store)}, {"archive": archived(store, tmp_path / "archive")}]
    for place in places:
        report = search(**place)
        assert [row["queueOffset"] for row in rows_of(report)] == [5, 4, 3, 2, 1, 0]
        assert report.facts["complete"]
        late = search(**place, begin_timestamp=1_700_000_000_001, order="oldest")
        assert [row["queueOffset"] for row in rows_of(late)] == [4, 5]
    assert len(rows_of(search(**places[0], **places[1]))) == 6, "each once"


def test_segments_removed_before_they_were_archived_are_reported(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 12)
    messages = living_messages(store)
    names = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    begin, end = int(names[1].name), int(names[2].name)
    names[1].unlink()
    archive = archived(store, tmp_path / "archive")
    report = search(archive=archive, topic="orders")
    assert not report.facts["complete"]
    assert f"the archive has nothing of [{begin}, {end}) of the log" in report.notes
    gone = next(m for m in messages if begin <= m.physical_offset < end)
    assert not search(archive=archive, offset_msg_id=gone.offset_msg_id).facts["complete"]
    assert search(archive=archive, offset_msg_id=messages[0].offset_msg_id).facts["complete"]


def test_a_topic_that_is_nowhere_is_reported(tmp_path: Path) -> None:
    """It was an empty answer, as of a topic that has no such message."""
    store = make_store(tmp_path / "store", 12)
    archive = archived(store, tmp_path / "archive")
    places: list[dict[str, str]] = [{"store": str(store)}, {"archive": archive}]
    for place in (*places, places[0] | places[1]):
        report = search(**place, topic="order")
        assert (rows_of(report), report.notes) == ([], ["no message of topic order is there"])
        assert report.facts["complete"]
        assert search(**place, topic="orders", tag="no such tag").notes == []
        assert search(**place, tag="no such tag").notes == []
    assert search(store=str(store / "commitlog"), topic="order").notes == [], "segments alone do not say"


def test_missing_segments_are_reported(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 10)
    names = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    names[1].unlink()
    report = search(store=str(store), topic="orders", limit=10_000)
    assert not report.facts["complete"]
    assert any("no segments" in note for note in report.notes)


def test_rows_have_all_of_a_message(tmp_path: Path) -> None:
    store = unpack("small", tmp_path)
    for message in living_messages(store)[::5]:
        (row,) = rows_of(search(store=str(store), offset_msg_id=message.offset_msg_id))
        assert row["properties"] == message.properties
        assert (row["bornTimestamp"], row["storeTimestamp"]) == (
            message.born_timestamp,
            message.store_timestamp,
        )
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (
            message.topic,
            message.queue_id,
            message.queue_offset,
        )
        assert row["source"] == "store"
        body = row["body"].encode() if "body" in row else b64decode(row["bodyBase64"])
        assert body == message.body


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({}, "--archive"),
        ({"store": "x", "limit": 0}, "limit"),
        ({"store": "x", "order": "best"}, "order"),
        ({"store": "x", "begin_timestamp": 2, "end_timestamp": 1}, "begin_timestamp"),
        ({"store": "x", "property": "name"}, "NAME=VALUE"),
        ({"store": "x", "json_value": "1"}, "json_path"),
        ({"store": "x", "json_path": "$.a["}, "json_path"),
    ],
)
def test_wrong_arguments_are_refused(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(TroveError, match=said) as refused:
        SearchArguments(**wanted)
    assert refused.value.spec is errors.OPTION_ILLEGAL


def test_what_is_not_a_store_or_archive_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TroveError, match="no commit log"):
        search(store=str(tmp_path))
    with pytest.raises(TroveError, match="not an archive"):
        search(archive=str(tmp_path))
