"""The end of the log cut, zeroed or overwritten at every length, and every other file cut at every length.

After a kill the log ends before the first record that is not whole: earlier records are there, no later one
comes back, and a range that was marked as written and is missing is reported. After a clean stop the records
are missed when they are read, the scrub names the place, and their queue offsets are not given again.
"""

from __future__ import annotations

import functools
import random
from typing import Final

import pytest

from tests.durability.test_flipped_bits import Case, case, check_consumers, check_projection, check_refusal
from tests.support.answers import SAME, Answers, Known
from tests.support.damage import TINY, Files, contents_of, killed, reported_in_log, scrub, try_open
from tests.support.engine import NOW_MS, append, flush, record
from tests.support.trials import Trials, strata
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.fields import read_fields
from trovemq_store.engine.message_store import MessageStore

pytestmark = pytest.mark.slow

RECORDS_CUT: Final = 4
DEFAULT_LOG_CUTS: Final = 50
DEFAULT_FILE_CUTS: Final = 4
RECORD_CRC_SIZE: Final = 20
TAILS: Final = ("zeros", "random", "another place's records", "the file ends")
SEGMENT: Final = TINY.commit_log_file_size
PROJECTIONS: Final = ("consumequeue/", "index/")
STATES: Final = pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])


@functools.cache
def log_cuts(clean: bool) -> list[tuple[int, str]]:
    """(physical offset, tail) of every cut that is tried."""
    answers = case(clean).answers
    assert isinstance(answers, Answers)
    first = last_segment_messages(answers)[-RECORDS_CUT].physical_offset
    return [(at, tail) for at in range(first, answers.end) for tail in TAILS]


def last_segment_messages(answers: Answers) -> list[Known]:
    begin = (answers.end - 1) // SEGMENT * SEGMENT
    return [message for message in answers.messages if message.physical_offset >= begin]


def tail_bytes(tail: str, answers: Answers, at: int, size: int, source: random.Random) -> bytes:
    """The bytes from `at` on, in the last segment."""
    if tail == "zeros":
        return bytes(size)
    if tail == "random":
        return source.randbytes(source.randrange(1, size)).ljust(size, b"\0")
    if tail == "the file ends":
        return b""
    older = b"".join(message.record for message in answers.messages if message.end <= at)
    return older[:size].ljust(size, b"\0")


def in_properties(message: Known, physical_offset: int) -> bool:
    """Bytes over the end of the properties, and with it the record's CRC, leave a record that never had one:
    only zeros there are known to be none."""
    fields = read_fields(message.record, 0, len(message.record))
    assert fields is not None
    return physical_offset - message.physical_offset >= fields.property_position


def default_log_cuts(answers: Answers, cuts: list[tuple[int, str]]) -> list[int]:
    """At each record's two ends and around them every tail; between them some of each."""
    edges = {
        at
        for message in last_segment_messages(answers)
        for place in (message.physical_offset, message.end)
        for at in (place - 1, place, place + 1)
    }
    inside = strata(len(cuts), DEFAULT_LOG_CUTS, "inside")
    return sorted({number for number, (at, _) in enumerate(cuts) if at in edges}.union(inside))


@STATES
def test_the_end_of_the_log_at_every_length(trials: Trials, clean: bool) -> None:
    one, cuts, done = case(clean), log_cuts(clean), 0
    for number in trials.chosen(len(cuts), default_log_cuts(one.answers, cuts)):
        with trials.one(number) as source:
            at, tail = cuts[number]
            path = max(path for path in one.contents if path.startswith("commitlog/"))
            whole, within = one.contents[path], at - int(path[-20:])
            data = whole[:within] + tail_bytes(tail, one.answers, at, len(whole) - within, source)
            damaged = {**one.contents, path: data}
            files = Files.of(damaged)
            store = try_open(files, one.settings)
            if isinstance(store, Exception):
                assert len(data) != SEGMENT
                check_refusal(store, path, "commitlog/")
            else:
                message = one.answers.at(at)
                spoilt = message if tail != "zeros" and message and in_properties(message, at) else None
                check_cut(one, store, files, at, spoilt, clean=clean)
        done += 1
    trials.count("R6", "truncations and tails", done)


def check_cut(
    one: Case, store: MessageStore, files: Files, at: int, spoilt: Known | None, *, clean: bool
) -> None:
    verdict = one.answers.ask(store, spoilt)
    damaged = [message for message in one.answers.messages if message.end > at]
    assert verdict.lost <= set(damaged), f"{verdict}, where only bytes after {at} are gone"
    findings = scrub(store)
    for message in damaged:
        written = clean or message.physical_offset < store.recovery.scan_begin
        if written and message in verdict.lost and message is not spoilt:
            assert reported_in_log(store, max(at, message.physical_offset), findings), message
    check_goes_on(one.answers.without(damaged), damaged, spoilt, store, files, clean=clean)


