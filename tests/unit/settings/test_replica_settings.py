"""Settings of a replica group's node: illegal combinations are refused at the start, with the remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.addresses import Address

NODES = ("a@127.0.0.1:8081/127.0.0.1:8181", "b@127.0.0.1:8082/127.0.0.1:8182")
NODE = BrokerSettings(
    coordination="manual", node_name="a", replication_listen="127.0.0.1:8181", replica_nodes=NODES
)


def problems(settings: BrokerSettings, **changes: Any) -> str:
    return "; ".join(replace(settings, **changes).problems())


def test_a_single_broker_needs_no_setting_of_a_group() -> None:
    assert problems(BrokerSettings()) == ""
    assert not BrokerSettings().is_node


def test_a_node_with_its_settings_starts() -> None:
    assert problems(NODE) == ""
    assert NODE.named_nodes[1].replication == Address("127.0.0.1", 8182)
    assert problems(NODE, replica_nodes=(), in_sync_min=2) == "", "the group is in its state"
    files = {f"replication_tls_{name}": f"{name}.pem" for name in ("certificate", "key", "ca")}
    assert problems(NODE, replication_listen="0.0.0.0:8181", replication_advertise="n1", **files) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"node_name": ""}, "node_name must name"),
        ({"node_name": "a b"}, "node_name must name"),
        ({"replication_listen": ""}, "replication_listen"),
        ({"replication_listen": "0.0.0.0:8181"}, "replication_listen 0.0.0.0:8181 is open"),
        ({"replication_tls_certificate": "c.pem"}, "given together or not at all"),
        ({"replica_ack_timeout_ms": 2_499}, "must be at least replica_lag_max_ms + 1000, 2500"),
        ({"node_name": "c"}, "must have this node, c"),
        ({"replica_nodes": ("a@127.0.0.1:8081",)}, "is not NODE@HOST:PORT/HOST:PORT"),
        ({"replica_nodes": ("a@127.0.0.1:0/127.0.0.1:1",)}, "cannot be dialled"),
        ({"replica_nodes": (NODES[0], NODES[0])}, "names a node twice"),
        ({"in_sync_min": 3}, "more than the 2 nodes"),
    ],
)
def test_an_illegal_combination_is_refused(changes: dict[str, Any], said: str) -> None:
    assert said in problems(NODE, **changes)


def test_settings_of_a_node_without_coordination_are_refused() -> None:
    assert "needs coordination = manual" in problems(NODE, coordination="none")
