"""The open store of a node, and its state beside it: the common part of both roles."""

from __future__ import annotations

from collections.abc import Collection
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
from trovemq_daemon.addresses import Address
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.replica.membership import Membership
from trovemq_store.replica.replica_file import ReplicaFile


class OpenNode:
    """`store` is replaced when it is opened again, `state` changes with the file."""

    def __init__(
        self,
        settings: BrokerSettings,
        written: Collection[str],
        own: Address,
        files: FileSystem,
        store: MessageStore,
        file: ReplicaFile,
        directory: int,
    ) -> None:
        self._settings = settings
        self._written = written
        self._own = own
        self.files: Final = files
        self.store = store
        self.file: Final = file
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
                file = ReplicaFile.open(files)
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

    # --- changes of the state; they block ---------------------------------------------------------------
    def take_place(self, place: Membership) -> None:
        """Stores the node's place. StorageError; ValueError."""
        self.file.take_place(place)
        self.state.in_sync = place.in_sync

    def enter_group(self, place: Membership) -> None:
        """A new node gets its place. All of its log that is on disk is committed."""
        self.store.limit_commits(self.store.visible_offset)
        self.take_place(place)
        self.state.commit = self.store.visible_offset

    def store_set(self, in_sync: InSyncSet) -> None:
        """StorageError."""
        self.file.store_set(in_sync)

    def promise(self, epoch: int) -> None:
        """StorageError."""
        self.file.promise(epoch)
        self.state.promised = self.file.promised_epoch

    def cut_unfinished_run(self) -> None:
        """Before the first record of an own leadership: see MessageStore.cut_unfinished_run. TroveError;
        StorageError."""
        if self.store.cut_unfinished_run(self.file):
            commit = self.state.commit
            self.store.close(wall_ms())
            self.reopen(commit)
            self.log.store = self.store
            self.state.epochs = self.file.epochs

    def lead(self, epoch: int) -> None:
        """The log's next record is the first one of that epoch, which is this node's. StorageError."""
        self.promise(epoch)
        self.file.begin_epoch(epoch, self.store.end_offset)
        self.state.epochs = self.file.epochs
        self.take_place(replace(self.place, leads=True))

    def lead_no_more(self) -> None:
        """StorageError."""
        if self.place.leads:
            self.take_place(replace(self.place, leads=False))

    # --- the store ----------------------------------------------------------------------------------------
    def reopen(self, limit: Offset) -> tuple[MessageStore, ReplicaFile]:
        """Opens the store, which was closed, again; blocks. TroveError of open_store."""
        settings = self._settings
        self.store = open_store(settings, settings.store_settings(self._own), self._written, limit)
        self.file.reload()
        return self.store, self.file

    def close(self) -> None:
        """Blocks. TroveError DISK_FULL, STORE_FAILED: the next start then recovers."""
        with failures_that_end("the store was not closed cleanly"):
            is_synced = not self.store.failed
            self.store.close(wall_ms())
            if is_synced and (place := self.place_if_any) is not None:
                self.file.take_place(replace(place, is_synced=True))
