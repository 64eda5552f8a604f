"""Real nodes whose logs are damaged or deleted beneath them: the other copies repair, and replace."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.test_cluster_local import running
from tests.integration.test_replica_groups import (
    NAMES,
    SMALL,
    WAIT_S_MAX,
    group,
    in_sync,
    leads,
    log_of,
    objects,
    send,
    stored,
    until,
)
from tests.support.command_line import run_here
from tests.support.fork_server import popen
from trovemq._common.loopback_ports import kept_port, port_of

pytestmark = pytest.mark.slow


def damage(store: str, body: bytes) -> None:
    """One byte of the record with that body, in the log's file."""
    for path in sorted((Path(store) / "commitlog").iterdir()):
        at = path.read_bytes().find(body)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([body[0] ^ 0xFF]))
            return
    raise AssertionError(f"no record has {body!r}")


def delete(store: str | Path) -> None:
    """`rm -rf`, again where the process has made a file meanwhile."""

    def is_gone() -> bool:
        shutil.rmtree(store, ignore_errors=True)
        return not Path(store).exists()

    until("the store is gone", is_gone)


def test_damaged_records_are_repaired_from_the_other_nodes(tmp_path: Path) -> None:
    reads = ("--set", "read_from_replicas=true")
    with running(tmp_path, "--nodes", "3", *SMALL, *reads) as command:
        command.until_ready()
        first, second, third = NAMES
        until("the first node leads", lambda: leads(command, first))
        until("all are in sync", lambda: in_sync(command, first))
        sent = send(command.server, 6)
        until("the copies have all", lambda: in_sync(command, first))
        end = group(command, first)["nodes"][0]["end"]

        damage(command.rows[first]["store"], b"letter 3")
        until("the leader has repaired it", lambda: stored(command.server) == sent)
        assert log_of(command, first, end) == log_of(command, third, end)

        damage(command.rows[third]["store"], b"letter 2")
        follower = f"trovemq://{command.rows[third]['address']}?replica=true"
        code, out, _ = run_here(follower, "--json", "store", "scrub")
        assert (code, json.loads(out.splitlines()[-1])["damages"]) == (1, 1)
        until(
            "a scrubbed follower is repaired",
            lambda: log_of(command, third, end) == log_of(command, first, end),
        )
        assert run_here(follower, "store", "scrub")[0] == 0

        damage(command.rows[second]["store"], b"letter 4")
        address = str(command.rows[second]["address"])
        objects(address, "cluster", "promote", second)
        until("the promoted node leads", lambda: leads(command, second))
        until("it has repaired its own record", lambda: stored(address) == sent)
        assert log_of(command, second, end) == log_of(command, third, end)

        delete(command.rows[third]["store"])
        until("the node whose store was deleted is copied again", lambda: in_sync(command, second))
        sent |= send(address, 3, first=6)
        assert stored(address) == sent
        code, notes = command.ended(signal.SIGTERM)
        assert code == 0, notes
    assert "STORE_DELETED" in (tmp_path / third / "log").read_text(), "the node says why it ended"


def test_a_broker_whose_store_is_deleted_ends_and_makes_no_other(tmp_path: Path) -> None:
    port, store = kept_port(), tmp_path / "store"
    address = f"127.0.0.1:{port_of(port)}"
    line = [sys.executable, "-m", "trovemq_broker", "--name", "alone", "--http", "off", "--listen", address]
    process = popen([*line, "--store", str(store), *SMALL], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until("it answers", lambda: run_here(address, "topic", "list")[0] == 0)
        send(address, 1)
        delete(store)
        run_here(address, "send", "letters", "lost")
        deadline = time.monotonic() + WAIT_S_MAX
        _, err = process.communicate(timeout=deadline - time.monotonic())
        assert process.returncode == 5, err
        assert b"STORE_DELETED" in err
        assert not store.exists()
    finally:
        port.close()
        if process.poll() is None:
            process.kill()
            process.communicate()
