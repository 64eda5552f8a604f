"""`dump --tree` and the findings of `verify` on the B+trees."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.backups import back_up
from tests.support.engine import NOW_MS, SMALL, flush, open_store, send
from tests.unit.tools.test_tools import run, verify
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem
from trovemq_store.files.trees import TreeChange, Trees
from trovemq_store.index.trees.layout import DIRECTORY, KEY, LOCATION, META, TAG, TERM
from trovemq_store.index.trees.store_trees import TREE_NAMES

SETTINGS = replace(SMALL, tree_index_enable=True)
PRODUCER = "ID:host-35655-1608131234567-1:1:1:1:"
NUMBERS = (3, 4, 5, 1, 2, 6, 7)
"""Of the messages, in the order in which they are sent: KahaDB's example lists its ids so."""
PRIORITIES = (4, 9, 4, 0, 9, 4, 7)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = opened(tmp_path)
    for number, priority in zip(NUMBERS, PRIORITIES, strict=True):
        send(
            store,
            b"body",
            unique_key=f"{PRODUCER}{number}",
            keys=f"k{number} all",
            tag="t",
            properties={"_SYS_MSG_PRIORITY_": str(priority), "color": "red"},
        )
    flush(store)
    store.catch_up_trees()
    store.close(NOW_MS)
    return tmp_path


def opened(root: Path) -> MessageStore:
    store = open_store(RealFileSystem(root), SETTINGS, topics=())
    if store.topics.get("orders") is None:
        options = {"order": "priority", "indexed_properties": "color"}
        store.topics.create("orders", 4, options=options)
    return store


def check_three_lists(root: Path, note: str) -> None:
    lists: dict[str, list[dict[str, Any]]] = {}
    for view in ("location", "message-id", "order"):
        answer = run("dump", "--tree", view, "--store", root)
        assert answer.code == 0
        assert (note in answer.errors) if note else not answer.errors
        lists[view] = answer.lines
    places = [one["commitLogOffset"] for one in lists["location"]]
    assert places == sorted(places)
    assert [one["queueOffset"] for one in lists["location"]] == list(range(7))
    ids = [one["messageId"] for one in lists["message-id"]]
    assert ids == [f"{PRODUCER}{number}" for number in sorted(NUMBERS)]
    assert [places.index(one["commitLogOffset"]) for one in lists["message-id"]] == [3, 4, 0, 1, 2, 5, 6]
    assert [(one["sequence"], one["priority"], one["messageId"][-1]) for one in lists["order"]] == [
        (1, 9, "4"),
        (2, 9, "2"),
        (3, 7, "7"),
        (4, 4, "3"),
        (5, 4, "5"),
        (6, 4, "6"),
        (7, 0, "1"),
    ]
    assert sorted(one["commitLogOffset"] for one in lists["order"]) == places


def test_seven_messages_in_the_order_of_log_ids_and_priorities(root: Path) -> None:
    check_three_lists(root, "")


def test_a_store_without_trees_shows_those_that_its_log_gives(root: Path) -> None:
    (root / DIRECTORY / "data.mdb").unlink()
    check_three_lists(root, "made from the log in memory")


def test_trees_that_lag_are_not_shown(root: Path) -> None:
    store = opened(root)
    store.topics.create("other", 1)
    send(store, b"later", topic="other")
    store.close(NOW_MS)
    answer = run("dump", "--tree", "location", "--store", root)
    assert "the trees lack 1 messages" in answer.errors
    assert [one["topic"] for one in answer.lines] == ["orders"] * 7 + ["other"]


def test_a_tree_and_a_part_at_once_are_wrong_usage(root: Path) -> None:
    assert run("dump", "records", "--tree", "order", "--store", root).code == 2
    assert run("dump", "--store", root).code == 2


# --- verify -----------------------------------------------------------------------------------------------


def trees_of(root: Path) -> Trees:
    return RealFileSystem(root).open_trees(DIRECTORY, TREE_NAMES)


