"""`verify`, `dump` and `export` on golden stores, on our own, and on damaged ones."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support import fork_server
from tests.support.backups import back_up
from tests.support.engine import NOW_MS, SMALL, flush, open_store, send
from tests.support.golden import GOLDEN_NAMES, as_manifest, load_manifest, unpack
from trovemq.cli.produce_input import Fields, InputFormat, read_messages
from trovemq_broker.cluster_config.owner import begin_founding
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table_file import BACKUP_PATH, PATH
from trovemq_broker.tools.__main__ import app
from trovemq_broker.tools.export import BROKER_CONFIG_KEYS
from trovemq_proto.records import key_entries
from trovemq_proto.records.index_entries import index_entries
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.opening import LOCK_PATH
from trovemq_store.files.real import RealFileSystem

MANIFEST_PARTS = (
    "name",
    "kind",
    "brokerConfig",
    "files",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "topicConfigs",
    "consumerOffsets",
    "delayOffsets",
    "subscriptionGroups",
    "queues",
    "messages",
)


@dataclass
class Answer:
    code: int
    lines: list[dict[str, Any]]
    errors: str


def run(*arguments: object) -> Answer:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return Answer(result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr)


def verify(root: Path, *arguments: object) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """(exit code, findings and notes, summary)"""
    answer = run("verify", "--json", "--store", root, *arguments)
    return answer.code, answer.lines[:-1], answer.lines[-1]


def snapshot(root: Path) -> dict[str, tuple[int, int, int]]:
    paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns, p.stat().st_ino) for p in paths}


@pytest.fixture(scope="module", params=GOLDEN_NAMES)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(request.param, tmp_path_factory.mktemp("golden"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return unpack("small", tmp_path)


@pytest.fixture
def rollover(tmp_path: Path) -> Path:
    return unpack("rollover", tmp_path)


# --- golden stores --------------------------------------------------------------------------------------
def test_the_manifest_of_a_golden_store(golden: Path) -> None:
    expected = load_manifest(golden.name)
    before = snapshot(golden)
    given = [text for key, value in expected["brokerConfig"].items() for text in ("--set", f"{key}={value}")]
    answer = run("export", "--manifest", "--store", golden, *given)
    assert (answer.code, len(answer.lines)) == (0, 1)
    for part in MANIFEST_PARTS:
        assert answer.lines[0][part] == expected[part], part
    assert snapshot(golden) == before
    assert set(expected["brokerConfig"]) == BROKER_CONFIG_KEYS


def test_sizes_are_inferred(golden: Path) -> None:
    (document,) = run("export", "--manifest", "--store", golden).lines
    expected = load_manifest(golden.name)
    assert document["brokerConfig"].items() <= expected["brokerConfig"].items()
    assert len(document["brokerConfig"]) == 4
    assert document["messages"] == expected["messages"]


def test_every_message_one_a_line(golden: Path) -> None:
    answer = run("export", "--store", golden)
    found = [*map(as_manifest, answer.lines)]
    assert (answer.code, found) == (0, load_manifest(golden.name)["messages"])


def test_an_export_has_bodies_that_people_can_read(tmp_path: Path) -> None:
    store = open_store(RealFileSystem(tmp_path), topics=("orders",))
    for body in ("12 \xe4pfel".encode(), b"\xff\xfe", b""):
        send(store, body)
    flush(store)
    store.close(NOW_MS)
    answer = run("export", "--store", tmp_path)
    names = ("body", "bodyBase64")
    found = [{name: line[name] for name in names if name in line} for line in answer.lines]
    assert found == [{"body": "12 \xe4pfel"}, {"bodyBase64": "//4="}, {"body": ""}]
    again = read_messages(io.BytesIO(json.dumps(answer.lines[0]).encode()), InputFormat.MESSAGES, Fields())
    assert [one.body for one in again] == ["12 \xe4pfel".encode()]


def test_golden_stores_have_nothing_to_find(golden: Path) -> None:
    manifest = load_manifest(golden.name)
    before = snapshot(golden)
    code, found, summary = verify(golden)
    assert (code, found) == (0, [])
    assert summary["shutdown"] == ("killed" if golden.name == "crashed" else "clean")
    assert summary["records"] == len(manifest["messages"])
    assert summary["commitLogMaxOffset"] == manifest["commitLogMaxOffset"]
    assert snapshot(golden) == before


def test_dumps_of_golden_stores(golden: Path) -> None:
    manifest = load_manifest(golden.name)
    queue = manifest["queues"][-1]
    units = run("dump", "consumequeue", queue["topic"], queue["queueId"], "--store", golden).lines
    assert [unit["commitLogOffset"] for unit in units] == queue["cqPhysicalOffsets"]
    assert [unit["tagsCode"] for unit in units] == queue["cqTagsCodes"]
    middle = manifest["messages"][len(manifest["messages"]) // 2]["commitLogOffset"]
    records = run("dump", "records", "--begin", middle, "--store", golden).lines
    offsets = [message["commitLogOffset"] for message in manifest["messages"]]
    assert [record["commitLogOffset"] for record in records] == offsets[offsets.index(middle) :]
    assert not any("body" in record or record["deleted"] for record in records)
    index = run("dump", "index", "--store", golden).lines
    heads = [line for line in index if "file" in line]
    assert sum(head["indexCount"] - 1 for head in heads) == len(index) - len(heads)
    assert heads[-1]["endPhyoffset"] == offsets[-1]
    (checkpoint,) = run("dump", "checkpoint", "--store", golden).lines
    assert set(checkpoint) >= {"physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp"}


# --- our own stores -------------------------------------------------------------------------------------
def fill(store: MessageStore, count: int) -> None:
    for number in range(count):
        send(store, b"b" * (number % 300), NOW_MS + number, keys=f"k{number % 7} k", tag=f"t{number % 3}",
             unique_key=f"U{number}", queue_id=number % 4)  # fmt: skip


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A store of ours with a deleted topic that was recreated, stopped cleanly."""
    root = tmp_path / "ours"
    store = open_store(RealFileSystem(root), SMALL, topics=("orders", "gone"))
    fill(store, 60)
    for number in range(20):
        send(store, b"lost", NOW_MS + 100 + number, topic="gone", keys="k")
    store.delete_topic("gone", NOW_MS + 200)
    store.topics.create("gone")
    for number in range(3):
        send(store, b"new", NOW_MS + 300 + number, topic="gone", keys="k")
    flush(store)
    store.close(NOW_MS + 400)
    return root


