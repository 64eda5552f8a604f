"""Flushes of the projections run in a separate thread, while the loop appends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.engine import flush, open_store, send
from trovemq_proto.positions import QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import finished
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import state

FIRST, SECOND = QueueId(0), QueueId(1)


def at_the_first_opening(files: FaultyFileSystem, path_part: str, do: Callable[[], object]) -> None:
    """Another thread runs at this moment."""

    def decide(operation: str, path: str) -> int | None:
        if operation == "open" and path_part in path:
            files.decide = lambda _operation, _path: None
            do()
        return None

    files.decide = decide


def with_closed_files(files: FaultyFileSystem) -> MessageStore:
    """More queues than files may be open, and messages that no sync has covered."""
    store = open_store(files)
    store.consume_queues._open_files.limit = 1
    for _ in range(4):
        send(store, b"synced", queue_id=FIRST)
    flush(store)
    for _ in range(2):
        send(store, b"not synced", queue_id=FIRST)
    send(store, b"", queue_id=SECOND)
    return store


def test_the_broker_ended_when_two_threads_opened_a_queues_file() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = with_closed_files(files)
    at_the_first_opening(files, "/0/", lambda: send(store, b"meanwhile", queue_id=FIRST))
    store.flush_projections()
    saved = state.load(files)
    assert saved is not None
    assert {ends[FIRST] for ends in saved.queue_ends.values() if FIRST in ends} == {4}


def test_a_flush_does_not_close_a_file_that_the_loop_has_open() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = with_closed_files(files)
    opened = dict(store.consume_queues._open_files._open)
    store.flush_projections()
    assert store.consume_queues._open_files._open == opened


def test_a_flush_takes_over_no_trim_of_a_queue_which_is_the_loops_work() -> None:
    """Both could do so in one moment; then the flush failed, or a removed file was never closed."""
    store = open_store(MemoryFileSystem())
    for number in range(8):
        send(store, bytes(8_000), queue_id=QueueId(number % 2))
    flush(store)
    store.flush_projections()
    queue = store.consume_queues.get("orders", FIRST)
    assert queue is not None
    trim = store.trim(store.closed_segments()[0].end)
    finished(trim.prepare())
    trim.measure()
    trim.hide()
    store.flush_projections()
    saved = state.load(store.files)
    assert saved is not None
    assert queue._measured is not None
    assert saved.queue_begins["orders"][FIRST] == queue.min_offset > 0


def test_an_end_is_known_without_a_file_where_all_messages_are_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flush looked for the end of each queue in its file, also of those that had got nothing new."""
    files = FaultyFileSystem(MemoryFileSystem())
    store = with_closed_files(files)
    flush(store)
    send(store, b"not synced", queue_id=SECOND)
    opened: list[str] = []
    at_the_first_opening(files, "/0/", lambda: opened.append("of the first queue"))
    monkeypatch.setattr(store.consume_queues, "flush", lambda: None)  # it opens files, too
    store.flush_projections()
    assert not opened
    saved = state.load(files)
    assert saved is not None
    assert {ends[FIRST] for ends in saved.queue_ends.values() if FIRST in ends} == {6}


def test_messages_during_a_flush_made_a_start_read_the_whole_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their queues' ends were saved, and a power cut took them: the queues counted as not whole."""
    memory = MemoryFileSystem()
    store = open_store(memory)
    for _ in range(4):
        send(store, b"synced", queue_id=FIRST)
    flush(store)
    topics = store.consume_queues.topics

    def meanwhile() -> list[str]:
        monkeypatch.undo()
        send(store, b"not synced", queue_id=FIRST)
        return topics()

    monkeypatch.setattr(store.consume_queues, "topics", meanwhile)
    store.flush_projections()
    saved = state.load(memory)
    assert saved is not None
    assert saved.queue_ends["orders"] == {FIRST: 4}
    cut = memory.after_power_cut()
    assert open_store(cut).recovery.scan_begin == saved.log_end > 0
