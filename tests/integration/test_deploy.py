"""Kubernetes manifests and systemd units, checked without a cluster and without an init system.

Their form is checked by `kubernetes-validate` and `systemd-analyze verify` (skipped where there is none),
their parts against each other, and each command line is run as it stands there, with only hosts, ports and
directories replaced.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy import make_secrets
from tests.integration.test_how_to import command_line
from tests.support.fork_server import popen
from trovemq import sync
from trovemq.testing import free_port

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
VERSION = "1.32"
POD = "broker-0"
START_TIMEOUT_S = 240
INSTANCES = ("01", "02")

Manifest = dict[str, Any]


def manifests(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


ALL: list[Manifest] = [manifest for path in KUBERNETES for manifest in manifests(path)]
WORKLOADS = {one["metadata"]["name"]: one for one in ALL if one["kind"] in ("Deployment", "StatefulSet")}


def pod(name: str) -> Manifest:
    found: Manifest = WORKLOADS[name]["spec"]["template"]["spec"]
    return found


def container(name: str) -> Manifest:
    (found,) = pod(name)["containers"]
    assert isinstance(found, dict)
    return found


# --- Kubernetes: the files ------------------------------------------------------------------------------
@pytest.mark.parametrize("path", KUBERNETES, ids=[path.stem for path in KUBERNETES])
def test_kubernetes_takes_the_manifests(path: Path) -> None:
    for manifest in manifests(path):
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifests(path)[-1] | {"specs": {}}, VERSION, strict=True)


def test_a_single_copy_has_no_disruption_budget() -> None:
    assert {manifest["kind"] for manifest in ALL} == {"Deployment", "Service", "StatefulSet"}
    assert "volumeClaimTemplates" in WORKLOADS["broker"]["spec"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_pods_run_without_rights_and_are_probed(name: str) -> None:
    assert pod(name)["securityContext"]["runAsNonRoot"] is True
    assert pod(name)["automountServiceAccountToken"] is False
    one = container(name)
    rights = one["securityContext"]
    assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert {"readinessProbe", "livenessProbe"} <= one.keys()
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    words = " ".join(one["command"])
    for probe in (one[key] for key in one if key.endswith("Probe")):
        target = probe.get("httpGet") or probe["tcpSocket"]
        assert f":{ports[target['port']]}" in words
    mounted = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in WORKLOADS[name]["spec"].get("volumeClaimTemplates", ())}
    assert mounted.keys() == {volume["name"] for volume in pod(name)["volumes"]} | claims
    for path in re.findall(r"=(/(?:etc|var)/[^ ]+)", words):
        assert any(path.startswith(f"{place}/") for place in mounted.values()), path


def test_services_lead_to_the_pods() -> None:
    for service in (manifest for manifest in ALL if manifest["kind"] == "Service"):
        name = service["metadata"]["name"]
        labels = WORKLOADS[name]["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"] == labels
        known = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
        assert all(known[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    assert WORKLOADS["broker"]["spec"]["serviceName"] == "broker"


def test_the_drain_ends_before_the_pod_is_killed() -> None:
    (drain,) = container("broker")["lifecycle"]["preStop"]["exec"].values()
    (grace,) = re.findall(r"--grace=(\d+)s", " ".join(drain))
    assert int(grace) + 15 <= pod("broker")["terminationGracePeriodSeconds"]


# --- Kubernetes: the commands -----------------------------------------------------------------------------
class Cluster:
    """Replaces hosts, ports and directories of the manifests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        make_secrets.main(directory / "made", {POD: f"{POD}.broker"})
        for name, source in (("tls.crt", "server.pem"), ("tls.key", "server.key"), ("ca.crt", "ca.pem")):
            (directory / "tls").mkdir(exist_ok=True)
            shutil.copy(directory / "made" / source, directory / "tls" / name)
        self.ports = {number: free_port() for number in (8080, 8081, 8082, 8090, 9876, 9877, 9878)}

    def here(self, text: str) -> str:
        text = text.replace("$(POD_NAME)", POD)
        for number, port in self.ports.items():
            hosts = rf"(0\.0\.0\.0|127\.0\.0\.1|nameserver|{POD}\.broker):{number}\b"
            text = re.sub(hosts, f"127.0.0.1:{port}", text)
        for place, here in (("/etc/trovemq/tls", "tls"), ("/etc/trovemq/broker", "made")):
            text = text.replace(place, str(self.directory / here))
        text = text.replace("/etc/trovemq/users", str(self.directory / "made"))
        return text.replace("/var/lib/trovemq", str(self.directory / "disk"))

    def environment(self, name: str) -> dict[str, str]:
        given = {one["name"]: one["value"] for one in container(name).get("env", ()) if "value" in one}
        return {key: self.here(value) for key, value in given.items()}

    def command(self, words: list[str]) -> list[str]:
        assert words[0] == "trovemq"
        return [sys.executable, "-m", "trovemq.cli", *(self.here(word) for word in words[1:])]


