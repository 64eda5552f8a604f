"""Stores that RocketMQ wrote, cut after every record and in the middle of every record, and recovered.

The log ends there, as after a power cut; consume queues, index and checkpoint stay as they were, ahead of it.
The result is the prefix: its queues unit by unit, its keys, and no message of the rest.
"""

from __future__ import annotations

import functools
import random
import tarfile
from collections import defaultdict
from typing import Any, Final

import pytest

from tests.support.damage import Files
from tests.support.golden import GOLDEN_DIRECTORY, GOLDEN_NAMES, load_manifest, settings_of
from tests.support.trials import Trials, strata
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.settings import StoreSettings

pytestmark = pytest.mark.slow

NOW_MS: Final = EpochMs(1_800_000_000_000)
UNREAD: Final = ("timerwheel", "timerlog/")
"""Large, and no part of the engine's recovery."""
KEYS_ASKED: Final = 6
RECOVERED_TWICE: Final = 0.25
DEFAULT: Final = 20
ENDS_MAX: Final = 8
CATCH_UP_BYTES: Final = 1 << 20


class Golden:
    """One golden store in memory."""

    def __init__(self, name: str) -> None:
        self.contents: dict[str, bytes] = {}
        with tarfile.open(GOLDEN_DIRECTORY / f"{name}.tar.gz") as archive:
            for member in archive:
                path = member.name.partition("/")[2]
                content = None if path.startswith(UNREAD) else archive.extractfile(member)
                if content is not None:
                    self.contents[path] = content.read()
        self.contents["abort"] = b"1"
        self.settings: StoreSettings = settings_of(load_manifest(name))
        self.messages: list[dict[str, Any]] = load_manifest(name)["messages"]
        self.ends = [each["commitLogOffset"] + each["storeSize"] for each in self.messages]
        self.keys: dict[tuple[str, str], list[int]] = defaultdict(list)
        for each in self.messages:
            for key in {*(each["keys"] or "").split(), each["uniqKey"] or ""} - {""}:
                self.keys[each["topic"], key].append(each["commitLogOffset"])
        self.queues = {
            (queue["topic"], queue["queueId"]): queue["cqPhysicalOffsets"]
            for queue in load_manifest(name)["queues"]
        }

    def cut(self, end: int, *, whole_file: bool) -> Files:
        """The store whose log has nothing after `end`; with whole_file later segments stay, all zero."""
        size = self.settings.commit_log_file_size
        contents = dict(self.contents)
        for path in [path for path in contents if path.startswith("commitlog/")]:
            start = int(path[-20:])
            if start > end and not whole_file:
                del contents[path]
            elif start + size > end:
                kept = contents[path][: max(0, end - start)]
                contents[path] = kept.ljust(size, b"\0")
        return Files.of(contents)


@functools.cache
def golden(name: str) -> Golden:
    return Golden(name)


def test_every_record_is_cut() -> None:
    """The manifest lists all records that have units: nothing is left out of the trials."""
    assert sum(len(golden(name).messages) for name in GOLDEN_NAMES) > 2_900


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_cut_behind_and_inside_every_record(trials: Trials, name: str) -> None:
    one = golden(name)
    total, done = 2 * len(one.messages), 0
    for number in trials.chosen(total, default_cuts(one, name)):
        with trials.one(number) as source:
            index, inside = divmod(number, 2)
            message = one.messages[index]
            if inside:
                end = message["commitLogOffset"] + source.randrange(1, message["storeSize"])
            else:
                end = one.ends[index]
            files = one.cut(end, whole_file=source.random() < 0.5)
            store = MessageStore.open(files, one.settings, NOW_MS)
            check_prefix(one, store, index if inside else index + 1, source)
            if source.random() < RECOVERED_TWICE:
                check_again(one, files, store)
        done += 1
    trials.count("R23", "truncations of golden stores", done)


def default_cuts(one: Golden, name: str) -> list[int]:
    """Around each segment's end, and some by chance."""
    size = one.settings.commit_log_file_size
    starts = [message["commitLogOffset"] // size for message in one.messages]
    last = [at for at in range(len(starts)) if at + 1 == len(starts) or starts[at] != starts[at + 1]]
    ends = {2 * at + odd for at in last[:ENDS_MAX] for odd in (-1, 0, 1, 2)}
    total = 2 * len(starts)
    return sorted({at for at in ends if 0 <= at < total}.union(strata(total, DEFAULT, name)))


def check_prefix(one: Golden, store: MessageStore, count: int, source: random.Random) -> None:
    """The store has the first `count` messages, and no other."""
    while store.catch_up(CATCH_UP_BYTES):
        pass
    end = one.ends[count - 1] if count else 0
    assert store.end_offset >= end
    if count < len(one.messages):
        assert store.end_offset <= one.messages[count]["commitLogOffset"]
    assert store.recovery.damages == ()
    for (topic, queue_id), places in one.queues.items():
        kept = [place for place in places if place < end]
        queue = store.consume_queues.get(topic, queue_id)
        units = [] if queue is None else queue.units(queue.min_offset, 1 << 20)["physical_offset"].tolist()
        assert units == kept, f"{topic}-{queue_id}"
    check_keys(one, store, count, source)


def check_keys(one: Golden, store: MessageStore, count: int, source: random.Random) -> None:
    """Keys around the cut, and some others: the answers are the scan of the prefix."""
    end = one.ends[count - 1] if count else 0
    near = one.messages[max(0, count - 2) : count + 2]
    asked = [*near, *source.sample(one.messages, min(KEYS_ASKED, len(one.messages)))]
    for message in asked:
        if store.topics.get(message["topic"]) is None:
            continue
        for key in {*(message["keys"] or "").split()[:1], message["uniqKey"] or ""} - {""}:
            query = KeyQuery(message["topic"], key, KeyType.KEY)
            found = [
                place
                for page in query_pages(store, query, messages_max=10_000)
                for place in page.physical_offsets
            ]
            wanted = [place for place in one.keys[message["topic"], key] if place < end]
            assert sorted(found) == wanted, (message["topic"], key)


def check_again(one: Golden, files: Files, store: MessageStore) -> None:
    """Recovered once more, after a kill: the same end, and the same queues."""
    again = MessageStore.open(Files.of({p: files.read_bytes(p) for p in files.paths()}), one.settings, NOW_MS)
    assert again.end_offset == store.end_offset
    ends = [
        {
            (topic, queue.queue_id): queue.max_offset
            for topic in each.consume_queues.topics()
            for queue in each.consume_queues.queues(topic)
        }
        for each in (store, again)
    ]
    assert ends[0] == ends[1]
