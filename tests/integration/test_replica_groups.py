"""Replica groups with real nodes: `cluster local --nodes`, kills, promotion, a lost disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest

from tests.integration.test_cluster_local import Command, running
from tests.support.command_line import run_here
from tests.support.fork_server import popen
from trovemq._common.loopback_ports import kept_port, port_of
from trovemq_proto.forwarding import REDIRECTS_KEY
from trovemq_proto.v1 import common_pb2

pytestmark = pytest.mark.slow

WAIT_S_MAX = 60
TOPIC = "letters"
SMALL = (
    *("--set", "commit_log_file_size=16777216", "--set", "auto_create_topic_enable=true"),
    *("--set", "replica_ack_timeout_ms=60000"),  # a busy machine ends no send
)
NAMES = ["broker-1-1", "broker-1-2", "broker-1-3"]


def until(what: str, found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def objects(server: str, *line: str) -> list[dict[str, Any]]:
    code, out, err = run_here(server, "--json", *line)
    assert code == 0, err
    return [json.loads(one) for one in out.splitlines()]


def group(command: Command, node: str) -> dict[str, Any]:
    """The group by one of its nodes."""
    (found,) = objects(str(command.rows[node]["address"]), "cluster", "status")
    return found


def role_of(command: Command, node: str) -> dict[str, Any] | None:
    """The group by one of its nodes; None while the node changes its role: its address is closed then."""
    code, out, _ = run_here(str(command.rows[node]["address"]), "--json", "cluster", "status")
    found: dict[str, Any] | None = json.loads(out) if code == 0 and out else None
    return found


def leads(command: Command, node: str) -> bool:
    found = role_of(command, node)
    return found is not None and (found["leader"], _role(found, node)) == (node, "leader")


def _role(found: Mapping[str, Any], node: str) -> str:
    (role,) = (str(one["role"]) for one in found["nodes"] if one["node"] == node)
    return role


def in_sync(command: Command, node: str) -> bool:
    """Whether all nodes are in sync, and have all of the log."""
    found = role_of(command, node)
    if found is None:
        return False
    return bool(found["in_sync"] == NAMES and {one["lag_bytes"] for one in found["nodes"]} == {0})


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a node, by its HTTP."""
    with urlopen(f"http://{row['http']}/replica", timeout=WAIT_S_MAX) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def log_of(command: Command, node: str, end: int) -> bytes:
    segments = sorted((Path(command.rows[node]["store"]) / "commitlog").iterdir())
    return b"".join(one.read_bytes() for one in segments)[:end]


def consumers(command: Command, node: str) -> bytes:
    """The saved state of the consumers; empty if there is none."""
    path = Path(command.rows[node]["store"]) / "trovemq/consumers.snapshot"
    return path.read_bytes() if path.exists() else b""


def send(server: str, count: int, first: int = 0) -> set[str]:
    """Sends messages, each acknowledged."""
    sent = set()
    for number in range(first, first + count):
        (receipt,) = objects(server, "send", TOPIC, f"letter {number}", "--key", "k")
        sent.add(receipt["messageId"])
    return sent


def stored(server: str) -> set[str]:
    return {one["messageId"] for one in objects(server, "query", TOPIC, "k")}


def refusals(follower: str, *, leader: str, address: str) -> None:
    """A follower names the leader to a client that goes there itself, and says that it did nothing."""
    with grpc.insecure_channel(follower) as channel:
        send = channel.unary_unary("/trovemq.v1.MessageService/Send", response_deserializer=bytes)
        with pytest.raises(grpc.RpcError) as refused:
            send(b"", timeout=WAIT_S_MAX, metadata=((REDIRECTS_KEY, "1"),))
        trailers = dict(refused.value.trailing_metadata())
        error = common_pb2.Error.FromString(trailers["trovemq-error-bin"])
        assert (error.symbol, error.fields["leader"]) == ("NOT_LEADER", leader)
        assert (error.fields["address"], error.fields["unread"]) == (address, "true")


