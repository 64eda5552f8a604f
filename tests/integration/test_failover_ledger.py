"""Failovers of a real group by a real etcd, under clients that use all that a broker offers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.integration.elected_nodes import STEP_S, ElectedNodes, elected_nodes
from tests.integration.failover_ledger import FailoverLedger
from tests.integration.test_failover import CREATE, Load
from tests.support.command_line import run_here
from tests.support.etcd_process import needs_etcd
from tests.support.trials import Trials

pytestmark = pytest.mark.slow

GOAL = "failover", "faults of a group that elects its leaders, under a ledger"
FAULTS = (
    ElectedNodes.killed,
    ElectedNodes.paused,
    ElectedNodes.cut_off,
    ElectedNodes.clock_stepped,
    ElectedNodes.store_removed,
    ElectedNodes.etcd_paused,
    ElectedNodes.etcd_killed,
    ElectedNodes.switched_over,
)
TOTAL = 48
DEFAULT = (0, 1, 2, 4)
KILLS = "failover", "leaders that are killed one after the other, under a ledger"
KILLS_TOTAL = 100
KILLS_DEFAULT = (0, 1)


def test_groups_timers_and_transactions_live_through_failovers(tmp_path: Path, trials: Trials) -> None:
    if shutil.which("etcd") is None:
        trials.skip(*GOAL, "no etcd in PATH: install the package etcd-server")
    numbers = list(trials.chosen(TOTAL, DEFAULT))
    with elected_nodes(tmp_path) as group:
        under_a_ledger(group, trials, numbers, FAULTS, early_s=STEP_S)
    trials.count(*GOAL, len(numbers))


def test_groups_timers_and_transactions_live_through_a_hundred_kills(tmp_path: Path, trials: Trials) -> None:
    """The machine of the killed process refuses connections: another node campaigns at once."""
    if shutil.which("etcd") is None:
        trials.skip(*KILLS, "no etcd in PATH: install the package etcd-server")
    numbers = list(trials.chosen(KILLS_TOTAL, KILLS_DEFAULT))
    with elected_nodes(tmp_path, by_links=False) as group:
        ledger = under_a_ledger(group, trials, numbers, (ElectedNodes.killed,))
        resumed_s = [ledger.resumed_s(*kill) for kill in group.kills]
        trials.figure(f"{percentiles(resumed_s)} until the first acknowledged send")
        trials.figure(f"{percentiles([took_s for _, took_s in group.took_s])} until another node served")
    trials.count(*KILLS, len(numbers))


def under_a_ledger(
    group: ElectedNodes,
    trials: Trials,
    numbers: Sequence[int],
    faults: Sequence[Callable[[ElectedNodes], None]],
    early_s: float = 0.0,
) -> FailoverLedger:
    """The faults of these numbers, one after the other. `early_s`: timers may be that early."""

    async def disturb() -> None:
        for number in numbers:
            await asyncio.sleep(1)
            with trials.one(number):
                await asyncio.to_thread(faults[number % len(faults)], group)
        await asyncio.to_thread(group.leader)

    async def scenario() -> FailoverLedger:
        ledger = FailoverLedger(group.addresses, early_s=early_s)
        await ledger.run(disturb)
        return ledger

    ledger = asyncio.run(scenario())
    print(ledger.summary(), [f"{cause} {took_s:.2f} s" for cause, took_s in group.took_s])
    assert ledger.faults == []
    assert all(ledger.acknowledged.values()), ledger.summary()
    return ledger


def percentiles(took_s: Sequence[float]) -> str:
    rising = sorted(took_s)
    p50, p99 = (rising[min(len(rising) - 1, len(rising) * part // 100)] for part in (50, 99))
    return f"{len(rising)} kills: p50 {p50:.2f} s, p99 {p99:.2f} s"


@needs_etcd
def test_a_planned_switch_over_fails_no_send(tmp_path: Path) -> None:
    with elected_nodes(tmp_path) as group:
        assert run_here(group.leader().address, *CREATE)[0] == 0
        load = Load(group.addresses)

        async def switch_over() -> None:
            for _ in range(2):
                await asyncio.sleep(1)
                await asyncio.to_thread(group.switched_over)
            await asyncio.to_thread(group.leader)

        async def scenario() -> int:
            return await load.run(asyncio.create_task(switch_over()))

        count = asyncio.run(scenario())
        print(f"longest send {load.longest_s:.2f} s of {len(load.sent)}")
        assert load.read == set(load.sent)
        assert count == len(load.sent), "no message was stored twice"
