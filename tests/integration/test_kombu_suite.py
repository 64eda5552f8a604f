"""kombu's integration suite on our transport: fetched from its source distribution, as part of `make soak`.

Left out, as kombu does for its Redis and MongoDB transports, or because of a limit that the how-to names:

| test                                            | why                                                 |
|-------------------------------------------------|-----------------------------------------------------|
| BasePriority.test_publish_consume and           | one `drain_events` is to deliver all that waits;    |
| test_publish_requeue_consume                    | virtual transports deliver one message              |
| BasePriority.test_simple_buffer_publish_consume | a queue of one process has no priorities            |
| BaseEventLoop                                   | the transport is not one for kombu's event loop     |
| BaseFailover                                    | it reads the port of a URL that we read as a whole  |
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.trials import SOAK
from trovemq.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SOAK, reason="fetches kombu's sources: make soak")]

SUITE = """
import kombu, os, pytest, trovemq.celery
from t.integration import common

@pytest.fixture
def connection():
    return kombu.Connection(os.environ["BROKER"])

@pytest.fixture
def invalid_connection():
    return kombu.Connection("trovemq://127.0.0.1:1")

class TestBasicFunctionality(common.BasicFunctionality): ...
class TestExchangeTypes(common.BaseExchangeTypes): ...
class TestTimeToLive(common.BaseTimeToLive): ...
class TestMessage(common.BaseMessage): ...
class TestPriority(common.BasePriority):
    test_publish_consume = test_publish_requeue_consume = test_simple_buffer_publish_consume = None
"""
TESTS_MIN = 26
REPEATS = 5
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-c", "/dev/null", "--rootdir=.")


def test_kombus_suite_passes(tmp_path: Path) -> None:
    fetch = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "kombu"]
    python = Path(sys.executable)
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        python = Path(sys.base_prefix) / "bin/python3"  # the environment has no pip
    subprocess.run([python, *fetch, "-d", tmp_path, f"kombu=={version('kombu')}"], check=True, timeout=300)
    (archive,) = tmp_path.glob("kombu-*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(tmp_path, filter="data")
    folder = next(one for one in tmp_path.glob("kombu-*") if one.is_dir())
    (folder / "test_trovemq.py").write_text(SUITE)
    with BrokerProcess() as broker:
        first = suite(folder, broker)
        last = first
        for _ in range(REPEATS):  # its times are a second; kombu repeats them as often
            if last.returncode:
                last = suite(folder, broker, "--last-failed")
    assert last.returncode == 0, last.stdout + last.stderr
    run = sum(int(count) for count in re.findall(r"(\d+) (?:passed|failed)", first.stdout.splitlines()[-1]))
    assert run >= TESTS_MIN, first.stdout


def suite(folder: Path, broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTEST, *arguments, "test_trovemq.py"],
        cwd=folder,
        env={"BROKER": f"trovemq://{broker.address}", "PATH": "/usr/bin:/bin", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