def test_a_group_lives_through_the_loss_of_its_leader_and_of_a_disk(tmp_path: Path) -> None:
    with running(tmp_path, "--nodes", "3", *SMALL) as command:
        command.until_ready()
        first, second, third = NAMES
        rows = dict(command.rows)
        assert [(row["role"], row["name"], row["group"]) for row in rows.values()] == [
            ("nameserver", "nameserver", None),
            *(("broker", name, "broker-1") for name in NAMES),
        ]
        until("the first node leads", lambda: leads(command, first))
        until("all are in sync", lambda: in_sync(command, first))

        sent = send(command.server, 5)
        objects(command.server, "group", "offset", "commit", "auditors", TOPIC, "0", "0")
        until("the copies have all", lambda: in_sync(command, first))
        until(
            "the copies have the consumers' state",
            lambda: len({consumers(command, one) for one in NAMES}) == 1,
        )
        assert consumers(command, second), "a promotion continues from it"
        end = group(command, first)["nodes"][0]["end"]
        logs = {log_of(command, name, end) for name in NAMES}
        assert len(logs) == 1, "the logs are equal byte for byte"

        refusals(str(rows[second]["address"]), leader=first, address=str(rows[first]["address"]))

        # The command starts the killed leader again; it follows, or steps down for the promotion.
        os.kill(rows[first]["pid"], signal.SIGKILL)
        (promoted,) = objects(str(rows[second]["address"]), "cluster", "promote", second)
        assert promoted["leader"] == second
        until("the promoted node leads", lambda: leads(command, second))
        until("the former leader follows", lambda: in_sync(command, second))
        (kept,) = objects(str(rows[second]["address"]), "group", "offset", "get", "auditors", TOPIC, "0")
        assert kept["offset"] == 0, "no event has it, and it was in the file of the former leader"
        sent |= send(str(rows[second]["address"]), 2, first=5)
        assert stored(str(rows[second]["address"])) == sent, "all that was acknowledged is read"

        pid = next(row["pid"] for row in command.rows.values() if row["name"] == third)
        os.kill(pid, signal.SIGKILL)
        shutil.rmtree(rows[third]["store"])
        until("the empty node has all", lambda: in_sync(command, second))
        end = max(one["end"] for one in group(command, second)["nodes"])
        assert log_of(command, third, end) == log_of(command, second, end)
        code, notes = command.ended(signal.SIGTERM)
        assert code == 0, notes

    with running(tmp_path, "--nodes", "3", *SMALL) as command:
        command.until_ready()
        until("the last leader leads again", lambda: leads(command, second))
        assert stored(str(command.rows[second]["address"])) == sent
        assert command.ended(signal.SIGTERM)[0] == 0


