"""How fast the job `rebuild` is, beside reading the log once and putting one thing after another.

measure(session, store) compares, interleaved, on one store:

- spark: the job, in the session given;
- one_process: the same functions without Spark, one after the other;
- repair: the broker's own sequential rebuild (broker.tools.repair), on a copy that shares the log;
- plain: a record at a time in plain Python, each unit and each index item put by itself, in memory (what is
  timed has no file and no check of a CRC: less work than the others do).
"""

from __future__ import annotations

import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from broker.tools.repair import repair
from broker.tools.store_view import StoreView
from trovemq_proto.records.hashes import index_hash, java_hash
from trovemq_spark.jobs.job import NoProgress
from trovemq_spark.jobs.rebuild import RebuildArguments, run
from trovemq_spark.rebuild.run import Rebuild, rebuild
from trovemq_spark.rebuild.sizes import FileSizes, complete
from trovemq_spark.rebuild.tasks import InThisProcess
from trovemq_spark.storage import Place

_BLANK = 0xCBD43194


def measure(session: SparkSession, store: Path, *, rounds: int = 5) -> dict[str, object]:
    """Medians in seconds, and the ratios to Spark's. The store was closed cleanly; it is only read."""
    with tempfile.TemporaryDirectory(dir=store.parent) as scratch:
        ways = _ways(session, store, Path(scratch))
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                if number:  # the first round warms the workers and the page cache
                    seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    log_bytes = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
    return {
        "logBytes": log_bytes,
        "rounds": rounds,
        "seconds": {name: round(value, 3) for name, value in medians.items()},
        "megabytesPerSecond": round(log_bytes / medians["spark"] / 1e6, 1),
        "repairToSpark": round(medians["repair"] / medians["spark"], 2),
        "oneProcessToSpark": round(medians["one_process"] / medians["spark"], 2),
        "plainToSpark": round(medians["plain"] / medians["spark"], 2),
    }


def _ways(session: SparkSession, store: Path, scratch: Path) -> dict[str, Callable[[], object]]:
    copy, out = scratch / "copy", scratch / "out"
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("commitlog"))
    (copy / "commitlog").symlink_to(store.absolute() / "commitlog")
    arguments = RebuildArguments(str(store), str(out / "spark"))
    sizes = complete(FileSizes(), Place(store))
    wanted = Rebuild(str(store), Place(out / "one_process"), sizes)
    return {
        "spark": lambda: run(session, arguments, NoProgress()),
        "one_process": lambda: rebuild(wanted, InThisProcess(), NoProgress()),
        "repair": lambda: repair(StoreView.open(copy), copy),
        "plain": lambda: rebuild_plainly(store, sizes),
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
