"""Records as Arrow columns equal the one-by-one decoder, for every golden store and for hostile text."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import GOLDEN_NAMES, load_manifest, unpack
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message, RecordBatch, encode_record
from trovemq_spark.log.scan import ScanBounds, scan_segment
from trovemq_spark.log.segments import LogDirectory
from trovemq_spark.table.columns import arrow_batch
from trovemq_spark.table.property_columns import property_columns
from trovemq_spark.table.regular_properties import RegularProperties
from trovemq_spark.table.schema import ALL_COLUMNS, arrow_schema, spark_schema
from trovemq_store.log.projection import DispatchBatch

EPOCH = datetime.fromtimestamp(0, UTC)


def row_of(message: Message, broker_name: str | None = None) -> dict[str, Any]:
    """The table's row of a message, made field by field."""
    properties = {name: value for name, value in message.properties.items() if name != "__CRC32#"}
    return {
        "topic": message.topic,
        "brokerName": broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "size": message.store_size,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "messageId": properties.get("UNIQ_KEY"),
        "offsetMsgId": message.offset_msg_id,
        "body": message.body,
        "properties": properties,
        "bornTimestamp": EPOCH + timedelta(milliseconds=message.born_timestamp),
        "storeTimestamp": EPOCH + timedelta(milliseconds=message.store_timestamp),
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "damage": None,
    }


def rows_of(batch: RecordBatch, **options: Any) -> list[dict[str, Any]]:
    table = arrow_batch(batch, list(ALL_COLUMNS), **options)
    table.validate(full=True)
    return [row | {"properties": dict(row["properties"])} for row in table.to_pylist()]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_stores_give_what_the_decoder_gives(name: str, tmp_path: Path) -> None:
    log = LogDirectory.open(str(unpack(name, tmp_path)))
    count = 0
    for file in log.segments:
        bounds = ScanBounds(file.start, file.end, log.known_end, is_last=file is log.segments[-1])
        for run in scan_segment(log.open_segment(file), bounds):
            assert isinstance(run, DispatchBatch), "nothing is damaged here"
            assert rows_of(run.records, broker_name="b") == [row_of(m, "b") for m in run.records.messages()]
            count += len(run.records)
    assert count == len(load_manifest(name)["messages"])


@pytest.mark.parametrize("seed", range(20))
def test_hostile_properties_give_what_the_decoder_gives(seed: int) -> None:
    source = random.Random(seed)
    pieces = [b"", b"\x01", b"\x02", b"a", b"KEYS", b"TAGS", b"\xff\xfe", "é".encode(), b" ", b"UNIQ_KEY"]
    records = b"".join(
        encode_record("t" * source.randint(1, 3), b"b", properties=b"".join(source.choices(pieces, k=12)))
        for _ in range(source.randint(1, 40))
    )
    batch = RecordBatch.split(records)
    assert rows_of(batch) == [row_of(message) for message in batch.messages()]


@pytest.mark.parametrize("seed", range(40))
def test_properties_of_one_producer_give_what_the_decoder_gives(seed: int) -> None:
    """The same names in the same order, except for values that may differ."""
    source = random.Random(seed)
    letters = "abcKEYS" if seed % 4 else "é"
    names = ["_" + "".join(source.choices(letters, k=source.randint(0, 30))) for _ in range(4)]
    names = ["KEYS", "__CRC32#", "TAGS", "UNIQ_KEY", "_é" if seed % 4 == 0 else "_", *names]
    # Twenty bytes before its end a record's CRC would be looked for.
    names = [*dict.fromkeys(["a" * 20, *source.sample(names, len(names)), "c", "b" * 20])]
    blocks = [[[name, "v" * source.randint(1, 9)] for name in names] for _ in range(source.randint(1, 30))]
    if seed % 2:
        blocks[0][0][1] = "é"
    assert rows_are_the_decoder_s(blocks) == (seed % 4 > 0)
    odd = source.choice(blocks)
    change = source.choice(("swap", "rename", "lengthen", "twice", "drop", "no value", "no name"))
    if change == "swap":
        odd.reverse()
    elif change == "rename":
        name = source.choice(odd)
        at = source.randrange(len(name[0]))
        name[0] = name[0][:at] + "x" + name[0][at + 1 :]
    elif change == "lengthen":
        source.choice(odd)[0] += "x"
    elif change == "twice":
        for block in blocks:
            block[-1][0] = block[0][0]
    elif change == "drop":
        odd.pop()
    else:
        source.choice(odd)[change == "no value"] = ""
    assert not rows_are_the_decoder_s(blocks) or len(blocks) == 1


def rows_are_the_decoder_s(blocks: list[list[list[str]]]) -> bool:
    """Whether they were seen to have the same names in the same order."""
    texts = ["".join(f"{name}\1{value}\2" for name, value in block).encode() for block in blocks]
    batch = RecordBatch.split(b"".join(encode_record("t", b"b", properties=text) for text in texts))
    assert rows_of(batch) == [row_of(message) for message in batch.messages()]
    return isinstance(property_columns(batch)[0], RegularProperties)


def test_a_name_given_twice_is_once_in_the_map() -> None:
    twice = encode_record("t", b"b", properties=b"a\x01first\x02b\x01x\x02a\x01second\x02")
    (row,) = rows_of(RecordBatch.split(twice))
    assert row["properties"] == {"a": "second", "b": "x"}


def test_a_body_that_does_not_inflate_is_reported_or_raised() -> None:
    good, bad = encode_record("t", b"plain"), encode_record("t", b"no zlib stream", sys_flag=1)
    batch = RecordBatch.split(good + bad)
    reported: list[tuple[int, str]] = []
    rows = rows_of(batch, undecodable=lambda index, error: reported.append((index, error.symbol)))
    assert [row["body"] for row in rows] == [b"plain", None]
    assert reported == [(1, errors.RECORD_DAMAGED.symbol)]
    with pytest.raises(TroveError, match="does not inflate"):
        arrow_batch(batch, ["body"])


def test_times_out_of_range_are_the_nearest_in_it() -> None:
    record = encode_record("t", b"", born_timestamp=(1 << 63) - 1, store_timestamp=-(1 << 63))
    batch = arrow_batch(RecordBatch.split(record), ["bornTimestamp", "storeTimestamp"])
    born, stored = (column.cast("int64")[0].as_py() for column in batch.columns)
    assert born > 0 > stored


def test_no_records_and_few_columns() -> None:
    nothing = RecordBatch.split(b"")
    assert arrow_batch(nothing, ["topic", "properties"]).schema == arrow_schema(["topic", "properties"])
    assert [field.name for field in spark_schema(["body", "size"]).fields] == ["body", "size"]
    with pytest.raises(KeyError):
        arrow_schema(["nonsense"])
