"""Every RPC of RocketMQ's services, as the broker serves them, against hostile requests."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from broker.storage.files import FileSystem
from broker.storage.memory import MemoryFileSystem
from tests.support.fake_loop import run
from tests.support.fuzzed_broker import TOPIC_COUNT_MAX, FuzzedBroker
from tests.support.process_memory import memory_kib
from tests.support.services_here import ROCKETMQ, faults_seen, in_process, methods_of, small_broker_settings
from tests.support.trials import Trials

INPUTS = 2_000  # of one trial
WARM_UP = 400  # of them, until what is loaded and kept at the first use is there
GROWN_KIB_MAX = 16 << 10
"""What the others may leave in memory, the store's files among it."""
METHODS = sorted(methods_of(ROCKETMQ))
LIMITS: dict[str, Any] = {"clients_max": 40, "timers_max": 400, "transactions_max": 100, "in_flight_max": 200}


@contextmanager
def limited() -> Iterator[None]:
    """So few topics that the limit is reached; and a small timer wheel: RocketMQ's has 38 MB."""
    with (
        patch("broker.topics.topics.TOPIC_COUNT_MAX", TOPIC_COUNT_MAX),
        patch("broker.timers.rocketmq_files.WHEEL_SLOTS", 600),
    ):
        yield


async def fuzz(
    name: str, files: FileSystem, power_cut: Callable[[], FileSystem], source: random.Random
) -> FuzzedBroker:
    """A whole trial; `power_cut` gives what the disk then has."""
    with in_process(), limited():
        broker = FuzzedBroker(files, small_broker_settings(**LIMITS), source)
        with faults_seen(broker.calls):
            async with broker.working():
                await broker.inputs(name, WARM_UP)
                gc.collect()
                before = memory_kib("VmRSS")
                await broker.inputs(name, INPUTS - WARM_UP)
                gc.collect()
                grown = memory_kib("VmRSS") - before
                assert grown <= GROWN_KIB_MAX, f"{grown} KiB more"
            broker.check_tables()
            broker.check_recovered(power_cut())
        return broker


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_no_request_breaks_a_service_of_rocketmq(name: str, trials: Trials) -> None:
    for number in trials.numbers(10, usual=2):
        with trials.one(number) as source:
            files = MemoryFileSystem()
            run(fuzz(name, files, files.after_power_cut, random.Random(f"{name} {source.random()}")))
            trials.count_each("S2", "inputs, to each RPC", name, INPUTS)
