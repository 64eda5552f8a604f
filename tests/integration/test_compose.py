"""The Compose file, checked without a container engine.

Its form is checked against our own schema of the keys that we use, its parts against each other
(ports, names, volumes, scrape targets), and each of our services is started by the very command line
that stands in the file, with only hosts, ports and directories replaced.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import trovemq
from tests.integration.test_how_to import exit_code
from tests.support.fork_server import popen
from trovemq import ClientOptions
from trovemq.cli import app as command_line
from trovemq.testing import free_port
from trovemq_broker.__main__ import main as broker_main
from trovemq_nameserver.__main__ import main as nameserver_main

ROOT = Path(__file__).resolve().parents[2]
STORE = "/var/lib/trovemq"
SECRETS = "/etc/trovemq"
SETUP = "/setup"
SMALL_FILES = {"TROVEMQ_BROKER_COMMIT_LOG_FILE_SIZE": "16MiB"}  # two segments of 1 GiB are not needed here
START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 240

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
    """The command line as option -> value ("" for a switch); settings of --set under their names."""
    found: dict[str, str] = {}
    for word in service["command"][2:]:
        name, _, value = word.partition("=")
        if name == "--set":
            name, _, value = value.partition("=")
        found[name] = value
    return found


def long_lived(daemons: dict[str, Service]) -> dict[str, Service]:
    return {name: service for name, service in daemons.items() if service["restart"] != "no"}


def brokers_of(daemons: dict[str, Service]) -> dict[str, Service]:
    return {name: service for name, service in daemons.items() if service["command"][1] == "server"}


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


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


def test_has_a_nameserver_two_brokers_a_console_and_monitoring(
    daemons: dict[str, Service], compose: dict[str, Any]
) -> None:
    verbs = sorted(service["command"][1] for service in long_lived(daemons).values())
    assert verbs == ["console", "nameserver", "server", "server"]
    assert set(compose["services"]) - set(daemons) == {"prometheus", "grafana"}
    assert daemons.keys() - long_lived(daemons).keys() == {"secrets"}


def test_publishes_on_loopback_only(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    outside = [port.split(":")[1] for port in published]
    assert len(set(outside)) == len(outside), "two services publish one port"


def test_ports_and_names_agree(daemons: dict[str, Service]) -> None:
    routes = options(daemons["nameserver"])["--tls-listen"]
    for service in long_lived(daemons).values():
        given = options(service)
        open_to_others = {
            port_of(address)
            for option in ("--listen", "--tls-listen", "--http")
            if (address := given.get(option, "")).startswith("0.0.0.0:")
        }
        assert {port_of(port) for port in service["ports"]} == open_to_others
        assert f"nameserver:{port_of(routes)}?tls=true" in service["environment"]["TROVEMQ_SERVER"]
        if "healthcheck" in service:
            assert f":{port_of(given['--http'])}/readyz" in service["healthcheck"]["test"][-1]
    for name, service in brokers_of(daemons).items():
        given = options(service)
        assert given["--name"] == name
        assert given["--advertise"] == f"{name}:{port_of(given['--listen'])}"
        assert given["--nameserver"] == f"nameserver:{port_of(routes)}"


def test_only_metrics_are_open_without_tls_and_users(daemons: dict[str, Service]) -> None:
    for name, service in long_lived(daemons).items():
        given = options(service)
        plain = "--tls-listen" if "--tls-listen" in given else "--listen"
        assert given["--tls-certificate"] == f"{SECRETS}/server.pem", name
        if plain == "--tls-listen":
            assert given["--listen"].startswith("127.0.0.1:"), name
    assert options(daemons["nameserver"])["users_file"] == f"{SECRETS}/users.toml"
    for service in brokers_of(daemons).values():
        given = options(service)
        assert given["authentication_enable"] == given["authorization_enable"] == "true"
        assert given["nameserver_tls"] == "true"


def test_volumes_agree(daemons: dict[str, Service], compose: dict[str, Any]) -> None:
    mounts = [
        (name, *mount.split(":"))
        for name, service in compose["services"].items()
        for mount in service.get("volumes", [])
    ]
    named = {mount[1] for mount in mounts if not mount[1].startswith("./")}
    assert named == set(compose["volumes"])
    assert all((ROOT / mount[1]).exists() for mount in mounts if mount[1].startswith("./"))
    assert all(mount[-1] == "ro" for mount in mounts if mount[1].startswith("./"))
    stores = [mount[1] for mount in mounts if mount[1].startswith("store-")]
    assert sorted(stores) == ["store-a", "store-b"], "two services share a store"
    writers = [mount[0] for mount in mounts if mount[1] == "secrets" and mount[-1] != "ro"]
    assert writers == ["secrets"]
    for service in brokers_of(daemons).values():
        assert options(service)["--store"].startswith(f"{STORE}/"), "keys lie beside the store, in the volume"


def test_grafana_is_given_the_dashboards_and_prometheus(compose: dict[str, Any]) -> None:
    provisioning = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{port_of(compose['services']['prometheus']['ports'][0])}"
    (provider,) = yaml.safe_load((provisioning / "dashboards/trovemq.yml").read_text())["providers"]
    mounts = dict(mount.split(":")[:2] for mount in compose["services"]["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"


def test_prometheus_scrapes_every_daemon(daemons: dict[str, Service]) -> None:
    expected = {
        f"{name}:{port_of(options(service)['--http'])}"
        for name, service in long_lived(daemons).items()
        if "--http" in options(service)
    }
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
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", dockerfile, flags=re.MULTILINE)
    assert "--require-hashes" in dockerfile
    assert "python -O" not in re.sub(r"#.*", "", dockerfile)


def test_the_wheels_of_the_image_lacked_the_license() -> None:
    """It is a link in each distribution's folder, and its target was not copied."""
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(\S+) \S+$", dockerfile, flags=re.MULTILINE)
    targets = {
        str(path.resolve().relative_to(ROOT)): path
        for source in copied
        for path in (ROOT / source).rglob("*")
        if path.is_symlink()
    }
    assert targets
    assert targets.keys() <= set(copied), targets


