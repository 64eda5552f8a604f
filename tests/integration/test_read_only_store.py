"""A store without write permission: a broker says so and ends, the tools read it as it is."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import trovemq
from trovemq.testing import BrokerProcess
from trovemq_daemon.lifecycle import ExitCode
from trovemq_proto.authentication.credentials import parse_credentials

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

INDEX_WAIT_MAX_S = 240
MOUNT = 'mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && shift 2 && exec "$@"'
SCRIPT = """
import io, json, sys
from contextlib import redirect_stdout
from trovemq_broker.tools.__main__ import app

found = []
for command in (
    "verify", "verify --json", "dump records", "dump consumequeue orders 0", "dump index", "dump checkpoint",
    "export",
):
    with redirect_stdout(io.StringIO()) as out:
        try:
            app([*command.split(), "--store", sys.argv[1]])
        except SystemExit as end:
            found.append((end.code, out.getvalue()))
print(json.dumps(found))
"""
BROKER = ("trovemq_broker", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


class ReadOnly:
    """The store as a read-only file system, for the processes that are started here."""

    def __init__(self, store: Path, place: Path) -> None:
        self.store, self.place = store, place
        place.mkdir()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return run("unshare", "-rm", "sh", "-c", MOUNT, "sh", str(self.store), str(self.place), *command)

    def works(self) -> bool:
        return self.run("true").returncode == 0 and self.run("touch", f"{self.place}/x").returncode != 0


def content(store: Path) -> dict[str, tuple[str, int]]:
    """Digest and time of every file."""
    return {
        str(path.relative_to(store)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


async def make_store(store: Path) -> None:
    with BrokerProcess(store=store) as broker:
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic("orders", queue_count=2)
            for number in range(20):
                await client.send("orders", b"%d" % number, keys=["key"])
        async with asyncio.timeout(INDEX_WAIT_MAX_S):
            # Keys follow within a tenth of a second, the file of the topics within seconds.
            while not any((store / "index").glob("*")) or not (store / "config/topics.json").exists():
                await asyncio.sleep(0.01)
        broker.kill()


def start(at: ReadOnly, store: str) -> tuple[int, str]:
    """Exit code of a broker, and its one line about an error."""
    done = at.run(sys.executable, "-m", *BROKER, "--store", store)
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if " error " in line]
    return done.returncode, line


def answers(done: subprocess.CompletedProcess[str], store: Path) -> list[tuple[int, str]]:
    """Of tools_script(): exit code and output of each command."""
    assert done.returncode == 0, done.stderr
    return [(code, text.replace(str(store), "STORE")) for code, text in json.loads(done.stdout)]


async def test_a_store_that_is_read_only(tmp_path: Path) -> None:
    """Of a broker that was killed, so that a start would have much to write."""
    store = tmp_path / "store"
    await make_store(store)
    at = ReadOnly(store, tmp_path / "at")
    if not at.works():
        pytest.skip("no read-only mount can be had here")
    before = content(store)
    code, line = start(at, str(at.place))
    assert code == ExitCode.STORE_FAILED
    assert f"the store {at.place} cannot be opened" in line
    assert "Read-only file system; a broker writes to its store" in line
    assert start(at, f"{at.place}/new")[0] == ExitCode.STORE_FAILED
    read_only = answers(at.run(sys.executable, "-c", SCRIPT, str(at.place)), at.place)
    assert read_only == answers(run(sys.executable, "-c", SCRIPT, str(store)), store)
    assert all(code == 0 and text for code, text in read_only), read_only
    assert content(store) == before


async def test_a_broker_without_rights_on_a_tree_that_it_may_not_write(tmp_path: Path) -> None:
    """Its code is read-only, it has no right of the super user's, and its store is for itself alone."""
    without_rights = () if os.geteuid() else ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    store = tmp_path / "store"
    outer = ("unshare", "-rm", "sh", "-c", MOUNT, "sh", str(ROOT), str(ROOT), *without_rights)
    if run(*outer, "true").returncode or not run(*outer, "touch", str(ROOT / "Makefile")).returncode:
        pytest.skip("no read-only mount, or no process without rights, can be had here")
    command = (*BROKER, "--store", str(store), "--log-format", "json", "--set", "authenticationEnabled=true")
    broker = subprocess.Popen(
        [*outer, sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert broker.stderr is not None
        started = next(line for line in map(json.loads, broker.stderr) if line["event"] == "broker.started")
        admin = parse_credentials(store.with_name("store.admin-credentials").read_text(encoding="utf-8"))
        async with trovemq.connect(
            started["listen"], access_key=admin.access_key, secret_key=admin.secret_key
        ) as client:
            await client.admin.create_topic("orders", queue_count=1)
            await client.send("orders", b"12 apples")
    finally:
        broker.terminate()
        broker.wait(30)
        assert broker.stderr is not None
        broker.stderr.close()
    assert broker.returncode == 0
    assert stat.S_IMODE(store.stat().st_mode) == 0o700
