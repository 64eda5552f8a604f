"""The committed dashboards and alert rules, in a real Prometheus beside a loaded broker and a nameserver.

Grafana itself is not shown: its queries are, with Grafana's variables filled in.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.registry import Collector

import trovemq
from tests.support.broker_process import running_broker
from tests.support.prometheus_here import Programs, Prometheus, programs, running
from trovemq import GroupSettings, TransactionResolution
from trovemq.testing import NameserverProcess, free_port
from trovemq_broker.cluster.remoting_relay import RelaysCollector, RemotingRelay
from trovemq_broker.daemon.replica.election_figures import ElectionFigures
from trovemq_broker.daemon.replica.operations import ReplicaCollector, RoleFigures
from trovemq_broker.replication.status import NodeStatus
from trovemq_proto.authentication.credentials import parse_credentials
from trovemq_store.log.damage_counts import DamageCounts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
RULES = ROOT / "deploy" / "prometheus"
SECURE = ("authenticationEnabled=true", "authorizationEnabled=true", "autoCreateSubscriptionGroup=true")
SCRAPE = "200ms"
RATE_INTERVAL = "5s"
NAME = re.compile(r"\b(?:rocketmq|trovemq|process|python)_\w+")
OF_HISTOGRAM = re.compile("_bucket$")


@pytest.fixture(scope="module")
def tools() -> Programs:
    return programs()


# --- the rules --------------------------------------------------------------------------------------
def test_each_rule_fires_and_is_silent(tools: Programs) -> None:
    subprocess.run([tools.promtool, "check", "rules", "alerts.yml"], cwd=RULES, check=True)
    subprocess.run([tools.promtool, "test", "rules", "alerts-test.yml"], cwd=RULES, check=True)


def test_a_rule_that_never_fires_is_noticed(tools: Programs, tmp_path: Path) -> None:
    shutil.copy(RULES / "alerts-test.yml", tmp_path)
    rules = (RULES / "alerts.yml").read_text(encoding="utf-8")
    assert "trovemq_disk_full == 1" in rules
    (tmp_path / "alerts.yml").write_text(rules.replace("trovemq_disk_full == 1", "trovemq_disk_full == 2"))
    done = subprocess.run(
        [tools.promtool, "test", "rules", "alerts-test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "TroveMQDiskFull" in done.stdout + done.stderr


def test_the_configuration_of_compose_is_good(tools: Programs) -> None:
    subprocess.run([tools.promtool, "check", "config", "prometheus.yml"], cwd=RULES.parent, check=True)


# --- the panels -------------------------------------------------------------------------------------
def panels() -> Iterator[tuple[str, str]]:
    """Each query, with the dashboard and the panel that has it."""
    for path in DASHBOARDS:
        for outer in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for panel in (outer, *outer.get("panels", ())):
                for target in panel.get("targets", ()):
                    yield f"{path.stem}: {panel['title']}", target["expr"]


def filled_in(query: str) -> str:
    query = query.replace("$__rate_interval", RATE_INTERVAL)
    return re.sub(r"\$(instance|topic|consumer_group)\b", ".*", query)


def configuration(directory: Path, broker: str, nameserver: str) -> Path:
    """The configuration of Compose, with other addresses and times."""
    made = yaml.safe_load((RULES.parent / "prometheus.yml").read_text(encoding="utf-8"))
    made["global"] = {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": "500ms"}
    made["rule_files"] = [str(RULES.parent / name) for name in made["rule_files"]]
    addresses = {"broker": broker, "nameserver": nameserver}
    for job in made["scrape_configs"]:
        job["static_configs"] = [{"targets": [addresses[job["job_name"]]]}]
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(made), encoding="utf-8")
    return path


async def load(client: trovemq.Client, until: AsyncExitStack) -> None:
    """Something of everything that is counted by topic or by group."""
    topics = {"orders": "NORMAL", "later": "DELAY", "halves": "TRANSACTION"}
    for topic, kind in topics.items():
        await client.admin.create_topic(topic, queue_count=1, message_type=kind)
    await client.admin.create_topic("alarms", queue_count=1, options={"order": "priority"})
    await client.admin.groups.create("billing", GroupSettings(retry_max=1))
    for topic in ("orders", "alarms"):
        await client.admin.groups.reset("billing", topic, to_min=True)
        for number in range(20):
            await client.send(topic, b"x" * 500, keys=[f"k{number}"])
    await client.send("later", b"x", deliver_after=3)  # a message that comes after its time needs no timer
    await client.send("later", b"x", deliver_after=1_000)

    async def check(_message: Any) -> TransactionResolution:
        return TransactionResolution.COMMIT

    producer = await until.enter_async_context(client.producer("halves", checker=check))
    async with producer.transaction() as transaction:
        await transaction.send(b"x")
    async with producer.transaction() as transaction:
        await transaction.send(b"x")
        await transaction.rollback()
    still_open = await until.enter_async_context(producer.transaction())
    await still_open.send(b"x")
    async with client.transaction() as atomic:
        await atomic.send("orders", b"x")
    messages = await until.enter_async_context(client.subscribe("orders", group="billing"))
    async for message in messages:
        await message.nack(delay=0)
        if message.attempt == 2:
            break
    alarms = await until.enter_async_context(client.subscribe("alarms", group="billing"))
    async for message in alarms:
        await message.ack()
        break
    await client.query("orders", "k1")


async def watch_while_loaded(address: str, store: Path, prometheus: Prometheus) -> None:
    admin = parse_credentials(store.with_name(f"{store.name}.admin-credentials").read_text(encoding="utf-8"))
    keys = (admin.access_key, admin.secret_key)
    connection = trovemq.connect(address, access_key=keys[0], secret_key=keys[1])
    async with connection as client, AsyncExitStack() as until:
        await load(client, until)
        await asyncio.to_thread(look_at, prometheus)


def look_at(prometheus: Prometheus) -> None:
    prometheus.wait_for('rate(process_cpu_seconds_total{job="broker"}[5s])')
    prometheus.wait_for('up{job="nameserver"} == 1')
    prometheus.wait_for('rocketmq_consumer_lag_messages{topic="alarms"}')
    all_panels_have_answers(prometheus)
    all_names_are_exported(prometheus)
    all_rules_are_evaluated(prometheus)


def test_every_panel_has_an_answer_beside_a_loaded_broker(tools: Programs, tmp_path: Path) -> None:
    """Prometheus first: it begins to scrape five seconds after its start, whatever its configuration."""
    store, port = tmp_path / "store", free_port()
    nameserver = NameserverProcess()
    settings = configuration(tmp_path, f"127.0.0.1:{port}", nameserver.http_address)
    with ExitStack() as until:
        prometheus = until.enter_context(running(tools.prometheus, settings, tmp_path))
        until.enter_context(nameserver)
        broker = until.enter_context(running_broker(store, *SECURE, arguments=(f"--http=127.0.0.1:{port}",)))
        asyncio.run(watch_while_loaded(broker.address, store, prometheus))


def all_panels_have_answers(prometheus: Prometheus) -> None:
    """A rate needs two samples, which a series that has just begun gets with the next scrape. A broker
    that is in no group has none of an election, and relays nothing."""
    found = [(panel, query) for panel, query in panels() if not OF_GROUPS & names_in(query)]
    assert len(found) > 100
    for _panel, query in found:
        prometheus.wait_for(filled_in(query))


def exported_by(collector: Collector) -> set[str]:
    return {one.name + ("_total" if one.type == "counter" else "") for one in collector.collect()}


OF_GROUPS = exported_by(ElectionFigures("g")) | exported_by(RelaysCollector(RemotingRelay(lambda: None)))
"""Of brokers in a group that chooses its leaders by etcd."""


def names_in(query: str) -> set[str]:
    return {OF_HISTOGRAM.sub("", name) for name in NAME.findall(query)}


def all_names_are_exported(prometheus: Prometheus) -> None:
    """Also those that have no sample yet, those of a replica group's nodes, and those of rules."""
    exported = {
        name + "_total" if entry["type"] == "counter" and not name.endswith("_total") else name
        for name, entries in prometheus.ask("metadata").items()
        for entry in entries
    }
    of_nodes = ReplicaCollector(lambda: NodeStatus(group="g", node="a"), lambda: RoleFigures(DamageCounts()))
    exported |= exported_by(of_nodes) | OF_GROUPS
    rules = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    named = [query for _, query in panels()] + [rule["expr"] for rule in rules]
    used = set().union(*map(names_in, named))
    assert used - exported == set()


def all_rules_are_evaluated(prometheus: Prometheus) -> None:
    states = {rule["name"]: (rule["health"], rule.get("lastError")) for rule in prometheus.rules()}
    assert {name: state for name, state in states.items() if state != ("ok", None)} == {}
