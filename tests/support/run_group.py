"""A follower whose log ends within an atomic run."""

from __future__ import annotations

from tests.support.followers import Leader, commit, copy, follower
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.replica_file import ReplicaFile


class Copied:
    """A follower with `seen` records of the run of four at the leader's end; all before is committed."""

    def __init__(self, seen: int, files: MemoryFileSystem | None = None) -> None:
        self.leader = Leader()
        for number in range(5):
            self.leader.send("orders", number % 2, 1)
        self.begin = self.leader.store.end_offset
        self.leader.transact(4)
        self.ends = [PhysicalOffset(end) for end in (self.begin, *self.leader.record_ends[-4:])]
        self.files = MemoryFileSystem() if files is None else files
        self.replica = ReplicaFile.open(self.files)
        self.replica.promise(1)
        self.replica.begin_epoch(1, LOG_ORIGIN)
        self.store = follower(self.files)
        copy(self.leader.store, self.store, self.ends[seen], cuts=self.ends)
        commit(self.store, self.begin)
        self.store.flush_projections(index=True)
