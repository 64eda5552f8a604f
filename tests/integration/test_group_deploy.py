"""The Compose file and the Kubernetes manifests of a replica group with etcd, without an engine or a cluster.

Their form is checked by schemas, and each command line is run as it stands there, with only hosts, ports and
directories replaced: three members of etcd, a nameserver, three nodes. Then a leader is killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy import make_secrets
from tests.integration.test_how_to import exit_code
from tests.support.command_line import run_here
from tests.support.etcd_process import needs_etcd
from trovemq.testing import free_port
from trovemq_broker.__main__ import main as broker_main

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.group.yml"
KUBERNETES = sorted((ROOT / "deploy/kubernetes/group").glob("*.yaml"))
NAMESERVER = ROOT / "deploy/kubernetes/nameserver.yaml"
VERSION = "1.32"
REPLICAS = 3
WAIT_S_MAX = 240
SMALL = {"TROVEMQ_BROKER_COMMIT_LOG_FILE_SIZE": "16MiB", "TROVEMQ_BROKER_DISK_WARNING_PERCENT": "100"}
PORT = re.compile(r"(?:0\.0\.0\.0|127\.0\.0\.1):(\d+)\b")


@dataclass
class Service:
    """One container: its command, and its variables. `hosts`: the names under which others reach it."""

    name: str
    words: list[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[str] = ()

    @property
    def texts(self) -> list[str]:
        return [*self.words, *self.variables.values()]

    @property
    def verb(self) -> str:
        return self.words[0] if self.words[0] == "etcd" else self.words[1]


def of_compose() -> list[Service]:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    return [
        Service(name, service["command"], service.get("environment", {}), [name])
        for name, service in services.items()
        if service["command"][0] != "python"
    ]


def manifests(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def of_kubernetes() -> list[Service]:
    found = []
    for path in (KUBERNETES[0], NAMESERVER, KUBERNETES[1]):
        (workload,) = [one for one in manifests(path) if one["kind"] in ("Deployment", "StatefulSet")]
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        name = workload["metadata"]["name"]
        pods = [name] if workload["kind"] == "Deployment" else [f"{name}-{at}" for at in range(REPLICAS)]
        for pod in pods:
            words = [one.replace("$(POD_NAME)", pod) for one in container["command"]]
            given = {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}
            found.append(Service(pod, words, given, [f"{pod}.{name}", pod]))
    return found


# --- the files --------------------------------------------------------------------------------------
def test_compose_and_kubernetes_take_the_files() -> None:
    schema = json.loads((ROOT / "tests/data/compose-schema.json").read_text())
    jsonschema.validate(yaml.safe_load(COMPOSE.read_text()), schema)
    for path in KUBERNETES:
        for manifest in manifests(path):
            kubernetes_validate.validate(manifest, VERSION, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest | {"specs": {}}, VERSION, strict=True)


def test_one_pod_of_three_may_be_disrupted_on_a_machine_for_each() -> None:
    for path in KUBERNETES:
        by_kind = {one["kind"]: one for one in manifests(path)}
        spec = by_kind["StatefulSet"]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["replicas"] == REPLICAS
        budget = by_kind["PodDisruptionBudget"]["spec"]
        assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)
        assert by_kind["Service"]["spec"]["selector"] == labels
        (apart,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"].values()
        assert apart[0]["labelSelector"]["matchLabels"] == labels


def test_compose_publishes_on_loopback_only_and_gives_each_a_disk() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)
    disks = [mount for service in services.values() for mount in service["volumes"] if mount[-3:] != ":ro"]
    assert len({disk.split(":")[0] for disk in disks}) == len(disks) == 2 * REPLICAS + 1


NODES = [one for one in [*of_compose(), *of_kubernetes()] if one.verb == "server"]


@pytest.mark.parametrize("service", NODES, ids=[one.name for one in NODES])
def test_a_nodes_settings_are_accepted_as_they_stand(
    service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in service.variables.items():
        monkeypatch.setenv(name, value)
    assert exit_code(broker_main, [*service.words[1:], "--print-config"]) == 0
    shown = capsys.readouterr().out
    assert f'node_name = "{service.name}"' in shown
    assert 'replication_listen = "0.0.0.0:8083"' in shown
    assert shown.count(f"{service.name}@") == 1


# --- the services -----------------------------------------------------------------------------------
class Here:
    """Addresses on this machine for those of the files, and directories for the volumes."""

    def __init__(self, services: Sequence[Service], directory: Path) -> None:
        self.directory = directory
        self.ports = {
            (service.name, port): free_port()
            for service in services
            for port in {found for text in service.texts for found in PORT.findall(text)}
        }
        self.hosts = {host: service.name for service in services for host in service.hosts}
        made = ["localhost", *self.hosts]
        make_secrets.main(directory / "made", {"main": ",".join(made)})
        for name, source in (("tls.crt", "server.pem"), ("tls.key", "server.key"), ("ca.crt", "ca.pem")):
            (directory / "made" / name).symlink_to(source)

    def text(self, service: Service, text: str) -> str:
        for (name, inside), port in self.ports.items():
            if name == service.name:
                text = re.sub(rf"(0\.0\.0\.0|127\.0\.0\.1):{inside}\b", f"127.0.0.1:{port}", text)
            for host in (host for host, of in self.hosts.items() if of == name):
                text = re.sub(rf"(?<![\w.-]){re.escape(host)}:{inside}\b", f"127.0.0.1:{port}", text)
        for place in ("tls", "users", "node"):
            text = text.replace(f"/etc/trovemq/{place}/", "/etc/trovemq/")
        text = text.replace("/etc/trovemq", str(self.directory / "made"))
        return re.sub(r"/var/lib/(trovemq|etcd)", str(self.directory / service.name), text)

    def start(self, service: Service) -> subprocess.Popen[bytes]:
        (self.directory / service.name).mkdir(mode=0o700, exist_ok=True)
        words = [self.text(service, word) for word in service.words]
        if words[0] == "trovemq":
            words[:1] = [sys.executable, "-m", "trovemq.cli"]
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TROVEMQ_", "ETCD_"))
        }
        kept |= SMALL if service.verb == "server" else {}
        given = {name: self.text(service, value) for name, value in service.variables.items()}
        with (self.directory / f"{service.name}.log").open("ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, env={**kept, **given})


@contextmanager
def running(here: Here, services: Sequence[Service]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for service in services:
            processes[service.name] = here.start(service)
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def leader(here: Here, server: str, *, other_than: str = "") -> str:
    """The node that leads, once all copies are in sync; with `other_than` a later one at once."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        code, out, err = run_here(server, "--json", "cluster", "status")
        found = [json.loads(line) for line in out.splitlines()] if code == 0 else []
        groups = [one for one in found if one.get("leader") not in (None, "", other_than)]
        if groups and (other_than or len(groups[0]["in_sync"]) == REPLICAS):
            return str(groups[0]["leader"])
        assert time.monotonic() < deadline, f"{out!r}{err!r}{_logs(here)}"
        time.sleep(0.1)


