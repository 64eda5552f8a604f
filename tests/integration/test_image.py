"""The steps of deploy/Dockerfile run, and daemons start from their outcome, as its user.

No container engine is at hand where tests run, so each step runs in an overlay over this machine's own system
(tests/integration/dockerfile.py). The base image and the engine are not shown.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.dockerfile import Build, Stage
from tests.support.trials import SOAK
from trovemq.testing import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SOAK, reason="in make soak: it installs everything once more, a minute"),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("chroot") is None, reason="overlays and chroot are for root"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = 240
STOP_SECONDS_MAX = 240
VENV = str(ROOT / ".venv")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        places = os.environ["PATH"].split(os.pathsep)
        patch.setenv("PATH", os.pathsep.join(one for one in places if not one.startswith(VENV)))
        build = Build(ROOT / "deploy" / "Dockerfile", ROOT, tmp_path_factory.mktemp("image"), stack)
        yield build.stages[-1]


def test_the_command_of_the_image_explains_the_broker(image: Stage) -> None:
    assert image.user == "10001:10001"
    assert "The TroveMQ broker" in image.run(image.command)
    assert "trovemq 0" in image.run(["trovemq", "--version"])
    image.run(["python", "-c", "import trovemq_console.app, trovemq_nameserver.app, trovemq_broker.tools"])


def test_the_user_of_the_image_may_write_its_own_directories_alone(image: Stage) -> None:
    image.run(["sh", "-c", "touch /var/lib/trovemq/x /etc/trovemq/x && rm /var/lib/trovemq/x /etc/trovemq/x"])
    for place in ("/opt/trovemq/x", "/etc/x", "/usr/x"):
        image.run(["sh", "-c", f"! touch {place} 2>/dev/null"])


def test_a_broker_of_the_image_serves_and_ends_by_sigterm(image: Stage, tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    words = [
        "--listen",
        f"127.0.0.1:{port}",
        "--http",
        f"127.0.0.1:{http}",
        "--set",
        "mappedFileSizeCommitLog=16777216",
    ]
    with (tmp_path / "log").open("wb") as log:
        broker = image.start([*image.command[:-1], *words], stdout=log, stderr=log)
    try:
        wait_ready(http)
        sent = image.run(["trovemq", "doctor", "--seconds", "0", "--server", f"127.0.0.1:{port}"])
        assert "reachable" not in sent
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(STOP_SECONDS_MAX) == 0, (tmp_path / "log").read_text()
    finally:
        broker.kill()
        broker.wait()


def wait_ready(port: int) -> None:
    give_up = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as reply:
                assert reply.status == 200
                return
        except OSError:
            assert time.monotonic() < give_up
            time.sleep(0.2)
