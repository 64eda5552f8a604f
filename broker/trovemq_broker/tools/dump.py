"""Parts of a store as readable objects, one per line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.message_objects import message_fields
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import RecordState, check_record
from trovemq_store.check import layouts
from trovemq_store.check.store_view import LogScan, StoreView
from trovemq_store.index.consume_queue import BLANK_SIZE
from trovemq_store.log import checkpoint
from trovemq_store.topics.lax_json import JsonObject

UNITS_AT_ONCE: Final = 4096
_LEFT_OUT: Final = {"body", "bodyBase64", "storedBodyBase64", "recordSha256"}


def records(view: StoreView, scan: LogScan, begin: PhysicalOffset) -> Iterator[JsonObject]:
    """Every record from `begin` on (where one must start), also those that are in no queue; without
    bodies."""
    if begin > view.log.min_offset:
        _require_record(view, begin)
    for run in view.runs(scan, begin):
        for index in range(len(run.records)):
            if (message := view.message(run, index, scan)) is None:
                continue
            fields = message_fields(message.to_manifest())
            body_size = int(run.records.body_sizes[index])
            for name in _LEFT_OUT & fields.keys():
                del fields[name]
            alive = run.alive is None or bool(run.alive[index])
            yield {**fields, "storedBodySize": body_size, "deleted": not alive}


def _require_record(view: StoreView, physical_offset: PhysicalOffset) -> None:
    segment = view.log.segments.at(physical_offset)
    if segment is not None:
        position, data = physical_offset - segment.start, segment.file.view()
        found, _ = check_record(data, position, len(data), physical_offset=physical_offset, check_crc=False)
        if found in (RecordState.RECORD, RecordState.BLANK):
            return
    raise TroveError(errors.MESSAGE_NOT_FOUND, f"no record begins at physical offset {physical_offset}")


def consume_queue(view: StoreView, topic: str, queue_id: QueueId) -> Iterator[JsonObject]:
    """The units of one queue. TroveError QUEUE_NOT_FOUND."""
    queue = next((q for q in view.queues if (q.topic, q.queue_id) == (topic, queue_id)), None)
    if queue is None:
        raise TroveError(errors.QUEUE_NOT_FOUND, f"there are no files of queue {queue_id} of topic {topic}")
    for begin in range(queue.first, queue.end, UNITS_AT_ONCE):
        units = queue.units(begin, min(begin + UNITS_AT_ONCE, queue.end))
        for i, (physical_offset, size, tags_code) in enumerate(units.tolist()):
            yield {
                "queueOffset": begin + i,
                "commitLogOffset": physical_offset,
                "storeSize": size,
                "tagsCode": tags_code,
                "blank": size == BLANK_SIZE,
            }


def index(view: StoreView) -> Iterator[JsonObject]:
    """Each index file's header, then its items."""
    slots, items = view.settings.index_slot_count, view.settings.index_item_count
    for path in layouts.index_paths(view.files):
        file = layouts.read_index(view.files, path, slots, items)
        header = dict(zip(file.header.dtype.names or (), file.header.item(), strict=True))
        yield {
            "file": path,
            "beginTimestamp": header["begin_timestamp"],
            "endTimestamp": header["end_timestamp"],
            "beginPhyoffset": header["begin_physical_offset"],
            "endPhyoffset": header["end_physical_offset"],
            "hashSlotCount": header["slot_count_used"],
            "indexCount": header["item_count"],
        }
        for number, (key_hash, physical_offset, seconds, previous) in enumerate(file.used.tolist(), 1):
            yield {
                "item": number,
                "slot": key_hash % slots,
                "hash": key_hash,
                "commitLogOffset": physical_offset,
                "seconds": seconds,
                "previous": previous,
            }


def checkpoint_fields(view: StoreView) -> Iterator[JsonObject]:
    fields = checkpoint.load(view.files)
    yield {
        "physicMsgTimestamp": fields.physic_msg_timestamp,
        "logicsMsgTimestamp": fields.logics_msg_timestamp,
        "indexMsgTimestamp": fields.index_msg_timestamp,
        "masterFlushedOffset": fields.master_flushed_offset,
        "confirmPhyOffset": fields.confirm_physical_offset,
    }
