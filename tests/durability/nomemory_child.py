"""A process whose allocations fail on purpose: forks a child for each trial, in which one call of the engine
runs with its n-th allocation failing.

    python -m tests.durability.nomemory_child DIRECTORY OPERATION:N...

Each child works in DIRECTORY/OPERATION-N, made as a copy of the prepared store, and then ends. Exit code
0 = the call came through, 1 = it raised, 2 = it raised and the engine took more messages after that and
acknowledged them, anything else = the process died in it. A line for each goes to the output.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.support.engine import NOW_MS, SMALL, append, append_batch, flush, record
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_page
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.timers import rocketmq_files
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.validate import validate_batch
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

SETTINGS: Final = replace(SMALL, commit_log_file_size=1 << 16, index_item_count=512, flush_mode="sync")
CONSUMERS: Final = ConsumerSettings(new_group_start="begin", timer_log_file_size=52 * 64)
MESSAGES: Final = 30
NEW: Final = 2
FIRST_LATER: Final = 500
WENT_ON: Final = 2
DUE_MS: Final = EpochMs(NOW_MS + 1_000)
LATER_MS: Final = EpochMs(NOW_MS + 10_000)


def bodies(first: int, count: int) -> list[bytes]:
    return [f"{number:04d}".encode() * 20 for number in range(first, first + count)]


def encoded(first: int, count: int) -> list[bytes]:
    return [
        record(body, keys=f"k{body[:4].decode()} all", append_property_crc=SETTINGS.append_property_crc)
        for body in bodies(first, count)
    ]


class Engine:
    """The prepared store, opened: MESSAGES acknowledged messages, two timers, an open transaction."""

    def __init__(self, root: Path) -> None:
        rocketmq_files.WHEEL_SLOTS = 4_096  # type: ignore[misc]
        self.store = MessageStore.open(RealFileSystem(root), SETTINGS, NOW_MS)
        self.model = ConsumerState.open(self.store, RealFileSystem(root), CONSUMERS, NOW_MS)
        self.group = SubscriptionGroup("workers")

    def prepare(self) -> None:
        for topic in ("orders", "later", "deals"):
            self.store.topics.create(topic, queue_count=1)
        append(self.store, *encoded(0, MESSAGES))
        for number in range(2):
            one = NewRecord("later", QueueId(0), b"timer%d" % number, {"UNIQ_KEY": f"t{number}"}, NOW_MS)
            self.model.timers.schedule(one, DUE_MS, NOW_MS)
        self.model.transactions.prepare(
            NewRecord("deals", QueueId(0), b"deal", {"UNIQ_KEY": "deal"}, NOW_MS), NOW_MS
        )
        self.sync()

    def sync(self) -> None:
        flush(self.store)
        self.store.dispatch()
        self.model.timers.catch_up()
        self.model.transactions.catch_up()

    def operation(self, name: str) -> Callable[[], object]:
        """One call of the engine; its arguments are made before."""
        store, model = self.store, self.model
        if name == "append":
            data = bytearray().join(encoded(MESSAGES, NEW))
            batch = validate_batch(
                data,
                topic="orders",
                queue_id=0,
                body_size_max=SETTINGS.body_size_max,
                store_host_ipv6=False,
                append_property_crc=SETTINGS.append_property_crc,
            )
            return lambda: append_batch(store, batch, now_ms=LATER_MS)
        if name == "flush":
            append(store, *encoded(MESSAGES, NEW))
            return lambda: flush(store)
        if name == "dispatch":
            append(store, *encoded(MESSAGES, NEW))
            work = store.begin_flush()
            assert work is not None
            work.run()
            return lambda: store.finish_flush(work)
        operations: dict[str, Callable[[], object]] = {
            "projections": lambda: store.flush_projections(index=True),
            "query": lambda: query_page(store, KeyQuery("orders", "all", KeyType.KEY)),
            "pull": lambda: [
                store.record_at(PhysicalOffset(int(u["physical_offset"]))) for u in self.units()
            ],
            "timers": lambda: model.timers.deliver_due(LATER_MS),
            "commit": lambda: model.transactions.end("deal", "deals", True, LATER_MS),
            "receive": lambda: model.delivery.receive(
                ReceiveRequest(group=self.group, topic="orders", invisible_ms=60_000, now_ms=LATER_MS)
            ),
            "snapshot": lambda: run(model.begin_snapshot(LATER_MS, always=True)),
        }
        return operations[name]

    def units(self) -> Any:
        queue = self.store.consume_queues.get("orders", QueueId(0))
        assert queue is not None
        return queue.units(QueueOffset(0), queue.max_offset)


def run(work: Any) -> None:
    work.run()


ALLOCATIONS: Final = {
    "append": 310,
    "flush": 430,
    "dispatch": 410,
    "projections": 340,
    "query": 3_900,
    "pull": 2_700,
    "timers": 1_100,
    "commit": 1_100,
    "receive": 3_200,
    "snapshot": 220,
}
"""How many each call makes, about: the trials lie all over it."""
OPERATIONS: Final = tuple(ALLOCATIONS)


def trial(engine: Engine, name: str, nth: int) -> int:
    """In the child. Allocations from the nth on fail: one, and then it is as before."""
    import _testcapi  # type: ignore[import-not-found]

    call = engine.operation(name)
    gc.disable()
    code = 0
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        call()
    except BaseException:
        code = 1
    _testcapi.remove_mem_hooks()
    return WENT_ON if code and went_on(engine) else code


def went_on(engine: Engine) -> bool:
    """The engine takes more after the failure, as a daemon does that answered one request with an error."""
    try:
        append(engine.store, *encoded(FIRST_LATER, NEW), now_ms=LATER_MS)
        engine.sync()
    except Exception:
        return False
    return True


def main(directory: Path, trials: list[str]) -> None:
    prepared = directory / "prepared"
    engine = Engine(prepared)
    engine.prepare()
    engine.store.flush_projections(index=True)
    del engine
    for text in trials:
        name, _, nth = text.partition(":")
        root = directory / f"{name}-{nth}"
        shutil.copytree(prepared, root)
        child = os.fork()
        if child == 0:
            os._exit(trial(Engine(root), name, int(nth)))
        _, status = os.waitpid(child, 0)
        print(f"{text} {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