# --- the services -----------------------------------------------------------------------------------
class Substitution:
    """A container engine's substitutions: addresses for the ports, directories for the volumes."""

    def __init__(self, daemons: dict[str, Service], directory: Path) -> None:
        self.directory = directory
        self.ports = {
            (name, port_of(address)): free_port()
            for name, service in daemons.items()
            for option in ("--listen", "--tls-listen", "--http")
            if (address := options(service).get(option))
        }
        (directory / "etc").mkdir(exist_ok=True)

    def apply(self, name: str, text: str) -> str:
        """`text` of service `name` with every HOST:PORT of the file as an address of this test."""
        for (owner, inside), port in self.ports.items():
            text = text.replace(f"{owner}:{inside}", f"127.0.0.1:{port}")
            if owner == name:
                text = re.sub(rf"(0\.0\.0\.0|127\.0\.0\.1):{inside}\b", f"127.0.0.1:{port}", text)
        text = text.replace(STORE, str(self.directory / name)).replace(SECRETS, str(self.directory / "etc"))
        return text.replace(SETUP, str(ROOT / "deploy"))

    def command(self, name: str, words: list[str]) -> list[str]:
        program = {"python": [], "trovemq": ["-m", "trovemq.cli"]}[words[0]]
        return [sys.executable, *program, *(self.apply(name, word) for word in words[1:])]

    def environment(self, name: str, service: Service) -> dict[str, str]:
        own = {key: self.apply(name, value) for key, value in service["environment"].items()}
        return {**os.environ, **SMALL_FILES, **own}


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
                command, environment = (
                    places.command(name, service["command"]),
                    places.environment(name, service),
                )
                if name not in long_lived(daemons):
                    subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, env=environment, check=True)
                    continue
                processes[name] = popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
            if "healthcheck" in service:
                become_healthy(name, service, places, processes[name])
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def become_healthy(
    name: str, service: Service, places: Substitution, process: subprocess.Popen[bytes]
) -> None:
    """Waits until the address of the service's health check answers, then runs the check itself."""
    test = places.command(name, service["healthcheck"]["test"][1:])
    (url,) = re.findall(r"http://[^']+", test[-1])
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(url):
        log = (places.directory / f"{name}.log").read_text(errors="replace")
        assert process.poll() is None, f"{name} ended with {process.returncode}:\n{log}"
        assert time.monotonic() < deadline, f"{name} did not become healthy:\n{log}"
        time.sleep(0.02)
    subprocess.run(test, timeout=START_TIMEOUT_S, check=True)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


