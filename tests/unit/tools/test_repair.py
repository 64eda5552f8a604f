"""`repair`: projections rebuilt from a log that is only read."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support import fork_server
from tests.support.engine import NOW_MS, SMALL_SYNC, flush, open_store, read_queue, send
from tests.support.golden import GOLDEN_NAMES, unpack
from trovemq_broker.tools.__main__ import app
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.check import repair as repair_module
from trovemq_store.check.store_view import StoreView
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.opening import ABORT_PATH
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.real import RealFileSystem

pytestmark = pytest.mark.slow


def run(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def log_digests(root: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (root / "commitlog").iterdir()}


def fill(store: MessageStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        send(store, b"b" * 250, NOW_MS + number, keys=f"k{number}", queue_id=number % 4)
    flush(store)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.parametrize("name", GOLDEN_NAMES)
@pytest.mark.parametrize("lost", ["nothing", "consumequeue", "index"])
def test_a_golden_store_is_as_it_was(name: str, lost: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    before, log = run("export", "--manifest", "--store", root)[1][0], log_digests(root)
    files = [path for path in sorted((root / lost).rglob("*")) if path.is_file()]
    for path in files:
        data = bytearray(path.read_bytes())
        data[40:200] = b"\xee" * len(data[40:200])
        path.write_bytes(data)
    code, (done,), _ = run("repair", "--json", "--store", root)
    assert (code, done["damagedPlaces"], done["records"]) == (0, 0, len(before["messages"]))
    assert log_digests(root) == log
    assert run("verify", "--json", "--store", root)[0] == 0
    after = run("export", "--manifest", "--store", root)[1][0]
    same = before.keys() - {"files"}
    assert {key: after[key] for key in same} == {key: before[key] for key in same}


def test_projections_that_are_gone_come_back(root: Path) -> None:
    store = open_store(RealFileSystem(root), SMALL_SYNC)
    fill(store, 60)
    expected = [read_queue(store, "orders", QueueId(queue_id)) for queue_id in range(4)]
    store.close(NOW_MS)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    code, (done,), _ = run("repair", "--json", "--store", root)
    assert (code, done["queuesRebuilt"], done["units"]) == (0, 4, 60)
    code, lines, _ = run("verify", "--json", "--store", root)
    assert (code, lines[:-1]) == (0, [])
    store = open_store(RealFileSystem(root), SMALL_SYNC)
    assert store.recovery.clean
    assert [read_queue(store, "orders", QueueId(queue_id)) for queue_id in range(4)] == expected
    assert store.key_index is not None
    assert not store.lagging
    store.close(NOW_MS)


def test_damaged_records_stay_as_they_are(root: Path) -> None:
    store = open_store(RealFileSystem(root), SMALL_SYNC)
    fill(store, 40)
    at = store.consume_queues.queues("orders")[1].unit(QueueOffset(4))[0]
    store.close(NOW_MS)
    path = root / "commitlog" / f"{at - at % 12_288:020d}"
    with path.open("r+b") as file:
        file.seek(at % 12_288 + 100)
        file.write(b"damage")
    log = log_digests(root)
    code, (done,), errors = run("repair", "--json", "--store", root)
    assert (code, done["damagedPlaces"], done["blankUnits"], done["units"]) == (1, 1, 1, 39)
    assert f"kept: commitlog/{path.name} at {at % 12_288}" in errors
    assert log_digests(root) == log
    findings = [line for line in run("verify", "--json", "--store", root)[1][:-1] if not line["note"]]
    assert [(each["file"], each["offset"]) for each in findings] == [(f"commitlog/{path.name}", at % 12_288)]


def test_a_queue_without_records_keeps_its_place(root: Path) -> None:
    store = open_store(RealFileSystem(root), SMALL_SYNC, topics=("orders", "rare"))
    send(store, b"once", topic="rare")
    for first in range(0, 100, 20):
        fill(store, 20, first)
    store.flush_projections()
    trim_now(store.trim(store.closed_segments()[-1].end))
    store.close(NOW_MS)
    code, (done,), _ = run("repair", "--json", "--store", root)
    assert (code, done["queuesKept"]) == (0, 1)
    store = open_store(RealFileSystem(root), SMALL_SYNC)
    assert store.consume_queues.next_offset("rare", QueueId(0)) == 1
    assert store.consume_queues.next_offset("orders", QueueId(0)) == 25
    store.close(NOW_MS)


def test_a_killed_store(root: Path) -> None:
    store = open_store(RealFileSystem(root), SMALL_SYNC)
    fill(store, 30)
    store.flush_projections()
    fill(store, 30, 30)
    shutil.copytree(root, root.with_name("killed"), ignore=shutil.ignore_patterns("lock"))
    store.close(NOW_MS)
    killed = root.with_name("killed")
    assert run("repair", "--store", killed, "--json")[0] == 0
    assert (killed / ABORT_PATH).exists()
    assert run("verify", "--store", killed, "--json")[0] == 0
    store = open_store(RealFileSystem(killed), SMALL_SYNC)
    assert sum(len(read_queue(store, "orders", QueueId(queue_id))) for queue_id in range(4)) == 60
    store.close(NOW_MS)


def test_an_interrupted_repair_is_completed_by_the_next_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(RealFileSystem(root), SMALL_SYNC)
    fill(store, 60)
    expected = [read_queue(store, "orders", QueueId(queue_id)) for queue_id in range(4)]
    store.close(NOW_MS)
    applied = repair_module._Repair._apply

    def killed(self: Any, queues: Any, index: Any, found: Any) -> None:
        applied(self, queues, index, found)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repair_module._Repair, "_apply", killed)
        with pytest.raises(KeyboardInterrupt):
            repair_module.repair(StoreView.open(root), root)
    store = open_store(RealFileSystem(root), SMALL_SYNC)
    assert [read_queue(store, "orders", QueueId(queue_id)) for queue_id in range(4)] == expected
    store.catch_up(1 << 20)
    assert not store.lagging
    store.close(NOW_MS)
    assert run("verify", "--store", root, "--json")[0] == 0


def test_a_store_that_is_open_is_left_alone(root: Path) -> None:

    store = open_store(RealFileSystem(root), SMALL_SYNC)
    command = [sys.executable, "-m", "trovemq_broker.tools", "repair", "--store", str(root)]
    done = fork_server.run(command)
    store.close(NOW_MS)
    assert done.returncode == 1
    assert b"STORE_LOCKED" in done.stderr


def test_a_queue_whose_file_was_cut_behind_expired_units_is_rebuilt(root: Path) -> None:
    store = open_store(RealFileSystem(root), SMALL_SYNC)
    fill(store, 60)
    store.flush_projections()
    trim_now(store.trim(store.closed_segments()[0].end))
    queue = store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    ends = (queue.min_offset, queue.max_offset)
    assert ends[0] > 0
    store.close(NOW_MS)
    first = min((root / "consumequeue/orders/0").iterdir())
    with first.open("r+b") as file:
        file.truncate(20 + 5)  # one unit is whole, and its record has gone
    assert run("repair", "--json", "--store", root)[0] == 0
    store = MessageStore.open(RealFileSystem(root), SMALL_SYNC, NOW_MS)
    queue = store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == ends
    store.close(NOW_MS)
