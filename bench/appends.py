"""Benchmark of Appender: processor time to check and append one batch, in memory, without its dispatch.

    python bench/appends.py                    a table
    python bench/appends.py --against TREE     beside it the same of another source tree, measured in turns

Each figure is the median of many rounds, in microseconds an append. "alike": records of one layout, "any": of
different sizes. With --against both trees run in separate processes, round by round in turns, and the
ratio is the median of the ratios of the rounds: above 1, this tree is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import thread_time_ns
from typing import Final

PACKAGES: Final = ("proto", "daemon", "store", "broker", "rpc", "clients/python")
ROUNDS: Final = 60
ROUND_US: Final = 6_000
TOPIC: Final = "orders"
HERE: Final = Path(__file__).resolve().parents[1]
CASES: Final = (
    *((f"{count} {kind}", count, 1) for kind in ("alike", "any") for count in (1, 4, 16, 32, 64, 1000)),
    ("8 queues x 2", 2, 8),
    ("8 queues x 8", 8, 8),
    ("4, sender by IPv6", 4, 1),
    ("64, sender by IPv6", 64, 1),
)
"""Name, records of a queue, queues."""


def serve() -> None:
    """Measures in this process: reads the number of a case per line, answers with nanoseconds per append."""
    from trovemq_broker.produce.append import Appender, AppendSettings
    from trovemq_broker.produce.group_commit import FlushSettings, GroupCommit
    from trovemq_proto.positions import EpochMs, QueueId
    from trovemq_proto.records import BatchEncoder, SingleRecords
    from trovemq_proto.records.columns import QueuePart
    from trovemq_store.engine.message_store import MessageStore
    from trovemq_store.files.memory import MemoryFileSystem
    from trovemq_store.settings import StoreSettings

    now_ms = EpochMs(1_700_000_000_000)

    def encoded(kind: str, count: int, queue_id: int) -> bytes:
        if "IPv6" in kind:
            singles = SingleRecords(
                TOPIC, queue_id, born_host=bytes(20), store_host=bytes(8), append_property_crc=True
            )
            return b"".join(
                singles.encode(b"v" * 200, b"UNIQ_KEY\x01%032d\x02" % number, now_ms)
                for number in range(count)
            )
        sizes = [200 + (number * 7 % 100 if "any" in kind else 0) for number in range(count)]
        return bytes(
            BatchEncoder(TOPIC, append_property_crc=True).encode(
                [bytes([size % 251]) * size for size in sizes],
                queue_id=queue_id,
                unique_keys=[f"{number:032}" for number in range(count)],
                keys=[f"k{number:06}" for number in range(count)],
                tags="paid",
                born_timestamp=now_ms,
            )
        )

    def prepared(name: str, count: int, queues: int) -> Callable[[], object]:
        settings = StoreSettings(
            flush_mode="async",
            message_index_enable=False,
            commit_log_file_size=1 << 28,
            undispatched_bytes_max=1 << 30,
        )
        store = MessageStore.open(MemoryFileSystem(), settings, now_ms, process_id=1)
        store.topics.create(TOPIC, queue_count=queues)
        commit = GroupCommit(store, FlushSettings(flush_mode="async"), lambda _: None)
        appender = Appender(store, commit, AppendSettings(), lambda: now_ms, lambda _: None)
        if queues == 1:
            data = encoded(name, count, 0)
            born_host = bytes(8)
            return lambda: appender.append(TOPIC, QueueId(0), data, born_host)
        parts = [QueuePart(TOPIC, queue_id, count) for queue_id in range(queues)]
        data = b"".join(encoded(name, count, queue_id) for queue_id in range(queues))
        return lambda: appender.append_joined(parts, bytearray(data))

    async def measure() -> None:
        works: dict[int, tuple[Callable[[], object], int]] = {}
        for line in sys.stdin:
            number = int(line)
            if number not in works:
                works.clear()
                work = prepared(*CASES[number])
                times = []
                for _ in range(20):
                    started = thread_time_ns()
                    work()
                    times.append(thread_time_ns() - started)
                    await asyncio.sleep(0)
                works[number] = work, max(3, ROUND_US * 1_000 // int(median(times)))
            work, appends = works[number]
            started = thread_time_ns()
            for _ in range(appends):
                work()
            spent = thread_time_ns() - started
            await asyncio.sleep(0)
            print(spent / appends, flush=True)

    asyncio.run(measure())


class Side:
    """A process that measures one source tree."""

    def __init__(self, tree: Path) -> None:
        paths = os.pathsep.join(str(tree / package) for package in PACKAGES)
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def round_us(self, number: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) / 1_000


def measured(trees: list[Path], rounds: int, chosen: str) -> Iterator[tuple[str, list[float], float]]:
    """(case, median microseconds of each tree, ratio of the last tree to the first)."""
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(tree)) for tree in trees]
        for number, (name, _, _) in enumerate(CASES):
            if chosen not in name:
                continue
            for side in sides:
                side.round_us(number)
            times = []
            for turn in range(rounds):
                order = list(enumerate(sides))[:: 1 if turn % 2 else -1]
                found = {index: side.round_us(number) for index, side in order}
                times.append([found[index] for index in range(len(sides))])
            medians = [median(row[index] for row in times) for index in range(len(sides))]
            yield name, medians, median(row[-1] / row[0] for row in times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Microseconds of processor time to check and append.")
    parser.add_argument("--against", type=Path, help="another source tree")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    trees = [HERE] if options.against is None else [HERE, options.against.resolve()]
    for name, medians, ratio in measured(trees, options.rounds, options.case):
        if options.json:
            print(json.dumps({"case": name, "us": medians, "ratio": ratio}), flush=True)
            continue
        print(f"{name:24}" + "".join(f"{each:10.2f}" for each in medians), end="")
        print(f"{ratio:10.3f}" if len(medians) > 1 else "", flush=True)


if __name__ == "__main__":
    main()
