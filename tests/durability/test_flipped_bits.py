"""One flipped bit anywhere in a store: no wrong answer, everything else readable, and the damage is named.

The store (tests/support/damage.py) has a file of every kind. A trial flips one bit of one byte, opens the
store, asks for every message by every query, and asks the scrub where an answer is missing:

- of the log: that record alone is missing, and its damage is named by file and offset;
- of a queue or index file: after the marks (trovemq/state.json) it is rebuilt after a kill; below them,
  and after a clean stop, it is trusted: where an answer is then missing the scrub names the file, and
  `repair` brings everything back;
- of the marks and tables: every answer is the same, or the store is refused with a row of the error table.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Final

import pytest

from tests.support.answers import Answers, Known, Verdict
from tests.support.damage import (
    TINY,
    Files,
    flipped,
    places_of,
    repaired,
    reported_in_log,
    scrub,
    tiny_store,
    try_open,
)
from tests.support.engine import NOW_MS
from tests.support.retention import CONSUMERS
from tests.support.trials import Trials
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.errors import TroveError
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import BODY_CRC_AT, PHYSICAL_OFFSET_AT, QUEUE_ID_AT
from trovemq_store.engine.message_store import MessageStore

pytestmark = pytest.mark.slow

PARTS: Final = 2
SIZE_MAX: Final = 65_536
RECORD_HEAD_SIZE: Final = 91
RECORD_PART: Final = 40
INDEX_HEAD_SIZE: Final = 40
UNIT_SIZE: Final = 20
PARTS_OF_A_FILE: Final = 8
PROJECTIONS: Final = ("consumequeue/", "index/")
GONE: Final = frozenset({"RECORD_DAMAGED", "MESSAGE_NOT_FOUND", "OFFSET_OUT_OF_RANGE"})
REFUSALS: Final = frozenset({"STORE_FAILED", "STORE_NEWER", "STORE_SETTINGS_MISMATCH"})


class Case:
    """One store, its bytes that count, and its answers."""

    def __init__(self, *, clean: bool, append_property_crc: bool) -> None:
        self.settings = replace(TINY, append_property_crc=append_property_crc)
        self.contents = tiny_store(clean=clean, append_property_crc=append_property_crc)
        assert sum(map(len, self.contents.values())) <= SIZE_MAX
        self.answers = Answers(Files.of(self.contents), self.settings)
        self.places = places_of(self.contents)


def default_flips(one: Case, places: list[tuple[str, int]], *, clean: bool) -> list[int]:
    """One byte of each class by chance: bytes of one kind in files of one kind are one class. A store that
    was stopped cleanly has every second class, and one whose process was killed the others."""
    classes: dict[object, list[int]] = {}
    for number, (path, offset) in enumerate(places):
        classes.setdefault(class_of(one, path, offset), []).append(number)
    source = random.Random("default flips")
    chosen = [source.choice(numbers) for numbers in classes.values()]
    return sorted(chosen[0 if clean else 1 :: 2])


def class_of(one: Case, path: str, offset: int) -> object:
    """Of a record each byte of its head, and each other part once in each record; of a queue each byte of a
    unit, of an index file those of its head and its items; of any other file this many parts of it."""
    kind = path.rpartition("/")[0]
    if kind == "commitlog":
        message = one.answers.at(int(path[-20:]) + offset)
        at = int(path[-20:]) + offset - message.physical_offset if message else offset % UNIT_SIZE
        part = at if at < RECORD_HEAD_SIZE else RECORD_HEAD_SIZE + at // RECORD_PART
        return kind, message if at >= RECORD_HEAD_SIZE else None, part, message is None
    if kind.startswith("consumequeue"):
        return kind, offset % UNIT_SIZE
    if kind == "index":
        slots_end = INDEX_HEAD_SIZE + 4 * TINY.index_slot_count
        return kind, offset if offset < slots_end else slots_end + (offset - slots_end) % UNIT_SIZE
    return path, offset * PARTS_OF_A_FILE // len(one.contents[path])


@functools.cache
def case(clean: bool, append_property_crc: bool = True) -> Case:
    return Case(clean=clean, append_property_crc=append_property_crc)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
def test_one_flipped_bit(trials: Trials, clean: bool, part: int) -> None:
    one, done = case(clean), 0
    default = default_flips(one, one.places, clean=clean)
    for number in trials.chosen(len(one.places), default, part=part, parts=PARTS):
        with trials.one(number) as source:
            flip(one, one.places[number], source)
        done += 1
    trials.count("R5", "flipped bits", done)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
def test_one_flipped_bit_of_records_without_a_crc_of_their_own(trials: Trials, clean: bool) -> None:
    """As RocketMQ writes them by default: sizes, magic, PHYSICALOFFSET and body are protected. A flip
    elsewhere in the header, in the topic or in the properties goes unseen: it changes that message alone."""
    one = case(clean, append_property_crc=False)
    places = [place for place in one.places if place[0].startswith("commitlog/")][::3]
    done = 0
    for number in trials.chosen(len(places), default_flips(one, places, clean=clean)):
        with trials.one(number) as source:
            flip_without_crc(one, places[number], source)
        done += 1
    trials.count("R5", "flipped bits", done)


def flip_without_crc(one: Case, place: tuple[str, int], source: random.Random) -> None:
    path, offset = place
    at = int(path[-20:]) + offset
    store = try_open(flipped(one.contents, path, offset, source.randrange(8)), one.settings)
    assert isinstance(store, MessageStore), store
    message = one.answers.at(at)
    unseen = message is not None and not is_protected(message, at)
    verdict = one.answers.ask(store, message if unseen else None)
    if not unseen:
        check_missing(verdict, store, message, at)
        return
    assert verdict.lost <= {message}, f"{verdict} where {message} is damaged"


def is_protected(message: Known, physical_offset: int) -> bool:
    """Whether sizes, magic, PHYSICALOFFSET or the body's CRC show that this byte is damaged."""
    fields = read_fields(message.record, 0, len(message.record))
    assert fields is not None
    at = physical_offset - message.physical_offset
    body_crc_end = QUEUE_ID_AT if fields.body_size else BODY_CRC_AT
    return (
        at < body_crc_end
        or PHYSICAL_OFFSET_AT <= at < PHYSICAL_OFFSET_AT + 8
        or fields.body_position - 4 <= at < fields.topic_position
        or fields.property_position - 2 <= at < fields.property_position
    )


