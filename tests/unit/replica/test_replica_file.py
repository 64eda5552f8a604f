"""trovemq/replica.json and RocketMQ's epochFileCheckpoint: durable, checked, and equal to each other."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.fault_points import POINTS, armed
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.sealed_json import seal
from trovemq_store.replica import epoch_checkpoint, replica_file
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.replica_file import PATH, ReplicaFile, ReplicaState

ROCKETMQ = b"2\n1131518206\n1-0\n3-4096\n"

PAIRS = st.lists(st.tuples(st.integers(1, 99), st.integers(1, 1 << 40)), max_size=9).map(
    lambda steps: [
        (sum(e for e, _ in steps[: n + 1]), sum(s for _, s in steps[: n + 1])) for n in range(len(steps))
    ]
)


def changes(replica: ReplicaFile) -> list[Callable[[], None]]:
    """A node's life, one change at a time."""
    return [
        lambda: replica.promise(1),
        lambda: replica.begin_epoch(1, PhysicalOffset(0)),
        lambda: replica.promise(3),
        lambda: replica.begin_epoch(3, PhysicalOffset(500)),
        lambda: replica.begin_truncation(PhysicalOffset(400), 77),
        replica.end_truncation,
        lambda: replica.promise(7),
        lambda: replica.begin_epoch(7, PhysicalOffset(450)),
        lambda: replica.trim(PhysicalOffset(450)),
    ]


def test_everything_is_there_after_a_power_cut() -> None:
    files = MemoryFileSystem()
    replica = ReplicaFile.open(files)
    for change in changes(replica):
        change()
        assert ReplicaFile.open(files.after_power_cut()).state == replica.state
    assert replica.state == ReplicaState(
        promised_epoch=7, epochs=Epochs.of([(7, 450)]), truncating=None, cut_bytes_dropped=77
    )


def test_a_crash_within_a_change_leaves_the_state_before_or_after_it() -> None:
    source, seen = random.Random(45), 0
    files = MemoryFileSystem()
    replica = ReplicaFile.open(files)
    for change in changes(replica):
        before = replica.state
        passed: list[str] = []
        crashed: list[MemoryFileSystem] = []

        def act(name: str, passed: list[str] = passed, crashed: list[MemoryFileSystem] = crashed) -> None:
            passed.append(name)
            crashed.extend((files.after_power_cut(), files.after_power_cut(lambda: source.random() < 0.5)))

        with armed(act):
            change()
        assert passed == [name for name in POINTS if name.startswith("replica.")]
        for number, tree in enumerate(crashed):
            expected = before if number < 2 else replica.state
            found = ReplicaFile.open(tree)
            assert found.state == expected
            assert _rocketmqs(tree.after_power_cut()) == found.epochs
            seen += 1
    assert seen == 54


def _rocketmqs(files: MemoryFileSystem) -> Epochs:
    path = epoch_checkpoint.PATH
    return epoch_checkpoint.decoded(files.read_bytes(path)) if files.exists(path) else Epochs()


def test_a_promise_does_not_go_back() -> None:
    replica = ReplicaFile.open(MemoryFileSystem())
    replica.promise(4)
    replica.promise(4)
    with pytest.raises(ValueError, match="4 is promised, 3 is lower"):
        replica.promise(3)
    with pytest.raises(ValueError, match="4 is promised"):
        replica.begin_epoch(5, PhysicalOffset(0))
    replica.begin_epoch(4, PhysicalOffset(0))
    with pytest.raises(ValueError, match="follows"):
        replica.begin_epoch(4, PhysicalOffset(9))


def test_an_epoch_without_a_record_is_forgotten_and_its_promise_stays() -> None:
    replica = ReplicaFile.open(MemoryFileSystem())
    replica.promise(4)
    replica.begin_epoch(4, PhysicalOffset(100))
    replica.end_at(PhysicalOffset(100))
    assert (replica.promised_epoch, replica.epochs) == (4, Epochs())


def test_a_damaged_file_is_refused() -> None:
    files = MemoryFileSystem()
    for change in changes(ReplicaFile.open(files)):
        change()
    data = files.read_bytes(PATH)
    for at in range(len(data)):
        files.write_atomic(PATH, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(TroveError) as refused:
            replica_file.load(files)
        assert refused.value.spec in (errors.STORE_FAILED, errors.STORE_NEWER)
    for short in (*(data[:size] for size in range(len(data) - 1)), b'{"format": 1}'):
        files.write_atomic(PATH, short)
        with pytest.raises(TroveError):
            replica_file.load(files)


def test_a_later_format_is_refused() -> None:
    files = MemoryFileSystem()
    files.write_atomic(PATH, b'{"format": 2}')
    with pytest.raises(TroveError) as refused:
        replica_file.load(files)
    assert refused.value.spec is errors.STORE_NEWER


@pytest.mark.parametrize(
    "content",
    [
        b'{"format": 1, "epochs": [[1, 0]]}',
        b'{"format": 1, "promisedEpoch": 1, "epochs": [[2, 0]]}',
        b'{"format": 1, "promisedEpoch": 2, "epochs": [[2, 50]], "truncating": 50}',
        b'{"format": 1, "cutBytesDropped": -1}',
    ],
)
def test_content_that_contradicts_itself_is_refused(content: bytes) -> None:
    files = MemoryFileSystem()
    files.write_atomic(PATH, seal(content))
    with pytest.raises(TroveError) as refused:
        replica_file.load(files)
    assert refused.value.spec is errors.STORE_FAILED


def test_a_store_without_the_file_has_promised_nothing() -> None:
    files = MemoryFileSystem()
    assert replica_file.load(files) is None
    assert ReplicaFile.open(files).state == ReplicaState()
    assert files.list("") == []


# --- RocketMQ's file ------------------------------------------------------------------------------------
def test_rocketmqs_form() -> None:
    assert epoch_checkpoint.encoded(Epochs.of([(1, 0), (3, 4096)])) == ROCKETMQ


def test_the_epochs_that_rocketmq_left_are_taken_over() -> None:
    files = MemoryFileSystem()
    files.write_atomic(epoch_checkpoint.PATH, ROCKETMQ)
    replica = ReplicaFile.open(files)
    assert (replica.promised_epoch, replica.epochs) == (3, Epochs.of([(1, 0), (3, 4096)]))
    assert epoch_checkpoint.decoded(ROCKETMQ.replace(b"1131518206", b"0")) == replica.epochs


@given(PAIRS)
def test_rocketmqs_file_says_the_same(pairs: list[tuple[int, int]]) -> None:
    epochs = Epochs.of(pairs)
    assert epoch_checkpoint.decoded(epoch_checkpoint.encoded(epochs)) == epochs


@pytest.mark.parametrize(
    "data",
    [b"", b"1\n", b"x\n0\n", b"1\n0\n1 0\n", b"2\n0\n1-0\n", b"2\n7\n1-0\n3-4096\n", b"1\n0\n1--2\n"],
)
def test_a_damaged_file_of_rocketmq_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="epochFileCheckpoint"):
        epoch_checkpoint.decoded(data)
    files = MemoryFileSystem()
    files.write_atomic(epoch_checkpoint.PATH, data)
    with pytest.raises(TroveError) as refused:
        replica_file.load(files)
    assert refused.value.spec is errors.STORE_FAILED