def _logs(here: Here) -> str:
    logs = sorted(here.directory.glob("*.log"))
    return "".join(f"--- {one.name}\n{one.read_text(errors='replace')[-1500:]}\n" for one in logs)


@needs_etcd
@pytest.mark.slow
@pytest.mark.parametrize("services", [of_compose(), of_kubernetes()], ids=["compose", "kubernetes"])
def test_the_group_of_the_files_fails_over(
    services: list[Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(services, tmp_path)
    node = next(one for one in services if one.verb == "server")
    server = here.text(node, node.variables["TROVEMQ_SERVER"])
    monkeypatch.setenv("TROVEMQ_CREDENTIALS", here.text(node, node.variables["TROVEMQ_CREDENTIALS"]))
    with running(here, services) as processes:
        first = leader(here, server)
        for line in (["topic", "create", "orders", "--queues", "1"], ["send", "orders", "a", "--key", "k"]):
            code, out, err = run_here(server, "--json", *line)
            assert code == 0, err
        assert json.loads(out)["copies"] == REPLICAS
        processes[first].kill()
        processes[first].wait()
        leader(here, server, other_than=first)
        code, out, err = run_here(server, "--json", "query", "orders", "k")
        assert code == 0, err
        assert len(out.splitlines()) == 1
        for name, process in reversed(processes.items()):
            process.send_signal(signal.SIGTERM)
            if name != first and not name.startswith("etcd"):
                assert process.wait(WAIT_S_MAX) == 0, _logs(here)