@contextmanager
def started(command: list[str], log: Path, url: str, environment: dict[str, str]) -> Iterator[None]:
    """The daemon, when the URL answers; at the end it stops cleanly."""
    with log.open("wb") as file:
        process = popen(command, cwd=ROOT, stdout=file, stderr=file, env={**os.environ, **environment})
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_TIMEOUT_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is the console's own test
    try:
        urllib.request.urlopen(url, timeout=5, context=context if url.startswith("https") else None).close()
    except urllib.error.HTTPError:
        return "/readyz" not in url  # the console asks to sign in
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_the_commands_of_the_pods_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    small = {"TROVEMQ_BROKER_COMMIT_LOG_FILE_SIZE": "16MiB"}
    with ExitStack() as daemons:
        for name, place in (
            ("nameserver", "http://127.0.0.1:9877/readyz"),
            ("broker", "http://127.0.0.1:8080/readyz"),
            ("console", "https://127.0.0.1:8090/"),
        ):
            words = cluster.command(container(name)["command"])
            environment = small | cluster.environment(name)
            daemons.enter_context(started(words, tmp_path / f"{name}.log", cluster.here(place), environment))
        for key, value in cluster.environment("broker").items():
            monkeypatch.setenv(key, value)
        drain = container("broker")["lifecycle"]["preStop"]["exec"]["command"]
        assert drain[0] == "trovemq"
        assert command_line([cluster.here(word).replace("=10s", "=0s") for word in drain[1:]]) == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.ports[8080]}/readyz", timeout=5) as reply:
            assert b"drained: new messages go to other brokers" in reply.read()


# --- systemd ----------------------------------------------------------------------------------------------
def unit(path: Path) -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(path.read_text(encoding="utf-8"))
    return read


