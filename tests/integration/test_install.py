"""docs/how-to/install.md: the files of `make dist` in fresh environments, with an example of each extra.

Other packages come from the index, so it is a part of `make soak` alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_how_to import ADDRESS, PAGES_OF_ONE, blocks
from tests.integration.test_wheels import OWN_TEST, PACKAGES, installed_bytes, run, use_the_daemons
from tests.support.trials import SOAK
from tools import dist
from trovemq.testing import BrokerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SOAK, reason="installs packages from the index: make soak"),
]

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "how-to"
INSTALL_SECONDS_MAX = 1_200
SIZES = dict(
    re.findall(r"^\| `(trovemq[^`]*)` \| (\d+) MB", (PAGES / "install.md").read_text(encoding="utf-8"), re.M)
)
"""MB by requirement, as the page states them."""

PAGE = """
import ast, asyncio, inspect, json, subprocess, sys, types

names = {"__name__": "__main__"}
with asyncio.Runner() as runner:
    for kind, text in json.load(sys.stdin):
        if kind == "sh":
            subprocess.run(text, shell=True, check=True)
            continue
        code = compile(text, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(types.FunctionType(code, names)())
        else:
            exec(code, names)
"""
COLUMNS = """
import asyncio, sys, trovemq

async def main():
    async with trovemq.connect(sys.argv[1]) as client:
        await client.admin.create_topic("columns", queue_count=1, exist_ok=True)
        await client.send("columns", b"one")
        batch = await anext(client.pull_batches("columns", queue_id=0, offset=0))
        assert len(batch.offsets) == 1

asyncio.run(main())
"""
TRANSPORT = """
import sys, trovemq
from trovemq import sync

with sync.connect(sys.argv[1], options=trovemq.ClientOptions(grpc_transport="grpcio")) as client:
    client.admin.create_topic("calls", queue_count=1, exist_ok=True)
    assert client.send("calls", b"one").queue_offset == 0
"""
CERTIFICATES = """
import cryptography, trovemq
from trovemq._net import certificates
"""
EXPORTER = """
import opentelemetry.exporter.otlp.proto.http, opentelemetry.sdk.trace, trovemq_broker.daemon.app
"""
FASTSTREAM = """
import subprocess, sys
from importlib.metadata import version
from pathlib import Path

commands = Path(sys.executable).parent
assert (version("faststream")[:4], version("typer")) == ("0.7.", "0.27.1")
subprocess.run([commands / "faststream", "--version"], check=True)
at = [commands / "trovemq", "--server", sys.argv[1]]
subprocess.run([*at, "topic", "create", "labels", "--exist-ok"], check=True)
wrong = subprocess.run([*at, "topic", "lst"], capture_output=True, text=True)
assert (wrong.returncode, "No such command 'lst'" in wrong.stderr) == (2, True), wrong.stderr
"""
PAGES_OF = {"celery": "celery", "mcp": "agents", "otel": "trace", "taskiq": "taskiq", "": "request-and-reply"}
PROGRAMS = {
    "faststream": FASTSTREAM,
    "grpcio": TRANSPORT,
    "numpy": COLUMNS,
    "otlp": EXPORTER,
    "tls": CERTIFICATES,
}
MORE = {"otel": ("opentelemetry-sdk",), "faststream": ("faststream[cli]",)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("release") / "dist"
    dist.build(made, PACKAGES)
    return made


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


def fresh(directory: Path, folder: Path, *what: str) -> Path:
    """A new environment with that from the folder and the index; returns its folder of commands."""
    uv, python = [sys.executable, "-m", "uv"], directory / "bin/python"
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, directory], check=True, timeout=120)
    found = ["--python", str(python), "--find-links", str(folder)]
    install = [*uv, "pip", "install", "--quiet", *found, *what]
    done = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    return directory / "bin"


def follow(page: str, commands: Path, address: str, place: Path) -> str:
    """Runs the Python and shell blocks of a how-to; returns their output."""
    parts = [
        (one.kind, one.text.replace(ADDRESS, address).replace("trovemq ", f"trovemq --server {address} "))
        if one.kind == "sh"
        else (one.kind, one.text.replace(ADDRESS, address))
        for one in blocks(PAGES / f"{page}.md")
        if one.kind in {"sh", "python"}
    ]
    done = subprocess.run(
        [commands / "python", "-c", PAGE],
        input=json.dumps(parts),
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("extra", PAGES_OF)
def test_the_how_to_of_an_extra_runs_where_it_alone_is_installed(
    extra: str, folder: Path, broker: BrokerProcess, tmp_path: Path
) -> None:
    wanted = f"trovemq[{extra}]" if extra else "trovemq"
    commands = fresh(tmp_path / "fresh", folder, wanted, *MORE.get(extra, ()))
    printed = " ".join(follow(PAGES_OF[extra], commands, broker.address, tmp_path).split())
    for one in blocks(PAGES / f"{PAGES_OF[extra]}.md"):
        if one.kind == "text":
            assert " ".join(one.text.split()) in printed


@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_extra_does_its_work(extra: str, folder: Path, broker: BrokerProcess, tmp_path: Path) -> None:
    commands = fresh(tmp_path / "fresh", folder, f"trovemq[{extra}]", *MORE.get(extra, ()))
    done = run([commands / "python", "-c", PROGRAMS[extra], broker.address], 240)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("what", SIZES)
def test_an_installation_has_the_size_that_the_page_states(what: str, folder: Path, tmp_path: Path) -> None:
    fresh(tmp_path / "fresh", folder, what)
    (packages,) = (tmp_path / "fresh").glob("lib/python*/site-packages")
    assert installed_bytes(packages) / 1e6 == pytest.approx(float(SIZES[what]), rel=0.1)


def test_pip_installs_the_server_from_the_folder(folder: Path, tmp_path: Path) -> None:
    """By the page's commands, in their order."""
    commands = [
        line.replace("make dist", "true").replace("dist", str(folder))
        for one in blocks(PAGES / "install.md")
        if one.kind == "sh"
        for line in one.text.splitlines()
    ]
    assert sum("pip install" in line for line in commands) == 3
    for line in commands:
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    use_the_daemons(tmp_path / "trove" / "bin", tmp_path / "store")


def test_source_distributions_install_too(folder: Path, broker: BrokerProcess, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for archive in folder.glob("*.tar.gz"):
        (sources / archive.name).symlink_to(archive)
    commands = fresh(tmp_path / "fresh", sources, "trovemq[console]")
    at = ["--server", broker.address]
    assert run([commands / "trovemq", "topic", "create", "from-source", *at]).returncode == 0
    assert "Usage: trovemq console" in run([commands / "trovemq", "console", "--help"]).stdout


def test_the_fixture_of_the_extra_testing_works(folder: Path, tmp_path: Path) -> None:
    commands = fresh(tmp_path / "fresh", folder, "trovemq[testing]")
    (tmp_path / "test_own.py").write_text(OWN_TEST)
    tested = run([commands / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"], 240, place=tmp_path)
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout + tested.stderr


def test_the_bill_of_materials_is_as_cyclonedx_has_it(folder: Path, tmp_path: Path) -> None:
    (version,) = re.findall(r"^cyclonedx-python-lib==(\S+)", (ROOT / "locks/audit.txt").read_text(), re.M)
    commands = fresh(tmp_path / "fresh", folder, f"cyclonedx-python-lib[json-validation]=={version}")
    program = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()))
"""
    done = run([commands / "python", "-c", program, str(folder / dist.BILL)], 120)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stdout + done.stderr


def test_all_how_tos_run_on_the_wheels(folder: Path, tmp_path: Path) -> None:
    """With the packages of the tests, and none of ours but from the folder."""
    lock = ROOT / "locks" / "dev.txt"
    commands = fresh(tmp_path / "fresh", folder, "--no-deps", "-r", str(lock))
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"]
    run([*uv, "--python", commands / "python", *folder.glob("*.whl")], INSTALL_SECONDS_MAX)
    shown = "import trovemq, trovemq_broker, trovemq_console as c; print(trovemq.__file__, c.__file__)"
    ours = run([commands / "python", "-c", shown], 60).stdout.split()
    assert len(ours) == 2
    assert all(Path(one).is_relative_to(tmp_path) for one in ours)
    pages = [f"tests/integration/{one}.py" for one in ("test_how_to", "test_faststream")]
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "pages")]
    done = run([commands / "python", "-m", "pytest", *options, *pages], INSTALL_SECONDS_MAX, place=ROOT)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= len(PAGES_OF_ONE), done.stdout[-4_000:]
