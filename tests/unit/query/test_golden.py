"""Every query about the stores that Apache RocketMQ wrote, against the manifests' messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import GOLDEN_NAMES, Manifest, load_manifest, settings_of, unpack
from tests.support.trials import SOAK
from trovemq_broker.query.get_message import IdentifierKind, get_message, get_message_at
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.query.queue_offsets import queue_offsets
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem

NOW_MS = EpochMs(1_800_000_000_000)
MODES = {"key": KeyType.KEY, "tag": KeyType.TAG, "unique": KeyType.UNIQUE}


@pytest.fixture(scope="module", params=GOLDEN_NAMES)
def golden(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MessageStore, Manifest]]:
    manifest = load_manifest(request.param)
    root: Path = unpack(request.param, tmp_path_factory.mktemp("golden"))
    store = MessageStore.open(RealFileSystem(root), settings_of(manifest), NOW_MS)
    yield store, manifest
    store.close(NOW_MS)


Golden = tuple[MessageStore, Manifest]


def _by_topic(manifest: Manifest) -> dict[str, list[dict[str, Any]]]:
    """The messages of each topic, newest first."""
    topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for message in reversed(manifest["messages"]):
        topics[message["topic"]].append(message)
    return topics


def _answers(message: dict[str, Any], asked: dict[str, Any]) -> bool:
    if not asked["begin"] <= message["storeTimestamp"] <= asked["end"] or not asked["key"]:
        return False
    if asked["mode"] == "tag":
        return bool(message["tags"] == asked["key"])
    if message["uniqKey"] == asked["key"]:
        return True
    return asked["mode"] == "key" and asked["key"] in (message["keys"] or "").split(" ")


@pytest.mark.slow
@pytest.mark.untraced
def test_key_queries_equal_a_scan(golden: Golden) -> None:
    store, manifest = golden
    topics = _by_topic(manifest)
    for asked in manifest["keyQueries"] + manifest["uniqueKeyQueries"]:
        expected = [message for message in topics[asked["topic"]] if _answers(message, asked)]
        query = KeyQuery(asked["topic"], asked["key"], MODES[asked["mode"]], asked["begin"], asked["end"])
        found = []
        for page in query_pages(store, query, messages_max=1 << 30):
            assert page.notes == ()
            pairs = zip(page.records, page.queue_offsets, strict=True)
            found += [decode_message(record, queue_offset=offset).to_manifest() for record, offset in pairs]
        assert found == expected, asked


@pytest.mark.untraced
def test_every_message_is_found_by_each_of_its_names(golden: Golden) -> None:
    store, manifest = golden
    places = defaultdict(list)
    for message in reversed(manifest["messages"]):
        places[message["uniqKey"]].append(message["commitLogOffset"])
    for message in manifest["messages"][:: 1 if SOAK else 3]:
        place = message["commitLogOffset"]
        found = get_message(store, message["offsetMsgId"])
        assert (found.kind, found.physical_offsets) == (IdentifierKind.OFFSET_MSG_ID, [place])
        assert decode_message(found.records[0], queue_offset=found.queue_offsets[0]).to_manifest() == message
        at = get_message_at(store, message["topic"], message["queueId"], message["queueOffset"])
        assert at.physical_offsets == [place]
        if message["uniqKey"]:
            assert get_message(store, message["uniqKey"]).physical_offsets == places[message["uniqKey"]]


def test_offset_msg_ids_answer_as_rocketmq(golden: Golden) -> None:
    store, manifest = golden
    for asked in manifest["offsetMsgIdQueries"]:
        if asked["found"]:
            assert get_message(store, asked["offsetMsgId"]).physical_offsets == [asked["commitLogOffset"]]
        else:
            with pytest.raises(TroveError, match="MESSAGE_NOT_FOUND"):
                get_message(store, asked["offsetMsgId"])


def test_times_and_ranges_answer_as_rocketmq(golden: Golden) -> None:
    store, manifest = golden
    for asked in manifest["searchOffsetQueries"]:
        upper = asked["boundary"] == "UPPER"
        offset = search_offset(store, asked["topic"], asked["queueId"], asked["timestamp"], upper=upper)
        assert offset == asked["offset"], asked
    for queue in manifest["queues"]:
        if queue["maxOffset"] == 0:
            continue
        (found,) = queue_offsets(store, queue["topic"], [queue["queueId"]])
        assert found == (queue["queueId"], queue["minOffset"], queue["maxOffset"])
