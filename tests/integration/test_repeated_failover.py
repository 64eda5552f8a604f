"""Two leaders of a replica group are killed under load, and the nodes choose the next ones by etcd: clients
of the nameserver continue, and followers answer reads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.test_cluster_local import Command, running
from tests.integration.test_fail_over import ETCD, leader_of, next_leader
from tests.integration.test_failover import CREATE, Load, has_sent, send_raw
from tests.integration.test_replica_groups import NAMES, in_sync, objects, until
from tests.support.command_line import run_here
from tests.support.etcd_process import needs_etcd
from tests.support.rocketmq_client import RawClient
from tests.support.trials import SOAK

pytestmark = [pytest.mark.slow, needs_etcd]

KILLS = 2
READS = ("--set", "read_from_replicas=true")


def kill_and_wait(command: Command, took_s: list[float]) -> None:
    """Until another node leads, and the killed one is in sync again. A follower answers a query meanwhile."""
    former = leader_of(command)
    os.kill(command.rows[former]["pid"], signal.SIGKILL)
    leader, seconds = next_leader(command, former)
    took_s.append(seconds)
    (follower,) = (one for one in NAMES if one not in (former, leader))
    server = f"trovemq://{command.rows[follower]['address']}?replica=true"
    until("the follower answers", lambda: run_here(server, "query", "orders", "k")[0] == 0)
    until("all are in sync", lambda: in_sync(command, leader))


async def kills(command: Command, took_s: list[float]) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(1)
        await asyncio.to_thread(kill_and_wait, command, took_s)


@pytest.mark.skipif(not SOAK, reason="in make soak")
def test_producers_and_consumers_live_through_two_leaders(tmp_path: Path) -> None:
    took_s: list[float] = []
    with running(tmp_path, *ETCD, *READS) as command:
        command.until_ready()
        leader_of(command)
        command.run(*CREATE)
        load = Load([command.server])

        async def scenario() -> int:
            return await load.run(asyncio.create_task(kills(command, took_s)))

        count = asyncio.run(scenario())
        assert load.read == set(load.sent), "each acknowledged message was consumed"
        assert count == len(load.sent), "no message was stored twice"
        assert load.longest_s < 15
        leader = leader_of(command)
        follower = next(one for one in NAMES if one != leader)
        server = f"trovemq://{command.rows[follower]['address']}?replica=true"
        code, _, err = run_here(server, "--json", "query", "orders", "k")
        assert code == 0, err
        assert json.loads(err)["replica"]["lagBytes"] == 0
        print(f"leaders after {took_s} s, longest send {load.longest_s:.2f} s, {len(load.sent)} messages")
        assert command.ended(signal.SIGTERM)[0] == 0


def test_a_client_of_rocketmq_at_a_follower_lives_through_two_leaders(tmp_path: Path) -> None:
    """It knows the address of one node, and nothing of groups."""
    with running(tmp_path, *ETCD) as command:
        command.until_ready()
        first = leader_of(command)
        command.run(*CREATE)
        follower = next(one for one in NAMES if one != first)
        with RawClient(str(command.rows[follower]["address"]), "client-1") as raw:
            kept = [send_raw(raw, b"1")]
            killed: list[str] = []
            for _ in range(KILLS):
                former = leader_of(command)
                if former == follower:
                    former = next(one for one in NAMES if one not in (follower, *killed))
                    objects(
                        str(command.rows[follower]["address"]),
                        "cluster",
                        "switch-over",
                        "broker-1",
                        "--to",
                        former,
                    )
                    until("the planned leader has the message", lambda: has_sent(raw, kept))
                    leader_of(command)
                began = time.monotonic()
                os.kill(command.rows[former]["pid"], signal.SIGKILL)
                until("the next leader has the message", lambda: has_sent(raw, kept))
                print(f"sent again after {time.monotonic() - began:.2f} s")
                next_leader(command, former)
                killed.append(former)
        assert len(set(kept)) == len(kept) > KILLS
        assert command.ended(signal.SIGTERM)[0] == 0