def first_key(root: Path, tree: str, kind: int = 0) -> bytes:
    trees = trees_of(root)
    with trees.read() as reader:
        found = [key for key, _ in reader.items(tree, b"") if not kind or key[4] == kind]
    trees.close()
    return found[0]


def test_verify_finds_nothing_in_trees_that_are_equal_to_the_log(root: Path) -> None:
    code, findings, summary = verify(root)
    assert (code, findings, summary["findings"]) == (0, [], 0)


@pytest.mark.parametrize(("tree", "kind"), [(LOCATION, 0), (TERM, KEY), (TERM, TAG)])
def test_verify_names_records_that_the_trees_lack(root: Path, tree: str, kind: int) -> None:
    key = first_key(root, tree, kind)
    trees = trees_of(root)
    trees.commit([TreeChange(tree, removals=[key])])
    trees.close()
    code, findings, _ = verify(root)
    assert code == 1
    assert {finding["what"].split(" of the record")[0] for finding in findings} == {f"{tree} lacks an entry"}


@pytest.mark.parametrize("tree", [LOCATION, TERM])
def test_verify_names_entries_that_lead_to_no_record(root: Path, tree: str) -> None:
    key = first_key(root, tree, KEY if tree == TERM else 0)
    trees = trees_of(root)
    with trees.read() as reader:
        value = reader.get(tree, key)
    assert value is not None
    of_one_record = value[:20] if tree == LOCATION else b""
    trees.commit([TreeChange(tree, [(key[:-1] + bytes([key[-1] + 1]), of_one_record)])])
    trees.close()
    code, findings, _ = verify(root)
    assert code == 1
    assert any("entries that the log has not" in finding["what"] for finding in findings)


def test_verify_names_damaged_pages(root: Path) -> None:
    path = root / DIRECTORY / "data.mdb"
    data = bytearray(path.read_bytes())
    source = random.Random(3)
    for at in range(2 * 4096, len(data), 4096):
        data[at + 16 : at + 200] = source.randbytes(184)
    path.write_bytes(data)
    code, findings, _ = verify(root)
    assert code == 1
    assert all(finding["file"] == f"{DIRECTORY}/data.mdb" for finding in findings)


def test_trees_of_another_store_are_a_note(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    store = opened(other)
    for _ in range(3):
        send(store, b"another body")
    flush(store)
    store.catch_up_trees()
    store.close(NOW_MS)
    (other / DIRECTORY / "data.mdb").replace(root / DIRECTORY / "data.mdb")
    code, findings, _ = verify(root)
    assert code == 0
    assert [finding["note"] for finding in findings] == [True]
    trees = trees_of(root)
    with trees.read() as reader:
        keys = [key for key, _ in reader.items(META, b"")]
    trees.commit([TreeChange(META, removals=keys)])
    trees.close()
    code, findings, _ = verify(root)
    assert (code, [finding["what"] for finding in findings]) == (
        0,
        ["the trees have another format; they are rebuilt"],
    )


def test_verify_checks_trees_that_lag_as_far_as_they_are(root: Path) -> None:
    store = opened(root)
    for number in range(3):
        send(store, b"later", keys=f"later{number}")
    store.close(NOW_MS)
    assert verify(root)[:2] == (0, [])


# --- without the trees -------------------------------------------------------------------------------------


def test_repair_removes_them_and_the_next_start_makes_them_again(root: Path) -> None:
    assert run("repair", "--json", "--store", root).code == 0
    assert not (root / DIRECTORY / "data.mdb").exists()
    store = opened(root)
    store.catch_up_trees()
    store.close(NOW_MS)
    check_three_lists(root, "")


def test_a_backup_has_no_trees_and_the_restored_store_gets_them(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = opened(root)
    beside = tmp_path_factory.mktemp("beside")
    target, restored = beside / "backup", beside / "restored"
    back_up(store, root, target)
    store.close(NOW_MS)
    assert not list(target.rglob("data.mdb"))
    assert run("restore", target, restored, "--json").code == 0
    store = opened(restored)
    store.catch_up_trees()
    store.close(NOW_MS)
    check_three_lists(restored, "")
