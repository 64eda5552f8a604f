"""Deleted topics: which records count as alive, and that a deletion is never forgotten."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics import deletions
from trovemq_store.topics.deletions import DELETIONS_PATH, TopicDeletions


@dataclass
class Run:
    """As much of a RecordBatch as the mask needs."""

    topics: list[str]
    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.topics)

    def topic_groups(self) -> list[tuple[str, NDArray[np.int64]]]:
        names = dict.fromkeys(self.topics)
        return [
            (name, np.array([i for i, t in enumerate(self.topics) if t == name], np.int64)) for name in names
        ]


def run_of(topics: list[str], size: int = 100) -> Run:
    return Run(topics, np.arange(len(topics), dtype=np.int64) * size)


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


def test_without_deletions_nothing_is_looked_at(files: MemoryFileSystem) -> None:
    table = TopicDeletions.load(files)
    assert not table.any
    assert table.alive_mask(None, 0) is None  # type: ignore[arg-type]
    assert not files.exists(DELETIONS_PATH)


def test_a_deletion_is_durable_and_only_grows(files: MemoryFileSystem) -> None:
    table = TopicDeletions.load(files)
    table.add("a", PhysicalOffset(500))
    table.add("a", PhysicalOffset(200))
    table.add("b", LOG_ORIGIN)
    survivor = TopicDeletions.load(files.after_power_cut())
    assert survivor.entries() == {"a": 500}
    survivor.add("a", PhysicalOffset(900))
    assert (survivor.deleted_below("a"), survivor.deleted_below("b"), survivor.any) == (900, 0, True)


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 1200)),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=10),
    st.integers(0, 800),
)
def test_the_mask_is_the_rule_record_by_record(below: dict[str, int], topics: list[str], start: int) -> None:
    table = TopicDeletions.load(MemoryFileSystem())
    for topic, physical_offset in below.items():
        table.add(topic, PhysicalOffset(physical_offset))
    run = run_of(topics)
    expected = [
        start + position >= below.get(t, 0) for t, position in zip(topics, run.positions, strict=True)
    ]
    mask = table.alive_mask(run, start)  # type: ignore[arg-type]
    assert (mask is None) == all(expected)
    if mask is not None:
        assert mask.tolist() == expected


def test_a_log_that_was_cut_shorter_takes_new_records_as_alive(files: MemoryFileSystem) -> None:
    table = TopicDeletions.load(files)
    table.add("a", PhysicalOffset(500))
    table.add("b", PhysicalOffset(100))
    table.truncate_to(PhysicalOffset(300))
    assert TopicDeletions.load(files).entries() == {"a": 300, "b": 100}
    table.truncate_to(LOG_ORIGIN)
    assert not TopicDeletions.load(files).any


def test_one_damaged_copy_is_survived_and_two_are_not_guessed_at(files: MemoryFileSystem) -> None:
    table = TopicDeletions.load(files)
    table.add("a", PhysicalOffset(500))
    table.add("a", PhysicalOffset(900))
    files.write_atomic(DELETIONS_PATH, b"{")
    assert TopicDeletions.load(files).entries() == {"a": 900}
    files.write_atomic(f"{DELETIONS_PATH}.bak", b"{")
    with pytest.raises(TroveError, match=r"STORE_FAILED.*deletions\.json"):
        TopicDeletions.load(files)


@pytest.mark.parametrize(
    ("document", "symbol"),
    [
        ({"formatVersion": 2}, "STORE_NEWER"),
        ({}, "STORE_FAILED"),
        ({"formatVersion": 1, "deletedBelow": []}, "STORE_FAILED"),
        ({"formatVersion": 1, "deletedBelow": {"a": -1}}, "STORE_FAILED"),
        ({"formatVersion": 1, "deletedBelow": {"a": "1"}}, "STORE_FAILED"),
    ],
)
def test_other_formats_are_refused(files: MemoryFileSystem, document: dict[str, object], symbol: str) -> None:
    files.write_atomic(DELETIONS_PATH, json.dumps(document).encode())
    with pytest.raises(TroveError, match=symbol):
        TopicDeletions.load(files)


def test_a_deletion_that_cannot_be_saved_is_not_made(files: MemoryFileSystem) -> None:
    table = TopicDeletions.load(FaultyFileSystem(files, fail_always("write_atomic", errno.EIO)))
    with pytest.raises(TroveError, match="UNKNOWN_ERROR"):
        table.add("a", PhysicalOffset(500))
    assert table.deleted_below("a") == 0


def test_the_number_of_deletions_is_bounded(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "DELETION_COUNT_MAX", 1)
    table = TopicDeletions.load(files)
    table.add("a", PhysicalOffset(1))
    table.add("a", PhysicalOffset(2))
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        table.add("b", PhysicalOffset(1))
