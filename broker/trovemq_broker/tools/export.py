"""A store's messages, and the whole store, in the form of the golden manifests (tests/golden/README.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import Message
from trovemq_store.check.layouts import QueueView
from trovemq_store.check.queue_rules import by_queue, unit_indexes, units_of
from trovemq_store.check.store_view import LogScan, StoreView
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.index.consume_queue import BLANK_SIZE, UNIT_DTYPE
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import JsonObject
from trovemq_store.topics.offsets import OFFSETS_PATH
from trovemq_store.topics.topics_file import TopicsFile

BROKER_CONFIG_KEYS: Final = frozenset(
    {
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerClusterName",
        "brokerIP1",
        "brokerIP2",
        "brokerId",
        "brokerName",
        "brokerRole",
        "diskMaxUsedSpaceRatio",
        "fileReservedTime",
        "flushDiskType",
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "mappedFileSizeTimerLog",
        "maxHashSlotNum",
        "maxIndexNum",
        "transactionCheckInterval",
    }
)
SUBSCRIPTION_GROUPS_PATH: Final = "config/subscriptionGroup.json"
DELAY_OFFSETS_PATH: Final = "config/delayOffset.json"

# Every RocketMQ broker creates these when it starts, even if it has not saved them yet.
_SYSTEM_GROUPS: Final = (
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_PULL",
    "CID_RMQ_SYS_TRANS",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "TOOLS_CONSUMER",
)
_GROUP_DEFAULTS: Final[JsonObject] = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
_HASH_CHUNK: Final = 1 << 20


@dataclass(slots=True)
class _Queue:
    """The records of one queue in the log; lists of arrays, in log order."""

    offsets: list[NDArray[np.int64]] = field(default_factory=list)
    units: list[NDArray[np.void]] = field(default_factory=list)
    first_timestamp: EpochMs = EpochMs(-1)


def messages(view: StoreView, scan: LogScan) -> Iterator[Message]:
    """Every message in a queue, by physical offset. Damage is skipped and noted in `scan`."""
    for run in view.runs(scan):
        for index in unit_indexes(run).tolist():
            if (message := view.message(run, index, scan)) is not None:
                yield message


def manifest(view: StoreView, scan: LogScan, name: str, config: Mapping[str, str]) -> JsonObject:
    """The whole store as one document. `config`: the given settings, by RocketMQ's names."""
    queues: dict[tuple[str, QueueId], _Queue] = {}
    found: list[object] = []
    for run in view.runs(scan):
        wanted = (view.message(run, index, scan) for index in unit_indexes(run).tolist())
        found.extend(message.to_manifest() for message in wanted if message is not None)
        _collect(queues, run)
    described = [_describe(view, key, queues.get(key)) for key in _queue_keys(view, queues)]
    ends: dict[tuple[object, object], int] = {(q["topic"], q["queueId"]): q["maxOffset"] for q in described}
    return {
        "name": name,
        "kind": name,
        "shutdown": "clean" if view.clean else "killed",
        "brokerConfig": broker_config(view, config),
        "files": file_digests(view.files),
        "commitLogMinOffset": view.log.min_offset,
        "commitLogMaxOffset": scan.end,
        "topicConfigs": TopicsFile(view.files).load().get("topicConfigTable", {}),
        "consumerOffsets": _consumer_offsets(view, ends),
        "delayOffsets": _table(view.files, DELAY_OFFSETS_PATH, "offsetTable"),
        "subscriptionGroups": _subscription_groups(view.files),
        "queues": described,
        "messages": found,
    }


def broker_config(view: StoreView, config: Mapping[str, str]) -> dict[str, str]:
    """The sizes of the store, and those given keys that the golden manifests have."""
    sizes = {
        "mappedFileSizeCommitLog": str(view.settings.commit_log_file_size),
        "mappedFileSizeConsumeQueue": str(view.settings.consume_queue_file_size),
        "maxHashSlotNum": str(view.settings.index_slot_count),
        "maxIndexNum": str(view.settings.index_item_count),
    }
    return {key: value for key, value in config.items() if key in BROKER_CONFIG_KEYS} | sizes


