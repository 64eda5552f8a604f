"""The leader of a replica group is killed under load, and another node is promoted: clients continue.
Three real nodes and a nameserver."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import grpc
import pytest

import trovemq
from tests.integration.rocketmq_cluster import ClusterClient
from tests.integration.test_cluster_local import Command, running
from tests.integration.test_replica_groups import NAMES, SMALL, in_sync, leads, objects, until
from tests.support.command_line import run_here
from tests.support.fork_server import popen
from tests.support.rocketmq_client import RawClient, message
from tests.support.trials import SOAK
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

pytestmark = pytest.mark.slow

FIRST, SECOND, THIRD = NAMES
CREATE = ("topic", "create", "orders", "--queues", "2", "--deduplicate", "1h")
RUN_S = 8.0
BEFORE_KILL_S = 2.0
AFTERWARDS_S = 3.0


def promote(command: Command, node: str) -> None:
    (promoted,) = objects(str(command.rows[node]["address"]), "cluster", "promote", node)
    assert promoted["leader"] == node


def kill(command: Command, node: str) -> None:
    os.kill(command.rows[node]["pid"], signal.SIGKILL)


def ready(command: Command) -> None:
    command.until_ready()
    until("all are in sync", lambda: in_sync(command, FIRST))


class Load:
    """A numbered producer and a member of a group, by one client. Nothing they do may raise an error."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers
        self.sent: list[bytes] = []
        self.longest_s = 0.0
        self.read: set[bytes] = set()
        self._stop = asyncio.Event()
        self._has_read = asyncio.Event()

    async def run(self, disturb: asyncio.Task[None]) -> int:
        """Until `disturb` is done, and AFTERWARDS_S longer. Returns how many messages the topic has."""
        async with trovemq.connect(list(self._servers)) as client:
            async with asyncio.TaskGroup() as group:
                producing = group.create_task(self._produce(client))
                reading = group.create_task(self._consume(client))
                await disturb
                await asyncio.sleep(AFTERWARDS_S)
                self._stop.set()
                await producing
                async with asyncio.timeout(60):
                    while not self.read >= set(self.sent):
                        self._has_read.clear()
                        await self._has_read.wait()
                reading.cancel()
            return sum(one.max_offset - one.min_offset for one in await client.queue_offsets("orders"))

    async def _produce(self, client: trovemq.Client) -> None:
        async with client.producer("orders", idempotent=True) as producer:
            while not self._stop.is_set():
                body, began = b"%d" % len(self.sent), time.monotonic()
                receipt = await producer.send(body, keys="k")
                assert (receipt.status, receipt.copies >= 2) == ("PUT_OK", True), receipt
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.sent.append(body)

    async def _consume(self, client: trovemq.Client) -> None:
        async with client.subscribe("orders", "readers", start="earliest") as subscription:
            async for one in subscription:
                async with one:
                    self.read.add(one.body)
                self._has_read.set()


async def disturbed(command: Command) -> None:
    await asyncio.sleep(BEFORE_KILL_S)
    await asyncio.to_thread(kill, command, FIRST)
    await asyncio.to_thread(promote, command, SECOND)


@pytest.mark.parametrize("by", ["nameserver", FIRST, *([THIRD] if SOAK else [])])
def test_producers_and_consumers_live_through_a_failover(tmp_path: Path, by: str) -> None:
    """By a nameserver, by the address of the node that dies, and by that of a follower."""
    with running(tmp_path, "--nodes", "3", *SMALL) as command:
        ready(command)
        command.run(*CREATE)
        load = Load([str(command.rows[by]["address"])])

        async def scenario() -> int:
            return await load.run(asyncio.create_task(disturbed(command)))

        count = asyncio.run(scenario())
        assert load.read == set(load.sent), "each acknowledged message was consumed"
        assert count == len(load.sent), "no message was stored twice"
        assert load.longest_s < 15
        assert leads(command, SECOND)
        assert command.ended(signal.SIGTERM)[0] == 0


