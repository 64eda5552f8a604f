"""The ledger of a verifiable run: every line is read again, also where the verifier was killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq._verify.content import RunContent
from trovemq._verify.ledger import (
    ACKNOWLEDGED,
    REFUSED,
    UNKNOWN,
    LedgerEntry,
    LedgerReader,
    LedgerWriter,
    RunHeader,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import looks_like_offset_msg_id

HEADER = RunHeader("orders", RunContent(7, 100, 10), 2, {("a", 0): 5, ("a", 1): 0}, 1_700_000_000_000)

texts = st.text(min_size=1, max_size=10)
numbers = st.integers(0, 2**62)
hashes = st.binary(min_size=32, max_size=32)
places = (texts, texts, hashes, texts, st.integers(0, 2**31 - 1), numbers, numbers, numbers)
entries = st.one_of(
    st.builds(
        LedgerEntry, st.just(ACKNOWLEDGED), *places, numbers, texts, texts, numbers, copies=st.integers(1, 7)
    ),
    st.builds(LedgerEntry, st.sampled_from([UNKNOWN, REFUSED]), *places, error=texts),
)


def entry(number: int, outcome: str = ACKNOWLEDGED) -> LedgerEntry:
    shared = (outcome, f"U{number}", "key", bytes(32), "a", 0, 0, number, 1_700_000_000_001)
    if outcome != ACKNOWLEDGED:
        return LedgerEntry(*shared, error="BROKER_UNREACHABLE")
    place = (number, "7F0000010000DC610000000000000000", "disk", 1_700_000_000_000)
    return LedgerEntry(*shared, *place, copies=1)


def written(path: Path, *written_entries: LedgerEntry, end: bool = True) -> Path:
    with LedgerWriter(path, HEADER) as writer:
        writer.add(written_entries)
        if end:
            writer.end({"sent": len(written_entries)})
    return path


def read(path: Path) -> tuple[list[LedgerEntry], LedgerReader]:
    with LedgerReader(path) as reader:
        return list(reader.entries()), reader


@given(lines=st.lists(entries, max_size=5))
def test_what_is_written_is_read_again(
    lines: list[LedgerEntry], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = written(tmp_path_factory.mktemp("ledger") / "ledger", *lines)
    found, reader = read(path)
    assert found == lines
    assert reader.header == HEADER
    assert (reader.ended, reader.torn) == (True, False)


def test_a_line_is_one_json_object_with_rocketmqs_names(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in written(tmp_path / "l", entry(3)).read_text().splitlines()]
    assert [line.get("run") for line in lines] == ["begin", None, "end"]
    assert lines[1] == {
        "outcome": "acknowledged",
        "topic": "orders",
        "broker": "a",
        "queueId": 0,
        "messageId": "U3",
        "keys": "key",
        "bodySha256": "00" * 32,
        "producer": 0,
        "sequence": 3,
        "time": 1_700_000_000_001,
        "queueOffset": 3,
        "offsetMsgId": "7F0000010000DC610000000000000000",
        "durability": "disk",
        "storeTimestamp": 1_700_000_000_000,
        "copies": 1,
    }


def test_each_write_is_in_the_file_at_once(tmp_path: Path) -> None:
    """A verifier that is killed now has lost no answer."""
    with LedgerWriter(tmp_path / "l", HEADER) as writer:
        for number in range(3):
            writer.add([entry(number)])
            assert len(read(tmp_path / "l")[0]) == number + 1


def test_a_ledger_cut_anywhere_after_its_first_line_is_readable(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", *(entry(number) for number in range(3))).read_bytes()
    cut_path = tmp_path / "cut"
    for size in range(whole.index(b"\n") + 1, len(whole)):
        cut_path.write_bytes(whole[:size])
        found, reader = read(cut_path)
        whole_lines = whole[:size].count(b"\n")
        assert whole_lines - 1 <= len(found) <= whole_lines
        assert found == [entry(number) for number in range(len(found))]
        assert not reader.torn or not whole[:size].endswith(b"\n")


def test_a_torn_last_line_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "l", entry(0), end=False)
    path.write_bytes(path.read_bytes() + b'{"outcome":"ackn')
    found, reader = read(path)
    assert (len(found), reader.torn, reader.ended) == (1, True, False)


def drop_begin(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def empty(_: list[bytes]) -> list[bytes]:
    return []


def torn_begin(lines: list[bytes]) -> list[bytes]:
    return [lines[0][:-9]]


def damaged_middle(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1][:40] + b"\n", *lines[2:]]


def line_behind_the_end(lines: list[bytes]) -> list[bytes]:
    return [*lines, lines[1]]


def other_topic(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b"orders", b"sredro"), *lines[2:]]


def field_missing(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b"bodySha256", b"sha"), *lines[2:]]


def no_object(lines: list[bytes]) -> list[bytes]:
    return [lines[0], b"[1]\n", *lines[2:]]


@pytest.mark.parametrize(
    "damage",
    [
        drop_begin,
        empty,
        torn_begin,
        damaged_middle,
        line_behind_the_end,
        other_topic,
        field_missing,
        no_object,
    ],
    ids=lambda damage: damage.__name__,
)
def test_a_file_that_is_not_a_ledger_is_refused(
    damage: Callable[[list[bytes]], list[bytes]], tmp_path: Path
) -> None:
    path = written(tmp_path / "l", entry(0), entry(1, UNKNOWN))
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(TroveError) as refused:
        read(path)
    assert refused.value.spec is errors.REQUEST_ILLEGAL


def test_a_ledger_is_never_overwritten_and_must_be_there_to_be_read(tmp_path: Path) -> None:
    path = written(tmp_path / "l", entry(0))
    for attempt in (
        lambda: LedgerWriter(path, HEADER),
        lambda: LedgerWriter(tmp_path / "no" / "l", HEADER),
        lambda: LedgerReader(tmp_path / "none"),
    ):
        with pytest.raises(TroveError) as refused:
            attempt()
        assert refused.value.spec is errors.REQUEST_ILLEGAL
    assert len(read(path)[0]) == 1


def test_messages_follow_from_the_seed_and_differ_from_one_another() -> None:
    content, same, other = RunContent(7, 100, 10), RunContent(7, 100, 10), RunContent(8, 100, 10)
    names = [content.message_id(producer, number) for producer in range(12) for number in range(120)]
    assert len(set(names)) == len(names)
    assert len({content.key(number) for number in range(120)}) == 10
    assert content.body(1, 2) == same.body(1, 2)
    assert len({content.body(1, 2), content.body(2, 1), content.body(1, 3), other.body(1, 2)}) == 4
    assert len(content.body(0, 0)) == 100
    assert content.run != other.run
    assert not any(looks_like_offset_msg_id(name) for name in names)
