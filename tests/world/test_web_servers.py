"""A worker in the lifespan of a web application: the server ends at its signals, and the worker with it.

gunicorn and hypercorn are no dependencies: `make soak` tries them where they are installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.trials import SOAK
from trovemq import sync
from trovemq.testing import BrokerProcess, free_port

pytestmark = pytest.mark.slow

APP = "tests.world.web_app:app"
ROOT = Path(__file__).parents[2]
SERVERS = {
    "uvicorn": ("-m", "uvicorn", APP, "--port", "{port}"),
    "uvicorn with workers": ("-m", "uvicorn", APP, "--port", "{port}", "--workers", "2"),
    "gunicorn": (
        "-m",
        "gunicorn",
        APP,
        "--bind",
        "127.0.0.1:{port}",
        "--worker-class",
        "uvicorn_worker.UvicornWorker",
    ),
    "hypercorn": ("-m", "hypercorn", APP, "--bind", "127.0.0.1:{port}"),
}
NEEDS = {"gunicorn": ("gunicorn", "uvicorn_worker"), "hypercorn": ("hypercorn",)}
SECONDS_MAX = 120


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with BrokerProcess() as process:
        with sync.connect(process.address) as client:
            client.admin.create_topic("orders", queue_count=1)
        yield process.address


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("server", SERVERS if SOAK else ["uvicorn"])
def test_a_web_server_with_a_worker_did_not_end_at_a_signal(
    broker: str, server: str, number: signal.Signals
) -> None:
    for module in NEEDS.get(server, ()):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if (server, number) == ("gunicorn", signal.SIGINT):
        pytest.skip("gunicorn kills its uvicorn workers after 30 s then, whatever they run")
    arguments = [one.format(port=free_port()) for one in SERVERS[server]]
    environment = {**os.environ, "BROKER": broker}
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            with sync.connect(broker) as client:
                client.send("orders", b"42")
            assert process.stdout.readline() == "handled 42\n"
            process.send_signal(number)
            rest, _ = process.communicate(timeout=SECONDS_MAX)
            assert "ended\n" in rest
        finally:
            process.kill()