@contextmanager
def trove(
    command: Command, *line: str, stdout: IO[bytes] | int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """A running command, gone at the end of the block. A pipe that is not read stops it after 64 KiB."""
    started = [sys.executable, "-m", "trovemq.cli", "--server", command.server, "--json", *line]
    pipe = subprocess.PIPE
    with popen(started, stdin=pipe, stdout=stdout, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_commands_live_through_a_failover(tmp_path: Path) -> None:
    """verify produce, produce and consume; then everything that was acknowledged is read back."""
    with running(tmp_path, "--nodes", "3", *SMALL) as command, ExitStack() as stack:
        ready(command)
        command.run(*CREATE)
        command.run("topic", "create", "verified", "--queues", "2")
        ledger = tmp_path / "ledger"
        arguments = ("--rate", "300", "--seconds", str(RUN_S), "--ledger", str(ledger))
        verifying = stack.enter_context(trove(command, "verify", "produce", "verified", *arguments))
        producing = stack.enter_context(trove(command, "produce", "orders", "-"))
        reading = ("consume", "orders", "--group", "readers", "--start", "earliest")
        consumed = stack.enter_context((tmp_path / "consumed").open("w+b"))
        consuming = stack.enter_context(trove(command, *reading, stdout=consumed))
        assert producing.stdin is not None
        ends, lines = time.monotonic() + RUN_S, 0
        killed = False
        while time.monotonic() < ends:
            producing.stdin.write(b"line %d\n" % lines)
            producing.stdin.flush()
            lines += 1
            if not killed and time.monotonic() > ends - RUN_S + BEFORE_KILL_S:
                killed = True
                kill(command, FIRST)
                promote(command, SECOND)
            time.sleep(0.005)
        out, err = producing.communicate(timeout=120)
        assert producing.returncode == 0, err
        out, err = verifying.communicate(timeout=240)
        assert verifying.returncode == 0, err
        summary = json.loads(out)
        assert summary["acknowledged"] == summary["sent"] > 0
        (report,) = objects(command.server, "verify", "check", "--ledger", str(ledger))
        assert (report["wrong"], report["faults"]) == (0, [])
        assert asyncio.run(count_of(command.server)) == lines, "no line was stored twice, and none is missing"
        until("the member has all", lambda: lag(command) == 0)
        assert consuming.poll() is None
        consuming.send_signal(signal.SIGINT)
        _, err = consuming.communicate(timeout=60)
        consumed.seek(0)
        assert len({json.loads(one)["body"] for one in consumed}) == lines, err
        assert command.ended(signal.SIGTERM)[0] == 0


async def count_of(server: str) -> int:
    async with trovemq.connect(server) as client:
        return sum(one.max_offset - one.min_offset for one in await client.queue_offsets("orders"))


def lag(command: Command) -> int:
    code, out, _ = run_here(command.server, "group", "lag", "readers")
    return -1 if code else sum(json.loads(one).get("lag") or 0 for one in out.splitlines())


def test_a_client_of_rocketmq_at_a_follower_lives_through_a_failover(tmp_path: Path) -> None:
    """It knows the address of one node, and nothing of groups."""
    with running(tmp_path, "--nodes", "3", *SMALL) as command:
        ready(command)
        command.run(*CREATE)
        address = str(command.rows[THIRD]["address"])
        with ClusterClient(address, "workers", "orders") as client:
            client.until(lambda shown: shown == {"broker-1": "READ_WRITE"})
            at = [f"{one.host}:{one.port}" for one in client.route()[0].broker.endpoints.addresses]
            assert at[0] == command.rows[FIRST]["address"]
            assert sorted(at[1:]) == sorted(str(command.rows[name]["address"]) for name in (SECOND, THIRD))
        with RawClient(address, "client-1") as raw:
            kept = [send_raw(raw, b"1")]
            assert pulled(raw) == [b"1"], "of the leader, because the protocol has no word for a lag"
            kill(command, FIRST)
            promote(command, SECOND)
            until("the follower forwards to the next leader", lambda: has_sent(raw, kept))
            assert sorted(set(pulled(raw))) == [b"1", b"2"]
        with ClusterClient(address, "workers", "orders") as client:
            client.until(lambda shown: shown == {"broker-1": "READ_WRITE"})
            route = client.route()[0].broker.endpoints.addresses[0]
            assert f"{route.host}:{route.port}" == command.rows[SECOND]["address"]
        assert command.ended(signal.SIGTERM)[0] == 0


def send_raw(client: RawClient, body: bytes) -> str:
    request = service.SendMessageRequest(messages=[message("orders", body)])
    reply = client.call("SendMessage", request, service.SendMessageResponse)
    assert reply.status.code == v2.OK, reply.status
    return str(reply.entries[0].message_id)


def pulled(client: RawClient) -> list[bytes]:
    """The messages of both queues."""
    bodies: list[bytes] = []
    for queue_id in (0, 1):
        queue = v2.MessageQueue(topic=v2.Resource(name="orders"), id=queue_id)
        request = service.PullMessageRequest(
            group=v2.Resource(name="readers"), message_queue=queue, batch_size=32
        )
        replies = client.stream("PullMessage", request, service.PullMessageResponse)
        bodies += [one.message.body for one in replies if one.WhichOneof("content") == "message"]
    return bodies


def has_sent(client: RawClient, kept: list[str]) -> bool:
    try:
        kept.append(send_raw(client, b"2"))
    except (AssertionError, grpc.RpcError):
        return False
    return True
