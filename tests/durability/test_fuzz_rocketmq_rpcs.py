"""Every RPC of RocketMQ's services, as the broker serves them, against hostile requests."""

from __future__ import annotations

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
from tests.support.services_here import ROCKETMQ, faults_seen, in_process, methods_of, small_broker_settings
from tests.support.trials import Trials

INPUTS = 2_000  # of one trial
METHODS = sorted(methods_of(ROCKETMQ))
LIMITS: dict[str, Any] = {"clients_max": 40, "timers_max": 400, "transactions_max": 100, "in_flight_max": 200}


@contextmanager
def limited() -> Iterator[None]:
    """So few topics that the limit is reached."""
    with patch("broker.topics.topics.TOPIC_COUNT_MAX", TOPIC_COUNT_MAX):
        yield


async def fuzz(
    name: str, files: FileSystem, power_cut: Callable[[], FileSystem], source: random.Random
) -> FuzzedBroker:
    """A whole trial; `power_cut` gives what the disk then has."""
    with in_process(), limited():
        broker = FuzzedBroker(files, small_broker_settings(**LIMITS), source)
        with faults_seen(broker.calls):
            async with broker.working():
                await broker.inputs(name, INPUTS)
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
