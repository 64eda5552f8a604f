"""Every RPC of RocketMQ's services, as the broker serves them, against hostile requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any
from unittest.mock import patch

import pytest

from tests.durability.process_memory import kept_blocks, kept_kib
from tests.support.closed_generators import generators_closed
from tests.support.fake_loop import forget_cancelled_timers, run
from tests.support.fuzzed_broker import FED_EVERY, TOPIC_COUNT_MAX, Asked, FuzzedBroker
from tests.support.services_here import (
    ROCKETMQ,
    BrokerServices,
    Outcome,
    faults_seen,
    in_process,
    methods_of,
    small_broker_settings,
)
from tests.support.trials import SOAK, Trials
from trovemq_store.files.files import FileSystem
from trovemq_store.files.memory import MemoryFileSystem

INPUTS = 2_000 if SOAK else 60  # of one trial
TRIALS = 10
WARM_UP = 400  # of a soak's inputs, until everything that is loaded at the first use is there
AGAIN = 24
RECEIVE = "trovemq.rocketmq.v2.MessagingService.ReceiveMessage"
TIMES_OF = {RECEIVE: 5}
"""How often a pass makes the calls. Its blocks vary by a dozen, of leases and groups that end: of 24 calls
half a block each, which hid an object that each of them left."""
TICK_S = 0.05
PASSES = 3
GROWN_KIB_MAX = 6 << 10
"""How much memory the others may leave, the store's files among it. The inputs that the
test itself keeps do not count: of GetOffset these once were 10 MiB."""
LEFT_BLOCKS_MAX = 0.5
"""This many blocks of Python's objects a call may leave, beyond those of the messages sent in between, and
beyond objects that are kept with good reason (FuzzedBroker.accounted_blocks()): one object that is never
returned is seen. (A stream is one call, and has several inputs.)"""
LEFT_BLOCKS_MAX_OF = {
    "trovemq.v1.MessageService.Append": 2.0,
    "trovemq.v1.MessageService.Fetch": 1.5,
    "trovemq.rocketmq.v2.MessagingService.Telemetry": 1.5,
    "trovemq.v1.TransactionService.Transact": 0.75,  # committed ones are remembered, up to a limit
}
"""Streams, which are so few calls that chance counts for more."""
LEFT_AGAIN_MAX = 0.75
LEFT_AGAIN_MAX_OF = {
    "trovemq.v1.MessageService.Append": 2.0,
    "trovemq.v1.ProducerService.PrepareHalf": 2.0,
}
"""The same where the same calls are repeated, and nothing between them. Messages stored by Append stay, and
open transactions, up to a limit."""
GROWTH_SETTLE_S = 61
SETTLE_S = (1, *(GROWTH_SETTLE_S,) * 5)
"""Time for which the broker's own work continues after a pass, in each attempt. Most need one: the memory
that tables and caches take until they are full becomes less from attempt to attempt."""
SETTLE_S_OF = {
    RECEIVE: (241,) * 3,
    "trovemq.v1.MessageService.Append": (61,) * 5,
    "trovemq.v1.MessageService.Fetch": (61,) * 5,
    "trovemq.v1.TransactionService.Transact": (61,) * 5,
    "trovemq.v1.StoreService.Scrub": (61,) * 5,
}
"""Of calls that leave leases, or their own timers."""
METHODS = sorted(methods_of(ROCKETMQ))
LIMITS: dict[str, Any] = {
    "clients_max": 40,
    "timers_max": 400,
    "transactions_max": 100,
    "in_flight_max": 200,
}
LIMITS_OF: dict[str, dict[str, Any]] = {RECEIVE: {"receive_poll_min_ms": 5_000}}
"""Of other calls 0: each receive of the feeding that finds nothing would wait for that time."""


@contextmanager
def limited() -> Iterator[None]:
    """So few topics that the limit is reached, and so few ended transactions that are kept; and a small timer
    wheel: RocketMQ's has 38 MB."""
    with (
        patch("trovemq_store.topics.topics.TOPIC_COUNT_MAX", TOPIC_COUNT_MAX),
        patch("trovemq_broker.transactions.open_halves.ENDED_KEPT_MAX", 8),
        patch("trovemq_broker.timers.rocketmq_files.WHEEL_SLOTS", 600),
    ):
        yield


