"""The Compose file, checked without a container engine.

Its form is checked against our own schema of the keys that we use, its parts against each other
(ports, names, volumes, scrape targets), and each of our services is started by the very command line
that stands in the file, with only hosts, ports and directories replaced.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest
import yaml

from trovemq_proto.v1 import route_pb2, route_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
STORE = "/var/lib/trovemq"
SMALL_FILES = {"TROVEMQ_BROKER_COMMIT_LOG_FILE_SIZE": "16MiB"}  # two segments of 1 GiB are not needed here
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 10

Service = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def daemons(compose: dict[str, Any]) -> dict[str, Service]:
    """The services that run our own image."""
    return {name: service for name, service in compose["services"].items() if "build" in service}


def options(service: Service) -> dict[str, str]:
    """The command line as option -> value ("" for a switch)."""
    words = " ".join(service["command"][3:]).replace("=", " ").split()
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            found[word] = ""
        else:
            found[list(found)[-1]] = word
    return found


def scrape_targets() -> list[str]:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    return [target for job in jobs for group in job["static_configs"] for target in group["targets"]]


# --- the file ---------------------------------------------------------------------------------------
def test_has_the_form_of_a_compose_file(compose: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests/data/compose-schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(compose, schema)


def test_the_schema_refuses_what_is_wrong(compose: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests/data/compose-schema.json").read_text())
    wrong: list[dict[str, Any]] = [
        {"port": ["127.0.0.1:1:1"]},
        {"ports": [8080]},
        {"healthcheck": {"interval": "5s"}},
        {"depends_on": {"nameserver": {"condition": "healthy"}}},
        {"volumes": ["store-a"]},
    ]
    for change in wrong:
        services = compose["services"] | {"broker-a": compose["services"]["broker-a"] | change}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(compose | {"services": services}, schema)


def test_has_a_nameserver_two_brokers_and_prometheus(
    daemons: dict[str, Service], compose: dict[str, Any]
) -> None:
    modules = sorted(service["command"][2] for service in daemons.values())
    assert modules == ["broker", "broker", "nameserver"]
    assert set(compose["services"]) - set(daemons) == {"prometheus"}


def test_publishes_on_loopback_only(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    outside = [port.split(":")[1] for port in published]
    assert len(set(outside)) == len(outside), "two services publish one port"


def test_ports_names_and_volumes_agree(daemons: dict[str, Service], compose: dict[str, Any]) -> None:
    for name, service in daemons.items():
        given = options(service)
        listened = {given["--listen"].split(":")[1], given["--http"].split(":")[1]}
        assert {port.split(":")[2] for port in service["ports"]} == listened
        assert "--insecure" in given, "listening on every address needs it"
        assert f":{given['--http'].split(':')[1]}/readyz" in service["healthcheck"]["test"][-1]
        if service["command"][2] == "broker":
            assert given["--name"] == name
            assert given["--advertise"] == f"{name}:{given['--listen'].split(':')[1]}"
            assert (
                given["--nameserver"]
                == "nameserver:" + options(daemons["nameserver"])["--listen"].split(":")[1]
            )
            assert [mount.split(":")[1] for mount in service["volumes"]] == [given["--store"]]
    mounted = [
        mount.split(":")[0]
        for service in compose["services"].values()
        for mount in service.get("volumes", [])
    ]
    assert {volume for volume in mounted if not volume.startswith("./")} == set(compose["volumes"])
    assert all((ROOT / mount).exists() for mount in mounted if mount.startswith("./"))
    assert len(set(mounted)) == len(mounted), "two services share a store"


def test_prometheus_scrapes_every_daemon(daemons: dict[str, Service]) -> None:
    expected = {f"{name}:{options(service)['--http'].split(':')[1]}" for name, service in daemons.items()}
    assert set(scrape_targets()) == expected


def test_the_image_copies_only_what_exists_and_is_let_through() -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, flags=re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert sources
    assert all((ROOT / source).exists() for source in sources)
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert sources == let_through
    assert re.search(r"^USER (?!root)\w+$", dockerfile, flags=re.MULTILINE)
    assert "--require-hashes" in dockerfile
    assert "python -O" not in re.sub(r"#.*", "", dockerfile)


# --- the services -----------------------------------------------------------------------------------
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Substitution:
    """A container engine's substitutions: addresses for the ports, directories for the volumes."""

    def __init__(self, daemons: dict[str, Service], directory: Path) -> None:
        self.directory = directory
        self.ports = {
            (name, options(service)[option].split(":")[1]): free_port()
            for name, service in daemons.items()
            for option in ("--listen", "--http")
        }

    def apply(self, name: str, text: str) -> str:
        """`text` of service `name` with every HOST:PORT of the file as an address of this test."""
        for (owner, inside), port in self.ports.items():
            text = text.replace(f"{owner}:{inside}", f"127.0.0.1:{port}")
            if owner == name:
                text = re.sub(rf"(0\.0\.0\.0|127\.0\.0\.1):{inside}\b", f"127.0.0.1:{port}", text)
        return text.replace(STORE, str(self.directory / name))

    def command(self, name: str, words: list[str]) -> list[str]:
        assert words[0] == "python"
        return [sys.executable, *(self.apply(name, word) for word in words[1:])]