def check_goes_on(
    kept: Answers,
    damaged: list[Known],
    spoilt: Known | None,
    store: MessageStore,
    files: Files,
    *,
    clean: bool,
) -> None:
    """A new message gets a separate queue offset; it is there after a kill, and nothing old comes back."""
    end = store.end_offset
    result = append(store, new_record(store), now_ms=NOW_MS + 20_000)
    flush(store)
    assert result.physical_offset == end or result.physical_offset % SEGMENT == 0
    asked = [*kept.messages, *(damaged if clean else [])]
    used = [message.queue_offset for message in asked if (message.topic, message.queue_id) == ("orders", 0)]
    assert result.first_queue_offset > max(used)
    check_consumers(store)
    again = try_open(killed(files), store.settings)
    assert isinstance(again, MessageStore), again
    assert kept.ask(again, spoilt).same
    assert again.record_at(result.physical_offset) is not None
    for message in damaged:
        found = store.log.read(PhysicalOffset(message.physical_offset), len(message.record))
        assert clean or found[-RECORD_CRC_SIZE:] != message.record[-RECORD_CRC_SIZE:], f"{message} is back"


def new_record(store: MessageStore, body: bytes = b"new") -> bytes:
    return record(body, unique_key="U-new", append_property_crc=store.settings.append_property_crc)


# --- an older generation of the same place ------------------------------------------------------------------
@STATES
def test_records_that_were_cut_do_not_come_back(trials: Trials, clean: bool) -> None:
    """Two records were written at the end, and the first lost a sector, or all: then the second is cut too. A
    new record of the first one's size ends where the second one began."""
    total, done = 400, 0
    for number in trials.numbers(total, default=20):
        with trials.one(number) as source:
            one = case(clean)
            files = Files.of(one.contents)
            store = try_open(files, one.settings)
            assert isinstance(store, MessageStore)
            sizes = [source.randrange(1, 200), source.randrange(1, 200)]
            bodies = [source.randbytes(size) for size in sizes]
            first, second = (append(store, new_record(store, body)) for body in bodies)
            if first.physical_offset // SEGMENT != second.physical_offset // SEGMENT:
                continue
            contents = contents_of(files)
            path = f"commitlog/{first.physical_offset // SEGMENT * SEGMENT:020d}"
            data = bytearray(contents[path])
            begin, end = first.physical_offset % SEGMENT, first.end % SEGMENT
            data[begin:end] = bytes(end - begin)
            damaged = {**one.contents, path: bytes(data)}
            check_not_back(damaged, store, bodies[0], first.physical_offset, second.physical_offset)
        done += 1
    trials.count("R6", "truncations and tails", done)


def check_not_back(
    damaged: dict[str, bytes], before: MessageStore, body: bytes, first: int, second: int
) -> None:
    files = Files.of(damaged)
    store = try_open(files, before.settings)
    assert isinstance(store, MessageStore)
    assert store.end_offset == first
    assert store.recovery.bytes_cut > 0
    added = append(store, new_record(store, bytes(len(body))), now_ms=NOW_MS + 20_000)
    assert (added.physical_offset, added.end) == (first, second)
    flush(store)
    again = try_open(killed(files), store.settings)
    assert isinstance(again, MessageStore)
    assert again.end_offset == second, "a record that was cut is back"
    assert again.record_at(PhysicalOffset(first)) is not None
    assert again.record_at(PhysicalOffset(second)) is None


def default_file_cuts(cuts: list[tuple[str, int]]) -> list[int]:
    """Of each file: gone but for its name, its first byte alone, without its last; some between."""
    by_path: dict[str, list[int]] = {}
    for number, (path, _) in enumerate(cuts):
        by_path.setdefault(path, []).append(number)
    chosen: set[int] = set()
    for path, numbers in by_path.items():
        chosen.update((*numbers[:2], numbers[-1]))
        chosen.update(numbers[at] for at in strata(len(numbers), DEFAULT_FILE_CUTS, path))
    return sorted(chosen)


# --- every other file -------------------------------------------------------------------------------------
@STATES
def test_every_other_file_at_every_length(trials: Trials, clean: bool) -> None:
    one, done = case(clean), 0
    cuts = [
        (path, length)
        for path, data in sorted(one.contents.items())
        if not path.startswith("commitlog/")
        for length in range(len(data.rstrip(b"\0")) + 1)
        if length < len(data)
    ]
    for number in trials.chosen(len(cuts), default_file_cuts(cuts)):
        with trials.one(number):
            path, length = cuts[number]
            damaged = {**one.contents, path: one.contents[path][:length]}
            store = try_open(damaged, one.settings)
            if isinstance(store, Exception):
                check_refusal(store, path)
            elif path.startswith(PROJECTIONS):
                check_projection(one, store, path, damaged)
            else:
                verdict = one.answers.ask(store)
                assert set(verdict.by_query.values()) <= {SAME}, verdict
            if isinstance(store, MessageStore):
                check_consumers(store)
        done += 1
    trials.count("R6", "truncations and tails", done)
