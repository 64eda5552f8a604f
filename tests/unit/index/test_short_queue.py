"""Queues that are read as one page at a start are as if they had been read in full; and it costs little."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, open_store, send
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index import consume_queue
from trovemq_store.index.consume_queue import BLANK_SIZE, ROOT_DIRECTORY, UNIT_DTYPE, UNIT_SIZE
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.topics import NewTopic

SETTINGS = StoreSettings(consume_queue_file_size=300 * UNIT_SIZE)
PATH = f"{ROOT_DIRECTORY}/orders/0/{0:020d}"
UNITS = st.lists(
    st.tuples(
        st.integers(0, 300), st.sampled_from([100, 100, 100, 100, 0, -1, BLANK_SIZE]), st.integers(0, 9)
    ),
    max_size=230,
)


def _content(units: list[tuple[int, int, int]], sorted_ones: bool, behind: bytes) -> bytes:
    """In the order of the log where `sorted_ones`, as a queue has them; `behind` somewhere after them."""
    if sorted_ones:
        units = [(100 * number, 100, tag) for number, (_, _, tag) in enumerate(units)]
    data = bytearray(np.array(units, UNIT_DTYPE).tobytes()) if units else bytearray()
    data += bytes(SETTINGS.consume_queue_file_size - len(data))
    if behind:
        data[-len(behind) :] = behind
    return bytes(data)


def _loaded(
    content: bytes, trusted: PhysicalOffset | None, deleted_below: PhysicalOffset, *, short: bool
) -> tuple[ConsumeQueues, MemoryFileSystem]:
    files = MemoryFileSystem()
    files.create(PATH, len(content), preallocate=False).write(0, content)
    queues = ConsumeQueues(files, SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        if not short:
            patch.setattr(consume_queue, "read_short_queue", lambda *_: None)
        below = MappingProxyType({"orders": deleted_below} if deleted_below else {})
        queues.load(trusted, deleted_below=below)
    return queues, files


def _state(queues: ConsumeQueues, files: MemoryFileSystem) -> object:
    queue = queues.get("orders", QueueId(0))
    if queue is None:
        return files.list(ROOT_DIRECTORY)
    units = queue.units(queue.file_offsets[0], 400).tolist() if queue.file_offsets else []
    ends = queue.min_offset, queue.max_offset, queue.has_units, queue.last_physical_end
    return ends, queue.file_offsets, units, files.read_bytes(PATH) if files.exists(PATH) else b""


@given(
    units=UNITS,
    sorted_ones=st.booleans(),
    behind=st.sampled_from([b"", b"", b"\1", b"\0" * 4]),
    trusted=st.none() | st.integers(0, 25_000),
    deleted_below=st.sampled_from([0, 0, 1, 500]),
    log_begin=st.integers(0, 3_000),
)
def test_one_page_says_what_the_whole_file_does(
    units: list[tuple[int, int, int]],
    sorted_ones: bool,
    behind: bytes,
    trusted: PhysicalOffset | None,
    deleted_below: PhysicalOffset,
    log_begin: int,
) -> None:
    content = _content(units, sorted_ones, behind)
    both = [_loaded(content, trusted, deleted_below, short=short) for short in (True, False)]
    assert _state(*both[0]) == _state(*both[1])
    for queues, _ in both:
        queues.trim_before(PhysicalOffset(log_begin))
    assert _state(*both[0]) == _state(*both[1])
    for queues, _ in both:
        queue = queues.get("orders", QueueId(0))
        if queue is not None:
            queue.append(queue.max_offset, np.array([(1 << 40, 7, 1)], UNIT_DTYPE))
            queue.trim(PhysicalOffset(log_begin + 200))
    assert _state(*both[0]) == _state(*both[1])
    for queues, _ in both:
        queues.truncate_to(PhysicalOffset(1_000))
    assert _state(*both[0]) == _state(*both[1])


@pytest.mark.parametrize("ended", ["cleanly", "killed"])
def test_a_start_opened_each_queue_and_synced_its_directory(ended: str) -> None:
    memory = MemoryFileSystem()
    store = open_store(memory, SMALL, topics=())
    change, _ = store.topics.begin_create_all([NewTopic(f"t{number}", 4) for number in range(60)])
    assert change is not None
    change.run()
    store.topics.finish(change)
    for number in range(240):
        send(store, b"x", topic=f"t{number // 4}", queue_id=number % 4)
    if ended == "cleanly":
        store.close(NOW_MS)
    else:
        work = store.begin_flush()
        assert work is not None
        work.run()
        store.finish_flush(work)
        store.flush_projections()
        memory = memory.after_process_kill()
    calls: list[tuple[str, str]] = []

    def noted(operation: str, path: str) -> None:
        calls.append((operation, path))

    store = open_store(FaultyFileSystem(memory, noted), SMALL, topics=())
    of_queues = [operation for operation, path in calls if path.startswith(f"{ROOT_DIRECTORY}/t")]
    assert of_queues.count("open") == of_queues.count("read") == 240, "its first page, once"
    assert "sync" not in of_queues
    assert "sync_directory" not in of_queues
    assert store.consume_queues.queue_count == 240
    assert len(store.consume_queues._open_files) <= 1