def file_digests(files: ReadOnlyFileSystem) -> dict[str, JsonObject]:
    """path -> size and SHA-256 of every file."""
    digests: dict[str, JsonObject] = {}
    for path in sorted(files.walk()):
        view = files.open(path).view()
        digest = hashlib.sha256()
        for begin in range(0, len(view), _HASH_CHUNK):
            digest.update(view[begin : begin + _HASH_CHUNK])
        digests[path] = {"size": len(view), "sha256": digest.hexdigest()}
    return digests


def _collect(queues: dict[tuple[str, QueueId], _Queue], run: DispatchBatch) -> None:
    units = units_of(run)
    for key, indexes in by_queue(run):
        queue = queues.setdefault(key, _Queue())
        if not queue.units:
            queue.first_timestamp = EpochMs(int(run.records.store_timestamps[indexes[0]]))
        queue.offsets.append(run.records.queue_offsets[indexes])
        queue.units.append(units[indexes])


def _queue_keys(view: StoreView, queues: Mapping[tuple[str, QueueId], _Queue]) -> list[tuple[str, QueueId]]:
    """The queues in the log, and those whose messages were removed but whose offsets continue."""
    kept = {(queue.topic, queue.queue_id) for queue in view.queues if _goes_on(view, queue)}
    return sorted(kept | queues.keys())


def _goes_on(view: StoreView, queue: QueueView) -> bool:
    last = queue.units(queue.end - 1, queue.end)
    if not len(last) or int(last["size"][0]) == BLANK_SIZE:
        return False
    return int(last["physical_offset"][0]) >= view.deletions.deleted_below(queue.topic)


def _describe(view: StoreView, key: tuple[str, QueueId], queue: _Queue | None) -> dict[str, Any]:
    topic, queue_id = key
    if queue is None:
        end = next(q.end for q in view.queues if (q.topic, q.queue_id) == key)
        return _queue_object(topic, queue_id, end, end, -1, np.empty(0, UNIT_DTYPE))
    offsets, units = np.concatenate(queue.offsets), np.concatenate(queue.units)
    first, end = int(offsets[0]), int(offsets[-1]) + 1
    return _queue_object(topic, queue_id, first, end, queue.first_timestamp, units)


def _queue_object(
    topic: str, queue_id: QueueId, first: int, end: int, earliest: int, units: NDArray[np.void]
) -> dict[str, Any]:
    return {
        "topic": topic,
        "queueId": queue_id,
        "minOffset": first,
        "maxOffset": end,
        "earliestMsgStoreTime": earliest,
        "cqPhysicalOffsets": units["physical_offset"].tolist(),
        "cqTagsCodes": units["tags_code"].tolist(),
    }


def _table(files: ReadOnlyFileSystem, path: str, member: str) -> JsonObject:
    document = JsonFile(files, path).load() or {}
    table = document.get(member)
    return table if isinstance(table, dict) else {}


def _consumer_offsets(view: StoreView, ends: Mapping[tuple[object, object], int]) -> JsonObject:
    """The saved offsets; after a kill none is above its queue's end."""
    table = _table(view.files, OFFSETS_PATH, "offsetTable")
    if view.clean:
        return table
    capped: JsonObject = {}
    for name, queues in table.items():
        topic = name.partition("@")[0]
        assert isinstance(queues, dict), "the offset table has an object for each group"
        capped[name] = {text: min(offset, ends.get((topic, int(text)), 0)) for text, offset in queues.items()}
    return capped


def _subscription_groups(files: ReadOnlyFileSystem) -> JsonObject:
    saved = _table(files, SUBSCRIPTION_GROUPS_PATH, "subscriptionGroupTable")
    return saved or {name: {**_GROUP_DEFAULTS, "groupName": name} for name in _SYSTEM_GROUPS}
