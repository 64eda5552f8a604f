"""The golden stores: every record, tags code and index item equals RocketMQ's."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.golden import GOLDEN_NAMES, load_manifest, unpack
from trovemq_proto.records import RecordState, check_record, decode_message, encode_record, scan_run
from trovemq_proto.records.layout import MAGIC_V1


@dataclass
class Log:
    """The runs that scan_run finds in a store's commit log."""

    records: list[bytes] = field(default_factory=list)
    manifests: list[dict[str, object]] = field(default_factory=list)
    tags_codes: dict[int, int] = field(default_factory=dict)
    index_items: list[tuple[int, int]] = field(default_factory=list)
    stops: list[RecordState] = field(default_factory=list)


def read_log(root: Path) -> Log:
    log = Log()
    for path in sorted((root / "commitlog").iterdir()):
        start, data = int(path.name), memoryview(path.read_bytes())
        batch, _, stop = scan_run(
            data, 0, len(data), physical_offset_of_data=start, check_crc=True, bytes_max=len(data)
        )
        offsets = batch.positions + start
        log.records += map(bytes, batch.select(range(len(batch))))
        log.manifests += [message.to_manifest() for message in batch.messages()]
        log.tags_codes |= zip(offsets.tolist(), batch.tags_codes().tolist(), strict=True)
        entries = batch.index_entries()
        items = zip(offsets[entries.record_index].tolist(), entries.hashes.tolist(), strict=True)
        log.index_items += items
        log.stops.append(stop)
    return log


def stored_items(root: Path, slot_count: int) -> list[tuple[int, int]]:
    """(physical offset, hash) of each item of the index files, in order."""
    items = []
    for path in sorted((root / "index").iterdir()):
        data = path.read_bytes()
        (count,) = struct.unpack_from(">i", data, 36)
        for number in range(1, count):
            key_hash, offset = struct.unpack_from(">iq", data, 40 + 4 * slot_count + 20 * number)
            items.append((offset, key_hash))
    return items


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_store(name: str, tmp_path: Path) -> None:
    manifest = load_manifest(name)
    root = unpack(name, tmp_path)
    log = read_log(root)

    assert log.manifests == manifest["messages"]
    assert [list(found) for found in log.manifests] == [list(message) for message in manifest["messages"]]
    # Full segments end with a blank; then come the last one and, perhaps, one made in advance.
    full = log.stops.count(RecordState.BLANK)
    empty_or_last = len(log.stops) - full
    assert log.stops == [RecordState.BLANK] * full + [RecordState.ZEROS] * empty_or_last
    assert 1 <= empty_or_last <= 2
    for queue in manifest["queues"]:
        codes = [log.tags_codes[offset] for offset in queue["cqPhysicalOffsets"]]
        assert codes == queue["cqTagsCodes"]
    assert log.index_items == stored_items(root, int(manifest["brokerConfig"]["maxHashSlotNum"]))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_records_encode_to_their_own_bytes(name: str, tmp_path: Path) -> None:
    for record in read_log(unpack(name, tmp_path)).records:
        message = decode_message(record)
        sizes = 20 if message.sys_flag & 0x10 else 8, 20 if message.sys_flag & 0x20 else 8
        store_host_at = 56 + sizes[0]
        block_at = len(record) - property_size(record, message.stored_body, message.topic, sum(sizes))
        assert record == encode_record(
            message.topic,
            message.stored_body,
            queue_id=message.queue_id,
            properties=record[block_at:],
            flag=message.flag,
            sys_flag=message.sys_flag,
            queue_offset=message.queue_offset,
            physical_offset=message.physical_offset,
            born_timestamp=message.born_timestamp,
            born_host=record[48 : 48 + sizes[0]],
            store_timestamp=message.store_timestamp,
            store_host=record[store_host_at : store_host_at + sizes[1]],
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )


def property_size(record: bytes, stored_body: bytes, topic: str, hosts_size: int) -> int:
    before = 72 + hosts_size + len(stored_body) + (1 if record[7] == MAGIC_V1 & 0xFF else 2) + len(topic) + 2
    return len(record) - before


def test_the_worked_record() -> None:
    """The example of the format's description, byte by byte."""
    properties = {
        "KEYS": "k1",
        "UNIQ_KEY": "7F000001000018B4AAC2000000000000",
        "CLUSTER": "DefaultCluster",
        "TAGS": "TagA",
    }
    record = encode_record(
        "TopicTest",
        b"hello",
        queue_id=1,
        properties=properties,
        queue_offset=7,
        born_timestamp=1700000000000,
        born_host=bytes.fromhex("0a0000020000c3cb"),
        store_timestamp=1700000000123,
        store_host=bytes.fromhex("0a00000100002a9f"),
    )
    assert record.hex() == (
        "000000bc" "daa320a7" "3610a686" "00000001" "00000000" "0000000000000007" "0000000000000000"
        "00000000" "0000018bcfe56800" "0a0000020000c3cb" "0000018bcfe5687b" "0a00000100002a9f" "00000000"
        "0000000000000000" "00000005" "68656c6c6f" "09" "546f70696354657374" "0053"
        "4b455953016b3102" "554e49515f4b45590137463030303030313030303031384234414143323030303030303030303030"
        "3002" "434c55535445520144656661756c74436c757374657202" "544147530154616741" "02"
    )  # fmt: skip
    state, size = check_record(memoryview(record), 0, len(record), physical_offset=0)
    assert (state, size) == (RecordState.RECORD, 188)