async def use_the_cluster(server: str, credentials: str) -> None:
    """As a client of the file's: by TLS, as the super user."""
    options = ClientOptions(credentials_file=credentials)
    async with trovemq.connect(server, options=options) as client:
        known = client._pool.routes
        assert await known.wait_until(lambda: len(known.state.brokers) == 2, START_TIMEOUT_S)
        assert all(route.broker.tls_address for route in known.state.brokers)
        await client.admin.create_topic("orders", queue_count=1)
        receipts = [await client.send("orders", b"12 apples") for _ in range(2)]
        assert {receipt.broker for receipt in receipts} == {"broker-a", "broker-b"}
    with pytest.raises(trovemq.TroveError, match="AUTHENTICATION_FAILED"):
        await trovemq.connect(server, access_key="admin", secret_key="of another user")


def console_answers(places: Substitution, process: subprocess.Popen[bytes]) -> None:
    """It printed the address to sign in by, and serves there by TLS."""
    log, deadline = places.directory / "console.log", time.monotonic() + START_TIMEOUT_S
    while not (found := re.search(r"https://127\.0\.0\.1:\d+/sign-in\?token=\S+", log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    context = ssl.create_default_context(cafile=str(places.directory / "etc/ca.pem"))
    with urllib.request.urlopen(found[0], timeout=20, context=context) as reply:
        assert reply.status == 200


@pytest.mark.slow
def test_every_service_starts_by_its_command_line(
    daemons: dict[str, Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Substitution(daemons, tmp_path)
    with running(daemons, places) as processes:
        environment = places.environment("broker-a", daemons["broker-a"])
        server, credentials = environment["TROVEMQ_SERVER"], environment["TROVEMQ_CREDENTIALS"]
        assert not list(tmp_path.glob("etc/ca.key")), "nobody can make further certificates"
        secret = [path for path in tmp_path.glob("etc/*") if path.suffix != ".pem"]
        assert len(secret) == 6
        assert all(path.stat().st_mode & 0o077 == 0 for path in secret)
        asyncio.run(use_the_cluster(server, credentials))
        monkeypatch.setenv("TROVEMQ_SERVER", server)
        monkeypatch.setenv("TROVEMQ_CREDENTIALS", credentials)
        assert command_line.run(["doctor", "--seconds", "0"]) == 0, "as the file's first lines have it"
        console_answers(places, processes["console"])
        for target in scrape_targets():
            with urllib.request.urlopen(f"http://{places.apply('', target)}/metrics", timeout=5) as reply:
                assert reply.status == 200
                assert b"# TYPE rocketmq_" in reply.read() or target.startswith("nameserver:")
        for name, process in reversed(processes.items()):
            process.send_signal(signal.SIGTERM)
            log = tmp_path / f"{name}.log"
            assert process.wait(STOP_TIMEOUT_S) == 0, f"{name}:\n{log.read_text(errors='replace')}"


@pytest.mark.parametrize("name", ["nameserver", "broker-a", "broker-b"])
def test_every_service_listens_as_the_file_says(
    name: str, daemons: dict[str, Service], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line unchanged: the settings of the file are accepted as they stand."""
    words = daemons[name]["command"]
    main = {"server": broker_main, "nameserver": nameserver_main}[words[1]]
    assert exit_code(main, [*words[1:], "--print-config"]) == 0
    shown = capsys.readouterr().out
    for option in ("--listen", "--tls-listen", "--http"):
        assert f'"{options(daemons[name])[option]}"' in shown