def test_our_own_store(ours: Path) -> None:
    code, found, summary = verify(ours)
    assert (code, found) == (0, [])
    assert (summary["records"], summary["recordsOfDeletedTopics"]) == (83, 20)
    messages = run("export", "--store", ours).lines
    assert len(messages) == 63
    assert [m["queueOffset"] for m in messages if m["topic"] == "gone"] == [0, 1, 2]
    (document,) = run("export", "--manifest", "--store", ours).lines
    gone = [queue for queue in document["queues"] if queue["topic"] == "gone"]
    assert [(queue["minOffset"], queue["maxOffset"]) for queue in gone] == [(0, 3)]
    records = run("dump", "records", "--store", ours).lines
    assert sum(record["deleted"] for record in records) == 20


def test_a_killed_store_shows_what_recovery_would_do(tmp_path: Path) -> None:
    root = tmp_path / "killed"
    files = RealFileSystem(root)
    store = open_store(files, SMALL)
    fill(store, 40)
    end = store.end_offset
    files.unlock(LOCK_PATH)
    segment = root / "commitlog" / f"{end // 12_288 * 12_288:020d}"
    with segment.open("r+b") as file:
        file.seek(end % 12_288)
        file.write(b"\0\0\1\0\xda\xa3\x20\xa7 torn")
    code, found, summary = verify(root)
    assert code == 0
    assert summary["shutdown"] == "killed"
    assert (summary["commitLogMaxOffset"], summary["records"]) == (end, 40)
    assert summary["bytesCut"] > 0
    assert [note["file"] for note in found if "after it" in note["what"]] == [f"commitlog/{segment.name}"]
    assert all(note["note"] for note in found)
    assert len(run("export", "--store", root).lines) == 40


# --- damage ---------------------------------------------------------------------------------------------
def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_damaged_record_is_named_and_skipped(small: Path) -> None:
    victim = load_manifest("small")["messages"][50]
    offset = victim["commitLogOffset"]
    patch(small / "commitlog" / f"{0:020d}", offset + 90, b"\xff\x00\xff")
    code, found, summary = verify(small)
    assert code == 1
    log = [finding for finding in found if finding["file"].startswith("commitlog/")]
    assert [(finding["file"], finding["offset"]) for finding in log] == [(f"commitlog/{0:020d}", offset)]
    assert summary["damagedBytes"] == victim["storeSize"]
    answer = run("export", "--store", small)
    assert answer.code == 1
    assert f"commitlog/{0:020d} at {offset}" in answer.errors
    assert [*map(as_manifest, answer.lines)] == [m for m in load_manifest("small")["messages"] if m != victim]


