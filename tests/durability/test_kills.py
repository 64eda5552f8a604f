"""R1: kill -9 at random moments under load, again and again in the same store; nothing acknowledged is lost.

The engine alone is killed in the middle of everything that it does (engine_load.py), and while
it recovers from the kill before. The daemon is killed under the producers of `trovemq verify`.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final

import pytest

import trovemq
from tests.durability.engine_process import Life
from tests.durability.killed_engine import SPIN_MAX, KilledEngine, Moment
from tests.durability.verified_daemon import SMALL_FILES, check, producers, wait_for_lines
from tests.support.trials import SOAK, Trials
from trovemq._verify.ledger import ACKNOWLEDGED, LedgerReader
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

STORES: Final = 9
DEFAULT_STORES: Final = 3
KILLS: Final = 20 if SOAK else 4
"""Of one store, one after another."""
STEPS_MAX: Final = 200
STEPS_OF_ONE_MAX: Final = 5
"""Steps of the load per acknowledged message, at most: the steps are drawn."""

DAEMONS: Final = 4
DEFAULT_DAEMONS: Final = 1
DAEMON_KILLS: Final = 5 if SOAK else 3
NEW_LINES: Final = (100, 400)
"""The acknowledgements between two kills."""
LOOK_UPS: Final = 20
LOOK_UPS_S_MAX: Final = 90.0


def life_of(directory: Path, number: int, life: int, *, steps: int = 0) -> Life:
    return Life(
        store=str(directory / "store"),
        ledger=str(directory / "ledger"),
        seed=f"{number} {life}",
        number=life,
        flush_mode="async" if number % 2 else "sync",
        property_crc=number % 4 < 2,
        steps=steps,
    )


@pytest.mark.parametrize("part", range(3))
def test_an_engine_killed_again_and_again_has_everything_acknowledged(
    part: int, trials: Trials, engine: KilledEngine, tmp_path: Path
) -> None:
    for number in trials.numbers(STORES, default=DEFAULT_STORES, part=part, parts=3):
        acknowledged = steps = 0
        directory = tmp_path / f"{number}"
        directory.mkdir()
        with trials.one(number) as source:
            for kill in range(KILLS):
                moment = Moment.draw(source, STEPS_MAX)
                steps += moment.steps
                acknowledged += engine.live(life_of(directory, number, kill), moment).acknowledged
            engine.live(life_of(directory, number, KILLS, steps=40), None)
            engine.live(life_of(directory, number, KILLS + 1, steps=1), None)
        trials.count("R1", "kills of a process that has the engine alone", KILLS)
        assert steps > KILLS * STEPS_MAX / 8, "not all kills come at the beginning"
        assert acknowledged * STEPS_OF_ONE_MAX >= steps, "too little was continuing"


async def look_up(broker: BrokerProcess, ledger: Path, source: random.Random) -> None:
    """Some that were acknowledged before the kill, by place and by key; the last ones always."""
    with LedgerReader(ledger) as reader:
        acknowledged = [entry for entry in reader.entries() if entry.outcome == ACKNOWLEDGED]
    chosen = acknowledged[-LOOK_UPS:] + source.sample(acknowledged, LOOK_UPS)
    async with asyncio.timeout(LOOK_UPS_S_MAX), trovemq.connect(broker.address) as client:
        for entry in chosen:
            message = await client.get_at("orders", entry.queue_id, entry.queue_offset)
            assert message.message_id == entry.message_id
            answer = await client.query("orders", entry.message_id)
            assert answer.complete
            assert entry.queue_offset in [one.queue_offset for one in answer.messages]


def test_a_daemon_killed_again_and_again_has_everything_acknowledged(trials: Trials, tmp_path: Path) -> None:
    for number in trials.numbers(DAEMONS, default=DEFAULT_DAEMONS):
        ledger = tmp_path / f"{number}.ledger"
        mode = "ASYNC_FLUSH" if number % 2 else "SYNC_FLUSH"
        with trials.one(number) as source, BrokerProcess(flushDiskType=mode, **SMALL_FILES) as broker:
            with producers(broker, ledger):
                for _ in range(DAEMON_KILLS):
                    wait_for_lines(ledger, source.randrange(*NEW_LINES))
                    for _ in range(source.randrange(SPIN_MAX)):
                        pass
                    broker.restart(kill=True)
                    asyncio.run(look_up(broker, ledger, source))
            assert check(broker, ledger) >= NEW_LINES[0] * DAEMON_KILLS
        trials.count("R1", "kills of the daemon", DAEMON_KILLS)
