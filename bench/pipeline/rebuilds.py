"""Rebuilding consume queues and index with Spark, beside putting one thing after another.

All start from the log alone, on files of the same sizes:

- spark: the job, in the session given;
- one process: the same functions without Spark, one after the other;
- repair: the broker's own sequential rebuild (store.check.repair), on a copy that shares the log. It takes
  records by columns as the job does, so beside it two cores cannot be twice as fast with anything to spare;
- one put at a time: a record after another, each unit and each index item put separately, in plain Python and
  in memory (the timed part has no file and no check of a CRC: less work than the others do).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from bench.pipeline.log_files import write_log
from bench.pipeline.scans import interleaved
from bench.report import Report
from trovemq_proto.records.hashes import index_hash, java_hash
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.rebuild import RebuildArguments, run
from trovemq_spark.log.sizes import FileSizes
from trovemq_spark.rebuild.run import Rebuild, rebuild
from trovemq_spark.storage import StoragePath
from trovemq_spark.tasks import OneProcess
from trovemq_store.check.repair import repair
from trovemq_store.check.store_view import StoreView

ROUNDS: Final = 3
SEGMENTS: Final = 2
BODY_SIZE: Final = 256
"""About that of a flight."""
SIZES: Final = FileSizes(consume_queue_file_size=6_000_000, index_slot_count=50_000, index_item_count=200_000)
_BLANK = 0xCBD43194


def measure_rebuild(
    report: Report,
    session: SparkSession,
    directory: Path,
    *,
    rounds: int = ROUNDS,
    segments: int = SEGMENTS,
) -> None:
    """Writes a new log below `directory`."""
    store = directory / "rebuild" / "store"
    count = write_log(store, segments, body_size=BODY_SIZE)
    variants = _variants(session, store)
    seconds = interleaved(variants, rounds)
    size = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
    report.add("rebuild: records", count, "")
    report.add("rebuild on Spark", size / seconds["spark"] / 1e6, "MB/s")
    ratios = {name: seconds[name] / seconds["spark"] for name in variants}
    report.add("rebuild: Spark / one put at a time", ratios["plain"], "x", at_least=2.0)
    report.add("rebuild: Spark / the same in one process", ratios["one process"], "x")
    report.add("rebuild: Spark / trovemq_store.check.repair", ratios["repair"], "x")


def _variants(session: SparkSession, store: Path) -> dict[str, Callable[[], object]]:
    scratch = store.parent
    made, copy = scratch / "made", scratch / "copy"
    rebuild(Rebuild(str(store), StoragePath(made), SIZES), OneProcess(NoProgress()))
    made.rename(copy)  # the store as repair finds it: its files have its sizes
    (copy / "commitlog").symlink_to(store.absolute() / "commitlog")
    arguments = RebuildArguments(
        str(store),
        str(scratch / "spark"),
        consume_queue_file_size=SIZES.consume_queue_file_size,
        index_slot_count=SIZES.index_slot_count,
        index_item_count=SIZES.index_item_count,
    )
    here = Rebuild(str(store), StoragePath(scratch / "one_process"), SIZES)
    return {
        "spark": lambda: run(session, arguments, NoProgress()),
        "one process": lambda: rebuild(here, OneProcess(NoProgress())),
        "repair": lambda: repair(StoreView.open(copy), copy),
        "plain": lambda: rebuild_plainly(store, SIZES),
    }


def rebuild_plainly(
    store: Path, sizes: FileSizes
) -> tuple[dict[tuple[str, int], bytearray], list[tuple[bytearray, list[int], bytearray]]]:
    """(units of each queue, (header, slots, items) of each index file), one put after another."""
    queues: dict[tuple[str, int], bytearray] = {}
    files: list[tuple[bytearray, list[int], bytearray]] = []
    counts = [sizes.index_item_count]
    begins = [0]

    def put(key_hash: int, physical: int, timestamp: int) -> None:
        if counts[-1] >= sizes.index_item_count:
            files.append((bytearray(40), [0] * sizes.index_slot_count, bytearray(20)))
            counts.append(1)
            begins.append(ends[0])
        header, slots, items = files[-1]
        number, slot = counts[-1], key_hash % sizes.index_slot_count
        seconds = min(max(0, (timestamp - begins[-1]) // 1000), (1 << 31) - 1) if begins[-1] > 0 else 0
        items += struct.pack(">iqii", key_hash, physical, seconds, slots[slot])
        begin, _, begin_physical, _, used, _ = struct.unpack(">qqqqii", header)
        if number == 1:
            begin, begin_physical, begins[-1] = timestamp, physical, timestamp
        used += slots[slot] == 0
        slots[slot] = number
        counts[-1] = number + 1
        ends[0] = timestamp
        header[:] = struct.pack(">qqqqii", begin, timestamp, begin_physical, physical, used, number + 1)

    ends = [0]
    for path in sorted((store / "commitlog").iterdir()):
        _put_segment(path.read_bytes(), int(path.name), queues, put)
    return queues, files


def _put_segment(
    data: bytes,
    start: int,
    queues: dict[tuple[str, int], bytearray],
    put: Callable[[int, int, int], None],
) -> None:
    position = 0
    while position + 8 <= len(data):
        size, magic = struct.unpack_from(">iI", data, position)
        if size == 0 or magic == _BLANK:
            return
        queue_id, _, _, physical, sys_flag = struct.unpack_from(">iiqqi", data, position + 12)
        at = position + (68 if sys_flag & 0x10 else 56)
        (timestamp,) = struct.unpack_from(">q", data, at)
        at += 8 + (20 if sys_flag & 0x20 else 8) + 12
        at += 4 + int(struct.unpack_from(">i", data, at)[0])
        topic_size = data[at]
        topic = data[at + 1 : at + 1 + topic_size].decode()
        block = data[at + 3 + topic_size : position + size].decode()
        pairs = [pair.split("\x01", 1) for pair in block.split("\x02") if "\x01" in pair]
        properties: dict[str, str] = dict(pairs)
        tag = properties.get("TAGS", "")
        if sys_flag & 0xC in (0, 8):
            units = queues.setdefault((topic, queue_id), bytearray())
            units += struct.pack(">qiq", physical, size, java_hash(tag) if tag else 0)
        keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
        keys += [key for key in properties.get("KEYS", "").split(" ") if key]
        keys += [f"T#{tag}"] if tag else []
        for key in keys if sys_flag & 0xC != 0xC else []:
            put(index_hash(topic, key), physical, timestamp)
        position += size
