"""Every golden store, opened by our engine, gives RocketMQ's own answers.

Key queries are compared with a scan of the manifest's messages and not with RocketMQ's own answers, which
are wrong or cut where hashes collide (see tests/golden/README.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.support.golden import GOLDEN_NAMES, Manifest, load_manifest, settings_of, unpack
from trovemq_broker.query.get_message import get_message, get_message_at
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.query.query_by_key import query_page, query_pages
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_proto.records import decode_message, decode_offset_msg_id
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem

pytestmark = pytest.mark.slow

NOW_MS = EpochMs(1_800_000_000_000)


@dataclass(frozen=True)
class Golden:
    """One golden store, open, beside the truth about it."""

    name: str
    manifest: Manifest
    store: MessageStore

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.manifest["messages"]
        return messages

    def message_at(self, physical_offset: int) -> dict[str, object] | None:
        record = self.store.record_at(PhysicalOffset(physical_offset))
        return None if record is None else decode_message(record).to_manifest()


@pytest.fixture(scope="module", params=GOLDEN_NAMES)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Golden]:
    name: str = request.param
    manifest = load_manifest(name)
    root = unpack(name, tmp_path_factory.mktemp(name))
    store = MessageStore.open(RealFileSystem(root), settings_of(manifest), NOW_MS)
    while store.catch_up(1 << 20):
        pass
    yield Golden(name, manifest, store)
    store.close(NOW_MS)


def test_the_log_has_the_same_ends(golden: Golden) -> None:
    assert golden.store.min_offset == golden.manifest["commitLogMinOffset"]
    assert golden.store.end_offset == golden.manifest["commitLogMaxOffset"]
    assert golden.store.visible_offset == golden.store.end_offset
    assert golden.store.recovery.clean == (golden.name != "crashed")
    assert golden.store.recovery.damages == ()


def test_every_field_of_every_message_by_its_place_in_the_log(golden: Golden) -> None:
    for expected in golden.messages:
        assert golden.message_at(expected["commitLogOffset"]) == expected


def test_a_scan_finds_exactly_these_messages(golden: Golden) -> None:
    found: list[dict[str, object]] = []
    for _, records, alive in golden.store.scan(golden.store.min_offset, golden.store.end_offset, 1 << 14):
        assert alive is None
        found += [message.to_manifest() for message in records.messages()]
    assert found == golden.messages


def test_nothing_is_found_inside_a_record_or_after_the_end(golden: Golden) -> None:
    starts = {message["commitLogOffset"] for message in golden.messages}
    places = np.random.default_rng(7).integers(0, golden.store.end_offset + 5_000, 2_000).tolist()
    for place in places + [start + 1 for start in sorted(starts)] + [golden.store.end_offset, -1]:
        if place not in starts:
            assert golden.store.record_at(place) is None


def test_the_queues_are_the_same_units(golden: Golden) -> None:
    queues = golden.store.consume_queues
    found = sorted((topic, queue.queue_id) for topic in queues.topics() for queue in queues.queues(topic))
    assert found == [(queue["topic"], queue["queueId"]) for queue in golden.manifest["queues"]]
    for expected in golden.manifest["queues"]:
        queue = queues.get(expected["topic"], expected["queueId"])
        assert queue is not None
        assert (queue.min_offset, queue.max_offset) == (expected["minOffset"], expected["maxOffset"])
        units = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
        assert units["physical_offset"].tolist() == expected["cqPhysicalOffsets"]
        assert units["tags_code"].tolist() == expected["cqTagsCodes"]
        earliest = golden.store.store_timestamp_at(PhysicalOffset(int(units["physical_offset"][0])))
        assert earliest == expected["earliestMsgStoreTime"]


def test_every_message_by_its_queue_offset(golden: Golden) -> None:
    for expected in golden.messages:
        queue = golden.store.consume_queues.get(expected["topic"], expected["queueId"])
        assert queue is not None
        unit = queue.units(expected["queueOffset"], 1)[0]
        assert int(unit["size"]) == expected["storeSize"]
        assert golden.message_at(int(unit["physical_offset"])) == expected


def test_next_offsets_continue_where_the_queues_end(golden: Golden) -> None:
    for queue in golden.manifest["queues"]:
        next_offset = golden.store.consume_queues.next_offset(queue["topic"], queue["queueId"])
        assert next_offset == queue["maxOffset"]


def test_every_offset_msg_id(golden: Golden) -> None:
    for query in golden.manifest["offsetMsgIdQueries"]:
        host, physical_offset = decode_offset_msg_id(query["offsetMsgId"])
        found = golden.message_at(physical_offset)
        if query["found"]:
            assert found is not None
            assert physical_offset == query["commitLogOffset"]
            assert (found["offsetMsgId"], found["uniqKey"]) == (query["offsetMsgId"], query["uniqKey"])
        else:
            assert found is None
        assert host


def test_every_search_by_time(golden: Golden) -> None:
    for query in golden.manifest["searchOffsetQueries"]:
        place = query["topic"], query["queueId"], query["timestamp"]
        offset = search_offset(golden.store, *place, upper=query["boundary"] == "UPPER")
        assert offset == query["offset"], query


def scan_for(golden: Golden, query: dict[str, Any]) -> list[int]:
    """Physical offsets of the messages that a key query must give, newest first, without a maximum."""

    def matches(message: dict[str, Any]) -> bool:
        if (
            message["topic"] != query["topic"]
            or not query["begin"] <= message["storeTimestamp"] <= query["end"]
        ):
            return False
        if query["mode"] == "tag":
            return bool(message["tags"] == query["key"])
        if query["mode"] == "unique":
            return bool(message["uniqKey"] == query["key"])
        return query["key"] in (message["keys"] or "").split(" ") or message["uniqKey"] == query["key"]

    return [m["commitLogOffset"] for m in reversed(golden.messages) if query["key"] and matches(m)]


def key_query(query: dict[str, Any]) -> KeyQuery:
    return KeyQuery(query["topic"], query["key"], KeyType(query["mode"]), query["begin"], query["end"])


@pytest.mark.parametrize("member", ["keyQueries", "uniqueKeyQueries"])
def test_the_key_index_leads_to_every_message_that_a_scan_finds(golden: Golden, member: str) -> None:
    key_index = golden.store.key_index
    assert key_index is not None
    for query in golden.manifest[member]:
        found: set[int] = set()
        for key_hash in key_query(query).hashes_in(query["topic"]):
            candidates = list(key_index.candidates(key_hash, LOG_ORIGIN, golden.store.end_offset))
            assert candidates == sorted(candidates, reverse=True), "newest first"
            found.update(candidates)
        assert set(scan_for(golden, query)) <= found, query


@pytest.mark.parametrize("member", ["keyQueries", "uniqueKeyQueries"])
def test_every_key_query_equals_a_scan(golden: Golden, member: str) -> None:
    for query in golden.manifest[member]:
        expected = scan_for(golden, query)
        pages = list(query_pages(golden.store, key_query(query), messages_max=query["maxNum"]))
        found = [physical_offset for page in pages for physical_offset in page.physical_offsets]
        assert found == expected[: query["maxNum"]], query
        assert pages[-1].complete or len(found) == query["maxNum"]
        for page in pages:
            for record, queue_offset in zip(page.records, page.queue_offsets, strict=True):
                assert decode_message(record).queue_offset == queue_offset


@pytest.mark.parametrize("member", ["keyQueries", "uniqueKeyQueries"])
def test_what_rocketmqs_client_keeps_is_in_the_scan(golden: Golden, member: str) -> None:
    """After RocketMQ's client has dropped foreign messages, the rest differs by its inexact times only."""
    for query in golden.manifest[member]:
        for physical_offset in query.get("clientOffsets", ()):
            message = golden.message_at(physical_offset)
            assert message is not None
            in_time = query["begin"] <= int(str(message["storeTimestamp"])) <= query["end"]
            assert (physical_offset in scan_for(golden, query)) == in_time, query