def flip(one: Case, place: tuple[str, int], source: random.Random) -> None:
    path, offset = place
    damaged = flipped(one.contents, path, offset, source.randrange(8))
    store = try_open(damaged, one.settings)
    if isinstance(store, Exception):
        check_refusal(store, path)
    elif path.startswith("commitlog/"):
        at = int(path[-20:]) + offset
        check_missing(one.answers.ask(store), store, one.answers.at(at), at)
    elif path.startswith(PROJECTIONS):
        check_projection(one, store, path, damaged)
    else:
        assert one.answers.ask(store).same
    if isinstance(store, MessageStore):
        check_consumers(store)


def check_refusal(error: Exception, path: str, expected: str = "") -> None:
    """The store is not served, and the error says which file or setting is wrong. Nothing in the log is a
    reason but a file's length (`expected`)."""
    assert isinstance(error, TroveError), error
    assert error.symbol in REFUSALS, error
    assert expected or not path.startswith("commitlog/"), error
    assert path in str(error) or "the settings say" in str(error), f"{error} does not name {path}"


def check_missing(verdict: Verdict, store: MessageStore, message: Known | None, physical_offset: int) -> None:
    """Only the damaged message is missing, and its damage is named."""
    assert verdict.lost <= {message}, f"{verdict} where {message} is damaged"
    if verdict.same:
        return
    assert {what for (_, query), what in verdict.by_query.items() if query in ("queue", "id")} <= GONE, (
        verdict
    )
    was_the_end = store.recovery.end <= physical_offset and store.recovery.bytes_cut > 0
    assert was_the_end or reported_in_log(store, physical_offset, scrub(store)), verdict


def check_projection(one: Case, store: MessageStore, path: str, damaged: dict[str, bytes]) -> None:
    verdict = one.answers.ask(store)
    if verdict.same:
        return
    findings = scrub(store)
    assert any(f.file == path for f in findings), f"{verdict}, and {findings}"
    healed, _ = repaired(damaged, one.settings)
    again = try_open(healed, one.settings)
    assert isinstance(again, MessageStore)
    assert one.answers.ask(again).same


def check_consumers(store: MessageStore) -> None:
    """Consumers continue, and no group is ahead of the messages that are there."""
    try:
        ConsumerState.open(store, store.files, CONSUMERS, NOW_MS + 20_000)
    except TroveError as error:
        if error.symbol not in REFUSALS:
            raise
    for group, topic, queue_id, offset in store.offsets.entries():
        if store.consume_queues.get(topic, queue_id) is not None:
            assert offset <= store.consume_queues.next_offset(topic, queue_id), (group, topic, queue_id)
