"""Records that a promotion cut, listed and sent again, with real nodes."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_replica_groups import TOPIC, Broker, objects, send, stored, until
from trovemq._common.loopback_ports import kept_port, port_of

pytestmark = pytest.mark.slow


def resent(server: str) -> dict[str, str]:
    """The result of each of the users' messages, by unique key."""
    results = objects(server, "cluster", "cut-records", "--resend", "--yes")
    return {one["messageId"]: one["result"] for one in results if one["topic"] == TOPIC}


def ends(server: str) -> set[int]:
    (group,) = objects(server, "cluster", "status")
    return {one["end"] for one in group["nodes"]}


def test_what_a_promotion_cut_is_sent_again_once(tmp_path: Path) -> None:
    """With `ack = leader` a former leader may have acknowledged messages that no other node has."""
    with ExitStack() as stack:
        ports = [port_of(stack.enter_context(kept_port())) for _ in range(6)]
        nodes = [Broker(tmp_path, name, (ports[n], ports[n + 3])) for n, name in enumerate("abc")]
        a, b, c = nodes
        listed = ",".join(f"{one.name}@{one.address}/{one.streams}" for one in nodes)
        settings = (f"replica_nodes={listed}", "ack=leader", "in_sync_min=2")

        def kill(*killed: Broker) -> None:
            for one in killed:
                if one.process is not None and one.process.poll() is None:
                    one.stop(signal.SIGKILL)

        stack.callback(kill, *nodes)
        for one in nodes:
            one.start(*settings)
        until("all are in sync", lambda: a.leads(["a", "b", "c"]))
        kept = send(a.address, 2)
        until("the copies have all", lambda: len(ends(a.address)) == 1)

        for one in (b, c):
            assert one.process is not None
            one.process.send_signal(signal.SIGSTOP)
        lost = send(a.address, 2, first=2)
        kill(a, b, c)  # with the bytes that may have reached the stopped ones
        for one in (b, c):
            one.start(*settings)
        (promoted,) = objects(b.address, "cluster", "promote", "b")
        assert promoted["away"] == ["a"]
        kept |= send(b.address, 1, first=4)
        a.start(*settings)
        until("the former leader follows", lambda: b.leads(["a", "b", "c"]))
        assert stored(b.address) == kept

        (cut,) = objects(b.address, "cluster", "cut-records")
        assert cut["node"] == "a"
        assert cut["records"] >= len(lost)
        assert resent(b.address) == dict.fromkeys(lost, "sent")
        assert stored(b.address) == kept | lost
        assert set(resent(b.address).values()) == {"the topic has it"}
        found: list[dict[str, Any]] = objects(b.address, "query", TOPIC, "k")
        assert sorted(one["body"] for one in found) == [f"letter {number}" for number in range(5)]