@pytest.mark.parametrize("golden", ["collide"], indirect=True)
def test_hash_collisions_never_show(golden: Golden) -> None:
    """RocketMQ's broker answers with foreign messages in 82 of the 135 queries of `collide`; we never do."""
    queries = golden.manifest["keyQueries"]
    foreign = [query for query in queries if not set(query["brokerOffsets"]) <= set(scan_for(golden, query))]
    assert (len(foreign), len(queries)) == (82, 135)
    for query in foreign:
        page = query_page(golden.store, key_query(query))
        assert set(page.physical_offsets) <= set(scan_for(golden, query))


def test_cursors_reach_everything_in_single_steps(golden: Golden) -> None:
    for query in golden.manifest["keyQueries"][:40]:
        expected, found, cursor = scan_for(golden, query), [], ""
        while True:
            page = query_page(golden.store, key_query(query), messages_max=1, cursor=cursor)
            found += page.physical_offsets
            if page.complete:
                break
            cursor = page.cursor
        assert found == expected


def test_identifiers(golden: Golden) -> None:
    for expected in golden.messages:
        by_place = get_message(golden.store, expected["offsetMsgId"])
        assert by_place.physical_offsets == [expected["commitLogOffset"]]
        assert by_place.queue_offsets == [expected["queueOffset"]]
        place = expected["topic"], expected["queueId"], expected["queueOffset"]
        assert get_message_at(golden.store, *place).physical_offsets == [expected["commitLogOffset"]]
    for query in golden.manifest["uniqueKeyQueries"]:
        wanted = scan_for(golden, query)
        if wanted:
            assert get_message(golden.store, query["key"], query["topic"]).physical_offsets == wanted
        else:
            with pytest.raises(TroveError, match="MESSAGE_NOT_FOUND"):
                get_message(golden.store, query["key"], query["topic"])
    for query in golden.manifest["offsetMsgIdQueries"]:
        if not query["found"]:
            with pytest.raises(TroveError, match="MESSAGE_NOT_FOUND"):
                get_message(golden.store, query["offsetMsgId"])


def test_the_key_index_reaches_the_end(golden: Golden) -> None:
    assert golden.store.lagging == []
    assert golden.store.key_index is not None
    last = golden.messages[-1]
    assert golden.store.key_index.last_update() == (last["storeTimestamp"], last["commitLogOffset"])


def test_consumer_offsets(golden: Golden) -> None:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for group, topic, queue_id, offset in golden.store.offsets.entries():
        found[f"{topic}@{group}"][str(queue_id)] = offset
    assert found == golden.manifest["consumerOffsets"]


def test_topics(golden: Golden) -> None:
    names = golden.store.topics.names(include_system=True)
    assert names == sorted(golden.manifest["topicConfigs"])
    for name, expected in golden.manifest["topicConfigs"].items():
        assert golden.store.topics.require(name).to_json({}) == expected
