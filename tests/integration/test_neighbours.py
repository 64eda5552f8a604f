"""SDK and broker of neighbouring versions, over one store that is upgraded meanwhile.

The previous version is the newest tag, or where there is none NATIVE for its broker and PREVIOUS for its SDK:
its files come out of the history of this clone, and run with the packages that are installed. Where the clone
does not reach back so far, the test is skipped by name.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trovemq import sync
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "integration" / "neighbour_program.py"
PREVIOUS = "6d5aed0a516c9b355b70d65fe9bf6710e8ae3acb"
"""Its daemons speak by grpcio, its groups receive by RocketMQ's protocol alone."""
NATIVE = "a35ed9ffdd56ee8608a739fde03654cf41ead58e"
"""The first whose broker serves all that today's SDK asks for: the SDK speaks no other protocol."""
FOLDERS = ("broker", "clients/python", "daemon", "nameserver", "proto", "rpc", "store", "trovemq_daemon")
"""Of this version, and of those before."""
PROGRAM_SECONDS_MAX = 90


class ForeignBroker(BrokerProcess):
    """Started by a new interpreter: the tests' own server of forks has today's modules."""

    _popen = subprocess.Popen

    def __init__(self, version: Path, store: Path, nameservers: Sequence[NameserverProcess] = ()) -> None:
        super().__init__(store=store, environment=path_of(version), nameservers=nameservers)
        if is_package(version / "broker"):
            self.module = "broker"


class ForeignNameserver(NameserverProcess):
    """As ForeignBroker."""

    _popen = subprocess.Popen

    def __init__(self, version: Path) -> None:
        super().__init__(environment=path_of(version))


def path_of(version: Path) -> dict[str, str]:
    folders = (version, *(version / name for name in FOLDERS if not is_package(version / name)))
    return {"PYTHONPATH": os.pathsep.join(map(str, folders))}


def is_package(folder: Path) -> bool:
    """Broker, nameserver and their common parts were packages of the root once."""
    return (folder / "__init__.py").exists()


def files_of(version: str, folder: Path, *more: str) -> Path:
    """The files of the newest tag, or of that version where there is none; `more`: other folders."""
    tagged = git("describe", "--tags", "--abbrev=0", "HEAD^")
    version = tagged.stdout.decode().strip() if tagged.returncode == 0 else version
    there = [name for name in (*FOLDERS, *more) if git("cat-file", "-e", f"{version}:{name}").returncode == 0]
    archive = git("archive", version, *there)
    if archive.returncode != 0:
        pytest.skip(f"the history of this clone does not have {version}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder)  # our own; a filter is not in every Python 3.11
    return folder


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)


def run_program(version: Path, server: str, name: str) -> dict[str, Any]:
    """The program's answer with the SDK of that version."""
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), server, name],
        env={**os.environ, **path_of(version)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert Path(answer["sdk"]).is_relative_to(version)
    return answer


def check(steps: Sequence[tuple[Path, Path, str]], store: Path) -> None:
    """All that the steps send to the store, each with a broker and an SDK, is received."""
    sent: list[str] = []
    for broker_version, sdk_version, name in steps:
        with ForeignBroker(broker_version, store) as broker:
            answer = run_program(sdk_version, broker.address, name)
            sent += answer["sent"]
            assert answer["taken"] == sorted(sent), name
            assert broker.stop() == 0


def test_the_sdk_works_at_the_previous_broker(tmp_path: Path) -> None:
    previous = files_of(NATIVE, tmp_path / "previous")
    check([(previous, ROOT, "new-sdk")], tmp_path / "store")


def test_the_broker_works_with_the_previous_sdk_and_store(tmp_path: Path) -> None:
    previous = files_of(PREVIOUS, tmp_path / "previous")
    check([(previous, previous, "old"), (ROOT, previous, "old-sdk")], tmp_path / "store")


def check_routes(nameserver_version: Path, broker_version: Path, store: Path) -> None:
    """Topics that are made and deleted after the registration are in the routes, and out of them."""
    with (
        ForeignNameserver(nameserver_version) as nameserver,
        ForeignBroker(broker_version, store, [nameserver]) as broker,
        sync.connect(broker.address) as admin,
        sync.connect(nameserver.address) as client,
    ):
        for name in ("t1", "t2", "t3"):
            admin.admin.create_topic(name, 2)
        admin.admin.delete_topic("t2")
        deadline = time.monotonic() + PROGRAM_SECONDS_MAX
        while topics_of(client) != {"t1", "t3"}:
            assert time.monotonic() < deadline, topics_of(client)
            time.sleep(0.05)


def topics_of(client: sync.Client) -> set[str]:
    (route,) = client.admin.cluster().brokers
    return {topic.topic for topic in route.topics if topic.topic in ("t1", "t2", "t3")}


def test_the_broker_registers_at_the_previous_nameserver(tmp_path: Path) -> None:
    check_routes(files_of(NATIVE, tmp_path / "previous"), ROOT, tmp_path / "store")


def test_the_previous_broker_registers_at_the_nameserver(tmp_path: Path) -> None:
    check_routes(ROOT, files_of(NATIVE, tmp_path / "previous"), tmp_path / "store")