Harm = Callable[[Path], tuple[str, int]]


def harm_unit(root: Path) -> tuple[str, int]:
    patch(root / "consumequeue/RollAlpha/1/00000000000000002000", 60, b"\0\0\0\0\0\0\0\1")
    return "consumequeue/RollAlpha/1/00000000000000002000", 60


def harm_tags_code(root: Path) -> tuple[str, int]:
    patch(root / "consumequeue/RollBeta/0/00000000000000000000", 20 * 3 + 12, b"\7" * 8)
    return "consumequeue/RollBeta/0/00000000000000000000", 60


def harm_queue_end(root: Path) -> tuple[str, int]:
    patch(root / "consumequeue/RollGamma/0/00000000000000001000", 0, bytes(1000))
    return "consumequeue/RollGamma/0/00000000000000001000", 0


def harm_queue_size(root: Path) -> tuple[str, int]:
    (root / "consumequeue/RollGamma/0/00000000000000002000").write_bytes(bytes(20))
    return "consumequeue/RollGamma/0/00000000000000002000", 0


def index_path(root: Path, number: int) -> Path:
    return sorted((root / "index").iterdir())[number]


def harm_index_hash(root: Path) -> tuple[str, int]:
    path = index_path(root, 5)
    patch(path, 40 + 4 * 100 + 20 * 17, b"\0\0\0\x2a")
    return f"index/{path.name}", 40 + 4 * 100 + 20 * 17


def harm_index_slot(root: Path) -> tuple[str, int]:
    path = index_path(root, 0)
    patch(path, 40 + 4 * 33, b"\0\0\x01\x90")
    return f"index/{path.name}", 40 + 4 * 33


def harm_index_chain(root: Path) -> tuple[str, int]:
    path = index_path(root, 1)
    patch(path, 40 + 4 * 100 + 20 * 200 + 16, b"\0\0\1\0")
    return f"index/{path.name}", 40 + 4 * 100 + 20 * 200


def harm_index_header(root: Path) -> tuple[str, int]:
    path = index_path(root, 2)
    patch(path, 24, bytes(8))
    return f"index/{path.name}", 24


def harm_index_size(root: Path) -> tuple[str, int]:
    path = index_path(root, 3)
    path.write_bytes(path.read_bytes()[:-20])
    return f"index/{path.name}", 0


def harm_index_missing(root: Path) -> tuple[str, int]:
    index_path(root, 4).unlink()
    return "index", 0


def harm_topics(root: Path) -> tuple[str, int]:
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_bytes(b"{")
    return "config/topics.json", 0


def harm_first_copy_of_topics(root: Path) -> tuple[str, int]:
    (root / "config/topics.json").write_bytes(b"{")
    return "config/topics.json", 0


def harm_checkpoint(root: Path) -> tuple[str, int]:
    patch(root / "checkpoint", 8, b"\x7f" * 8)
    return "checkpoint", 8


@pytest.mark.parametrize(
    "harm",
    [
        harm_unit,
        harm_tags_code,
        harm_queue_end,
        harm_queue_size,
        harm_index_hash,
        harm_index_slot,
        harm_index_chain,
        harm_index_header,
        harm_index_size,
        harm_index_missing,
        harm_topics,
        harm_first_copy_of_topics,
        harm_checkpoint,
    ],
)
def test_every_kind_of_damage_is_reported_by_file_and_offset(rollover: Path, harm: Harm) -> None:
    place = harm(rollover)
    code, found, summary = verify(rollover)
    assert code == 1
    assert place in [(finding["file"], finding["offset"]) for finding in found if not finding["note"]]
    assert summary["records"] == 2000


def test_units_and_items_after_the_end_of_a_shorter_log(rollover: Path) -> None:
    last = sorted((rollover / "commitlog").iterdir())[-1]
    last.write_bytes(bytes(65_536))
    (rollover / "abort").touch()
    code, found, summary = verify(rollover)
    assert code == 0
    assert summary["commitLogMaxOffset"] == int(last.name)
    assert {finding["file"].split("/")[0] for finding in found} >= {"consumequeue", "index"}
    assert all(finding["note"] for finding in found)


def test_no_index_at_all_is_no_damage(small: Path) -> None:
    next((small / "index").iterdir()).unlink()
    code, found, _ = verify(small)
    assert (code, found) == (0, [])