def test_three_new_nodes_whose_callers_log_in_found_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no users yet, and ask each other all the same."""
    with running(tmp_path, "--nodes", "3", "--set", "authentication_enable=true", *SMALL) as command:
        command.until_ready()
        first = command.rows[NAMES[0]]
        until("all are in sync", lambda: shown(first)["in_sync"] == NAMES)
        assert run_here(str(first["address"]), "send", TOPIC, "without a log-in")[0] != 0
        admin = Path(first["store"]).with_name("store.admin-credentials")
        monkeypatch.setenv("TROVEMQ_CREDENTIALS", str(admin))
        (receipt,) = objects(str(first["address"]), "send", TOPIC, "with one")
        assert receipt["copies"] == 3
        members = json.loads((tmp_path / "cluster.json").read_bytes())["members"]
        port = next(one["replication_port"] for one in members if one["name"] == NAMES[0])
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary("/trovemq.v1.ReplicationService/GetStatus", response_deserializer=bytes)
            with pytest.raises(grpc.RpcError) as refused:
                ask(b"", timeout=WAIT_S_MAX)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert command.ended(signal.SIGTERM)[0] == 0


class Broker:
    """One broker, or node, of the group `solo`, as a process; `ports`: of gRPC and of its streams."""

    def __init__(self, directory: Path, name: str, ports: tuple[int, int]) -> None:
        self.directory, self.name = directory, name
        self.address, self.streams = (f"127.0.0.1:{port}" for port in ports)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *settings: str, is_node: bool = True) -> Broker:
        node = ["coordination=manual", f"node_name={self.name}", f"replication_listen={self.streams}"]
        self.process = self._launched([*node, *settings] if is_node else [])
        until(f"{self.name} answers", lambda: run_here(self.address, "cluster", "status")[0] == 0)
        return self

    def _launched(self, settings: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "trovemq_broker", "--name", "solo", "--http", "off"]
        command += ["--listen", self.address, "--store", str(self.directory / self.name), *SMALL]
        given = [part for one in settings for part in ("--set", one)]
        return popen([*command, *given], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def refused_start(self) -> bytes:
        """The output of a start that ends."""
        process = self._launched([])
        _, err = process.communicate(timeout=WAIT_S_MAX)
        assert process.returncode == 4, err
        return err

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate(timeout=WAIT_S_MAX)
        return self.process.returncode

    def leads(self, in_sync: list[str]) -> bool:
        """False also while it changes its role: its address is closed for a moment."""
        code, out, _ = run_here(self.address, "--json", "cluster", "status")
        found = json.loads(out) if code == 0 and out else {"leader": None, "nodes": []}
        roles = {one["node"]: one["role"] for one in found["nodes"]}
        return bool(roles.get(self.name) == "leader" and found["in_sync"] == in_sync)


def test_two_groups_have_a_leader_each(tmp_path: Path) -> None:
    names = {number: [f"broker-{number}-1", f"broker-{number}-2"] for number in (1, 2)}
    with running(tmp_path, "--nodes", "2", "--groups", "2", *SMALL) as command:
        command.until_ready()
        rows = [(row["name"], row["group"]) for row in command.rows.values() if row["role"] == "broker"]
        assert rows == [(node, f"broker-{number}") for number, nodes in names.items() for node in nodes]
        wanted = [(f"broker-{number}", nodes[0], nodes) for number, nodes in names.items()]

        def groups() -> list[dict[str, Any]]:
            code, out, _ = run_here(command.server, "--json", "cluster", "status")
            return [json.loads(one) for one in out.splitlines()] if code == 0 else []

        until(
            "both groups have their copies in sync",
            lambda: [(one["group"], one["leader"], one["in_sync"]) for one in groups()] == wanted,
        )
        for one in groups():
            assert one["epoch"] > 0
            assert [(node["node"], node["lag_bytes"]) for node in one["nodes"]] == [
                (name, 0) for name in one["in_sync"]
            ]
        command.run("topic", "create", TOPIC, "--queues", "2")
        receipts = [objects(command.server, "send", TOPIC, str(number))[0] for number in range(4)]
        assert {one["copies"] for one in receipts} == {2}
        assert command.ended(signal.SIGTERM)[0] == 0


def test_a_single_store_becomes_a_group_and_is_single_again(tmp_path: Path) -> None:
    kept = [kept_port() for _ in range(4)]
    ports = [port_of(one) for one in kept]
    a, b = Broker(tmp_path, "a", (ports[0], ports[1])), Broker(tmp_path, "b", (ports[2], ports[3]))
    try:
        a.start(is_node=False)
        sent = send(a.address, 2)
        assert a.stop() == 0

        a.start()
        assert run_here(a.address, "send", TOPIC, "before the group")[0] != 0
        (founded,) = objects(a.address, "cluster", "init")
        assert (founded["leader"], founded["in_sync"], founded["in_sync_min"]) == ("a", ["a"], 2)
        sent |= send(a.address, 1, first=2)

        nodes = f"replica_nodes=a@{a.address}/{a.streams},b@{b.address}/{b.streams}"
        objects(a.address, "cluster", "add", "b", "--address", b.address, "--replication", b.streams)
        b.start(nodes)
        until("b is in sync", lambda: a.leads(["a", "b"]))
        (receipt,) = objects(a.address, "send", TOPIC, "two copies", "--key", "k")
        assert receipt["copies"] == 2
        sent.add(receipt["messageId"])
        assert b.stop() == 0
        b.start(nodes)
        until("b is back, with the group's in_sync_min", lambda: a.leads(["a", "b"]))

        b.stop(signal.SIGKILL)
        until("one copy is not enough", lambda: run_here(a.address, "send", TOPIC, "one copy")[0] != 0)
        code, _, err = run_here(a.address, "cluster", "leave", "a", "--yes")
        assert code != 0, err
        objects(a.address, "cluster", "remove", "b", "--yes")
        until("a commits alone", lambda: run_here(a.address, "send", TOPIC, "alone")[0] == 0)
        b.start(nodes)
        fenced = ("promote", "b", "--fenced", "cut off", "--accept-loss", str(1 << 30), "--yes")
        code, _, err = run_here(b.address, "cluster", *fenced)
        assert code != 0
        assert "NOT_A_MEMBER" in err
        assert a.leads(["a"])
        assert b.stop() == 0

        a.stop(signal.SIGKILL)
        a.start()
        until("a leads again", lambda: a.leads(["a"]))
        objects(a.address, "cluster", "leave", "a", "--yes")
        assert a.process is not None
        a.process.communicate(timeout=WAIT_S_MAX)
        assert a.process.returncode == 0
        a.start(is_node=False)
        assert stored(a.address) >= sent
        assert a.stop() == 0
        assert b"start it with coordination = manual" in b.refused_start()
    finally:
        for port in kept:
            port.close()
        for one in (a, b):
            if one.process is not None and one.process.poll() is None:
                one.stop(signal.SIGKILL)


def test_a_paused_leader_steps_down_when_it_wakes(tmp_path: Path) -> None:
    with running(tmp_path, "--nodes", "3", *SMALL) as command:
        command.until_ready()
        first, second, _ = NAMES
        until("all are in sync", lambda: in_sync(command, first))
        sent = send(command.server, 2)
        os.kill(command.rows[first]["pid"], signal.SIGSTOP)
        (promoted,) = objects(str(command.rows[second]["address"]), "cluster", "promote", second)
        assert promoted["away"] == [first]
        sent |= send(str(command.rows[second]["address"]), 2, first=2)
        os.kill(command.rows[first]["pid"], signal.SIGCONT)
        until("the woken node follows", lambda: leads(command, second) and in_sync(command, second))
        assert stored(str(command.rows[second]["address"])) == sent
        assert command.ended(signal.SIGTERM)[0] == 0