async def fuzz(
    name: str, files: FileSystem, power_cut: Callable[[], FileSystem], source: random.Random
) -> FuzzedBroker:
    """A whole trial; `power_cut` gives the bytes then on the disk."""
    with in_process(), limited():
        limits = {"receive_poll_min_ms": 0, **LIMITS, **LIMITS_OF.get(name, {})}
        broker = FuzzedBroker(files, small_broker_settings(**limits), source)
        with faults_seen(broker.calls), generators_closed():
            async with broker.working():
                if SOAK:
                    await broker.inputs(name, WARM_UP)
                    await check_growth(broker, name, INPUTS - WARM_UP)
                else:
                    await broker.inputs(name, INPUTS)
                await check_growth_again(broker, name)
            broker.check_tables()
            broker.check_recovered(power_cut())
        return broker


async def check_growth_again(broker: FuzzedBroker, name: str) -> None:
    """The latest calls are repeated several times: they leave no objects. Where one pass leaves something for
    good reason (a table grows, a lease begins), another one does not; an object that is never returned is
    left by every pass, in each of some attempts."""
    calls = list(broker.latest_of(name))[-AGAIN:] * TIMES_OF.get(name, 1)
    for settle_s in SETTLE_S_OF.get(name, SETTLE_S):
        left = await left_by_passes(broker, name, calls, settle_s)
        if median(left) <= LEFT_AGAIN_MAX_OF.get(name, LEFT_AGAIN_MAX):
            return
    raise AssertionError(f"{left} blocks a call remain")


async def left_by_passes(
    broker: FuzzedBroker, name: str, calls: Sequence[Asked], settle_s: float
) -> list[float]:
    """Memory blocks a call; the first pass, which warms up, does not count."""
    kept = []
    for _ in range(2 + PASSES):
        for requests, metadata in calls:
            await broker.call(name, requests, metadata)
        await settle(settle_s)
        forget_cancelled_timers()
        kept.append(kept_blocks() - broker.accounted_blocks())
    return [(after - before) / len(calls) for before, after in pairwise(kept[1:])]


async def settle(seconds: float) -> None:
    """Returns after the time, between two ticks of the background work: in the middle of one its objects
    would be counted."""
    await asyncio.sleep(seconds)
    await asyncio.sleep(1.5 * TICK_S - asyncio.get_running_loop().time() % TICK_S)


async def check_growth(broker: FuzzedBroker, name: str, count: int) -> None:
    """Inputs, which leave next to nothing once the broker's own work is done: what waits for the next
    batch of an index is not left."""

    async def kept() -> int:
        await settle(GROWTH_SETTLE_S)
        forget_cancelled_timers()
        return kept_blocks() - broker.accounted_blocks()

    before_feeding = await kept()
    for _ in range(count // FED_EVERY):
        await broker.feed()
    before = await kept()
    before_kib = kept_kib() - broker.kept_kib()
    calls_before = broker.outcomes.total()
    await broker.inputs(name, count)
    calls = broker.outcomes.total() - calls_before
    left = (await kept() - before - (before - before_feeding)) / calls
    assert left <= LEFT_BLOCKS_MAX_OF.get(name, LEFT_BLOCKS_MAX), f"{left:.2f} blocks a call remain"
    grown_kib = kept_kib() - broker.kept_kib() - before_kib
    assert grown_kib <= GROWN_KIB_MAX, f"{grown_kib} KiB more"


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_no_request_breaks_a_service_of_rocketmq(name: str, trials: Trials) -> None:
    for number in trials.numbers(TRIALS, default=1):
        with trials.one(number) as source:
            files = MemoryFileSystem()
            run(fuzz(name, files, files.after_power_cut, random.Random(f"{name} {source.random()}")))
            trials.count_each("S2", "inputs, to each RPC", name, INPUTS)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ReceiveMessage", "QueryRoute"])
def test_one_object_a_call_that_is_never_returned_is_seen(method: str) -> None:
    """Among groups and queue states, which a receive makes and which stay for good."""
    name, left = f"trovemq.rocketmq.v2.MessagingService.{method}", []
    call = BrokerServices.call

    async def leaking(self: BrokerServices, *arguments: Any) -> Outcome:
        left.append(object())
        return await call(self, *arguments)

    files = MemoryFileSystem()
    with (
        patch.object(BrokerServices, "call", leaking),
        pytest.raises(AssertionError, match="blocks a call remain"),
    ):
        run(fuzz(name, files, files.after_power_cut, random.Random(name)))


@pytest.mark.slow
def test_a_generator_that_nothing_closes_is_seen() -> None:
    """As each stream that a handler refused after its first request once left one, with the whole call."""

    async def numbers() -> AsyncGenerator[int, None]:
        for number in range(3):
            yield number

    async def read(*, closes: bool) -> None:
        with generators_closed():
            generator = numbers()
            await anext(generator)
            if closes:
                await generator.aclose()
            del generator

    run(read(closes=True))
    with pytest.raises(AssertionError, match="numbers"):
        run(read(closes=False))
