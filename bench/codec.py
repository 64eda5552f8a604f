"""Micro benchmark of the record codec: microseconds a record, on one core.

    python bench/codec.py            a table
    python bench/codec.py --json     one JSON object

1,000 records with bodies of 1 KiB, a unique key of 34 characters, one key and one tag. "uniform": all
records have one size and layout; "mixed": body, key and tag sizes differ. Each figure is the best of
several rounds; the budget beside it is the one that the codec was built to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import perf_counter

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import (
    BatchEncoder,
    RecordBatch,
    UniqueKeyGenerator,
    pack_host,
    patch_batch,
    scan_run,
    validate_batch,
)

COUNT = 1000
BODY_SIZE = 1024
TOPIC = "orders"
STORE_HOST = pack_host("10.0.0.1:10911")
BORN_HOST = pack_host("10.0.0.2:50123")
NOW_MS = EpochMs(1_700_000_000_000)


def new_generator() -> UniqueKeyGenerator:
    return UniqueKeyGenerator(bytes.fromhex("56F7E71C361B"), 8636, 38_587_838, lambda: 0)


def encode_uniform(count: int) -> bytearray:
    bodies = [bytes([i % 251]) * BODY_SIZE for i in range(count)]
    keys = [f"key{i:07}" for i in range(count)]
    unique_keys = new_generator().take_matrix(count)
    encoder = BatchEncoder(TOPIC)
    return encoder.encode(
        bodies, queue_id=3, unique_keys=unique_keys, keys=keys, tags="paid", born_timestamp=NOW_MS
    )


def encode_mixed(count: int) -> bytearray:
    bodies = [bytes([i % 251]) * (BODY_SIZE - 50 + i * 7 % 100) for i in range(count)]
    keys = [f"key{i}" for i in range(count)]
    tags = [f"tag{i % 17}" for i in range(count)]
    unique_keys = new_generator().take_matrix(count)
    encoder = BatchEncoder(TOPIC)
    return encoder.encode(
        bodies, queue_id=3, unique_keys=unique_keys, keys=keys, tags=tags, born_timestamp=NOW_MS
    )


def validate(data: bytes | bytearray) -> RecordBatch:
    return validate_batch(
        data,
        topic=TOPIC,
        queue_id=3,
        body_size_max=4 << 20,
        store_host_ipv6=False,
        append_property_crc=False,
    )


def patch(data: bytearray, batch: RecordBatch) -> RecordBatch:
    return patch_batch(
        data,
        batch,
        first_queue_offset=QueueOffset(5),
        physical_offset=PhysicalOffset(1 << 30),
        store_timestamp=NOW_MS,
        store_host=STORE_HOST,
        born_host=BORN_HOST,
        append_property_crc=False,
    )


def index(data: bytes | bytearray) -> None:
    """Includes the split: a batch caches its columns."""
    batch = RecordBatch.split(data, topic=TOPIC)
    batch.tags_codes()
    batch.index_entries()


def scan(data: bytes) -> None:
    scan_run(
        memoryview(data), 0, len(data), physical_offset_of_data=None, check_crc=True, bytes_max=len(data)
    )


def consume(data: bytes | bytearray) -> None:
    for _ in RecordBatch.split(data).messages():
        pass


def one_record(data: bytearray) -> None:
    batch = patch(data, validate(data))
    batch.tags_codes()
    batch.index_entries()


def best_us(work: Callable[[], object], divisor: int, seconds: float = 0.25) -> float:
    """Best of the rounds that fit into `seconds`, in microseconds divided by `divisor`."""
    work()
    best = float("inf")
    end = perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        work()
        best = min(best, perf_counter() - start)
    return best * 1e6 / divisor


def measure() -> list[tuple[str, float, float]]:
    """(name, microseconds a record, budget)."""
    uniform, mixed, single = encode_uniform(COUNT), encode_mixed(COUNT), encode_uniform(1)
    uniform_batch, mixed_batch = validate(uniform), validate(mixed)
    uniform_patched, mixed_patched = bytes(uniform), bytes(mixed)
    generator = new_generator()
    bodies = [bytes([i % 251]) * BODY_SIZE for i in range(COUNT)]
    keys = [f"key{i:07}" for i in range(COUNT)]
    encoder = BatchEncoder(TOPIC)

    def encode_fast() -> None:
        encoder.encode(
            bodies,
            queue_id=3,
            unique_keys=generator.take_matrix(COUNT),
            keys=keys,
            tags="paid",
            born_timestamp=NOW_MS,
        )

    cases: list[tuple[str, Callable[[], object], int, float]] = [
        ("split, uniform", lambda: RecordBatch.split(uniform), COUNT, 0.05),
        ("split, mixed", lambda: RecordBatch.split(mixed), COUNT, 0.2),
        ("validate, uniform", lambda: validate(uniform), COUNT, 0.7),
        ("validate, mixed", lambda: validate(mixed), COUNT, 0.7),
        ("patch, uniform", lambda: patch(uniform, uniform_batch), COUNT, 0.2),
        ("patch, mixed", lambda: patch(mixed, mixed_batch), COUNT, 0.2),
        ("split + tags codes + index entries, uniform", lambda: index(uniform_patched), COUNT, 0.4),
        ("split + tags codes + index entries, mixed", lambda: index(mixed_patched), COUNT, 1.5),
        ("scan_run with CRC, uniform", lambda: scan(uniform_patched), COUNT, 0.8),
        ("scan_run with CRC, mixed", lambda: scan(mixed_patched), COUNT, 0.8),
        ("encode, uniform", encode_fast, COUNT, 0.5),
        ("encode, mixed", lambda: encode_mixed(COUNT), COUNT, 3.0),
        ("unique keys as matrix", lambda: generator.take_matrix(COUNT), COUNT, 0.15),
        ("unique keys as text", lambda: generator.take(COUNT), COUNT, 0.15),
        ("split + messages()", lambda: consume(mixed), COUNT, 6.0),
        ("split + bodies()", lambda: RecordBatch.split(uniform).bodies(), COUNT, 0.2),
        ("one record: validate, patch, tags code, index", lambda: one_record(single), 1, 60.0),
        ("one record: validate", lambda: validate(single), 1, 60.0),
        ("one record: encode", lambda: encode_uniform(1), 1, 60.0),
    ]
    return [(name, best_us(work, divisor), budget) for name, work, divisor, budget in cases]


def main() -> None:
    results = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps({name: {"us": round(us, 4), "budget_us": budget} for name, us, budget in results}))
        return
    print(f"{'us a record':>12} {'budget':>8}   what ({COUNT} records of {BODY_SIZE} B)")
    for name, us, budget in results:
        print(f"{us:12.3f} {budget:8.2f}   {name}{'' if us <= budget else '   <-- over'}")


if __name__ == "__main__":
    main()