def test_an_index_of_an_older_rocketmq_lacks_its_tags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(key_entries, "index_entries", lambda batch, tags: index_entries(batch, tags=False))
        store = open_store(RealFileSystem(tmp_path / "older"))
        fill(store, 12)
        flush(store)
        store.close(NOW_MS + 400)
    code, found, _ = verify(tmp_path / "older")
    assert code == 0
    assert [note["what"].split(",")[0] for note in found] == ["11 tags have no item"]


# --- usage ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "mappedFileSizeCommitLog=65536"], "mappedFileSizeCommitLog is 65536"),
        (["--set", "maxHashSlotNum=999"], "does not fit 999 slots"),
        (["--set", "noSuchSetting=1"], "noSuchSetting"),
        (["--set", "mappedFileSizeCommitLog=x"], "mappedFileSizeCommitLog"),
    ],
)
def test_wrong_settings(small: Path, arguments: list[str], text: str) -> None:
    answer = run("verify", "--store", small, *arguments)
    assert (answer.code, answer.lines) == (2, [])
    assert text in answer.errors


def test_no_store(tmp_path: Path) -> None:
    for command in (["verify"], ["export"], ["dump", "checkpoint"]):
        answer = run(*command, "--store", tmp_path / "missing")
        assert (answer.code, answer.lines) == (2, [])
        assert "there is no store" in answer.errors
    assert not (tmp_path / "missing").exists()


def test_a_gap_in_the_log(rollover: Path) -> None:
    (rollover / "commitlog" / "00000000000000131072").unlink()
    answer = run("verify", "--store", rollover)
    assert answer.code == 1
    assert "segments are missing" in answer.errors


def test_dump_of_what_is_not_there(small: Path) -> None:
    assert run("dump", "consumequeue", "NoTopic", "0", "--store", small).code == 1
    assert run("dump", "consumequeue", "NoTopic", "--store", small).code == 2
    assert run("dump", "index", "x", "--store", small).code == 2
    answer = run("dump", "records", "--begin", "7", "--store", small)
    assert (answer.code, answer.lines) == (1, [])
    assert "no record begins at physical offset 7" in answer.errors


def test_a_summary_has_words_that_people_read(small: Path) -> None:
    result = CliRunner().invoke(app, ["verify", "--store", str(small)])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "last stop                  clean",
        "log from                   0",
        "log to                     338,576",
        "records                    204",
        "records of deleted topics  0",
        "bytes that a start cuts    0",
        "damaged bytes              0",
        "last message stored        2026-11-21 12:27:16.412Z",
        "queues                     27",
        "findings                   0",
        "notes                      0",
    ]


def test_no_summary_has_a_name_that_only_programs_read(small: Path, tmp_path: Path) -> None:
    store = open_store(RealFileSystem(tmp_path / "source"))
    fill(store, 3)
    flush(store)
    back_up(store, tmp_path / "source", tmp_path / "backup")
    store.close(NOW_MS)
    restored = ["restore", str(tmp_path / "backup"), "--store", str(tmp_path / "restored")]
    for arguments in (["verify", "--store", str(small)], ["repair", "--store", str(small)], restored):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        names = [line.partition("  ")[0] for line in result.stdout.splitlines()]
        assert len(names) > 4
        assert all(name == name.lower() for name in names), names


@pytest.mark.slow
def test_as_a_process(small: Path) -> None:
    command = [sys.executable, "-m", "trovemq_broker.tools", "export", "--store", str(small)]
    done = fork_server.run(command, check=True)
    found = [as_manifest(json.loads(line)) for line in done.stdout.splitlines()]
    assert found == load_manifest("small")["messages"]
    assert done.stderr == b""


# --- the cluster's configuration --------------------------------------------------------------------------
def test_a_damaged_copy_of_the_cluster_s_table_is_named(small: Path) -> None:
    files = RealFileSystem(small)
    table = StoredTable.load(files)
    work = begin_founding(table, "a", "store-a", cluster="c1", mark="0123456789abcdef")
    work.run()
    table.finish(work)
    assert verify(small)[2]["findings"] == 0
    for path, notes in ((small / PATH, 1), (small / BACKUP_PATH, 0)):
        damaged = bytearray(path.read_bytes())
        damaged[25] ^= 1
        path.write_bytes(damaged)
        code, found, summary = verify(small)
        named = [one for one in found if "trovemq-cluster" in one["file"]]
        assert [one["note"] for one in named] == ([True] if notes else [False, False])
        assert (code, summary["findings"]) == ((0, 0) if notes else (1, 2))
