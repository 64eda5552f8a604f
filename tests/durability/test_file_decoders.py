"""Hostile bytes for every decoder of files and of the broker's own records.

Inputs are valid bytes with flips, splices, extreme lengths, ranges twice or gone, and plain chance. A decoder
gives a result that is no larger than its input allows, or one of the errors that it documents; nothing else.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from zlib_ng.zlib_ng import crc32

from tests.support.answers import Answers
from tests.support.damage import TINY, Files, tiny_store
from tests.support.engine import open_store, record, send
from tests.support.trials import Trials
from trovemq._verify.ledger import LedgerReader
from trovemq_broker.filters.filter import FilterCache
from trovemq_broker.groups.delivery.order_info import ORDER_INFO_PATH, load_order_info
from trovemq_broker.groups.delivery.revive_log import ReviveLog
from trovemq_broker.query.cursor import Cursor
from trovemq_broker.query.key_query import KeyQuery
from trovemq_broker.state.consumer_state import SNAPSHOT_PATH, ConsumerSnapshot
from trovemq_broker.timers.recall_handle import decode_recall_handle, encode_recall_handle
from trovemq_broker.timers.rocketmq_files import DelayOffsets, load_check, load_units
from trovemq_broker.timers.wheel_records import read_record, read_waiting
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import check_record, decode_message, parse_properties, scan_run, validate_batch
from trovemq_proto.records.fields import read_fields
from trovemq_store.backup.manifest import FileEntry, Manifest, load_manifest
from trovemq_store.events.codec import EVENT_DTYPE, decode_events
from trovemq_store.events.receipt_handle import (
    HandleReader,
    encode_handle,
    encode_receipt,
    handle_head,
    handle_seed,
)
from trovemq_store.events.snapshot import SnapshotFile
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.log import checkpoint, state
from trovemq_store.topics import lax_json
from trovemq_store.topics.deletions import TopicDeletions
from trovemq_store.topics.offsets import ConsumerOffsets
from trovemq_store.topics.subscription_groups import SubscriptionGroups
from trovemq_store.topics.table_notes import TableNotes
from trovemq_store.topics.table_records import decode_table_record, encode_table_record
from trovemq_store.topics.topics import TopicTable

TOTAL: Final = 20_000
DEFAULT: Final = 500
SIZE_MAX: Final = 8_192
EXTREMES: Final = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
)
GROUP, TOPIC = "workers", "orders"
QUERY: Final = KeyQuery(TOPIC, "key")

Decoder = Callable[[bytes], object]


def mutated(samples: Sequence[bytes], source: random.Random) -> bytes:
    """One hostile input made from the valid ones."""
    data = bytearray(source.choice(samples))
    if source.random() < 0.1:
        return source.randbytes(source.randrange(2 * len(data) + 64))
    for _ in range(source.randrange(1, 5)):
        at = source.randrange(len(data) + 1)
        size = source.choice((1, 2, 4, 8, 20, 64))
        match source.randrange(7):
            case 0:
                for _ in range(size):
                    if data:
                        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
            case 1:
                width = source.choice((1, 2, 4, 8))
                extreme = source.choice(EXTREMES) % (1 << 8 * width)
                data[at : at + width] = extreme.to_bytes(width, source.choice(("big", "little")))
            case 2:
                data[at:at] = data[at : at + size]
            case 3:
                del data[at : at + size]
            case 4:
                other = source.choice(samples)
                begin = source.randrange(len(other) + 1)
                data[at : at + size] = other[begin : begin + size]
            case 5:
                data[at : at + size] = source.randbytes(size)
            case _:
                del data[at:]
    return bytes(data[:SIZE_MAX])


# --- the samples ------------------------------------------------------------------------------------------
@functools.cache
def contents() -> dict[str, bytes]:
    return tiny_store(clean=True)


@functools.cache
def records() -> tuple[bytes, ...]:
    """With a separate CRC, and without: of those more is read before one is refused."""
    plain = replace(TINY, append_property_crc=False)
    without = Answers(Files.of(tiny_store(clean=True, append_property_crc=False)), plain).messages
    return tuple(message.record for message in (*Answers(Files.of(contents()), TINY).messages, *without))


def of_path(part: str) -> tuple[bytes, ...]:
    return tuple(data.rstrip(b"\0") for path, data in contents().items() if part in path)


def event_bodies() -> tuple[bytes, ...]:
    messages = [decode_message(raw) for raw in records()]
    return tuple(message.body for message in messages if message.topic == "rmq_sys_trovemq_delivery")


def revive_bodies() -> tuple[bytes, ...]:
    points = [{"t": TOPIC, "q": 0, "c": GROUP, "so": 5, "pt": 9, "it": 60, "n": 3, "bm": 1, "d": [0, 1, 4]}]
    acks = [{"t": TOPIC, "q": 0, "c": GROUP, "so": 5, "pt": 9, "ao": 6}, {**points[0], "aol": [5, 6]}]
    return tuple(msgspec.json.encode(each) for each in (*points, *acks))


def backup_manifests() -> tuple[bytes, ...]:
    entries = [
        FileEntry(path=f"commitlog/{n:020d}", size=4_096, data_size=4_096 - n, sha256="0f" * 32)
        for n in range(3)
    ]
    fields: dict[str, Any] = {"format": 1, "files": entries}
    for field in msgspec.structs.fields(Manifest):
        fields.setdefault(field.name, "t" if field.type is str else 1)
    return (Manifest(**fields).encode(),)


# --- the decoders -----------------------------------------------------------------------------------------
def whole_record(data: bytes) -> None:
    fields = read_fields(data, 0, len(data))
    assert fields is None or fields.property_position + fields.property_size == fields.size <= len(data)
    view = memoryview(data)
    _, size = check_record(view, 0, len(data), physical_offset=None)
    assert size <= len(data)


def run_of_records(data: bytes) -> None:
    view = memoryview(data)
    batch, end, _ = scan_run(
        view, 0, len(data), physical_offset_of_data=None, check_crc=len(data) % 2 == 0, bytes_max=4_096
    )
    assert len(batch) <= len(data) // 91
    assert end <= len(data)
    batch.index_entries()
    batch.tags_codes()


def batch_of_a_client(data: bytes) -> None:
    validate_batch(
        bytearray(data),
        topic=TOPIC,
        queue_id=0,
        body_size_max=2_048,
        store_host_ipv6=False,
        append_property_crc=True,
    )


def units_of_a_queue(data: bytes) -> None:
    size = TINY.consume_queue_file_size
    for trusted in (None, PhysicalOffset(300)):
        files = Files.of({f"consumequeue/orders/0/{0:020d}": data[:size].ljust(size, b"\0")})
        queues = ConsumeQueues(files, TINY)
        queues.load(trusted)
        queue = queues.get("orders", QueueId(0))
        assert queue is None or 0 <= queue.min_offset <= queue.max_offset <= size // 20
        if queue is not None and queue.has_units:
            queue.units(queue.min_offset, 1_000)
            queue.find(PhysicalOffset(len(data)))


def index_file(data: bytes) -> None:
    path = next(path for path in contents() if path.startswith("index/"))
    size = len(contents()[path])
    for trusted in (None, PhysicalOffset(1_000)):
        index = KeyIndex(Files.of({path: data[:size].ljust(size, b"\0")}), TINY, lambda: "20260101000000000")
        index.load(trusted)
        for key_hash in (0, 5, 2**31 - 1):
            assert (
                len(list(index.candidates(key_hash, LOG_ORIGIN, PhysicalOffset(1 << 62))))
                <= TINY.index_item_count
            )


def loaded(path: str, load: Callable[[Files], object]) -> Decoder:
    """`load` of a store that has this one file, and no copy of it."""
    return lambda data: load(Files.of({path: data}))


def snapshot(data: bytes) -> None:
    """With the right check sum, so that the content is read."""
    file = SnapshotFile(Files(), SNAPSHOT_PATH, ConsumerSnapshot)
    crc_at, body_at = 8, 12
    if len(data) > body_at and data[crc_at] % 2:
        data = data[:crc_at] + crc32(data[body_at:]).to_bytes(4, "little") + data[body_at:]
    SnapshotFile(Files.of({file.path: data}), file.path, ConsumerSnapshot).load()


def events(data: bytes) -> None:
    assert len(list(decode_events(data))) <= len(data) // EVENT_DTYPE.itemsize


def timer_units(data: bytes) -> None:
    units = load_units(Files.of({f"timerlog/{0:020d}": data}))
    assert len(units) <= len(data) // 52


@functools.cache
def revive_log() -> Callable[[bytes], None]:
    store = open_store(Files())
    send(store, b"x")
    log = ReviveLog(store, set())
    message = decode_message(records()[0])

    def read(data: bytes) -> None:
        for tag in ("ck", "ack"):
            log._read(replace(message, body=data, properties={"TAGS": tag}), pending=True)
            log.in_flight()
            log._pending.clear()
            log._acknowledged.clear()

    return read


def read_revive_log(data: bytes) -> None:
    revive_log()(data)


def text(decode: Callable[[str], object]) -> Decoder:
    return lambda data: decode(data.decode("latin-1"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decoders")


def handles() -> tuple[bytes, ...]:
    head = handle_head(0, QueueId(3), 77, 1_700_000_000_000, False)
    return tuple(encode_handle(handle_seed(GROUP, TOPIC), head, offset).encode() for offset in (0, 9, 4_096))


def receipts() -> tuple[bytes, ...]:
    head = handle_head(0, QueueId(3), 77, 1_700_000_000_000, False)
    return (encode_receipt(handle_seed(GROUP, TOPIC), head).encode(),)


EXPRESSIONS: Final = (
    b"a || b||c",
    b"*",
    b"a > 1 AND (b = 'x' OR NOT c IS NULL) AND d BETWEEN 1 AND 3.5 AND e IN ('p', 'q', 'r') OR f <> 'y'",
)
LEDGER_LINES: Final = (
    {"run": "begin", "topic": "orders", "seed": 7, "size": 99, "keyCount": 3, "producers": 1, "time": 5,
     "queues": [{"broker": "broker-a", "queueId": 0, "offset": 4}]},
    {"outcome": "acknowledged", "topic": "orders", "messageId": "U1", "keys": "a b", "bodySha256": "0f" * 32,
     "broker": "broker-a", "queueId": 0, "producer": 0, "sequence": 1, "time": 6, "queueOffset": 4,
     "offsetMsgId": "0A" * 16, "durability": "DISK", "storeTimestamp": 7},
    {"run": "end", "summary": {}},
)  # fmt: skip
LEDGER: Final = (b"".join(json.dumps(line).encode() + b"\n" for line in LEDGER_LINES),)
Case = tuple[Callable[[], Sequence[bytes]], Decoder, tuple[type[Exception], ...]]

DECODERS: Final[dict[str, Case]] = {
    "record": (records, whole_record, ()),
    "run of records": (lambda: [b"".join(records()[n : n + 4]) for n in range(8)], run_of_records, ()),
    "message": (records, decode_message, (TroveError,)),
    "batch": (
        lambda: [record(b"b" * n, unique_key="U", keys="k l", append_property_crc=True) for n in (0, 9, 300)],
        batch_of_a_client,
        (TroveError,),
    ),
    "properties": (lambda: [raw[-120:] for raw in records()], parse_properties, ()),
    "consume queue": (lambda: of_path("consumequeue/"), units_of_a_queue, (TroveError,)),
    "index file": (lambda: of_path("index/"), index_file, (TroveError,)),
    "index note": (
        lambda: of_path("key-index"),
        loaded("trovemq/key-index.json", lambda files: KeyIndex(files, TINY, lambda: "1").load(None)),
        (TroveError,),
    ),
    "checkpoint": (lambda: of_path("checkpoint"), loaded(checkpoint.PATH, checkpoint.load), ()),
    "state": (lambda: of_path("state.json"), loaded(state.PATH, state.load), (TroveError,)),
    "JSON": (lambda: of_path(".json"), lax_json.parse, (ValueError,)),
    "topics": (lambda: of_path("topics.json"), loaded("config/topics.json", TopicTable.load), (TroveError,)),
    "groups": (
        lambda: of_path("subscriptionGroup"),
        loaded("config/subscriptionGroup.json", SubscriptionGroups.load),
        (TroveError,),
    ),
    "offsets": (
        lambda: of_path("consumerOffset"),
        loaded("config/consumerOffset.json", ConsumerOffsets.load),
        (TroveError,),
    ),
    "deletions": (
        lambda: of_path("deletions"),
        loaded("trovemq/deletions.json", TopicDeletions.load),
        (TroveError,),
    ),
    "table record": (
        lambda: [
            encode_table_record("topic", TOPIC, {"perm": 6, "readQueueNums": 8}, {"counter": 3}),
            encode_table_record("group", GROUP, None, {"counter": 1, "timestamp": 5}),
        ],
        decode_table_record,
        (TroveError, ValueError),
    ),
    "table notes": (
        lambda: [
            b'{"formatVersion":1,"tables":{"topic":{"begin":9,"files":[{"crc":null,"end":7},{"crc":5,"end":8}]}}}'
        ],
        loaded("trovemq/tables.json", TableNotes.load),
        (TroveError,),
    ),
    "order info": (lambda: of_path("OrderInfo"), loaded(ORDER_INFO_PATH, load_order_info), (TroveError,)),
    "delay offsets": (
        lambda: [b'{"dataVersion":{"counter":1},"offsetTable":{1:25,"3":7}}'],
        loaded("config/delayOffset.json", DelayOffsets),
        (TroveError,),
    ),
    "snapshot": (lambda: of_path("consumers.snapshot"), snapshot, (TroveError,)),
    "events": (event_bodies, events, (ValueError,)),
    "waiting record": (
        records,
        lambda data: (read_record(memoryview(data)), read_waiting(memoryview(data))),
        (),
    ),
    "timer log": (lambda: of_path("timerlog/"), timer_units, ()),
    "timer check": (lambda: of_path("timercheck"), loaded("config/timercheck", load_check), ()),
    "revive log": (revive_bodies, read_revive_log, ()),
    "receipt handle": (
        handles,
        lambda data: HandleReader(handle_seed(GROUP, TOPIC)).read_mixed([data]),
        (),
    ),
    "receipt": (receipts, text(HandleReader(handle_seed(GROUP, TOPIC)).read_receipt), (TroveError,)),
    "recall handle": (
        lambda: [encode_recall_handle(TOPIC, "broker-a", EpochMs(1_700_000_000_000), "0A" * 16).encode()],
        text(decode_recall_handle),
        (TroveError,),
    ),
    "cursor": (
        lambda: [
            Cursor(PhysicalOffset(77)).encode(QUERY).encode(),
            Cursor(PhysicalOffset(77), ("20260101000000000", 5)).encode(QUERY).encode(),
        ],
        text(lambda value: Cursor.decode(value, QUERY)),
        (TroveError,),
    ),
    "tag filter": (lambda: EXPRESSIONS, text(lambda value: FilterCache().parse("tag", value)), (TroveError,)),
    "SQL filter": (lambda: EXPRESSIONS, text(lambda value: FilterCache().parse("sql", value)), (TroveError,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_hostile_bytes(trials: Trials, name: str) -> None:
    samples, decode, documented = DECODERS[name]
    run(trials, name, samples(), decode, documented)


@pytest.mark.slow
def test_hostile_backup_manifests(trials: Trials, directory: Path) -> None:
    def decode(data: bytes) -> None:
        (directory / "manifest.json").write_bytes(data)
        load_manifest(directory)

    run(trials, "backup manifest", backup_manifests(), decode, (TroveError,))


@pytest.mark.slow
def test_hostile_ledgers(trials: Trials, directory: Path) -> None:
    def decode(data: bytes) -> None:
        (directory / "ledger").write_bytes(data)
        with LedgerReader(directory / "ledger") as ledger:
            assert sum(1 for _ in ledger.entries()) <= data.count(b"\n") + 1

    run(trials, "ledger", LEDGER, decode, (TroveError,))


def run(
    trials: Trials,
    name: str,
    samples: Sequence[bytes],
    decode: Decoder,
    documented: tuple[type[Exception], ...],
) -> None:
    assert samples
    assert all(samples)
    done = 0
    for number in trials.numbers(TOTAL, default=DEFAULT):
        with trials.one(number) as source:
            data = mutated(samples, source)
            try:
                decode(data)
            except documented:
                pass
        done += 1
    trials.count_each("S2", "inputs, to each decoder of files", name, done)