@contextmanager
def running(
    daemons: dict[str, Service], places: Substitution
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Starts the services in the order of the file; kills the remaining ones at the end."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, service in daemons.items():
            (places.directory / name).mkdir()
            with (places.directory / f"{name}.log").open("wb") as log:
                command = places.command(name, service["command"])
                processes[name] = subprocess.Popen(
                    command, cwd=ROOT, stdout=log, stderr=log, env=os.environ | SMALL_FILES
                )
            become_healthy(name, service, places, processes[name])
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def become_healthy(
    name: str, service: Service, places: Substitution, process: subprocess.Popen[bytes]
) -> None:
    """Runs the service's own health check until it passes; starting each check paces the loop."""
    test = places.command(name, service["healthcheck"]["test"][1:])
    deadline = time.monotonic() + START_TIMEOUT_S
    while subprocess.run(test, capture_output=True, timeout=START_TIMEOUT_S, check=False).returncode != 0:
        log = (places.directory / f"{name}.log").read_text(errors="replace")
        assert process.poll() is None, f"{name} ended with {process.returncode}:\n{log}"
        assert time.monotonic() < deadline, f"{name} did not become healthy:\n{log}"


def registered_brokers(address: str, count: int) -> dict[str, str]:
    """Name -> address of the brokers in the nameserver's routes, as soon as there are `count`."""
    with grpc.insecure_channel(address) as channel:
        updates = route_pb2_grpc.RouteServiceStub(channel).WatchRoutes(
            route_pb2.WatchRoutesRequest(), timeout=START_TIMEOUT_S
        )
        for update in updates:
            found = {route.broker.name: route.broker.address for route in update.brokers}
            if len(found) == count:
                updates.cancel()
                return found
    raise AssertionError("the stream of routes ended")


@pytest.mark.slow
def test_every_service_starts_by_its_command_line(daemons: dict[str, Service], tmp_path: Path) -> None:
    places = Substitution(daemons, tmp_path)
    with running(daemons, places) as processes:
        nameserver = places.apply("nameserver", options(daemons["nameserver"])["--listen"])
        brokers = {name: service for name, service in daemons.items() if service["command"][2] == "broker"}
        assert registered_brokers(nameserver, len(brokers)) == {
            name: places.apply(name, options(service)["--advertise"]) for name, service in brokers.items()
        }
        for target in scrape_targets():
            with urllib.request.urlopen(f"http://{places.apply('', target)}/metrics", timeout=5) as reply:
                assert reply.status == 200
                assert b"# TYPE rocketmq_" in reply.read() or target.startswith("nameserver:")
        for name, process in reversed(processes.items()):
            process.send_signal(signal.SIGTERM)
            log = tmp_path / f"{name}.log"
            assert process.wait(STOP_TIMEOUT_S) == 0, f"{name}:\n{log.read_text(errors='replace')}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nameserver", "broker-a", "broker-b"])
def test_every_service_listens_as_the_file_says(
    name: str, daemons: dict[str, Service], tmp_path: Path
) -> None:
    """The command line unchanged but for the store: the settings of the file are accepted as they stand."""
    words = [word.replace(STORE, str(tmp_path)) for word in daemons[name]["command"][1:]]
    shown = subprocess.run(
        [sys.executable, *words, "--print-config"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert options(daemons[name])["--listen"] in shown.stdout
