"""The open store of a node, and its state beside it: the common part of both roles."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from trovemq_broker.daemon.app import open_store
from trovemq_broker.daemon.opening import failures_that_end, wall_ms
from trovemq_broker.daemon.replica.store_place import commit_limit, directory_number, take_place
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.daemon.store_owner import take_store
from trovemq_broker.replica_streams.engine_log import EngineLog
from trovemq_broker.replication.follower import ReplicaState
from trovemq_broker.replication.frames import InSyncSet, Offset
from trovemq_broker.replication.status import NodeStatus, Role
from trovemq_daemon.addresses import Address
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.real import RealFileSystem
from trovemq_store.log.segments import DIRECTORY
from trovemq_store.replica import replica_file
from trovemq_store.replica.conversion import FIRST_EPOCH
from trovemq_store.replica.membership import Members, Membership
from trovemq_store.replica.replica_file import ReplicaFile


class NodeFile(ReplicaFile):
    """Its changes are made by several threads: of the streams, and of the roles. A role that has ended makes
    none: it would replace the promise of the next one."""

    def __init__(self, files: FileSystem, state: replica_file.ReplicaState) -> None:
        super().__init__(files, state)
        self._one_change = threading.Lock()
        self._is_closed = False

    def _change(self, **changes: object) -> None:
        """TroveError SERVICE_NOT_AVAILABLE."""
        with self._one_change:
            if self._is_closed:
                raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the node changes its role: try again")
            super()._change(**changes)

    def close(self) -> None:
        """The last change is on disk when it returns."""
        with self._one_change:
            self._is_closed = True

    @contextmanager
    def changed_by_start(self) -> Iterator[None]:
        """The start of the store, which may end a cut, changes the file meanwhile; no other change does: it
        would bring back the cut, or be lost. TroveError STORE_NEWER, STORE_FAILED; StorageError."""
        with self._one_change:
            yield
            self.reload()


class OpenNode:
    """`store` is replaced when it is opened again, `state` changes with the file."""

    def __init__(
        self,
        settings: BrokerSettings,
        written: Collection[str],
        own: Address,
        files: FileSystem,
        store: MessageStore,
        file: NodeFile,
        directory: int,
    ) -> None:
        self._settings = settings
        self._written = written
        self._own = own
        self.files: Final = files
        self.store = store
        self.file: Final[NodeFile] = file
        self.directory: Final = directory
        """Of the store: see store_place."""
        place = file.state.membership
        commit = store.visible_offset if place is None else min(store.commit_limit, store.end_offset)
        self.state: Final = ReplicaState(
            promised=file.promised_epoch,
            epochs=file.epochs,
            commit=PhysicalOffset(commit),
            in_sync=None if place is None else place.in_sync,
        )
        self.log: Final = EngineLog(store, file, self.state)
        self._changing = threading.Lock()

    @classmethod
    async def open(cls, settings: BrokerSettings, written: Collection[str], own: Address) -> OpenNode:
        """TroveError of open_store, STORE_OTHER_BROKER; StorageError."""
        return await run_in_thread(partial(cls._open, settings, written, own))

    @classmethod
    def _open(cls, settings: BrokerSettings, written: Collection[str], own: Address) -> OpenNode:
        files = RealFileSystem(settings.store_path)
        limit = commit_limit(files)
        store = open_store(settings, settings.store_settings(own), written, limit)
        try:
            with failures_that_end("the state of the node cannot be opened"):
                take_store(store.files, settings)
                file = NodeFile.open(files)
                file.end_at(store.end_offset)
                directory = directory_number(settings.store_path)
                take_place(file, settings, directory, clean=store.recovery.clean)
                return cls(settings, written, own, files, store, file, directory)
        except BaseException:
            store.close(wall_ms())
            raise

    @property
    def place(self) -> Membership:
        """TroveError REPLICA_STATE_ILLEGAL: it has no group yet."""
        place = self.file.state.membership
        if place is None:
            raise TroveError(errors.REPLICA_STATE_ILLEGAL, "the node has no group yet")
        return place

    @property
    def place_if_any(self) -> Membership | None:
        """None: it has no group yet."""
        return self.file.state.membership

    @property
    def is_empty(self) -> bool:
        """Whether the log has no record, and never had one."""
        return self.store.end_offset == 0 and not self.file.epochs

    def status(self) -> NodeStatus:
        """Without the fields of a role."""
        settings, place, state, log = self._settings, self.place_if_any, self.state, self.log
        if place is None:
            return NodeStatus(group=settings.name, node=settings.node_name, ack=settings.ack)
        return NodeStatus(
            group=place.group,
            node=place.node,
            cluster=place.cluster,
            role=Role.FOLLOWER,
            last_epoch=state.epochs.last,
            promised=state.promised,
            begin=log.begin,
            end=log.end,
            flushed=log.flushed,
            commit=state.commit,
            in_sync=place.in_sync if state.in_sync is None else state.in_sync,
            in_sync_min=place.in_sync_min,
            listed=place.listed,
            ack=settings.ack,
            store_id=place.store_id,
            incarnation=place.incarnation,
        )

    def read_ahead(self, offset: Offset, size_max: int) -> None:
        """Brings bytes of one segment into memory, so that read_committed() does not wait for the disk.
        Blocks. Errors are reported there."""
        size = self.store.settings.commit_log_file_size
        begin = offset % size
        with suppress(StorageError):
            file = self.files.open(f"{DIRECTORY}/{offset - begin:020d}")
            try:
                file.read(begin, min(begin + size_max, file.size))
            finally:
                file.close()

    def read_committed(self, offset: Offset, size_max: int) -> tuple[bytes, int]:
        """EngineLog.records_at() of committed records. TroveError REPLICA_OFFSET_MISMATCH, STORE_FAILED."""
        if not self.log.begin <= offset < self.state.commit:
            raise TroveError(errors.REPLICA_OFFSET_MISMATCH, f"{offset} is not committed here")
        return self.log.records_at(offset, min(size_max, self.state.commit - offset))

    # --- changes of the state; they block, in any thread ------------------------------------------------
    def _take_place(self, place: Membership) -> None:
        self.file.take_place(place)
        self.state.in_sync = place.in_sync

    def enter_group(self, place: Membership) -> None:
        """A new node gets its place. All of its log that is on disk is committed. StorageError."""
        self.store.limit_commits(self.store.visible_offset)
        if self.store.tables is not None:
            self.store.tables.follows = True  # it was opened as a store that has no group
        with self._changing:
            self._take_place(place)
        self.state.commit = self.store.visible_offset

    def take_members(self, listed: Members) -> None:
        """A later list of members. StorageError; ValueError."""
        with self._changing:
            self._take_place(self.place.with_members(listed))

    def store_set(self, in_sync: InSyncSet) -> None:
        """StorageError."""
        with self._changing:
            self.file.store_set(in_sync)

    def be_alone(self) -> None:
        """By an operator's consent, the next in-sync set has this copy alone, whatever it lacks.
        StorageError."""
        with self._changing:
            place = self.place
            former = place.in_sync
            epoch, version = (FIRST_EPOCH, 1) if former is None else (former.epoch, former.version + 1)
            alone = InSyncSet(epoch, version, frozenset({place.identity}))
            self._take_place(replace(place, in_sync=alone))

    def promise(self, epoch: int) -> None:
        """StorageError."""
        with self._changing:
            self.file.promise(epoch)
        self.state.promised = self.file.promised_epoch

    def lead(self, epoch: int) -> None:
        """The log's next record is the first one of that epoch, which is this node's. StorageError."""
        self.promise(epoch)
        with self._changing:
            self.file.begin_epoch(epoch, self.store.end_offset)
            self._take_place(replace(self.place, leads=True))
        self.state.epochs = self.file.epochs

    def lead_no_more(self) -> None:
        """StorageError."""
        with self._changing:
            if self.place.leads:
                self._take_place(replace(self.place, leads=False))

    def cut_unfinished_run(self) -> None:
        """Cuts an atomic run at the log's end that lacks its last records, before the first record of a
        leadership of this node; the store is then opened again. TroveError; StorageError."""
        if self.store.cut_unfinished_run(self.file):
            commit = self.state.commit
            self.store.close(wall_ms())
            self.reopen(commit)
            self.log.store = self.store
            self.state.epochs = self.file.epochs

    # --- the store ----------------------------------------------------------------------------------------
    def reopen(self, limit: Offset) -> tuple[MessageStore, ReplicaFile]:
        """Opens the store, which was closed, again; blocks. TroveError of open_store."""
        settings = self._settings
        with self.file.changed_by_start():
            self.store = open_store(settings, settings.store_settings(self._own), self._written, limit)
        return self.store, self.file

    def close(self, *, leaves: bool = False) -> None:
        """Blocks. `leaves`: the store is a single broker's from now on. TroveError DISK_FULL, STORE_FAILED:
        the next start then recovers."""
        try:
            with failures_that_end("the store was not closed cleanly"):
                is_synced = not self.store.failed
                self.store.close(wall_ms())
                if is_synced and (place := self.place_if_any) is not None:
                    self.file.take_place(replace(place, is_synced=True))
                if leaves:
                    self.file.leave_group()
        finally:
            self.file.close()
