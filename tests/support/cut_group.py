"""A follower whose log has to be cut before it can follow the next leader."""

from __future__ import annotations

from tests.support.engine import NOW_MS, flush
from tests.support.followers import Leader, bodies, commit, copy, files_of, follower, indexed, saved_commit
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.epochs import Epochs, cut_point
from trovemq_store.replica.replica_file import ReplicaFile


def cut(store: MessageStore, replica: ReplicaFile, cut_at: PhysicalOffset) -> None:
    """Begins the cut, and closes the store; the next start ends it."""
    store.begin_truncation(replica, cut_at)
    store.close(NOW_MS)


class Group:
    """A leader, whose last records (of epoch 2) only one follower has; and the next one, which has others."""

    def __init__(
        self, files: MemoryFileSystem | None = None, *, lost: int = 12, size: int = 100, since: int = 3
    ) -> None:
        self.first = Leader()
        for number in range(6):
            self.first.send("orders", number % 2, 1)
        self.first.transact(4)
        self.agreed = self.first.store.end_offset
        self.files = MemoryFileSystem() if files is None else files
        self.replica = ReplicaFile.open(self.files)
        self.replica.promise(1)
        self.replica.begin_epoch(1, LOG_ORIGIN)
        self.replica.promise(2)
        self.replica.begin_epoch(2, self.agreed)
        self.store = follower(self.files)
        for number in range(lost):
            self.first.send("bills", number % 2, 1, size)
        flush(self.first.store)
        copy(self.first.store, self.store)
        self.committed = PhysicalOffset(self.first.record_ends[4])
        commit(self.store, self.committed)
        self.store.flush_projections(index=True)
        self.second = Leader()
        copy(self.first.store, self.second.store, self.agreed)
        self.second.sent = [sent for sent in self.first.sent if sent.ends[-1] <= self.agreed]
        self.second.count = 100
        for number in range(since):
            self.second.send("orders", number % 2, 2, 150)
        flush(self.second.store)
        self.epochs = Epochs.of([(1, 0), (3, self.agreed)])

    def cut_at(self) -> PhysicalOffset | None:
        end, leaders_end = self.store.end_offset, self.second.store.end_offset
        return cut_point(self.replica.epochs, end, self.epochs, leaders_end, self.committed)

    def cut(self) -> None:
        cut_at = self.cut_at()
        assert cut_at is not None
        cut(self.store, self.replica, cut_at)

    def reopened(self, files: MemoryFileSystem | None = None) -> MessageStore:
        files = self.files if files is None else files
        return follower(files, saved_commit(files))

    def check_follows(self, store: MessageStore, files: MemoryFileSystem) -> None:
        """With the second leader's records, the store is as if it had never had others."""
        assert store.end_offset == self.agreed
        assert bodies(store) == self.first.visible_below(self.committed)
        copy(self.second.store, store)
        commit(store, self.second.store.end_offset)
        for directory in ("commitlog", "consumequeue"):
            assert files_of(files, directory) == files_of(self.second.files, directory)
        assert indexed(store, self.second) == indexed(self.second.store, self.second)
