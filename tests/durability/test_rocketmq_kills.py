"""R1 by RocketMQ's calls: a broker is killed under sends, receives, settlements, delays and transactions."""

from __future__ import annotations

from typing import Final

import pytest

from tests.durability.rocketmq_load import SETTINGS, TOPICS, Load
from tests.durability.verified_daemon import SMALL_FILES
from tests.support.trials import Trials
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

STORES: Final = 20
DEFAULT_STORES: Final = 1
KILLS: Final = 3
NEW_LINES: Final = (50, 600)
"""As many messages are acknowledged or settled between two kills."""


def test_a_broker_killed_under_rocketmqs_calls_keeps_its_promises(trials: Trials) -> None:
    for number in trials.numbers(STORES, default=DEFAULT_STORES):
        mode = "ASYNC_FLUSH" if number % 2 else "SYNC_FLUSH"
        settings = {**SMALL_FILES, **SETTINGS, "flushDiskType": mode}
        with trials.one(number) as source, BrokerProcess(ready_timeout=240, **settings) as broker:
            load = Load(broker.address, source)
            with load.running():
                for _ in range(KILLS):
                    load.wait_for_lines(source.randrange(*NEW_LINES))
                    load.kill(broker)
                load.wait_for_lines(NEW_LINES[0])
                load.drain()
            assert load.ledger.faults == []
            topics = {body.partition(b"-")[0].decode() for body in load.ledger.acknowledged}
            assert topics == TOPICS.keys()
        trials.count("v2", "kills of a daemon under RocketMQ's calls", KILLS)
