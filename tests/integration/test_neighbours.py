"""SDK and broker of neighbouring versions, over one store that is upgraded on the way.

The previous version is the newest tag, or PREVIOUS where there is none: its files come out of the history of
this clone, and run with the packages that are installed. Where the clone does not reach back so far, the test
is skipped by name.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "integration" / "neighbour_program.py"
PREVIOUS = "6d5aed0a516c9b355b70d65fe9bf6710e8ae3acb"
"""Its daemons speak by grpcio, its groups receive by RocketMQ's protocol alone."""
FOLDERS = ("broker", "clients/python", "daemon", "nameserver", "proto", "rpc", "store", "trovemq_daemon")
"""Of this version, and of those before."""
PROGRAM_SECONDS_MAX = 90


class ForeignBroker(BrokerProcess):
    """Started by a new interpreter: the tests' own server of forks has today's modules."""

    _popen = subprocess.Popen

    def __init__(self, version: Path, store: Path) -> None:
        super().__init__(store=store, environment=path_of(version))
        if is_package(version / "broker"):
            self.module = "broker"


def path_of(version: Path) -> dict[str, str]:
    folders = (version, *(version / name for name in FOLDERS if not is_package(version / name)))
    return {"PYTHONPATH": os.pathsep.join(map(str, folders))}


def is_package(folder: Path) -> bool:
    """Broker, nameserver and their common parts were packages of the root once."""
    return (folder / "__init__.py").exists()


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the previous version."""
    tagged = git("describe", "--tags", "--abbrev=0", "HEAD^")
    version = tagged.stdout.decode().strip() if tagged.returncode == 0 else PREVIOUS
    there = [name for name in FOLDERS if git("cat-file", "-e", f"{version}:{name}").returncode == 0]
    archive = git("archive", version, *there)
    if archive.returncode != 0:
        pytest.skip(f"the history of this clone does not have {version}")
    folder = tmp_path_factory.mktemp("previous")
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


def test_neighbouring_versions_work_together(previous: Path, tmp_path: Path) -> None:
    """Today's SDK at the previous broker, then the previous SDK at today's broker: all is received."""
    sent: list[str] = []
    steps = ((previous, ROOT, "new-sdk"), (ROOT, previous, "old-sdk"))
    for broker_version, sdk_version, name in steps:
        with ForeignBroker(broker_version, tmp_path / "store") as broker:
            answer = run_program(sdk_version, broker.address, name)
            sent += answer["sent"]
            assert answer["taken"] == sorted(sent), name
            assert broker.stop() == 0