def test_there_is_a_unit_for_each_daemon() -> None:
    daemons = ["trovemq-broker", "trovemq-broker@", "trovemq-console", "trovemq-nameserver"]
    assert sorted(path.stem for path in UNITS) == daemons
    for path in UNITS:
        service = unit(path)["Service"]
        assert (service["User"], service["NoNewPrivileges"], service["UMask"]) == ("trovemq", "true", "0077")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """With a program that is there, as it looks for it."""
    program = Path(sys.executable).with_name("trovemq")
    copies = []
    for path in UNITS:
        text = path.read_text(encoding="utf-8")
        copies.append(tmp_path / path.name.replace("@", f"@{INSTANCES[0]}"))
        copies[-1].write_text(text.replace("/opt/trovemq/bin/trovemq", str(program)), encoding="utf-8")
    verify = ["systemd-analyze", "verify", "--man=no", *map(str, copies)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    copies[0].write_text(copies[0].read_text().replace("Restart=", "Restarts="), encoding="utf-8")
    done = subprocess.run(verify, capture_output=True, text=True, timeout=240, check=False)
    assert "Restarts" in done.stderr, "it does look"


@pytest.mark.slow
def test_the_commands_of_the_units_run(tmp_path: Path) -> None:
    ports = {number: free_port() for number in (8080, 8081, 8090, 9876, 9877)}

    def here(text: str) -> str:
        for number, port in ports.items():
            text = text.replace(f"127.0.0.1:{number}", f"127.0.0.1:{port}")
        text = text.replace("/var/lib/trovemq", str(tmp_path / "state"))
        return text.replace("/etc/trovemq", str(tmp_path))

    for name in ("broker.toml", "nameserver.toml"):
        (tmp_path / name).write_text(here((ROOT / "deploy/systemd" / name).read_text(encoding="utf-8")))
    small = {"TROVEMQ_BROKER_COMMIT_LOG_FILE_SIZE": "16MiB"}
    small["TROVEMQ_CREDENTIALS"] = str(tmp_path / "state/store.admin-credentials")  # in console.env
    with ExitStack() as daemons:
        for name, place in (
            ("nameserver", "http://127.0.0.1:9877/readyz"),
            ("broker", "http://127.0.0.1:8080/readyz"),
            ("console", "http://127.0.0.1:8090/"),
        ):
            words = unit(ROOT / f"deploy/systemd/trovemq-{name}.service")["Service"]["ExecStart"].split()
            assert words[0] == "/opt/trovemq/bin/trovemq"
            command = [sys.executable, "-m", "trovemq.cli", *(here(word) for word in words[1:])]
            daemons.enter_context(started(command, tmp_path / f"{name}.log", here(place), small))
        assert (tmp_path / "state/store.sealing-key").exists(), (
            "beside the store, in the unit's own directory"
        )


def test_the_template_differs_from_the_unit_by_its_instance_alone() -> None:
    one, template = (unit(ROOT / f"deploy/systemd/trovemq-broker{at}.service") for at in ("", "@"))
    differing = {"ExecStart", "StateDirectory"}
    assert {name for name in one["Service"] if one["Service"][name] != template["Service"][name]} == differing
    assert one["Service"].keys() == template["Service"].keys()
    assert template["Service"]["StateDirectory"] == "trovemq/broker-%i"


@pytest.mark.slow
def test_two_instances_of_the_template_are_one_cluster(tmp_path: Path) -> None:
    numbers = ("8101", "8102", "8201", "8202", "9876", "9877")
    ports = {number: free_port() for number in numbers}

    def here(text: str) -> str:
        for number, port in ports.items():
            text = text.replace(f"127.0.0.1:{number}", f"127.0.0.1:{port}")
        text = text.replace("/var/lib/trovemq", str(tmp_path / "state"))
        return text.replace("/etc/trovemq", str(tmp_path))

    for name in ("brokers.toml", "nameserver.toml"):
        (tmp_path / name).write_text(here((ROOT / "deploy/systemd" / name).read_text(encoding="utf-8")))
    credentials, secret = tmp_path / "admin.credentials", "0123456789abcdef"
    credentials.touch(mode=0o600)
    credentials.write_text(f"access_key=admin\nsecret_key={secret}\n", encoding="utf-8")
    small = {"TROVEMQ_BROKER_COMMIT_LOG_FILE_SIZE": "16MiB"}
    started_units = [("nameserver", "", "9877"), *(("broker@", one, f"82{one}") for one in INSTANCES)]
    with ExitStack() as daemons:
        for name, instance, port in started_units:
            line = unit(ROOT / f"deploy/systemd/trovemq-{name}.service")["Service"]["ExecStart"]
            words = [here(word) for word in line.replace("%i", instance).split()[1:]]
            command = [sys.executable, "-m", "trovemq.cli", *words]
            url = here(f"http://127.0.0.1:{port}/readyz")
            daemons.enter_context(started(command, tmp_path / f"{name}{instance}.log", url, small))
        server = f"trovemq://admin:{secret}@{here('127.0.0.1:9876')}"
        with sync.connect(server) as client:
            deadline = time.monotonic() + START_TIMEOUT_S
            while len(names := {route.broker.name for route in client.admin.cluster().brokers}) < 2:
                assert time.monotonic() < deadline, names
                time.sleep(0.02)
            client.admin.create_topic("orders", queue_count=1)
    assert names == {"broker-01", "broker-02"}
    assert all((tmp_path / f"state/broker-{one}/store.sealing-key").exists() for one in INSTANCES)
