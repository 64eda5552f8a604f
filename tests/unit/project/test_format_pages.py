"""docs/store-format.md and docs/rocketmq-protocol.md agree with the code."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.core import receiver
from trovemq_broker.server.rocketmq import receive_calls
from trovemq_broker.server.wire import client_settings, send_checks
from trovemq_proto.records import decode_message, layout
from trovemq_proto.records.hashes import java_hash
from trovemq_proto.v1 import common_pb2
from trovemq_store.index.consume_queue import BLANK_UNIT, UNIT_DTYPE
from trovemq_store.index.index_file import ITEM_DTYPE
from trovemq_store.settings import StoreSettings

ROOT = Path(__file__).resolve().parents[3]
STORE = (ROOT / "docs" / "store-format.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "rocketmq-protocol.md").read_text(encoding="utf-8")
FIELDS = {
    "TOTALSIZE": layout.TOTAL_SIZE_AT,
    "MAGICCODE": layout.MAGIC_AT,
    "BODYCRC": layout.BODY_CRC_AT,
    "QUEUEID": layout.QUEUE_ID_AT,
    "FLAG": layout.FLAG_AT,
    "QUEUEOFFSET": layout.QUEUE_OFFSET_AT,
    "PHYSICALOFFSET": layout.PHYSICAL_OFFSET_AT,
    "SYSFLAG": layout.SYS_FLAG_AT,
    "BORNTIMESTAMP": layout.BORN_TIMESTAMP_AT,
    "BORNHOST": layout.BORN_HOST_AT,
    "STORETIMESTAMP": layout.STORE_TIMESTAMP_AT,
    "STOREHOST": layout.STORE_HOST_AT,
    "RECONSUMETIMES": layout.RECONSUME_TIMES_AT,
    "PREPAREDTRANSACTIONOFFSET": layout.PREPARED_OFFSET_AT,
    "BODY": layout.BODY_SIZE_AT,
}


def section(page: str, heading: str) -> str:
    _, found, rest = page.partition(f"# {heading}\n")
    assert found, heading
    return re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_offsets_of_a_record_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([A-Z]+) \|", section(STORE, "Record layout"), re.MULTILINE)
    assert {name: int(offset) for offset, name in rows} == FIELDS


def test_the_record_of_the_page_is_the_message_that_it_names() -> None:
    text = section(STORE, "A record byte by byte")
    block = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert block
    record = bytes.fromhex(block[1])
    message = decode_message(record)
    assert (message.topic, message.queue_id, message.queue_offset) == ("TopicTest", 1, 7)
    assert (message.body, message.keys, message.tags) == (b"hello", ("k1",), "TagA")
    assert (message.store_timestamp, message.store_host) == (1_700_000_000_123, "10.0.0.1:10911")
    unit = struct.pack(">qiq", 0, len(record), java_hash("TagA"))
    assert unit.hex() in text.replace(" ", "")


def test_the_sizes_of_units_items_and_the_index_file() -> None:
    settings = StoreSettings()
    size = 40 + 4 * settings.index_slot_count + ITEM_DTYPE.itemsize * settings.index_item_count
    assert f"{size:,} bytes" in section(STORE, "Directory")
    assert f"{settings.consume_queue_file_size:,} bytes" in section(STORE, "Directory")
    assert f"byte {UNIT_DTYPE.itemsize}·n" in section(STORE, "Unit")
    assert f"`0x{int(BLANK_UNIT['size'][0]):X}`" in section(STORE, "Filler units")


def test_the_delay_levels() -> None:
    text = " ".join(section(STORE, "Delay levels").split())
    written = re.search(r"levels are ((?:\d+[smh] ?)+)", text)
    assert written
    unit_s = {"s": 1, "m": 60, "h": 3600}
    levels = tuple(int(level[:-1]) * unit_s[level[-1]] for level in written[1].split())
    assert levels == layout.DELAY_LEVELS_SECONDS


def test_every_put_status_of_the_protocol_is_explained() -> None:
    rows = set(re.findall(r"^\| ([A-Z_]+) \|", section(STORE, "Put status"), re.MULTILINE))
    assert set(common_pb2.PutMessageStatus.keys()) - {"PUT_STATUS_UNSPECIFIED"} <= rows


POLLING_MIN_MS = ConsumerSettings().receive_poll_min_ms


@pytest.mark.parametrize(
    ("heading", "said"),
    [
        ("Values", f"| {client_settings.PRODUCER_ATTEMPTS_MAX}; exponential from "),
        ("Values", f"from {client_settings.PRODUCER_BACKOFF_INITIAL_MS} ms to 1 s, factor 2"),
        ("Values", f"| `receive_batch_size` | {client_settings.RECEIVE_BATCH_SIZE} |"),
        ("Values", f"| {client_settings.LONG_POLLING_MS // 1000} s for a push consumer"),
        ("Refused settings", f"{client_settings.CLIENT_PROPERTIES_MAX} client properties"),
        ("Checks of a message", f"| user properties | {send_checks.USER_PROPERTIES_MAX} |"),
        ("Checks of a message", f"| {send_checks.PROPERTIES_BYTES_MAX:,} bytes |"),
        ("Checks of a message", f"| not blank, {send_checks.MESSAGE_GROUP_BYTES_MAX} bytes,"),
        ("Polling time", f"into {POLLING_MIN_MS // 1000} s to {receiver.POLLING_MAX_S:.0f} s"),
        ("Polling time", f"{receive_calls.ANSWER_BEFORE_S * 1000:.0f} ms before the deadline"),
    ],
)
def test_a_limit_of_the_protocol_is_the_codes(heading: str, said: str) -> None:
    assert said in section(PROTOCOL, heading)
