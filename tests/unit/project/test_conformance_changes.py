"""The runner of official clients during changes finds lost messages and disorder."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance import changes
from tests.conformance.changes import Changes, Counts, Steady
from tests.conformance.cluster import Cluster, sum_of
from tests.conformance.run import Outcome

METRICS = """# HELP rocketmq_messages_in_total Messages appended
rocketmq_messages_in_total{topic="A",is_system="false"} 3.0
rocketmq_messages_in_total{topic="A_FIFO",is_system="false"} 5.0
rocketmq_messages_in_total{topic="A",message_type="DELAY"} 2.0
trovemq_routes_brokers 1.0
"""


def client_that_prints(*lines: str) -> Steady:
    program = f"print({chr(10).join(lines)!r})"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    client = Steady("java", process)
    client.read()
    client.end()
    return client


def test_a_message_that_was_sent_and_never_received_is_lost() -> None:
    client = client_that_prints(
        "started",
        "sent STEADY_java g0-0",
        "sent STEADY_java g1-1",
        "refused STEADY_java g2-2 no broker",
        "received STEADY_java g1-1",
    )
    assert client.started == 1
    assert client.lost() == {"STEADY_java g0-0"}
    assert client.refused == ["refused STEADY_java g2-2 no broker"]


@pytest.mark.parametrize(
    ("bodies", "disorder"),
    [
        (["g0-0", "g1-1", "g0-8", "g0-8", "g0-0"], []),
        (["g0-8", "g1-1", "g0-0"], ["g0-0"]),
    ],
    ids=["a redelivery is none", "first received after a later one"],
)
def test_disorder_within_a_message_group(bodies: list[str], disorder: list[str]) -> None:
    client = client_that_prints(*(f"received STEADY_java_FIFO {body}" for body in bodies))
    assert client.disorder() == disorder


def test_a_metric_is_the_sum_of_the_series_with_the_label() -> None:
    assert sum_of(METRICS, "rocketmq_messages_in_total", 'topic="A"') == 5
    assert sum_of(METRICS, "rocketmq_messages_in_total", 'topic="B"') == 0
    assert sum_of(METRICS, "trovemq_routes_brokers") == 1


def test_a_case_is_not_awaited_for_a_client_that_cannot_pass_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "POLL_S", 0)
    with ExitStack() as processes:
        outcomes = [Outcome("nodejs"), Outcome("java")]
        run = Changes(Cluster(processes, Path(), several=False), outcomes)
        run.clients = [client_that_prints() for _ in outcomes]
        run.clients[0].language = "nodejs"
        run.watch(
            "a_broker_that_joins_is_found", 600, lambda one: "not there" if one.language == "nodejs" else None
        )
    assert outcomes[0].faults == {}
    assert list(outcomes[0].not_applicable) == ["a_broker_that_joins_is_found"]
    assert outcomes[1].faults == {"a_broker_that_joins_is_found": None}


def test_counts_have_grown_one_by_one() -> None:
    assert Counts(2, 1, 5, 0).grown(Counts(1, 1, 4, 0)) == [True, False, True, False]
