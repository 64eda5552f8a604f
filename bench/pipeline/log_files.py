"""A commit log to measure with: segments of 64 MiB, 16 topics of 8 queues, bodies of about 1 KiB."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from trovemq_proto.records import blank_record, encode_record, pack_host
from trovemq_proto.records.layout import CRC_PROPERTY_SIZE
from trovemq_proto.records.record_crc import record_crc_property

SEGMENT_SIZE: Final = 64 << 20
TOPICS: Final = 16
QUEUES: Final = 8
FIRST_MS: Final = 1_700_000_000_000
_HOST: Final = pack_host("127.0.0.1:8081")
_BODIES: Final = 101


def write_log(store: Path, segments: int, *, body_size: int = 1024) -> int:
    """Writes `segments` whole segments below store/commitlog; returns the number of records."""
    source = random.Random(1)
    bodies = [source.randbytes(body_size - 50 + i) for i in range(_BODIES)]
    directory = store / "commitlog"
    directory.mkdir(parents=True)
    count = 0
    for number in range(segments):
        start = number * SEGMENT_SIZE
        data = bytearray()
        while True:
            record = encode_record(
                f"topic{count % TOPICS:02}",
                bodies[count % _BODIES],
                queue_id=count // TOPICS % QUEUES,
                queue_offset=count // (TOPICS * QUEUES),
                physical_offset=start + len(data),
                born_timestamp=FIRST_MS + count,
                born_host=_HOST,
                store_timestamp=FIRST_MS + count,
                store_host=_HOST,
                properties={"UNIQ_KEY": f"AC{count:032X}", "KEYS": f"key{count}", "TAGS": f"tag{count % 5}"},
                append_property_crc=True,
            )
            if len(data) + len(record) + 8 > SEGMENT_SIZE:
                break
            data += record[:-CRC_PROPERTY_SIZE]
            data += record_crc_property(record, 0, len(record))
            count += 1
        data += blank_record(SEGMENT_SIZE - len(data))
        (directory / f"{start:020d}").write_bytes(data.ljust(SEGMENT_SIZE, b"\0"))
    return count
