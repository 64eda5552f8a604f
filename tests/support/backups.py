"""Backups of a store in use, and stores made from them, as tests want them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.engine import NOW_MS, open_store, read_queue, send
from trovemq_broker.tools.__main__ import _check_restored
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.backup.capture import capture_log, queue_steps
from trovemq_store.backup.restore import restore
from trovemq_store.backup.writer import BackupWriter, checked_target
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem

Between = Callable[[], None]


def fill(store: MessageStore, count: int, first: int = 0, topic: str = "orders") -> None:
    for number in range(first, first + count):
        body = f"{topic} {number}".encode().ljust(300)
        send(store, body, NOW_MS + number, topic=topic, keys=f"k{number}", queue_id=number % 4)


def nothing() -> None:
    pass


def back_up(
    store: MessageStore,
    root: Path,
    target: Path,
    *,
    link: bool = True,
    before_capture: Between = nothing,
    after_capture: Between = nothing,
) -> BackupWriter:
    writer = BackupWriter(root, checked_target(str(target), root))
    store.removal_holds += 1
    writer.begin()
    list(writer.small_files())
    before_capture()
    capture = capture_log(store, link=link)
    list(queue_steps(store, capture))
    after_capture()
    list(writer.rest(capture, NOW_MS, "cluster", "broker"))
    store.removal_holds -= 1
    return writer


def restored(tmp_path: Path) -> MessageStore:
    restore(tmp_path / "backup", tmp_path / "restored", _check_restored)
    return open_store(RealFileSystem(tmp_path / "restored"), topics=())


def queues(store: MessageStore, topic: str = "orders") -> list[list[bytes]]:
    return [[m.body for m in read_queue(store, topic, QueueId(queue_id))] for queue_id in range(4)]


def refuse_restore(tmp_path: Path) -> str:
    with pytest.raises(TroveError) as caught:
        restore(tmp_path / "backup", tmp_path / "restored", _check_restored)
    assert not (tmp_path / "restored").exists()
    assert not (tmp_path / "restored.restoring").exists()
    return caught.value.message
