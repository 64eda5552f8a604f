"""A store of which the broker's user may not read a part: the broker says which, ends, and loses nothing.

Root may read everything. Where the tests run as root the broker gets root's name without root's rights: then
the files' modes count for it.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import trovemq
from tests.integration.test_read_only_store import BROKER, content, make_store
from tests.support.trials import SOAK
from trovemq.testing import BrokerProcess
from trovemq_daemon.lifecycle import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

WITHOUT_RIGHTS = () if os.geteuid() else ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
PLACES = (
    ("", 0o500),
    ("lock", 0),
    ("commitlog/00000000000000000000", 0),
    ("consumequeue/orders/0/00000000000000000000", 0),
    ("config", 0),
)
MORE_PLACES = (
    ("trovemq", 0),
    ("", 0),
    ("commitlog", 0),
    ("consumequeue", 0),
    ("consumequeue/orders", 0),
    ("consumequeue/orders/0", 0o400),
    ("config/topics.json", 0),
    ("trovemq/state.json", 0),
    ("index", 0),
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*WITHOUT_RIGHTS, *command), capture_output=True, text=True, check=False, timeout=240
    )


@contextmanager
def mode_of(path: Path, mode: int) -> Iterator[None]:
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


def modes_count(directory: Path) -> bool:
    """Whether a process that is started here is bound by the modes of files."""
    file = directory / "file"
    file.write_text("x")
    with mode_of(file, 0):
        try:
            return run("cat", str(file)).returncode != 0 == run("true").returncode
        except FileNotFoundError:
            return False


def is_kept(path: str) -> bool:
    """Whether a start leaves this file as it is: the queues are brought up to the log."""
    return path.startswith(("commitlog/", "config/"))


async def received(store: Path) -> list[bytes]:
    with BrokerProcess(store=store) as broker:
        async with trovemq.connect(broker.address) as client:
            return [m.body for queue in (0, 1) async for m in client.pull("orders", queue_id=queue)]


async def test_a_part_of_the_store_that_its_user_may_not_read(tmp_path: Path) -> None:
    """Of a broker that was killed, so that a start would have much to write."""
    if not modes_count(tmp_path):
        pytest.skip("no process without root's rights can be had here (setpriv)")
    store = tmp_path / "store"
    await make_store(store)
    before = content(store)
    for name, mode in (*PLACES, *(MORE_PLACES if SOAK else ())):
        with mode_of(store / name, mode):
            done = run(sys.executable, "-m", *BROKER, "--store", str(store))
            read = run(sys.executable, "-m", "trovemq_broker.tools", "verify", "--store", str(store))
        assert done.returncode == ExitCode.STORE_FAILED, (name, done.stderr)
        assert "Traceback" not in done.stderr + read.stderr, (name, done.stderr, read.stderr)
        (line,) = [line for line in done.stderr.splitlines() if " error " in line]
        assert "STORE_FAILED" in line, (name, line)
        assert "Permission denied" in line, (name, line)
        after = content(store)
        assert all(after[path] == found for path, found in before.items() if is_kept(path)), name
    assert sorted(await received(store)) == sorted(b"%d" % number for number in range(20))
