"""A process that has the engine alone, for tests that kill it: `python -m tests.durability.engine_process`.

It imports everything once and has no thread. For each line of its standard input, a life as JSON, it forks a
child; the child opens the store, compares it with the ledger (oracle_check.py), puts load on it
(engine_load.py), and is killed from outside. Lines of the standard output:

    pid N            a child began
    open             it opens the store
    checked N        the store had everything; N acknowledged messages in all
    step N           one step more; N acknowledgements in this life
    done             a life that was to end without a kill has ended
    failed TEXT      as JSON: an assertion did not hold
    ended            the child has
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from tests.durability.engine_load import GROUP, LEASE_MS, LIFE_MS, EngineLoad
from tests.durability.oracle import QUEUES, TOPIC, WORKERS, History, Ledger, may_be_twice
from tests.durability.oracle_check import StoreCheck
from tests.support.engine import NOW_MS, SMALL
from tests.support.settling import acknowledge_all
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.fault_points import armed
from trovemq_store.files.real import RealFileSystem
from trovemq_store.log.commit_log import FlushWork
from trovemq_store.settings import FlushMode

KILLED: Final = 9
"""The exit code of a process that ended at a fault point."""
STEPS_MAX: Final = 20_000
"""Of a life that is not killed: it has failed."""
CONSUMERS: Final = ConsumerSettings(new_group_start="begin")
SETTINGS: Final = replace(
    SMALL,
    commit_log_file_size=65_536,
    consume_queue_file_size=20 * 100,
    index_slot_count=32,
    index_item_count=512,
)
EMPTY_RECEIVES: Final = 3 * QUEUES
RECEIVES_MAX: Final = 10_000


class Life(msgspec.Struct, kw_only=True):
    """One child. `steps` 0: until it is killed; else it receives everything after them, and stops."""

    store: str
    ledger: str
    seed: str
    number: int
    flush_mode: FlushMode = "sync"
    property_crc: bool = True
    steps: int = 0
    after_power_cut: bool = False
    ends_at: str = ""
    """A fault point at whose `ends_at_pass`-th pass the process ends, with nothing closed."""
    ends_at_pass: int = 1
    without_sync: bool = False
    """A planted fault: group commits sync nothing, and say that they did."""


def say(*words: object) -> None:
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


def live(life: Life) -> None:
    """The whole of one life."""
    if life.without_sync:
        setattr(FlushWork, "run", lambda _work: None)  # noqa: B010  mypy takes no assignment to a method
    settings = replace(SETTINGS, flush_mode=life.flush_mode, append_property_crc=life.property_crc)
    now_ms = NOW_MS + life.number * LIFE_MS
    source = random.Random(life.seed)
    ledger = Ledger(Path(life.ledger))
    history = History.read(Path(life.ledger))
    files = RealFileSystem(life.store)
    say("open")
    store = MessageStore.open(files, settings, now_ms, process_id=os.getpid())
    store.index_later()
    model = ConsumerState.open(store, files, CONSUMERS, now_ms)
    StoreCheck(store, model, history, ledger, after_power_cut=life.after_power_cut).run(source)
    if store.topics.get(TOPIC) is None:
        store.topics.create(TOPIC, queue_count=QUEUES)
    say("checked", history.acknowledged_count)
    load = EngineLoad(
        store,
        model,
        history,
        ledger,
        source,
        life=life.number,
        now_ms=now_ms,
        reported=lambda count: say("step", count),
    )
    load.run(life.steps or STEPS_MAX)
    assert life.steps, "nobody killed this process"
    end_ms = now_ms + LIFE_MS
    drain(store, model, History.read(Path(life.ledger)), ledger, end_ms)
    model.export_to_rocketmq(end_ms)
    store.close(end_ms)


def drain(
    store: MessageStore, model: ConsumerState, history: History, ledger: Ledger, now_ms: EpochMs
) -> None:
    """The group receives whatever it has not consumed, and nothing that it has."""
    consumed, empty = history.consumed(store.end_offset), 0
    received: set[str] = set()
    now_ms += LEASE_MS
    for _ in range(RECEIVES_MAX):
        request = ReceiveRequest(group=GROUP, topic=TOPIC, invisible_ms=LEASE_MS, now_ms=now_ms)
        delivered = model.delivery.receive(request)
        ids = [decode_message(one.record).unique_key or "" for one in delivered]
        ledger.add("take", ids)
        received |= set(ids)
        handles = [one.receipt_handle for one in delivered]
        assert not any(acknowledge_all(model.delivery, WORKERS, TOPIC, handles, now_ms))
        empty = 0 if delivered else empty + 1
        if empty == EMPTY_RECEIVES:
            break
    model.events.flush(now_ms)
    again = sorted(one for one in received & consumed if not may_be_twice(one))
    assert not again, f"consumed and delivered again: {again}"
    there = {
        message.unique_key or ""
        for _, records, _ in store.scan(store.min_offset, store.visible_offset)
        for message in records.messages()
        if message.topic == TOPIC
    }
    outstanding = there - history.take_tried - received
    assert not outstanding, f"never delivered: {sorted(outstanding)}"


def _end(life: Life) -> Callable[[str], None]:
    passes = itertools.count(1)

    def act(name: str) -> None:
        if name == life.ends_at and next(passes) == life.ends_at_pass:
            os._exit(KILLED)

    return act


def child(line: str) -> int:
    """The child's exit code."""
    say("pid", os.getpid())
    life = msgspec.json.decode(line, type=Life)
    try:
        with armed(_end(life)) if life.ends_at else nullcontext():
            live(life)
    except BaseException:
        say("failed", json.dumps(traceback.format_exc()[-6_000:]))
        return 1
    say("done")
    return 0


def main() -> None:
    """Serves until the standard input ends."""
    ended = 0
    for line in sys.stdin:
        if ended:
            os.waitpid(ended, 0)  # only now: until here its id was no other process's
        pid = os.fork()
        if pid == 0:
            os._exit(child(line))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        say("ended")
        ended = pid


if __name__ == "__main__":
    main()
